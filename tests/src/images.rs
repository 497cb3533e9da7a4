//! Paths of images and of the `isola` command. `ISOLA_IMAGES` (a folder) and `ISOLA_COMMAND` (a program) name prebuilt
//! ones; without these variables, each is built at first use.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};

/// Returns the file of the image with this binary name. Its package has the same name, after `isola-`.
///
/// # Panics
/// If the file does not exist and the build fails.
pub fn path(name: &str) -> PathBuf {
    match folder() {
        Some(folder) => existing(folder.join(name)),
        // With LTO over all crates, as in all images: without it some do not link, because the linker keeps unused
        // code.
        None => build(
            name,
            &format!("isola-{name}"),
            &["--features=image", "--bins", "--config=profile.release.lto='fat'"],
        ),
    }
}

/// Returns the folder of prebuilt images, if `ISOLA_IMAGES` names one.
fn folder() -> Option<PathBuf> {
    std::env::var_os("ISOLA_IMAGES").map(PathBuf::from)
}

/// Returns a folder in which the command finds the images that a user can start.
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

/// Returns the `isola` command.
///
/// # Panics
/// If it does not exist and the build fails.
pub fn command() -> PathBuf {
    match std::env::var_os("ISOLA_COMMAND") {
        Some(path) => existing(path.into()),
        None => build("isola", "isola-host", &["--bin=isola"]),
    }
}

fn existing(path: PathBuf) -> PathBuf {
    assert!(path.is_file(), "{} does not exist: `cargo xtask test machine` builds it", path.display());
    path
}

/// Builds the applications as Linux processes, once, in the folder in which the command looks for them.
fn build_hosted() {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        let mut command = Command::new(env!("CARGO"));
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).args([
            "hosted",
            "--quiet",
            // Most of the time of the build, for speed that no test measures. As in xtask/src/images.rs.
            "--config=profile.hosted.lto=false",
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
