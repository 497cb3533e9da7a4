//! Reading along what a cell prints, in short turns at its machine.

use super::{Context, Failure};
use crate::cellctl::{look_up, waits_for_restart};
use crate::machine::Held;
use crate::machine::state::MachineDir;
use crate::output::Format;
use crate::output::printable::Console;
use crate::output::view::is_running;
use isola_abi::id::CellId;
use isola_abi::management::{CellInfo, LogPiece};
use serde::Serialize;
use std::ops::ControlFlow;
use std::thread::sleep;
use std::time::Duration;

/// How often a cell is looked at.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// A reader of what a cell prints.
#[derive(Debug)]
pub(super) struct Follower {
    dir: MachineDir,
    name: String,
    /// The cell; known from the first look on.
    id: Option<CellId>,
    /// How much it has read.
    read: u64,
    console: Console,
}

/// A piece of what a cell printed: the JSON form.
#[derive(Serialize)]
struct LogView<'a> {
    /// The cell.
    cell: &'a str,
    /// Number of the first byte, counted from the first that the cell printed.
    from: u64,
    /// What it printed; bytes that are no UTF-8 are replaced.
    text: String,
}

impl Follower {
    /// A reader that has read nothing yet.
    pub(super) fn new(dir: MachineDir, name: &str) -> Self {
        Self { dir, name: name.to_owned(), id: None, read: 0, console: Console::default() }
    }

    /// Prints what is new, in one turn; returns how the cell is.
    pub(super) fn turn(&mut self, context: &Context) -> Result<CellInfo, Failure> {
        let held = Held::take_supervised(&context.root, &self.dir)?;
        let mut client = held.client()?;
        // Looked at first: what it prints before it ends is in the log by then.
        let cell = look_up(&held, &mut client, &self.name)?;
        if self.id.is_some_and(|id| id != cell.id) {
            return Err(Failure::new(1, format!("cell {:?} is gone: another one has its name", self.name)));
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

    /// Prints until the cell has ended for good, and returns how it is then, or until `waiting` breaks.
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
