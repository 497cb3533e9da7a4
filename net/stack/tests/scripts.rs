//! Runs every script in `scripts/` as a test, over both versions of IP, and on devices with and without checksum
//! offload. A test has the name of its file: `cargo test -p isola-net-stack --test scripts rfc9293` runs those of one
//! RFC. The format is described in `isola_net_sim::script`.

use isola_net_sim::Script;
use isola_net_stack::TxChecksum;
use libtest_mimic::{Arguments, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut files = Vec::new();
    scripts_in(&folder, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no scripts in {}", folder.display());
    let trials = files.iter().map(|path| {
        let name = path.strip_prefix(&folder).unwrap_or(path).with_extension("").display().to_string();
        trial(name, path)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn scripts_in(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the scripts' folder exists") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            scripts_in(&path, files);
        } else if path.extension().is_some_and(|end| end == "script") {
            files.push(path);
        }
    }
}

/// Returns the test of a script: over each supported version of IP, with each kind of device.
fn trial(name: String, path: &Path) -> Trial {
    let path = path.to_owned();
    Trial::test(name, move || {
        let text = fs::read_to_string(&path).map_err(|why| format!("{}: {why}", path.display()))?;
        let script = Script::parse(&path.display().to_string(), &text)?;
        for &family in script.families() {
            for checksum in [TxChecksum::Software, TxChecksum::Device] {
                let played = script.play(family, checksum);
                played.map_err(|why| format!("over {family:?}, checksum by {checksum:?}: {why}"))?;
            }
        }
        Ok(())
    })
}
