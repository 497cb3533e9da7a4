//! Follows a cell's output, with short turns at its machine.

use super::{Context, Failure};
use crate::cellctl::{look_up, waits_for_restart};
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
            console: Console::default(),
            target: LogTarget::Output,
        }
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
        loop {
            let piece = client.logs(&self.name, self.read)?;
            self.print(context, &piece)?;
            if piece.bytes.is_empty() || self.read >= piece.end {
                return Ok(cell);
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
