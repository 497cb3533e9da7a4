//! Group `stack`: the protocol stack beside smoltcp's, natively. The program of `net/stack/compare` does the same work
//! with each.

use super::{begin, now};
use crate::callgrind;
use crate::error::BenchError;
use crate::figure::Group;
use crate::program;
use crate::record::Record;
use crate::session::{Plan, host_setting};
use std::path::PathBuf;
use std::process::Command;

/// The timed work: the figure, the program's name for the work, and its amount.
const TIMES: [(&str, &str, u32); 3] = [
    ("stack-segment-smoltcp", "bulk", 1_000),
    ("stack-echo-smoltcp", "echo", 100_000),
    ("stack-connect-smoltcp", "connect", 20_000),
];

/// The counted work: the figure, the program's name for the work, and its amount, of which a third is subtracted.
const COUNTED: [(&str, &str, u32); 3] = [
    ("stack-segment-instructions", "bulk", 30),
    ("stack-echo-instructions", "echo", 3_000),
    ("stack-connect-instructions", "connect", 1_500),
];

/// The number of segments in a MiB; each has 1,448 bytes, and the last one the rest.
const SEGMENTS_A_MIB: f64 = (1 << 20) as f64 / 1_448.0;

/// Measures the group.
///
/// # Errors
/// [`BenchError::Program`], [`BenchError::ProgramMissing`], [`BenchError::File`], [`BenchError::Interrupted`].
pub fn run(plan: Plan, command: String, tree: &str) -> Result<Record, BenchError> {
    let compare = Compare { path: program::folder()?.join("isola-stack-compare") };
    let versions = program::locked_version("smoltcp").map(|version| ("smoltcp".to_owned(), version));
    let mut record =
        Record::new(Group::Stack, now(), command, host_setting(tree, versions.into_iter().collect()));
    for run in 0..plan.runs {
        begin(&mut record, run, plan)?;
        for (figure, work, count) in TIMES {
            record.isola(figure, compare.time("isola", work, count)?);
            record.peer(figure, compare.time("smoltcp", work, count)?);
        }
        for (figure, work, count) in COUNTED {
            record.isola(figure, compare.instructions("isola", work, count)?);
            record.peer(figure, compare.instructions("smoltcp", work, count)?);
        }
    }
    Ok(record)
}

/// The program `isola-stack-compare`.
struct Compare {
    path: PathBuf,
}

impl Compare {
    /// Returns the time of a piece of work in ns: a segment, a round trip, or a connection.
    fn time(&self, stack: &str, work: &str, count: u32) -> Result<f64, BenchError> {
        let mut command = Command::new(&self.path);
        command.args([stack, work, &count.to_string()]);
        let output = program::run_in(&mut command)?;
        let unit = output.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
        let unit = unit.ok_or_else(|| BenchError::Program { line: format!("{command:?}"), output })?;
        Ok(unit / pieces(work))
    }

    /// Returns the instructions of a piece of work.
    fn instructions(&self, stack: &str, work: &str, count: u32) -> Result<f64, BenchError> {
        let few = count / 3;
        let of = |count: u32| callgrind::instructions(&self.path, &[stack, work, &count.to_string()]);
        Ok((of(count)? - of(few)?) / f64::from(count - few) / pieces(work))
    }
}

/// Returns the number of pieces in the program's unit of work.
fn pieces(work: &str) -> f64 {
    if work == "bulk" { SEGMENTS_A_MIB } else { 1.0 }
}
