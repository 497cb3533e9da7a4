//! Requests that change nothing: information on cells and machine, logs, and queries to cells.

use super::cell::Cell;
use super::usage::Detail;
use super::{Cells, shorten};
use crate::report;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{ActivityPage, CellInfo, ImageInfo, LogPiece, MachineInfo, ManagementError};
use isola_abi::query::{AnswerPiece, Line, MAX_QUERY};
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::trusted_core::OwnedCell;

impl<H: Hardware> Cells<H> {
    /// Returns the machine's resources.
    pub fn machine(&self) -> MachineInfo {
        MachineInfo {
            cores: self.core.inventory().cores.info(),
            memory_total: ByteSize(self.core.inventory().memory.total()),
            memory_free: ByteSize(self.core.inventory().memory.available() + self.images.idle_bytes()),
            memory_dirty: ByteSize(self.core.inventory().memory.dirty()),
            memory_quarantined: ByteSize(self.core.quarantined_bytes() + self.images.stuck_bytes()),
            memory_supervisor: ByteSize(self.boot.memory_supervisor),
            memory_images: ByteSize(self.images.memory_bytes()),
            devices_total: self.core.inventory().devices.total() as u32,
            devices_free: self.core.inventory().devices.free() as u32,
            disks_total: self.core.inventory().disks.total() as u32,
            disks_free: self.core.inventory().disks.free() as u32,
            tsc_hz: self.boot.tsc_hz,
            boot_ns: self.boot.ready_ns,
            restarts: self.boot.restarts,
            uptime_ns: self.core.now_ns().saturating_sub(self.boot.ready_ns),
        }
    }

    /// Returns all cells by age, from their reports as of now; does not act on the reports.
    pub fn list(&self, detail: Detail) -> impl Iterator<Item = CellInfo> {
        self.table.iter().map(move |cell| self.info_of(cell, detail))
    }

    /// Returns one cell.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn inspect(&mut self, name: &str) -> Result<Box<CellInfo>, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        self.info(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))
    }

    /// Returns the cell with that id, from its report as of now; does not act on the report.
    pub fn info(&self, id: CellId) -> Option<Box<CellInfo>> {
        self.table.get(id).map(|cell| Box::new(self.info_of(cell, Detail::Full)))
    }

    fn info_of(&self, cell: &Cell, detail: Detail) -> CellInfo {
        let loans = self.loans_of(cell.id);
        let memory_loans = if detail == Detail::Full { self.memory_loans_of(cell.id) } else { Vec::new() };
        let memory_lent = ByteSize(self.loans.memory.lent_bytes(cell.id));
        CellInfo {
            loans,
            memory_loans,
            memory_lent,
            ..cell.info(self.core.cell(cell.id), self.boot.unix_ns, detail)
        }
    }

    /// Returns a page of the usage of a cell's activities, from the slot `from` of its ledger on. The page of an ended
    /// cell is empty.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn activities(&mut self, name: &str, from: u32) -> Result<ActivityPage, ManagementError> {
        let id = self.find(name)?;
        let read = |cell: &OwnedCell<H>| report::activities(cell.report(), cell.ledger(), from as usize);
        Ok(self.core.cell(id).map_or_else(ActivityPage::default, read))
    }

    /// Returns a part of a cell's log.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn logs(&mut self, name: &str, from: u64, max_bytes: usize) -> Result<LogPiece, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.table.get(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        Ok(cell.log.piece(from, max_bytes))
    }

    /// Returns all stored images.
    pub fn images(&self) -> Vec<ImageInfo> {
        self.images.list()
    }

    /// Sends a query to a running cell. Returns its number. The supervisor forwards the bytes unparsed.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`]; [`ManagementError::WrongState`] if the cell does not run;
    /// [`ManagementError::OutOfLimits`] if the query is too long.
    pub fn ask(&mut self, name: &str, line: Line, query: &[u8]) -> Result<u32, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.table.get(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        let owned = self.core.cell(id).filter(|_| cell.is_live()).ok_or_else(|| cell.wrong_state())?;
        owned.send_query(line, query).ok_or_else(|| {
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
        let cell = self.table.get(id).ok_or_else(|| ManagementError::NoSuchCell(shorten(name)))?;
        let owned = self.core.cell(id).ok_or_else(|| cell.wrong_state())?;
        let asked = owned.last_query(line);
        Ok(owned.report().answers.on(line).piece(number, asked, from, max_bytes))
    }
}
