//! Counting the instructions of a machine, with a plugin of QEMU's emulator (`benches/plugin`).
//!
//! The plugin is compiled when it is needed, for the interface version of the QEMU at hand.

use crate::error::BenchError;
use crate::program;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Versions of the plugin interface that QEMU has had, and room for those to come.
const INTERFACE_VERSIONS: std::ops::RangeInclusive<u32> = 1..=12;

/// Bytes of a processor in the file of counts.
const LINE_BYTES: usize = 64;

/// The plugin, compiled.
#[derive(Clone, Debug)]
pub struct Plugin {
    path: PathBuf,
}

/// The counts of a machine.
#[derive(Clone, Debug)]
pub struct Counts {
    path: PathBuf,
}

impl Plugin {
    /// Compiles it into `folder`, for `qemu`.
    ///
    /// # Errors
    /// [`BenchError::NoPlugins`], or what the compiler says.
    pub fn build(qemu: &Path, folder: &Path) -> Result<Self, BenchError> {
        program::need(&[("cc", "gcc libc6-dev")])?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("plugin/instructions.c");
        let path = folder.join("instructions.so");
        let mut said = String::new();
        for version in INTERFACE_VERSIONS {
            let mut compile = Command::new("cc");
            compile.args(["-std=gnu11", "-Wall", "-Wextra", "-O2", "-shared", "-fPIC"]);
            compile.arg(format!("-DINTERFACE_VERSION={version}")).arg("-o").arg(&path).arg(&source);
            program::run_in(&mut compile)?;
            match loads(qemu, &path, &folder.join("probe")) {
                Ok(()) => return Ok(Self { path }),
                // What the first version is refused with says most.
                Err(why) if said.is_empty() => said = why,
                Err(_) => {}
            }
        }
        Err(BenchError::NoPlugins(said))
    }

    /// QEMU's option that counts into a file in `folder`, and the counts.
    pub fn option(&self, folder: &Path) -> (String, Counts) {
        let path = folder.join("counts");
        (format!("{},counters={}", self.path.display(), path.display()), Counts { path })
    }
}

/// Whether QEMU takes the plugin; why not, where it does not.
fn loads(qemu: &Path, plugin: &Path, counts: &Path) -> Result<(), String> {
    let mut command = Command::new(qemu);
    command.args(["-M", "none", "-nodefaults", "-display", "none", "-accel", "tcg", "-monitor", "stdio"]);
    command.arg("-plugin").arg(format!("{},counters={}", plugin.display(), counts.display()));
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| error.to_string())?;
    if let Some(mut monitor) = child.stdin.take() {
        // A QEMU that has ended already says why below.
        let _ = monitor.write_all(b"quit\n");
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

impl Counts {
    /// Instructions that all processors have executed so far; 0 before the first.
    pub fn read(&self) -> u64 {
        self.by_processor().iter().sum()
    }

    /// Instructions that each processor has executed so far; those that there are not have executed none.
    pub fn by_processor(&self) -> Vec<u64> {
        fs::read(&self.path).map(|bytes| counts(&bytes)).unwrap_or_default()
    }
}

/// The counts in a file.
fn counts(bytes: &[u8]) -> Vec<u64> {
    let first_words = bytes.chunks(LINE_BYTES).filter_map(|line| line.first_chunk::<8>());
    first_words.map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_each_line_counts() {
        let mut file = vec![0xff; 3 * LINE_BYTES];
        for (processor, count) in [5_u64, 0, 70_000_000_000].into_iter().enumerate() {
            file[processor * LINE_BYTES..][..8].copy_from_slice(&count.to_ne_bytes());
        }
        assert_eq!(counts(&file), [5, 0, 70_000_000_000]);
        assert_eq!(counts(&[]), [0; 0]);
        assert_eq!(counts(&[1, 2, 3]), [0; 0]);
    }

    #[test]
    fn the_plugin_agrees_about_the_layout() {
        let source = include_str!("../plugin/instructions.c");
        assert!(source.contains("uint64_t executed;\n    uint8_t rest[56];"));
        assert_eq!(8 + 56, LINE_BYTES);
    }
}
