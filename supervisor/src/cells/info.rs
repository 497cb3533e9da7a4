//! Information on cells and machine, for responses.

use super::Cells;
use super::cell::{Body, Cell, End};
use crate::effects::Effects;
use crate::report;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use isola_abi::histogram::Distribution;
use isola_abi::id::{CellId, CoreId};
use isola_abi::ledger::Ledger;
use isola_abi::management::{
    ActivityPage, CellInfo, CoreUsage, LogPiece, MachineInfo, ManagementError, MemoryUsage, NetworkUsage,
};
use isola_abi::report::{CellPhase, Report};
use isola_abi::size::ByteSize;

/// The level of detail of a cell's information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All known facts.
    Full,
    /// Without arguments, activities, latencies and the cores of ended cells, and with only the kind of a crash and the
    /// beginning of its message: so all cells fit in one frame.
    Brief,
}

/// The most bytes of a crash's message in a brief answer.
const BRIEF_MESSAGE: usize = 100;

/// A cell's usage, as its report states it.
#[derive(Clone, Debug)]
pub(super) struct Usage {
    phase: CellPhase,
    cores: Vec<CoreUsage>,
    memory: MemoryUsage,
    address: Option<Ipv4Addr>,
    network: NetworkUsage,
    activities: ActivityPage,
    service: Distribution,
}

impl Usage {
    /// Returns the usage of an ended cell whose usage is lost.
    pub(super) fn forgotten(end: End) -> Self {
        Self {
            phase: match end {
                End::Exited => CellPhase::Exited,
                End::Crashed => CellPhase::Crashed,
                End::Killed => CellPhase::Running,
            },
            cores: Vec::new(),
            memory: MemoryUsage::default(),
            address: None,
            network: NetworkUsage::default(),
            activities: ActivityPage::default(),
            service: Distribution::default(),
        }
    }

    /// Reads the usage from a cell's report and ledger. `core_ids` has the core of each core slot.
    pub(super) fn read(report: &Report, ledger: Ledger<'_>, core_ids: &[CoreId]) -> Self {
        Self {
            phase: report::phase(report),
            cores: report::cores(report, ledger, core_ids),
            memory: report::memory(report),
            address: report::address(report),
            network: report::network(report),
            activities: report::activities(report, ledger, 0),
            service: report::service(report),
        }
    }

    /// Limits the activities to the first page, as the ledger of an ended cell is gone.
    pub(super) fn keep_one_page(&mut self) {
        self.activities.next = None;
    }
}

impl<E: Effects> Cells<E> {
    /// Returns the machine's resources.
    pub fn machine(&self) -> MachineInfo {
        MachineInfo {
            cores: self.inventory.cores.info(),
            memory_total: ByteSize(self.inventory.memory.total()),
            memory_free: ByteSize(self.inventory.memory.available() + self.images.idle_bytes()),
            memory_dirty: ByteSize(self.inventory.memory.dirty()),
            memory_quarantined: ByteSize(
                self.quarantine.iter().map(|kept| kept.memory_bytes).sum::<u64>()
                    + self.withheld_bytes
                    + self.images.stuck_bytes(),
            ),
            memory_supervisor: ByteSize(self.boot.memory_supervisor),
            memory_images: ByteSize(self.images.memory_bytes()),
            devices_total: self.inventory.devices.total() as u32,
            devices_free: self.inventory.devices.free() as u32,
            tsc_hz: self.boot.tsc_hz,
            boot_ns: self.boot.ready_ns,
            restarts: self.boot.restarts,
            uptime_ns: self.effects.now_ns().saturating_sub(self.boot.ready_ns),
        }
    }

    /// Returns all cells by age, from their reports as of now; does not act on the reports.
    pub fn list(&self, detail: Detail) -> impl Iterator<Item = CellInfo> {
        self.cells.values().map(move |cell| CellInfo {
            loans: self.loans_of(cell.id),
            ..cell.info(&self.effects, self.boot.unix_ns, detail)
        })
    }

