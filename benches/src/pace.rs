//! Giving each processor of a machine a pace, with a plugin of QEMU's emulator (`benches/plugin`): so many instructions a second
//! and no more, whatever the others do. A host of few processors can so run a machine of more, each with a time of its own,
//! which is as long as it takes a processor of that pace.

use crate::error::BenchError;
use crate::machine::Machine;
use crate::record::Record;
use crate::{plugin, program};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The clock is looked at once in this time, in ns.
const PIECE_NS: u64 = 50_000;

/// The file of a machine, in its folder.
const FILE: &str = "pace";

/// Bytes of the pace in the file, and of each processor behind it.
const LINE_BYTES: usize = 64;

/// The plugin, compiled.
#[derive(Clone, Debug)]
pub struct Pacer {
    path: PathBuf,
}

impl Pacer {
    /// Compiles it into `folder`, for `qemu`.
    ///
    /// # Errors
    /// [`BenchError::NoPlugins`], or what the compiler says.
    pub fn build(qemu: &Path, folder: &Path) -> Result<Self, BenchError> {
        Ok(Self { path: plugin::compile(qemu, folder, "pace", "pace")? })
    }

    /// QEMU's arguments: the machine boots as fast as the emulator goes, and keeps a pace once it is set.
    pub fn arguments(&self) -> [OsString; 2] {
        ["-plugin".into(), format!("{},pace={FILE}", self.path.display()).into()]
    }
}

/// Has each processor of `machine` execute so many instructions a second from now on.
///
/// # Errors
/// [`BenchError::File`].
pub fn set(machine: &Machine, instructions_per_s: u64) -> Result<(), BenchError> {
    let path = machine.folder().join(FILE);
    let mut words = [0; 16];
    words[..8].copy_from_slice(&(instructions_per_s * PIECE_NS / 1_000_000_000).to_ne_bytes());
    words[8..].copy_from_slice(&PIECE_NS.to_ne_bytes());
    // The time first: there is a pace once the instructions are not 0.
    let write =
        |file: File| file.write_all_at(&words[8..], 8).and_then(|()| file.write_all_at(&words[..8], 0));
    File::options().write(true).open(&path).and_then(write).map_err(BenchError::file(&path))
}

/// Lets this process's first thread and all of `machine` run as soon as they have something to do, whatever else the host does,
/// and others as before when it is dropped. Where the user may not do that, the host is to be a quiet one.
#[derive(Debug)]
pub struct First;

impl First {
    /// From now on.
    pub fn take(machine: &Machine) -> Self {
        let this = std::process::id().to_string();
        // A processor that sleeps for most of a piece runs briefly then: among such threads none waits for long.
        let _ = program::run("chrt", &["--rr", "--pid", "1", &this]);
        let _ = program::run("chrt", &["--all-tasks", "--rr", "--pid", "1", &machine.process().to_string()]);
        Self
    }
}

impl Drop for First {
    fn drop(&mut self) {
        let _ = program::run("chrt", &["--other", "--pid", "0", &std::process::id().to_string()]);
    }
}

/// What all processors of `machine` have lost so far, in seconds: the host was too busy for their pace.
///
/// # Errors
/// [`BenchError::File`].
pub fn lost_s(machine: &Machine) -> Result<f64, BenchError> {
    let path = machine.folder().join(FILE);
    let bytes = fs::read(&path).map_err(BenchError::file(&path))?;
    Ok(lost_ns(&bytes) as f64 / 1e9)
}

/// Processors of figures that are published may have lost so much in a run, in seconds.
const MOST_LOST_S: f64 = 0.2;

/// Fails where processors lost too much while the figures of `record` were taken.
///
/// # Errors
/// [`BenchError::PaceLost`].
pub fn demand_kept(record: &Record) -> Result<(), BenchError> {
    let lost = record.figures.iter().filter(|(name, _)| name.ends_with("-lost"));
    let lost_s =
        lost.flat_map(|(_, series)| series.isola.iter().chain(&series.peer)).copied().fold(0.0, f64::max);
    if lost_s <= MOST_LOST_S { Ok(()) } else { Err(BenchError::PaceLost { lost_s, limit_s: MOST_LOST_S }) }
}

/// The first words of all lines but that of the pace.
fn lost_ns(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(LINE_BYTES).skip(1).filter_map(|line| line.first_chunk::<8>());
    words.map(|word| u64::from_ne_bytes(*word)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_processors_lost_stands_behind_the_pace() {
        let mut file = vec![0; 3 * LINE_BYTES];
        for (line, word) in [1_250_u64, 5, 70].into_iter().enumerate() {
            file[line * LINE_BYTES..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(lost_ns(&file), 75);
        assert_eq!(lost_ns(&[]), 0);
    }

    #[test]
    fn figures_of_processors_that_lost_their_pace_are_not_published() {
        let record = |lost_s: &[f64]| crate::record::tests::record("colocation-lost", &[0.0], lost_s);
        assert!(demand_kept(&record(&[0.0, MOST_LOST_S])).is_ok());
        let error = demand_kept(&record(&[0.0, 1.5])).unwrap_err().to_string();
        assert!(error.contains("1.5 s"), "{error}");
    }

    #[test]
    fn the_plugin_agrees_about_the_layout() {
        let source = include_str!("../plugin/pace.c");
        assert!(source.contains("volatile uint64_t instructions;"));
        assert!(source.contains("volatile uint64_t time_ns;\n    uint8_t rest[48];"));
        assert!(source.contains("volatile uint64_t lost_ns;"));
        assert_eq!(8 + 8 + 48, LINE_BYTES);
    }
}
