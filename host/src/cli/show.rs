//! Cells and machines for display: the supervisor's data, with published ports and with symbols for addresses.

use crate::machine::LockedMachine;
use crate::machine::cells::CellStore;
use crate::machine::state::MachineDir;
use crate::output::human;
use crate::output::view::{CellView, CrashView, MachineView, most_memory};
use crate::publish::Publication;
use crate::symbols::{Frame, Symbols, backtrace};
use isola_abi::management::{CellInfo, CellState, Crash, MachineInfo};
use std::env;
use std::fmt::Write;
use std::path::Path;

/// Returns the published ports of a cell.
pub(super) fn ports(dir: &MachineDir, cell: &CellInfo) -> Vec<Publication> {
    let record = CellStore::of(dir).load(&cell.spec.name, cell.id);
    record.map(|record| record.published).unwrap_or_default()
}

/// Returns the JSON form of a crash, with symbols from the saved copy of the cell's image.
pub(super) fn crash(dir: &MachineDir, cell: &CellInfo, crash: &Crash) -> CrashView {
    let store = CellStore::of(dir);
    // The image of another cell of the same name would give wrong symbols.
    let own = store.load(&cell.spec.name, cell.id).is_some();
    let symbols = own.then(|| Symbols::open(&store.image(&cell.spec.name)).ok()).flatten();
    CrashView::new(crash, backtrace(crash, symbols.as_ref()))
}

/// Returns the JSON form of a cell.
pub(super) fn cell(dir: &MachineDir, info: &CellInfo) -> CellView {
    let crash = info.crash.as_ref().map(|what| crash(dir, info, what));
    CellView::new(dir.name.as_str(), info, &ports(dir, info), crash)
}

/// Returns the JSON form of a machine.
pub(super) fn machine(locked: &LockedMachine, info: Option<&MachineInfo>) -> MachineView {
    MachineView::new(locked.dir.name.as_str(), &locked.record, info)
}

/// Formats a cell's state: `running`, `exited (0)`, `crashed (panic), again in 2s`.
pub(super) fn state(cell: &CellInfo) -> String {
    let state = own_state(cell);
    match (cell.restarts.next_unix_ns, cell.restarts.count) {
        (Some(next), _) => format!("{state}, again in {}", human::age(human::until(next))),
        (None, 0) => state,
        (None, count) => format!("{state}, restarted {count}x"),
    }
}

fn own_state(cell: &CellInfo) -> String {
    match (cell.state, cell.exit_code, &cell.crash) {
        (CellState::Exited, Some(code), _) => format!("exited ({code})"),
        (CellState::Crashed, _, Some(crash)) => {
            format!("crashed ({})", crate::output::view::crash_kind(crash.kind))
        }
        (state, ..) => state.to_string(),
    }
}

/// Formats a resource that a cell has; a dash for an ended cell.
pub(super) fn locked(cell: &CellInfo, what: impl ToString) -> String {
    if cell.state.has_ended() { "-".to_owned() } else { what.to_string() }
}

/// Formats the memory that a cell has, with its maximum if it can grow.
pub(super) fn memory(cell: &CellInfo) -> String {
    match cell.spec.memory_max {
        Some(_) if !cell.state.has_ended() => format!("{}/{}", cell.memory, most_memory(cell)),
        _ => locked(cell, cell.memory),
    }
}

/// Formats published ports.
pub(super) fn ports_text(ports: &[Publication]) -> String {
    match ports {
        [] => "-".to_owned(),
        ports => ports.iter().map(Publication::to_string).collect::<Vec<_>>().join(", "),
    }
}

/// Formats a crash.
pub(super) fn crash_text(name: &str, crash: &CrashView) -> String {
    let mut text = format!("cell {name:?} crashed: {}", crash.kind);
    if let Some(exception) = crash.exception.filter(|exception| *exception != crash.kind) {
        let _ = write!(text, ", {exception}");
    }
    if let Some(address) = crash.fault_address {
        let _ = write!(text, " at {address:#x}");
    }
    if let Some(core) = crash.core {
        let _ = write!(text, ", on core {core}");
    }
    text.push('\n');
    for line in crash.message.lines() {
        let _ = writeln!(text, "  {line}");
    }
    text.push_str(&backtrace_text(&crash.backtrace));
    text
}

/// Formats a backtrace; repeated frames appear once.
fn backtrace_text(frames: &[Frame]) -> String {
    let here = env::current_dir().unwrap_or_default();
    let mut text = String::new();
    let mut number = 0;
    for same in frames.chunk_by(|a, b| a == b) {
        let [frame, again @ ..] = same else { continue };
        let function = frame.function.as_deref().unwrap_or("?");
        let _ = writeln!(text, "  {number:>2}  {:#018x}  {function}", frame.address);
        if let Some(file) = &frame.file {
            let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
            let _ = writeln!(text, "                          at {}{line}", short_path(file, &here));
        }
        if !again.is_empty() {
            let _ = writeln!(text, "                          repeated {} more times", again.len());
        }
        number += same.len();
    }
    text
}

/// Shortens a source file's path: removes the current folder, and the folder in which Rust's library was built.
fn short_path<'a>(file: &'a str, here: &Path) -> &'a str {
    let own = Path::new(file).strip_prefix(here).ok().and_then(Path::to_str);
    let library = || file.strip_prefix("/rustc/").and_then(|rest| rest.split_once('/')).map(|(_, path)| path);
    own.or_else(library).unwrap_or(file)
}

/// Formats the time since a cell's start.
pub(super) fn uptime(cell: &CellInfo) -> String {
    match cell.started_unix_ns.filter(|_| crate::output::view::is_running(cell)) {
        Some(started) => human::age(human::since(started)),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backtrace_shows_repeated_calls_once() {
        let frame = |address, line| Frame {
            address,
            function: Some("descend".into()),
            file: Some("/rustc/0123abc/library/core/src/hint.rs".into()),
            line: Some(line),
        };
        let text = backtrace_text(&[frame(1, 1), frame(2, 2), frame(2, 2), frame(2, 2), frame(3, 3)]);
        assert_eq!(text.matches("descend").count(), 3, "{text}");
        assert!(
            text.contains("repeated 2 more times") && text.contains("   4  0x0000000000000003"),
            "{text}"
        );
        assert!(text.contains("at library/core/src/hint.rs:1\n"), "{text}");
    }

    #[test]
    fn paths_below_the_user_s_folder_are_relative() {
        assert_eq!(short_path("/a/b/src/main.rs", Path::new("/a/b")), "src/main.rs");
        assert_eq!(short_path("/a/bc/src/main.rs", Path::new("/a/b")), "/a/bc/src/main.rs");
    }
}
