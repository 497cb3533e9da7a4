//! The documentation builds, and every link in it resolves. Private items are included: modules of a crate link to each
//! other, and readers have the source.
//!
//! Each crate's pages go to a folder of their own. In a common folder, rustdoc locks the folder and writes the search
//! index of all crates anew for each, which takes more than half of the time.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, io};

use super::{Check, Findings};
use crate::cargo::{cargo, errors, output};
use crate::error::Error;
use crate::workspace::Workspace;

pub const CHECK: Check = Check {
    name: "docs",
    about: "the documentation of every library builds without a warning",
    remedy: "fix the link or the markup that rustdoc names; cargo doc --workspace --no-deps --document-private-items shows all",
    run,
};

/// A link to a private item resolves, because private items are documented.
const FLAGS: &str = "-D warnings -A rustdoc::private_intra_doc_links";
/// The variable with the rustdoc that xtask runs if cargo starts xtask as rustdoc.
const RUSTDOC_BEHIND: &str = "ISOLA_RUSTDOC_BEHIND";

fn run(workspace: &Workspace) -> Result<Findings, Error> {
    let own = env::current_exe().map_err(|source| Error::Start { program: "xtask".into(), source })?;
    let mut command = cargo(workspace);
    command.args([
        "doc",
        "--quiet",
        "--message-format=short",
        "--keep-going",
        "--workspace",
        "--lib",
        "--no-deps",
    ]);
    command.env("RUSTDOCFLAGS", FLAGS);
    command.env(RUSTDOC_BEHIND, env::var_os("RUSTDOC").unwrap_or_else(|| "rustdoc".into()));
    command.env("RUSTDOC", own);
    Ok(Findings::of(errors(&output(&mut command)?)))
}

/// Becomes rustdoc with an output folder for its crate alone, if cargo started this process as rustdoc. Otherwise it returns
/// `None`.
pub fn as_rustdoc() -> Option<ExitCode> {
    let rustdoc = env::var_os(RUSTDOC_BEHIND)?;
    let arguments = apart(env::args_os().skip(1).collect());
    let error: io::Error = Command::new(&rustdoc).args(arguments).exec();
    eprintln!("cannot start {}: {error}", rustdoc.display());
    Some(ExitCode::FAILURE)
}

/// Returns rustdoc's arguments with the crate's name at the end of the output folder.
fn apart(mut arguments: Vec<OsString>) -> Vec<OsString> {
    let after = |arguments: &[OsString], word: &str| {
        arguments.iter().position(|argument| argument == word).map(|at| at + 1)
    };
    let name = after(&arguments, "--crate-name").and_then(|at| arguments.get(at).cloned());
    let folder = after(&arguments, "-o").and_then(|at| arguments.get_mut(at));
    if let (Some(name), Some(folder)) = (name, folder) {
        *folder = Path::new(&*folder).join("apart").join(name).into_os_string();
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn each_crate_has_an_output_folder_of_its_own() {
        let line = "--edition=2024 --crate-name isola_abi abi/src/lib.rs -o target/doc -D warnings";
        let expected = line.replace("target/doc", "target/doc/apart/isola_abi");
        assert_eq!(apart(words(line)), words(&expected));
    }

    #[test]
    fn questions_to_rustdoc_stay_as_they_are() {
        assert_eq!(apart(words("-vV")), words("-vV"));
    }
}
