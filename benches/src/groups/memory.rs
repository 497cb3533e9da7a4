//! Group `memory`: the heap beside allocators that servers use, natively. Each program of `cell/memory/compare` is the
//! same code with another global allocator.

use super::{begin, now};
use crate::callgrind;
use crate::error::BenchError;
use crate::figure::Group;
use crate::program;
use crate::record::Record;
use crate::session::{Plan, host_setting};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

/// The allocators to compare with.
const PEERS: [&str; 3] = ["glibc", "jemalloc", "mimalloc"];

/// The timed workloads: the figure without its peer, the workload, threads, and objects of each thread.
const TIMES: [(&str, &str, u32, u32); 5] = [
    ("memory-box", "box", 1, 20_000_000),
    ("memory-box-24", "box", 24, 2_000_000),
    ("memory-pair", "pair-8", 1, 20_000_000),
    ("memory-churn", "churn", 1, 5_000_000),
    ("memory-remote", "remote", 2, 10_000_000),
];

/// The objects of the run whose instructions are counted, and of the run that is subtracted from it.
const COUNTED: [u32; 2] = [300_000, 100_000];

/// Measures the group.
///
/// # Errors
/// [`BenchError::Program`], [`BenchError::ProgramMissing`], [`BenchError::File`], [`BenchError::Interrupted`].
pub fn run(plan: Plan, command: String, tree: &str) -> Result<Record, BenchError> {
    let programs = Programs::find()?;
    let mut record = Record::new(Group::Memory, now(), command, host_setting(tree, versions()));
    for run in 0..plan.runs {
        begin(&mut record, run, plan)?;
        for (figure, workload, threads, count) in TIMES {
            let time = |allocator: &str| programs.time(allocator, workload, count, threads);
            note(&mut record, figure, time)?;
        }
        note(&mut record, "memory-instructions", |allocator| programs.instructions(allocator))?;
    }
    Ok(record)
}

/// Records a figure of Isola's heap and of each peer. Isola's heap is measured again beside each peer.
fn note(
    record: &mut Record,
    figure: &str,
    take: impl Fn(&str) -> Result<f64, BenchError>,
) -> Result<(), BenchError> {
    for peer in PEERS {
        let name = format!("{figure}-{peer}");
        record.isola(&name, take("isola")?);
        record.peer(&name, take(peer)?);
    }
    Ok(())
}

/// The folder of the programs.
struct Programs {
    folder: PathBuf,
}

impl Programs {
    fn find() -> Result<Self, BenchError> {
        Ok(Self { folder: program::folder()? })
    }

    fn program(&self, allocator: &str) -> PathBuf {
        self.folder.join(format!("with-{allocator}"))
    }

    /// Returns the processor time of an object, in ns for each thread.
    fn time(&self, allocator: &str, workload: &str, count: u32, threads: u32) -> Result<f64, BenchError> {
        let mut command = Command::new(self.program(allocator));
        command.args([workload, &count.to_string(), &threads.to_string()]);
        let output = program::run_in(&mut command)?;
        output.trim().parse().map_err(|_| BenchError::Program { line: format!("{command:?}"), output })
    }

    /// Returns the instructions of a box of 8 bytes, including the loop around it.
    fn instructions(&self, allocator: &str) -> Result<f64, BenchError> {
        let [many, few] = COUNTED;
        let more = self.instructions_of(allocator, many)? - self.instructions_of(allocator, few)?;
        Ok(more / f64::from(many - few))
    }

    fn instructions_of(&self, allocator: &str, count: u32) -> Result<f64, BenchError> {
        callgrind::instructions(&self.program(allocator), &["box", &count.to_string()])
    }
}

/// Returns the versions of the peers, if known.
fn versions() -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, String> =
        [("jemalloc", "tikv-jemalloc-sys"), ("mimalloc", "libmimalloc-sys")]
            .into_iter()
            .filter_map(|(peer, package)| Some((peer.to_owned(), program::locked_version(package)?)))
            .collect();
    if let Ok(text) = program::run_in(Command::new("getconf").arg("GNU_LIBC_VERSION")) {
        found.insert("glibc".into(), text.trim().to_owned());
    }
    found
}
