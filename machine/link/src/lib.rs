//! Linking of images. The build script of each image package calls [`emit`]; an ordinary `cargo build --release`
//! then produces an image that boots.
//!
//! The layout is in `link.ld`. Not here: the code that the layout names, which is in `isola-machine`.

use std::path::Path;

/// Makes Cargo link the binaries of the calling package as images, or as ordinary programs if the package is built with
/// its feature `hosted`.
pub fn emit() {
    if std::env::var_os("CARGO_FEATURE_HOSTED").is_some() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("link.ld");
    println!("cargo::rerun-if-changed={}", script.display());
    for argument in [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,--gc-sections,--build-id=none,-zmax-page-size=0x1000,-znoexecstack",
    ] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
    println!("cargo::rustc-link-arg-bins=-Wl,-T{}", script.display());
}
