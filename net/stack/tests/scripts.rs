//! Plays every script in `scripts/`, each as a test of its own over each family of IP, and on devices that sum in the
//! stack's place and do not, named as its file: `cargo test -p isola-net-stack --test scripts rfc9293` plays those of one
//! RFC. How they are written: `isola_net_sim::script`.

use isola_net_sim::{Family, Script};
use isola_net_stack::TxChecksum;
use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts");
    let mut files = Vec::new();
    scripts_in(&folder, &mut files);
    files.sort();
    assert!(!files.is_empty(), "no scripts in {}", folder.display());
    let trials = files.iter().flat_map(|path| {
        let name = path.strip_prefix(&folder).unwrap_or(path).with_extension("").display().to_string();
        trials(name, path)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn scripts_in(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder of the scripts") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            scripts_in(&path, files);
        } else if path.extension().is_some_and(|end| end == "script") {
            files.push(path);
        }
    }
}

/// The tests of a script: two for each family over which it holds, or one that says why it cannot be read.
fn trials(name: String, path: &Path) -> Vec<Trial> {
    let script = fs::read_to_string(path)
        .map_err(|why| format!("{}: {why}", path.display()))
        .and_then(|text| Script::parse(&path.display().to_string(), &text));
    match script {
        Err(why) => vec![Trial::test(name, || Err(Failed::from(why)))],
        Ok(script) => {
            let script = Arc::new(script);
            let trial = |family: Family, who_sums: TxChecksum| {
                let script = Arc::clone(&script);
                let over = if family == Family::V6 { " over IPv6" } else { "" };
                let by = if who_sums == TxChecksum::Device { " summed by the device" } else { "" };
                let name = format!("{name}{over}{by}");
                Trial::test(name, move || script.play(family, who_sums).map_err(Failed::from))
            };
            let kinds = [TxChecksum::Software, TxChecksum::Device];
            let families = script.families().iter();
            families.flat_map(|&family| kinds.map(|who_sums| trial(family, who_sums))).collect()
        }
    }
}
