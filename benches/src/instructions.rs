//! Counts the instructions of a machine, with a plugin of QEMU's emulator (`benches/plugin`).

use crate::error::BenchError;
use crate::plugin;
use std::fs;
use std::path::{Path, PathBuf};

/// The bytes of a processor in the file of counts: a cache line.
const LINE_BYTES: usize = 64;

/// The compiled plugin.
#[derive(Clone, Debug)]
pub struct Plugin {
    path: PathBuf,
}

/// The file with a machine's counts.
#[derive(Clone, Debug)]
pub struct Counts {
    path: PathBuf,
}

impl Plugin {
    /// Compiles the plugin into `folder`, for `qemu`.
    ///
    /// # Errors
    /// [`BenchError::NoPlugins`]; [`BenchError::Program`] with the compiler's message.
    pub fn build(qemu: &Path, folder: &Path) -> Result<Self, BenchError> {
        Ok(Self { path: plugin::compile(qemu, folder, "instructions", "counters")? })
    }

    /// Returns QEMU's plugin option for counts in a file in `folder`, and that file.
    pub fn option(&self, folder: &Path) -> (String, Counts) {
        let path = folder.join("counts");
        (format!("{},counters={}", self.path.display(), path.display()), Counts { path })
    }
}

impl Counts {
    /// Returns the instructions that all processors have executed so far; 0 before the first.
    pub fn read(&self) -> u64 {
        self.by_processor().iter().sum()
    }

    /// Returns the instructions that each possible processor has executed so far; 0 for absent ones.
    pub fn by_processor(&self) -> Vec<u64> {
        fs::read(&self.path).map(|bytes| counts(&bytes)).unwrap_or_default()
    }
}

/// Returns the counts in a file.
fn counts(bytes: &[u8]) -> Vec<u64> {
    let first_words = bytes.chunks(LINE_BYTES).filter_map(|line| line.first_chunk::<8>());
    first_words.map(|word| u64::from_ne_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_of_each_line_is_the_count() {
        let mut file = vec![0xff; 3 * LINE_BYTES];
        for (processor, count) in [5_u64, 0, 70_000_000_000].into_iter().enumerate() {
            file[processor * LINE_BYTES..][..8].copy_from_slice(&count.to_ne_bytes());
        }
        assert_eq!(counts(&file), [5, 0, 70_000_000_000]);
        assert_eq!(counts(&[]), [0; 0]);
        assert_eq!(counts(&[1, 2, 3]), [0; 0]);
    }

    #[test]
    fn the_plugin_has_the_same_layout() {
        let source = include_str!("../plugin/instructions.c");
        assert!(source.contains("uint64_t executed;\n    uint8_t rest[56];"));
        assert_eq!(8 + 56, LINE_BYTES);
    }
}
