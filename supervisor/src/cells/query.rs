//! Queries of the host tool to a running cell, and their answers. The supervisor forwards the bytes unparsed.

use super::Cells;
use super::cell::Cell;
use crate::effects::Effects;
use isola_abi::management::ManagementError;
use isola_abi::query::{AnswerPiece, Line, MAX_QUERY};

impl<E: Effects> Cells<E> {
    /// Sends a query to a running cell. Returns its number.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::OutOfLimits`] if the query is too long.
    pub fn ask(&mut self, name: &str, line: Line, query: &[u8]) -> Result<u32, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        let held = cell.held().filter(|_| cell.is_live()).ok_or_else(|| not_running(cell))?;
        self.effects.ask(&held.space, line, query).ok_or_else(|| {
            ManagementError::OutOfLimits(alloc::format!(
                "a query has at most {MAX_QUERY} bytes: ask for less"
            ))
        })
    }

    /// Returns a part of a cell's answer to the query with that number.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell has ended.
    pub fn answers(
        &mut self,
        name: &str,
        line: Line,
        number: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<AnswerPiece, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        let held = cell.held().ok_or_else(|| not_running(cell))?;
        let asked = self.effects.asked(&held.space, line);
        Ok(self.effects.report(&held.space).answers.on(line).piece(number, asked, from, max_bytes))
    }
}

fn not_running<E: Effects>(cell: &Cell<E>) -> ManagementError {
    ManagementError::WrongState { name: cell.spec.name.clone(), state: cell.state() }
}
