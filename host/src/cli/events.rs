//! `isola events`: the supervisor's journal.

use super::follow::INTERVAL;
use super::interrupt::Interrupts;
use super::{Context, Failure};
use crate::machine::Held;
use crate::output::Format;
use crate::output::human;
use crate::output::view::EventView;
use clap::Args;
use isola_abi::management::JournalEntry;
use std::process::ExitCode;
use std::thread::sleep;

/// Prints what the supervisor did and saw, with how long each thing took
#[derive(Debug, Args)]
#[command(after_help = "\
With -o json, one object a line.

Examples:
  isola events
  isola events -f -o json | jq -c 'select(.event == \"crash\")'")]
pub(super) struct Arguments {
    /// Goes on printing until ^C
    #[arg(short, long)]
    follow: bool,
    /// Prints entries from this number on
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    from: u64,
}

pub(super) fn events(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let interrupts = if arguments.follow { Some(Interrupts::count()?) } else { None };
    let mut next = arguments.from;
    loop {
        for entry in turn(context, next)? {
            print(context, &entry)?;
            next = entry.number + 1;
        }
        match &interrupts {
            Some(interrupts) if interrupts.so_far() == 0 => sleep(INTERVAL),
            _ => return Ok(ExitCode::SUCCESS),
        }
    }
}

/// All entries from `next` on, in one turn at the machine.
fn turn(context: &Context, next: u64) -> Result<Vec<JournalEntry>, Failure> {
    let held = Held::take_supervised(&context.root, &context.dir())?;
    let mut client = held.client()?;
    let mut entries = Vec::new();
    let mut next = next;
    loop {
        let more = client.events(next)?;
        let Some(last) = more.last() else { return Ok(entries) };
        next = last.number + 1;
        entries.extend(more);
    }
}

fn print(context: &Context, entry: &JournalEntry) -> Result<(), Failure> {
    let view = EventView::new(context.machine.as_str(), entry);
    if context.output.format == Format::Json {
        return Ok(context.output.json_line(&view)?);
    }
    let detail = view.detail.map(|detail| format!("  {detail}")).unwrap_or_default();
    let line = format!(
        "{}  {:<9}  {:<16}  {:>8}{detail}",
        human::local_time(entry.unix_ns),
        view.event,
        view.cell.as_deref().unwrap_or("-"),
        human::duration_ns(view.duration_ns),
    );
    Ok(context.output.text(line.trim_end())?)
}
