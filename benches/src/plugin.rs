//! Plugins of QEMU's emulator (`benches/plugin`), compiled on demand for the interface version of the present QEMU.

use crate::error::BenchError;
use crate::program;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Versions of QEMU's plugin interface, including future ones.
const INTERFACE_VERSIONS: std::ops::RangeInclusive<u32> = 1..=12;

/// Compiles the plugin `name` into `folder`, for `qemu`; returns its path. `option` is its only option, the path of a
/// file.
///
/// # Errors
/// [`BenchError::NoPlugins`]; [`BenchError::Program`] with the compiler's message.
pub fn compile(qemu: &Path, folder: &Path, name: &str, option: &str) -> Result<PathBuf, BenchError> {
    program::need(&[("cc", "gcc libc6-dev")])?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("plugin/{name}.c"));
    let path = folder.join(format!("{name}.so"));
    let mut output = String::new();
    for version in INTERFACE_VERSIONS {
        let mut compile = Command::new("cc");
        compile.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC"]);
        compile.arg(format!("-DINTERFACE_VERSION={version}")).arg("-o").arg(&path).arg(&source);
        program::run_in(&mut compile)?;
        match loads(qemu, &format!("{},{option}={}", path.display(), folder.join("probe").display())) {
            Ok(()) => return Ok(path),
            // QEMU's message about the first version is the most useful.
            Err(why) if output.is_empty() => output = why,
            Err(_) => {}
        }
    }
    Err(BenchError::NoPlugins(output))
}

/// Checks that QEMU loads the plugin; the error is QEMU's message.
fn loads(qemu: &Path, plugin: &str) -> Result<(), String> {
    let mut command = Command::new(qemu);
    command.args(["-M", "none", "-nodefaults", "-display", "none", "-accel", "tcg", "-monitor", "stdio"]);
    command.args(["-plugin", plugin]);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    if let Some(mut monitor) = child.stdin.take() {
        // If QEMU has ended already, its output has the reason.
        let _ = monitor.write_all(b"quit\n");
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
