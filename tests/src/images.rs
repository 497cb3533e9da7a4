//! Where images are. Those that somebody has built are in the folder that `ISOLA_IMAGES` names; without it,
//! an image is built when a test first asks for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// The file of an image, by the name of its binary. Its package is called the same, after `isola-`.
///
/// # Panics
/// Where there is none, and none can be built.
pub fn path(name: &str) -> PathBuf {
    if let Some(folder) = std::env::var_os("ISOLA_IMAGES") {
        let path = Path::new(&folder).join(name);
        assert!(path.is_file(), "{} is not there: build it with `cargo xtask images`", path.display());
        return path;
    }
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().expect("no build has panicked");
    built.entry(name.to_owned()).or_insert_with(|| build(name)).clone()
}

fn build(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let status = Command::new(env!("CARGO"))
        .current_dir(&root)
        .args(["build", "--quiet", "--release", "--features=image", "--bins", "--package"])
        .arg(format!("isola-{name}"))
        .env_remove("RUSTFLAGS")
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the image {name} does not build");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    target.join("release").join(name)
}