    /// Returns one cell.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn inspect(&mut self, name: &str) -> Result<Box<CellInfo>, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        self.info(id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))
    }

    /// Returns the cell with that id, from its report as of now; does not act on the report.
    pub fn info(&self, id: CellId) -> Option<Box<CellInfo>> {
        let cell = self.cells.get(&id)?;
        Some(Box::new(CellInfo {
            loans: self.loans_of(id),
            ..cell.info(&self.effects, self.boot.unix_ns, Detail::Full)
        }))
    }

    /// Returns a page of the usage of a cell's activities, from the slot `from` of its ledger on. The page of an ended
    /// cell is empty.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn activities(&mut self, name: &str, from: u32) -> Result<ActivityPage, ManagementError> {
        let id = self.find(name)?;
        let held = self.cells.get(&id).and_then(Cell::held);
        let read =
            |space| report::activities(self.effects.report(space), self.effects.ledger(space), from as usize);
        Ok(held.map_or_else(ActivityPage::default, |held| read(&held.space)))
    }

    /// Returns a part of a cell's log.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoSuchCell`] if there is none.
    pub fn logs(&mut self, name: &str, from: u64, max_bytes: usize) -> Result<LogPiece, ManagementError> {
        let id = self.find(name)?;
        self.poll(id);
        let cell = self.cells.get(&id).ok_or_else(|| ManagementError::NoSuchCell(super::shorten(name)))?;
        Ok(cell.log.piece(from, max_bytes))
    }
}

impl<E: Effects> Cell<E> {
    fn info(&self, effects: &E, boot_unix_ns: u64, detail: Detail) -> CellInfo {
        let (mut usage, memory_bytes) = match &self.body {
            Body::Held(held) => {
                let (report, ledger) = (effects.report(&held.space), effects.ledger(&held.space));
                (Usage::read(report, ledger, &self.core_ids), self.memory_bytes)
            }
            // Another cell may have the address by now.
            Body::Gone(usage) => (Usage { address: None, ..Usage::clone(usage) }, 0),
        };
        for (core, place) in usage.cores.iter_mut().zip(self.held().into_iter().flat_map(|held| &held.cores))
        {
            core.is_present = place.is_some();
        }
        let mut spec = self.spec.clone();
        // After an unplug, the cell's requests have a lower limit.
        spec.memory_max = spec.memory_max.map(|most| self.growth.limit.map_or(most, ByteSize));
        let mut crash = self.crash.clone();
        if detail == Detail::Brief {
            spec.arguments.clear();
            usage.activities = ActivityPage::default();
            usage.service = Distribution::default();
            usage.cores.iter_mut().for_each(|core| core.queueing = Distribution::default());
            if self.state().has_ended() {
                usage.cores.clear();
            }
            if let Some(crash) = &mut crash {
                crash.backtrace.clear();
                crash.message.truncate(crash.message.floor_char_boundary(BRIEF_MESSAGE));
            }
        }
        CellInfo {
            id: self.id,
            spec,
            state: self.state(),
            phase: usage.phase,
            exit_code: self.exit_code,
            cores: usage.cores,
            memory_given: ByteSize(self.memory_bytes),
            memory: ByteSize(memory_bytes),
            image: ByteSize(self.image_bytes),
            text: ByteSize(self.text_bytes),
            memory_usage: usage.memory,
            device: match &self.body {
                Body::Held(held) => held.device.as_ref().map(E::location),
                _ => None,
            },
            address: usage.address,
            network: usage.network,
            activities: usage.activities,
            service: usage.service,
            loans: Vec::new(),
            crash,
            restarts: self.restarting.info(boot_unix_ns),
            created_unix_ns: self.created_unix_ns,
            started_unix_ns: self.started_unix_ns,
            durations: self.durations,
        }
    }
}
