//! `isola events`: the supervisor's journal.

use super::failure::REFUSED;
use super::follow::INTERVAL;
use super::interrupt::Interrupts;
use super::{Context, Failure};
use crate::machine::LockedMachine;
use crate::output::Format;
use crate::output::human;
use crate::output::trace::trace;
use crate::output::view::EventView;
use clap::Args;
use isola_abi::management::JournalEntry;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;

/// Prints the supervisor's journal: its actions and observations, with durations
#[derive(Debug, Args)]
#[command(after_help = "\
With -o json, one object per line. Numbers have gaps only where entries are gone: the machine keeps the latest \
1024, and the command prints how many are missing.

Examples:
  isola events
  isola events --trace kv.json            for ui.perfetto.dev: a track for each cell
  isola events -f -o json | jq -c 'select(.event == \"crash\")'")]
pub(super) struct Arguments {
    /// Continues until ^C
    #[arg(short, long)]
    follow: bool,
    /// Prints entries from this number on
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
    /// Writes them as a trace for ui.perfetto.dev, or Chrome's chrome://tracing, to a file instead
    #[arg(long, value_name = "FILE", conflicts_with = "follow")]
    trace: Option<PathBuf>,
}

pub(super) fn events(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = if arguments.follow { Some(Interrupts::count()?) } else { None };
    let mut next = arguments.from;
    if let Some(path) = &arguments.trace {
        let entries = turn(context, next)?;
        note_gap(context, next, entries.first());
        let trace = trace(context.machine.as_str(), &entries);
        let written = fs::write(path, serde_json::to_vec(&trace)?);
        written.map_err(|error| Failure::new(REFUSED, format!("{}: {error}", path.display())))?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        for entry in turn(context, next)? {
            note_gap(context, next, Some(&entry));
            print(context, &entry)?;
            next = entry.number + 1;
        }
        match &interrupts {
            Some(interrupts) if interrupts.so_far() == 0 => sleep(INTERVAL),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// Returns all entries from `next` on, in one turn at the machine.
fn turn(context: &Context, next: u64) -> Result<Vec<JournalEntry>, Failure> {
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let mut entries = Vec::new();
    let mut next = next;
    loop {
        let more = client.events(next)?;
        let Some(last) = more.last() else { return Ok(entries) };
        next = last.number + 1;
        entries.extend(more);
    }
}

/// Prints how many entries are missing before `entry`.
fn note_gap(context: &Context, next: u64, entry: Option<&JournalEntry>) {
    if let Some(lost) = entry.map(|entry| entry.number.saturating_sub(next)).filter(|lost| *lost > 0) {
        context.output.note(&format!("note: {lost} entries before this are gone"));
    }
}

fn print(context: &Context, entry: &JournalEntry) -> Result<(), Failure> {
    let view = EventView::new(context.machine.as_str(), entry);
    if context.output.format == Format::Json {
        return Ok(context.output.json_line(&view)?);
    }
    let detail = view.detail.map(|detail| format!("  {detail}")).unwrap_or_default();
    let line = format!(
        "{}  {:<12}  {:<16}  {:>8}{detail}",
        human::local_time(entry.unix_ns),
        view.event,
        view.cell.as_deref().unwrap_or("-"),
        human::duration_ns(view.duration_ns),
    );
    Ok(context.output.text(line.trim_end())?)
}
