//! `isola resize`: memory of a cell, more or less, while it runs.

use super::failure::USAGE;
use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::machine::Held;
use crate::output::view::ResizeView;
use clap::Args;
use isola_abi::management::{Change, MemoryResized, Mode};
use isola_abi::size::ByteSize;
use std::process::ExitCode;

/// Gives a running cell memory, or takes some from it
#[derive(Debug, Args)]
#[command(after_help = "\
An amount is what the cell is to have, or with a sign how much more or less than it has. Memory comes as a whole or not
at all, also beyond the cell's --memory-max. What goes the cell is asked for: it gives back what it does not use, and it
may be less than was asked for, which is said and is no error. What was taken from a cell it does not ask back by itself.

Memory comes and goes in chunks of 2 MiB. When a cell is started anew, it begins with what it was created with.

Examples:
  isola resize kv --memory 512M
  isola resize kv --memory +128M
  isola resize kv --memory -1G --dry-run")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// How much memory it is to have
    #[arg(short, long, value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    memory: Option<Change<ByteSize>>,
    /// Says what would be, and changes nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn resize(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Some(memory) = arguments.memory else {
        return Err(Failure::new(
            USAGE,
            "nothing is to be resized: say how much --memory the cell is to have",
        ));
    };
    let held = Held::take_supervised(&context.root, &context.dir())?;
    let mut client = held.client()?;
    let name = &arguments.cell;
    look_up(&held, &mut client, name)?;
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Apply };
    let resized = client.resize_memory(name, memory, mode)?;
    let view = ResizeView::new(held.dir.name.as_str(), name, mode, &resized);
    context.output.answer(&view, || told(name, mode, &resized))?;
    Ok(ExitCode::SUCCESS)
}

/// What became of it, in words.
fn told(name: &str, mode: Mode, resized: &MemoryResized) -> String {
    let MemoryResized { had, wanted, has, kept, .. } = resized;
    let verb = if mode == Mode::DryRun { "would have" } else { "has" };
    match kept {
        None if has == had => format!("{name}: {verb} {has} of memory, as before"),
        None => format!("{name}: {verb} {has} of memory, {had} before"),
        Some(why) => {
            let back = ByteSize(had.0.saturating_sub(has.0));
            format!(
                "{name}: {verb} {has} of memory, {had} before: {back} came back, and not all down to {wanted}, as {why}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::management::Kept;

    #[test]
    fn what_came_back_and_why_no_more_is_said() {
        let size = |mib: u64| ByteSize(mib << 20);
        let resized = MemoryResized {
            had: size(64),
            wanted: size(16),
            has: size(32),
            limit: size(32),
            kept: Some(Kept::InUse),
            took_ns: 5,
        };
        let text = told("kv", Mode::Apply, &resized);
        for part in ["kv: has 32 MiB", "64 MiB before", "32 MiB came back", "down to 16 MiB", "in use"] {
            assert!(text.contains(part), "{text}");
        }
        let all = MemoryResized { has: size(16), kept: None, ..resized };
        assert_eq!(told("kv", Mode::DryRun, &all), "kv: would have 16 MiB of memory, 64 MiB before");
    }
}
