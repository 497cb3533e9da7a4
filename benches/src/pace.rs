//! Limits the instruction rate of each processor of a machine, with a plugin of QEMU's emulator (`benches/plugin`). A
//! host of few processors can then run a machine with more, whose processors each run at this rate, independent of the
//! others. Times on such a machine are those of processors of this speed.

use crate::error::BenchError;
use crate::machine::Machine;
use crate::record::Record;
use crate::{plugin, program};
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The interval in which the plugin enforces the rate, in ns.
const INTERVAL_NS: u64 = 50_000;

/// The shared file of a machine, in its folder.
const FILE: &str = "pace";

/// The bytes of the pace in the file, and of each processor after it.
const LINE_BYTES: usize = 64;

/// The compiled plugin.
#[derive(Clone, Debug)]
pub struct Pacer {
    path: PathBuf,
}

impl Pacer {
    /// Compiles the plugin into `folder`, for `qemu`.
    ///
    /// # Errors
    /// [`BenchError::NoPlugins`]; [`BenchError::Program`] with the compiler's message.
    pub fn build(qemu: &Path, folder: &Path) -> Result<Self, BenchError> {
        Ok(Self { path: plugin::compile(qemu, folder, "pace", "pace")? })
    }

    /// Returns QEMU's arguments. The machine boots unpaced, until [`set`].
    pub fn arguments(&self) -> [OsString; 2] {
        ["-plugin".into(), format!("{},pace={FILE}", self.path.display()).into()]
    }
}

/// Sets the rate of each processor of `machine`, in instructions/s.
///
/// # Errors
/// [`BenchError::File`].
pub fn set(machine: &Machine, instructions_per_s: u64) -> Result<(), BenchError> {
    let path = machine.folder().join(FILE);
    let mut words = [0; 16];
    words[..8].copy_from_slice(&(instructions_per_s * INTERVAL_NS / 1_000_000_000).to_ne_bytes());
    words[8..].copy_from_slice(&INTERVAL_NS.to_ne_bytes());
    // The time is written first: the plugin paces once the instructions are not 0.
    let write =
        |file: File| file.write_all_at(&words[8..], 8).and_then(|()| file.write_all_at(&words[..8], 0));
    File::options().write(true).open(&path).and_then(write).map_err(BenchError::file(&path))
}

/// The file of the kernel's limit for threads of real-time classes: by default they stop for the rest of each second in
/// which they have used 95 % of a processor, which takes up to 50 ms from all processors of a busy machine at once.
const LIMIT_FILE: &str = "/proc/sys/kernel/sched_rt_runtime_us";

/// Gives this process's first thread and all threads of `machine` the scheduling class SCHED_RR, without the kernel's
/// limit for it; on drop, resets this process's class, and the limit. If the user lacks the permission for that, times
/// need a quiet host.
#[derive(Debug)]
pub struct RealTimePriority {
    /// The limit before.
    limit: Option<String>,
}

impl RealTimePriority {
    /// Sets the scheduling class.
    pub fn set_for(machine: &Machine) -> Self {
        let this = std::process::id().to_string();
        // A paced processor sleeps for most of each interval, so threads of this class rarely wait for each other.
        let _ = program::run("chrt", &["--rr", "--pid", "1", &this]);
        let _ = program::run("chrt", &["--all-tasks", "--rr", "--pid", "1", &machine.process().to_string()]);
        let limit = fs::read_to_string(LIMIT_FILE).ok().filter(|_| fs::write(LIMIT_FILE, "-1").is_ok());
        Self { limit }
    }
}

impl Drop for RealTimePriority {
    fn drop(&mut self) {
        if let Some(limit) = &self.limit {
            let _ = fs::write(LIMIT_FILE, limit);
        }
        let _ = program::run("chrt", &["--other", "--pid", "0", &std::process::id().to_string()]);
    }
}

/// Returns the time that all processors of `machine` have lost so far, in s, because the host was too busy for their
/// pace.
///
/// # Errors
/// [`BenchError::File`].
pub fn lost_s(machine: &Machine) -> Result<f64, BenchError> {
    let path = machine.folder().join(FILE);
    let bytes = fs::read(&path).map_err(BenchError::file(&path))?;
    Ok(lost_ns(&bytes) as f64 / 1e9)
}

/// The most time that processors may lose in a run whose figures are published, in s.
pub const MOST_LOST_S: f64 = 0.2;

/// Rejects publication if processors lost too much time in the measurement of `record`.
///
/// # Errors
/// [`BenchError::PaceLost`].
pub fn demand_kept(record: &Record) -> Result<(), BenchError> {
    let lost = record.figures.iter().filter(|(name, _)| name.ends_with("-lost"));
    let lost_s =
        lost.flat_map(|(_, series)| series.isola.iter().chain(&series.peer)).copied().fold(0.0, f64::max);
    if lost_s <= MOST_LOST_S { Ok(()) } else { Err(BenchError::PaceLost { lost_s, limit_s: MOST_LOST_S }) }
}

/// Returns the sum of the first words of all lines but that of the pace.
fn lost_ns(bytes: &[u8]) -> u64 {
    let words = bytes.chunks(LINE_BYTES).skip(1).filter_map(|line| line.first_chunk::<8>());
    words.map(|word| u64::from_ne_bytes(*word)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lost_time_of_processors_follows_the_pace() {
        let mut file = vec![0; 3 * LINE_BYTES];
        for (line, word) in [1_250_u64, 5, 70].into_iter().enumerate() {
            file[line * LINE_BYTES..][..8].copy_from_slice(&word.to_ne_bytes());
        }
        assert_eq!(lost_ns(&file), 75);
        assert_eq!(lost_ns(&[]), 0);
    }

    #[test]
    fn figures_of_processors_behind_their_pace_are_not_published() {
        let record = |lost_s: &[f64]| crate::record::tests::record("colocation-lost", &[0.0], lost_s);
        assert!(demand_kept(&record(&[0.0, MOST_LOST_S])).is_ok());
        let error = demand_kept(&record(&[0.0, 1.5])).unwrap_err().to_string();
        assert!(error.contains("1.5 s"), "{error}");
    }

    #[test]
    fn the_plugin_counts_every_delay_by_the_host_as_lost_time() {
        let folder = tempfile::tempdir().unwrap();
        let test = folder.path().join("pace_test");
        let mut compile = std::process::Command::new("cc");
        compile.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-DINTERFACE_VERSION=1", "-o"]).arg(&test);
        compile.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("plugin/pace_test.c"));
        program::run_in(&mut compile).unwrap();
        program::run_in(&mut std::process::Command::new(&test)).unwrap();
    }

    #[test]
    fn the_plugin_has_the_same_layout() {
        let source = include_str!("../plugin/pace.c");
        assert!(source.contains("volatile uint64_t instructions;"));
        assert!(source.contains("volatile uint64_t time_ns;\n    uint8_t rest[48];"));
        assert!(source.contains("volatile uint64_t lost_ns;"));
        assert_eq!(8 + 8 + 48, LINE_BYTES);
    }
}
