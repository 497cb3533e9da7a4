//! What is told of cells and machine.

use super::Cells;
use super::cell::Cell;
use crate::effects::Effects;
use crate::report;
use alloc::boxed::Box;
use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{CellInfo, LogPiece, MachineInfo, ManagementError, MemoryUsage, NetworkUsage};
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;

/// How much is told of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All that is known.
    Full,
    /// Without arguments, activities and backtrace: what of 63 cells fits in one frame.
    Brief,
}

impl<E: Effects> Cells<E> {
    /// What the machine has.
    pub fn machine(&self) -> MachineInfo {
        MachineInfo {
            cores: self.inventory.cores.info(),
            memory_total: ByteSize(self.inventory.memory.total()),
            memory_free: ByteSize(self.inventory.memory.free()),
            memory_supervisor: ByteSize(self.boot.memory_supervisor),
            devices_total: self.inventory.devices.total() as u32,
            devices_free: self.inventory.devices.free() as u32,
            tsc_hz: self.boot.tsc_hz,
            boot_ns: self.boot.ready_ns,
            uptime_ns: self.effects.now_ns().saturating_sub(self.boot.ready_ns),
        }
    }

    /// All cells, by age.
    pub fn list(&mut self, detail: Detail) -> Vec<CellInfo> {
        self.doorbell();
        self.cells.values().map(|cell| cell.info(&self.effects, detail)).collect()
    }

    /// One cell.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`].
    pub fn inspect(&mut self, name: &str) -> Result<Box<CellInfo>, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        self.info(id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))
    }

    /// The cell of that id as it was last seen.
    pub fn info(&self, id: CellId) -> Option<Box<CellInfo>> {
        self.cells.get(&id).map(|cell| Box::new(cell.info(&self.effects, Detail::Full)))
    }

    /// What a cell printed.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`].
    pub fn logs(&mut self, name: &str, from: u64, max_bytes: usize) -> Result<LogPiece, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        Ok(cell.log.piece(from, max_bytes))
    }
}

impl<E: Effects> Cell<E> {
    fn info(&self, effects: &E, detail: Detail) -> CellInfo {
        let report = self.report(effects);
        let mut spec = self.spec.clone();
        let mut crash = self.crash.clone();
        let mut activities = Vec::new();
        match detail {
            Detail::Full => {
                activities =
                    report.map(|report| report::activities(report, self.core_ids.len())).unwrap_or_default();
            }
            Detail::Brief => {
                spec.arguments.clear();
                if let Some(crash) = &mut crash {
                    crash.backtrace.clear();
                }
            }
        }
        CellInfo {
            id: self.id,
            spec,
            state: self.state(),
            phase: report.map_or(CellPhase::Silent, report::phase),
            exit_code: self.exit_code,
            cores: report.map(|report| report::cores(report, &self.core_ids)).unwrap_or_default(),
            memory: ByteSize(self.memory_bytes),
            image: ByteSize(self.plan.memory_bytes()),
            memory_usage: report.map_or(MemoryUsage::default(), report::memory),
            address: report.and_then(report::address),
            network: report.map_or(NetworkUsage::default(), report::network),
            activities,
            crash,
            created_unix_ns: self.created_unix_ns,
            started_unix_ns: self.started_unix_ns,
            durations: self.durations,
        }
    }
}
