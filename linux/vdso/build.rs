//! Builds the shared object from `image/`, with this build's Rust compiler and the linker that every Rust build needs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources.
const FOLDER: &str = "image";

fn main() {
    for file in ["image.rs", "image.ld", "versions.map", "page.rs"] {
        println!("cargo::rerun-if-changed={FOLDER}/{file}");
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let object = out.join("image.o");
    // A library's object file: the functions that other objects of the standard library would provide are not linked, so
    // that a panic in the image is an error of the build.
    run(Command::new(variable("RUSTC"))
        .arg(Path::new(FOLDER).join("image.rs"))
        .args(["--crate-name=vdso", "--crate-type=lib", "--edition=2024", "--emit=obj"])
        .args(["-Copt-level=3", "-Cpanic=abort", "-Ccodegen-units=1", "-Crelocation-model=pic"])
        .args(["-Cdebuginfo=0", "-Coverflow-checks=no", "-Cembed-bitcode=no"])
        .arg(format!("--target={}", variable("TARGET")))
        .arg("-o")
        .arg(&object));
    run(Command::new("cc")
        .args(["-nostdlib", "-shared", "-Wl,-soname,linux-vdso.so.1", "-Wl,--hash-style=both"])
        .args(["-Wl,--build-id=none", "-Wl,--no-undefined", "-Wl,-Bsymbolic", "-Wl,-z,noexecstack"])
        .args(["-Wl,--eh-frame-hdr", "-Wl,-z,max-page-size=4096", "-Wl,--strip-all"])
        .arg(format!("-Wl,-T,{FOLDER}/image.ld"))
        .arg(format!("-Wl,--version-script,{FOLDER}/versions.map"))
        .arg(&object)
        .arg("-o")
        .arg(out.join("vdso.so")));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn run(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(status.success(), "{command:?}: {status}");
}
