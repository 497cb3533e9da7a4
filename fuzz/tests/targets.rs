//! Runs all fuzz targets on the corpus and on random bytes.

use isola_fuzz::TARGETS;
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

/// The maximum size of a target's corpus in the tree, in bytes.
const MAX_CORPUS_BYTES: u64 = 64 << 10;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Splits a corpus file into inputs; each follows its length, four bytes, little-endian.
fn inputs(file: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut inputs) = (file, Vec::new());
    while let Some((len, behind)) = rest.split_first_chunk::<4>() {
        let len = u32::from_le_bytes(*len) as usize;
        assert!(len <= behind.len(), "the corpus is damaged: `cargo xtask fuzz --keep` writes a new one");
        let (input, behind) = behind.split_at(len);
        inputs.push(input);
        rest = behind;
    }
    assert!(rest.is_empty());
    inputs
}

#[test]
fn targets_are_sorted_and_their_names_differ() {
    assert!(TARGETS.is_sorted_by(|a, b| a.name < b.name));
}

#[test]
fn corpus_inputs_violate_no_guarantee() {
    for target in TARGETS {
        let path = corpus().join(target.name);
        let Ok(file) = fs::read(&path) else { continue };
        assert!(file.len() as u64 <= MAX_CORPUS_BYTES, "{} is too large", path.display());
        for input in inputs(&file) {
            (target.run)(input);
        }
    }
}

#[test]
fn each_corpus_belongs_to_a_target() {
    for entry in fs::read_dir(corpus()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(TARGETS.iter().any(|target| target.name == name), "no target is called {name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    #[test]
    fn random_bytes_violate_no_guarantee(
        target in 0..TARGETS.len(),
        data in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        (TARGETS[target].run)(&data);
    }
}
