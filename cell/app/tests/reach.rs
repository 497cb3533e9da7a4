//! Checks that applications cannot reach the machine. Each file of `tests/reach/` is an application that depends on
//! `isola` alone. The compiler must reject the lines that end in `//~ CODE` with that error code or lint, and no other
//! line.
//!
//! A line that compiles, or that is rejected for another reason, such as a misspelt name, fails the test.

use cargo_metadata::Message;
use cargo_metadata::diagnostic::DiagnosticLevel;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A file, a line number and the code of the error: empty if the compiler gives none.
type Rejected = (String, usize, String);

const CASES: [&str; 4] = ["allowed", "crates", "names", "unsafe_code"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reach")
}

/// Writes the manifest of a package that has each of [`CASES`] as a binary, and returns its path.
fn package() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join("reach");
    std::fs::create_dir_all(&root).unwrap();
    let mut manifest = format!(
        "[package]\nname = \"reach\"\nedition = \"2024\"\n[workspace]\n[dependencies]\nisola = {{ path = {:?} }}\n",
        env!("CARGO_MANIFEST_DIR"),
    );
    for case in CASES {
        let path = folder().join(case).with_extension("rs");
        writeln!(manifest, "[[bin]]\nname = \"{case}\"\npath = {path:?}").unwrap();
    }
    std::fs::write(root.join("Cargo.toml"), manifest).unwrap();
    // The workspace's versions of the dependencies.
    let lock = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../Cargo.lock");
    std::fs::copy(lock, root.join("Cargo.lock")).unwrap();
    root.join("Cargo.toml")
}

/// Returns the lines that the compiler rejects.
fn rejected() -> BTreeSet<Rejected> {
    let mut cargo = Command::new(env!("CARGO"))
        .args(["check", "--bins", "--keep-going", "--offline", "--message-format=json", "--manifest-path"])
        .arg(package())
        .arg("--target-dir")
        .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("reach/target"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let messages = Message::parse_stream(BufReader::new(cargo.stdout.take().unwrap()));
    let mut rejected = BTreeSet::new();
    let mut compiled = BTreeSet::new();
    for message in messages {
        let diagnostic = match message.unwrap() {
            Message::CompilerMessage(message) => message.message,
            Message::CompilerArtifact(artifact) => {
                compiled.insert(artifact.target.name);
                continue;
            }
            _ => continue,
        };
        // Summary errors have no location in a file.
        if diagnostic.level == DiagnosticLevel::Error && !diagnostic.spans.is_empty() {
            let span = diagnostic.spans.iter().find(|span| span.is_primary).unwrap();
            let file = Path::new(&span.file_name).file_name().unwrap().to_string_lossy().into_owned();
            rejected.insert((file, span.line_start, diagnostic.code.map_or(String::new(), |code| code.code)));
        }
    }
    cargo.wait().unwrap();
    assert!(compiled.contains("isola"), "cargo did not compile the library OS");
    assert!(compiled.contains("allowed"), "an application that obeys the rules does not compile");
    rejected
}

/// Returns the lines of [`CASES`] that the compiler has to reject.
fn expected() -> BTreeSet<Rejected> {
    let mut expected = BTreeSet::new();
    for case in CASES {
        let file = format!("{case}.rs");
        let text = std::fs::read_to_string(folder().join(&file)).unwrap();
        for (line, text) in (1..).zip(text.lines()) {
            if let Some((_, codes)) = text.split_once("//~") {
                expected.extend(codes.split_whitespace().map(|code| (file.clone(), line, code.to_owned())));
            }
        }
    }
    expected
}

#[test]
fn applications_cannot_name_or_call_privileged_items() {
    let (expected, rejected) = (expected(), rejected());
    let open: Vec<_> = expected.difference(&rejected).collect();
    let other: Vec<_> = rejected.difference(&expected).collect();
    assert!(
        open.is_empty() && other.is_empty(),
        "lines that compile, or fail for another reason: {open:#?}\nerrors that no line expects: {other:#?}"
    );
}
