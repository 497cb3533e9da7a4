//! `isola resize`: changes the cores and memory of a running cell.

use super::failure::{REFUSED, USAGE};
use super::{Context, Failure, complete};
use crate::cellctl::look_up;
use crate::client::{Client, ClientError};
use crate::machine::LockedMachine;
use crate::output::view::ResizeView;
use clap::Args;
use isola_abi::management::{CORE_LIMIT_MS, Change, CoresResized, MemoryResized, Mode};
use isola_abi::size::ByteSize;
use std::process::ExitCode;

/// Gives a running cell cores and memory, or takes some from it
#[derive(Debug, Args)]
#[command(after_help = "\
An amount is the new total, or with a sign the change.

Cores come and go while the cell serves; no connection ends. Memory grows completely or not at all, also beyond \
the cell's --memory-max. To shrink, the supervisor requests memory from the cell: the cell returns unused memory, and \
moves data to free more of it. It may return less than requested, which the command reports and is no error. A cell \
does not request memory back that was taken from it. Memory comes and goes \
in chunks of 2 MiB. A restarted cell gets the resources that it was created with.

If cores and memory are to change, both changes are checked first, and neither is made if one is impossible.

Examples:
  isola resize kv --cores 3 --memory 512M
  isola resize kv --cores +1
  isola resize kv --memory +128M
  isola resize kv --memory -1G --dry-run")]
pub(super) struct Arguments {
    /// The cell
    #[arg(add = complete::cells())]
    cell: String,
    /// The number of cores
    #[arg(short, long, value_name = "[+|-]NUMBER", allow_hyphen_values = true)]
    cores: Option<Change<u32>>,
    /// The amount of memory
    #[arg(short, long, value_name = "[+|-]SIZE", allow_hyphen_values = true)]
    memory: Option<Change<ByteSize>>,
    /// Prints the result that the command would have, and changes nothing
    #[arg(long)]
    dry_run: bool,
}

/// The result of a resize.
#[derive(Default)]
struct ResizeResults {
    cores: Option<CoresResized>,
    memory: Option<MemoryResized>,
}

pub(super) fn resize(context: &Context, arguments: &Arguments) -> Result<ExitCode, Failure> {
    if arguments.cores.is_none() && arguments.memory.is_none() {
        let what = "nothing to resize: use --cores or --memory";
        return Err(Failure::new(USAGE, what));
    }
    let locked = LockedMachine::take_supervised(&context.root, &context.dir())?;
    let mut client = locked.client()?;
    let name = &arguments.cell;
    look_up(&locked, &mut client, name)?;
    let mode = if arguments.dry_run { Mode::DryRun } else { Mode::Apply };
    if mode == Mode::DryRun || (arguments.cores.is_some() && arguments.memory.is_some()) {
        let tried = try_all(&mut client, arguments, Mode::DryRun).map_err(|(_, error)| error)?;
        if mode == Mode::DryRun {
            return print_results(context, &locked, name, mode, &tried);
        }
    }
    match try_all(&mut client, arguments, mode) {
        Ok(done) => print_results(context, &locked, name, mode, &done),
        Err((ResizeResults { cores: Some(done), .. }, error)) => Err(Failure::new(
            REFUSED,
            format!("{}; its memory was not resized: {error}", cores_text(name, mode, &done)),
        )),
        Err((_, error)) => Err(error.into()),
    }
}

/// Makes all requested changes, cores first. With an error it returns the changes made before it.
fn try_all(
    client: &mut Client,
    arguments: &Arguments,
    mode: Mode,
) -> Result<ResizeResults, (ResizeResults, ClientError)> {
    let (name, mut done) = (&arguments.cell, ResizeResults::default());
    if let Some(change) = arguments.cores {
        match client.resize_cores(name, change, Vec::new(), CORE_LIMIT_MS, mode) {
            Ok(cores) => done.cores = Some(cores),
            Err(error) => return Err((done, error)),
        }
    }
    if let Some(change) = arguments.memory {
        match client.resize_memory(name, change, mode) {
            Ok(memory) => done.memory = Some(memory),
            Err(error) => return Err((done, error)),
        }
    }
    Ok(done)
}

