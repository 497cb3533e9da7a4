//! Runs the fuzz target that the environment variable `ISOLA_FUZZ_TARGET` names, under libFuzzer.
#![no_main]

use isola_fuzz::{TARGETS, Target};
use std::sync::LazyLock;

static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("ISOLA_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|target| target.name == name);
    target.unwrap_or_else(|| panic!("no target is called {name:?}: `cargo xtask fuzz --list` names them"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));
