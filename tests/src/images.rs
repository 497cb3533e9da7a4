//! Where images and the `isola` command are. Those that somebody has built are where `ISOLA_IMAGES` (a folder)
//! and `ISOLA_COMMAND` (a program) say; without these, each is built when a test first asks for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// The file of an image, by the name of its binary. Its package is called the same, after `isola-`.
///
/// # Panics
/// Where there is none, and none can be built.
pub fn path(name: &str) -> PathBuf {
    match folder() {
        Some(folder) => existing(folder.join(name)),
        // Optimised as a whole, as all images: some do not link otherwise, for the linker finds code that they do not use.
        None => build(
            name,
            &format!("isola-{name}"),
            &["--features=image", "--bins", "--config=profile.release.lto='fat'"],
        ),
    }
}

/// The folder with all images, where somebody has built them.
fn folder() -> Option<PathBuf> {
    std::env::var_os("ISOLA_IMAGES").map(PathBuf::from)
}

/// A folder in which the command finds the images that a user can start.
///
/// # Panics
/// As [`path`].
pub fn for_users() -> PathBuf {
    folder().unwrap_or_else(|| {
        let paths = ["echo", "faulty", "files", "kv", "netpipe", "primes", "supervisor", "web"].map(path);
        build_hosted();
        paths[0].parent().expect("a file is in a folder").to_owned()
    })
}

/// The `isola` command.
///
/// # Panics
/// Where there is none, and none can be built.
pub fn command() -> PathBuf {
    match std::env::var_os("ISOLA_COMMAND") {
        Some(path) => existing(path.into()),
        None => build("isola", "isola-host", &["--bin=isola"]),
    }
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.is_file(), "{} is not there: `cargo xtask test machine` builds it", path.display());
    path
}

/// Builds the applications as processes, where the command looks for them, once.
fn build_hosted() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).args([
            "hosted",
            "--quiet",
            "--package=isola-conformance-image",
        ]);
        let status = command.env_remove("RUSTFLAGS").status().expect("cargo starts");
        assert!(status.success(), "the applications do not build as processes");
    });
}

/// Builds the binary of a package, once.
fn build(binary: &str, package: &str, arguments: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("no build has panicked");
    if let Some(path) = built.get(binary) {
        return path.clone();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(env!("CARGO"))
        .current_dir(&root)
        .args(["build", "--quiet", "--release", "--package", package])
        .args(arguments)
        .env_remove("RUSTFLAGS")
        .status()
        .expect("cargo starts");
    assert!(status.success(), "{binary} does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("release").join(binary);
    built.insert(binary.to_owned(), path.clone());
    path
}