fn print_results(
    context: &Context,
    locked: &LockedMachine,
    name: &str,
    mode: Mode,
    resized: &ResizeResults,
) -> Result<ExitCode, Failure> {
    let ResizeResults { cores, memory } = resized;
    let view = ResizeView::new(locked.dir.name.as_str(), name, mode, cores.as_ref(), memory.as_ref());
    context.output.answer(&view, || {
        let cores = cores.as_ref().map(|cores| cores_text(name, mode, cores));
        let memory = memory.as_ref().map(|memory| memory_text(name, mode, memory));
        cores.into_iter().chain(memory).collect::<Vec<_>>().join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

fn verb(mode: Mode) -> &'static str {
    if mode == Mode::DryRun { "would have" } else { "has" }
}

/// Describes the result for the cores.
fn cores_text(name: &str, mode: Mode, resized: &CoresResized) -> String {
    let CoresResized { before, after, cores, .. } = resized;
    let (verb, plural) = (verb(mode), if *after == 1 { "" } else { "s" });
    if cores.is_empty() {
        return format!("{name}: {verb} {after} core{plural}, as before");
    }
    let numbers: Vec<String> = cores.iter().map(ToString::to_string).collect();
    let moved = if after > before { "came" } else { "left" };
    let several = if cores.len() == 1 { "" } else { "s" };
    let numbers = numbers.join(", ");
    format!("{name}: {verb} {after} core{plural}, {before} before: core{several} {numbers} {moved}")
}

/// Describes the result for the memory.
fn memory_text(name: &str, mode: Mode, resized: &MemoryResized) -> String {
    let MemoryResized { had, wanted, has, kept, moved, .. } = resized;
    let verb = verb(mode);
    let moved = if moved.0 > 0 { format!(" ({moved} moved for that)") } else { String::new() };
    match kept {
        None if has == had => format!("{name}: {verb} {has} of memory, as before"),
        None => format!("{name}: {verb} {has} of memory, {had} before{moved}"),
        Some(why) => {
            let back = ByteSize(had.0.saturating_sub(has.0));
            format!(
                "{name}: {verb} {has} of memory, {had} before: {back} came back{moved}, and not all down to {wanted}, as {why}"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::id::CoreId;
    use isola_abi::management::ReclaimShortfall;

    #[test]
    fn the_text_has_the_reclaimed_memory_and_the_reason_for_the_rest() {
        let size = |mib: u64| ByteSize(mib << 20);
        let resized = MemoryResized {
            had: size(64),
            wanted: size(16),
            has: size(32),
            limit: size(32),
            moved: size(3),
            kept: Some(ReclaimShortfall::InUse),
            took_ns: 5,
        };
        let text = memory_text("kv", Mode::Apply, &resized);
        for part in [
            "kv: has 32 MiB",
            "64 MiB before",
            "32 MiB came back (3 MiB moved for that), and",
            "down to 16 MiB",
            "in use",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let all = MemoryResized { has: size(16), moved: size(0), kept: None, ..resized };
        assert_eq!(memory_text("kv", Mode::DryRun, &all), "kv: would have 16 MiB of memory, 64 MiB before");
    }

    #[test]
    fn the_text_names_the_cores_that_came_or_left() {
        let resized = |before, after, cores: &[u32]| CoresResized {
            before,
            after,
            cores: cores.iter().copied().map(CoreId).collect(),
            duration_ns: 5,
        };
        let text =
            |before, after, cores: &[u32]| cores_text("kv", Mode::Apply, &resized(before, after, cores));
        assert_eq!(text(1, 3, &[4, 5]), "kv: has 3 cores, 1 before: cores 4, 5 came");
        assert_eq!(text(2, 1, &[4]), "kv: has 1 core, 2 before: core 4 left");
        assert_eq!(text(2, 2, &[]), "kv: has 2 cores, as before");
    }
}
