//! `isola trace`: what a cell's cores do.
//!
//! The cell records periods, which the command reads as a [`Stream`] and writes as a trace file. Periods for which the cell
//! had no room are counted by the cell, and reported.

use super::interrupt::Interrupts;
use super::stream::{Progress, Stream};
use super::{Context, Failure, complete, failure, output_file};
use crate::output::{Format, human};
use crate::placement::CellCores;
use crate::trace::TraceSummary;
use crate::trace::file::TraceFile;
use clap::Args;
use isola_abi::query::{Query, TraceRecord, TraceSpec};
use jiff::SignedDuration;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::thread::sleep;
use std::time::Duration;
use thiserror::Error;

/// The time after which the cell has written all periods until now.
const LAST_PERIODS: Duration = Duration::from_millis(150);

/// Records what the cores of a running cell do
#[derive(Debug, Args)]
#[command(after_help = "\
Writes a Perfetto trace until ^C: a track per core with a slice for each event, idle period and interrupt, and the number \
of waiting events. Open it at https://ui.perfetto.dev, which runs in the browser and uploads nothing, or query it with \
trace_processor. The name of an event is the source line that created it, its category the activity. The cell continues \
to serve; each event also takes the time of its record. Periods that are not read in time are counted and shown as lost.

Examples:
  isola trace kv -w kv.pftrace --duration 500ms
  isola trace kv -w kv.pftrace --cores 0,2-3
  isola trace kv -w kv.pftrace --duration 5s -o json | jq .activities")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The trace file; `-` is the standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Ends after this time, as in 500ms or 5s
    #[arg(short, long, value_name = "TIME")]
    duration: Option<TraceTime>,
    /// Only these cores, by index in the cell, as in 0,2-3
    #[arg(long, value_name = "CORES")]
    cores: Option<CellCores>,
}

/// The duration of a trace or a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TraceTime(pub(super) Duration);

/// The error for a text that is not such a duration.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{0:?} is no duration: write a number and its unit, as in 500ms or 5s")]
pub(super) struct BadTime(String);

impl FromStr for TraceTime {
    type Err = BadTime;

    fn from_str(text: &str) -> Result<Self, BadTime> {
        let time = text.parse::<SignedDuration>().ok().and_then(|time| Duration::try_from(time).ok());
        time.filter(|time| !time.is_zero()).map(Self).ok_or_else(|| BadTime(text.to_owned()))
    }
}

/// The result of a trace: the JSON form.
#[derive(Serialize)]
struct TraceView<'a> {
    /// The cell.
    cell: &'a str,
    /// The traced cores.
    cores: &'a [u32],
    /// The number of events.
    events: u64,
    /// The number of periods that the cell had no room for.
    lost: u64,
    /// Cycles without work.
    idle_cycles: u64,
    /// Cycles of interrupts and alarms.
    interrupt_cycles: u64,
    /// The activities.
    activities: Vec<ActivityView<'a>>,
}

/// An activity: the JSON form.
#[derive(Serialize)]
struct ActivityView<'a> {
    /// Its name.
    name: &'a str,
    /// Cycles of its events.
    cycles: u64,
    /// The number of its events.
    events: u64,
}

pub(super) fn trace(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let to_output = arguments.write == Path::new("-");
    if to_output && (io::stdout().is_terminal() || context.output.format == Format::Json) {
        let what = "the standard output cannot show a trace file: write it to a file or a pipe, and -o json beside it";
        return Err(Failure::new(failure::USAGE, what));
    }
    let interrupts = Interrupts::count()?;
    let cores = arguments.cores.map_or(u64::MAX, |cores| cores.0);
    // Opened first: a trace that cannot be written is not begun.
    let to = output_file::open(&arguments.write)?;
    let query = Query::Trace(TraceSpec { cores });
    let stream = Stream::begin(context, &arguments.cell, &query, "trace")?;
    let file = TraceFile::begin(&arguments.cell);
    let mut session = Session { arguments, stream, file, to, summary: TraceSummary::default() };
    let outcome = session.run(&interrupts);
    session.stream.end();
    outcome?;
    session.summary.lost = session.summary.lost.saturating_add(session.stream.lost());
    report(context, arguments, &session.summary)?;
    Ok(ExitCode::SUCCESS)
}

/// A running trace.
struct Session<'a> {
    arguments: &'a Arguments,
    stream: Stream<'a>,
    file: TraceFile,
    to: Box<dyn Write>,
    summary: TraceSummary,
}

impl Session<'_> {
    fn run(&mut self, interrupts: &Interrupts) -> Result<(), Failure> {
        let limit = self.arguments.duration.map(|TraceTime(limit)| limit);
        loop {
            // Periods that were read before an error are written as well.
            let turn = self.stream.turn();
            self.pass_on()?;
            if turn? == Progress::Ended {
                return Ok(());
            }
            if !self.summary.without_memory.is_empty() {
                let cores = &self.summary.without_memory;
                let what = format!("the cell has no memory to trace its cores {cores:?}: see `isola resize`");
                return Err(Failure::new(failure::REFUSED, what));
            }
            if interrupts.so_far() > 0 || limit.is_some_and(|limit| self.stream.age() >= limit) {
                sleep(LAST_PERIODS);
                self.stream.turn()?;
                return self.pass_on();
            }
            self.stream.pause()?;
        }
    }

    /// Writes the periods that were read, without the machine's lock.
    fn pass_on(&mut self) -> Result<(), Failure> {
        for (record, _) in self.stream.take() {
            let record = TraceRecord::decode(&record)?;
            self.summary.add(&record);
            self.file.add(&record)?;
        }
        self.to.write_all(&self.file.take())?;
        Ok(self.to.flush()?)
    }
}

fn report(context: &Context, arguments: &Arguments, summary: &TraceSummary) -> Result<(), Failure> {
    if context.output.format == Format::Json {
        let activities = summary.activities.iter();
        return Ok(context.output.json(&TraceView {
            cell: &arguments.cell,
            cores: &summary.cores,
            events: summary.events,
            lost: summary.lost,
            idle_cycles: summary.idle_cycles,
            interrupt_cycles: summary.interrupt_cycles,
            activities: activities
                .map(|(name, sum)| ActivityView { name, cycles: sum.cycles, events: sum.events })
                .collect(),
        })?);
    }
    let mut text = format!("{} events on {} cores", human::count(summary.events), summary.cores.len());
    if summary.lost > 0 {
        text.push_str(&format!(", {} periods lost: use --cores or --duration", human::count(summary.lost)));
    }
    context.output.note(&text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_are_positive() {
        assert_eq!("500ms".parse(), Ok(TraceTime(Duration::from_millis(500))));
        for bad in ["", "5", "0s", "-1s", "soon"] {
            assert_eq!(bad.parse::<TraceTime>(), Err(BadTime(bad.to_owned())));
        }
    }
}
