//! Follows a cell's output, with short turns at its machine.

use super::{Context, Failure};
use crate::cellctl::{look_up, waits_for_restart};
use crate::client::Client;
use crate::machine::LockedMachine;
use crate::machine::state::MachineDir;
use crate::output::printable::Console;
use crate::output::view::is_running;
use crate::output::{Format, error_text};
use isola_abi::id::CellId;
use isola_abi::management::{CellInfo, LogPiece};
use serde::Serialize;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

/// The polling interval.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// A reader of a cell's output.
#[derive(Debug)]
pub(super) struct Follower {
    dir: MachineDir,
    name: String,
    /// The cell's id; known from the first turn on.
    id: Option<CellId>,
    /// The position of the next byte to read.
    read: u64,
    /// The number of lines of present output to print first, unless all are.
    last_lines: Option<usize>,
    console: Console,
    target: LogTarget,
}

/// Where a cell's output is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogTarget {
    /// On the standard output.
    Output,
    /// On the error output, as a program has the standard output.
    ErrorOutput,
}

/// A piece of a cell's output: the JSON form.
#[derive(Serialize)]
struct LogView<'a> {
    /// The cell.
    cell: &'a str,
    /// The position of the first byte, counted from the beginning of the cell's output.
    from: u64,
    /// The output; bytes that are not UTF-8 are replaced.
    text: String,
}

impl Follower {
    /// Creates a reader at the beginning of the output.
    pub(super) fn new(dir: MachineDir, name: &str) -> Self {
        Self {
            dir,
            name: name.to_owned(),
            id: None,
            read: 0,
            last_lines: None,
            console: Console::default(),
            target: LogTarget::Output,
        }
    }

    /// Begins with so many of the last lines of the present output.
    pub(super) fn beginning_at_last_lines(self, lines: Option<usize>) -> Self {
        Self { last_lines: lines, ..self }
    }

    /// Prints on the error output.
    pub(super) fn on_error_output(self) -> Self {
        Self { target: LogTarget::ErrorOutput, ..self }
    }

    /// Prints new output in one turn; returns the state of the cell.
    pub(super) fn turn(&mut self, context: &Context) -> Result<CellInfo, Failure> {
        let locked = LockedMachine::take_supervised(&context.root, &self.dir)?;
        let mut client = locked.client()?;
        // Reads the state before the log: if the cell has ended, the log then contains all of its output.
        let cell = look_up(&locked, &mut client, &self.name)?;
        if self.id.is_some_and(|id| id != cell.id) {
            return Err(Failure::new(1, format!("cell {:?} is gone: another cell has its name", self.name)));
        }
        self.id = Some(cell.id);
        if let Some(lines) = self.last_lines.take() {
            self.skip_to_last(lines, &mut client)?;
        }
        loop {
            let piece = client.logs(&self.name, self.read)?;
            self.print(context, &piece)?;
            if piece.bytes.is_empty() || self.read >= piece.end {
                return Ok(cell);
            }
        }
    }

    /// Advances to the last lines of the output so far.
    fn skip_to_last(&mut self, lines: usize, client: &mut Client) -> Result<(), Failure> {
        let (mut first, mut output) = (0, Vec::new());
        loop {
            let next = first + output.len() as u64;
            let piece = client.logs(&self.name, next)?;
            if piece.from > next {
                // The log has dropped what was read so far.
                (first, output) = (piece.from, Vec::new());
            }
            output.extend_from_slice(&piece.bytes);
            if piece.bytes.is_empty() || first + output.len() as u64 >= piece.end {
                self.read = first + start_of_last(lines, &output) as u64;
                return Ok(());
            }
        }
    }

    /// Prints until the cell has ended without a further restart, and returns its state, or until `waiting` breaks.
    pub(super) fn until_end(
        &mut self,
        context: &Context,
        waiting: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<CellInfo>, Failure> {
        loop {
            let cell = self.turn(context)?;
            if !is_running(&cell) && !waits_for_restart(&cell) {
                return Ok(Some(cell));
            }
            if waiting().is_break() {
                return Ok(None);
            }
            sleep(INTERVAL);
        }
    }

    fn print(&mut self, context: &Context, piece: &LogPiece) -> Result<(), Failure> {
        if piece.from > self.read {
            let lost = piece.from - self.read;
            context.output.note(&format!("note: {lost} bytes before this are gone"));
        }
        self.read = piece.from + piece.bytes.len() as u64;
        if piece.bytes.is_empty() {
            return Ok(());
        }
        if self.target == LogTarget::ErrorOutput {
            error_text(&String::from_utf8_lossy(&piece.bytes));
            return Ok(());
        }
        match context.output.format {
            Format::Table => context.output.console(&mut self.console, &piece.bytes)?,
            Format::Json => {
                let text = String::from_utf8_lossy(&piece.bytes).into_owned();
                context.output.json_line(&LogView { cell: &self.name, from: piece.from, text })?;
            }
        }
        Ok(())
    }
}

/// Returns the position of the first of the last lines. Output after the last line end is a line.
pub(super) fn start_of_last(lines: usize, output: &[u8]) -> usize {
    let Some(skipped_ends) = lines.checked_sub(1) else { return output.len() };
    let body = output.strip_suffix(b"\n").unwrap_or(output);
    let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
    ends.map(|(at, _)| at + 1).nth(skipped_ends).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::start_of_last;

    fn last(lines: usize, output: &str) -> &str {
        &output[start_of_last(lines, output.as_bytes())..]
    }

    #[test]
    fn the_last_lines_include_one_without_an_end() {
        assert_eq!(last(0, "a\nb\n"), "");
        assert_eq!(last(1, "a\nb\n"), "b\n");
        assert_eq!(last(1, "a\nb"), "b");
        assert_eq!(last(2, "a\nb\nc\n"), "b\nc\n");
        assert_eq!(last(2, "a\n\n"), "a\n\n");
        assert_eq!(last(1, "a\n\n"), "\n");
        assert_eq!(last(3, "a\nb\n"), "a\nb\n");
        assert_eq!(last(usize::MAX, "a\nb"), "a\nb");
        assert_eq!(last(5, ""), "");
    }
}
