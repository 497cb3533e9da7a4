//! What is told of cells and machine.

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

/// How much is told of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All that is known.
    Full,
    /// Without arguments, activities, latencies, what the cores of cells that have ended did, and all but the kind and the
    /// beginning of what is said of a crash: so all cells fit in one frame.
    Brief,
}

/// Bytes that are told of a crash's message in brief.
const BRIEF_MESSAGE: usize = 100;

/// What a cell says that it does and has used.
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
    /// Of a cell that has ended so, of which nobody knows any more what it had used.
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

    /// Reads it from the report of a cell of these cores.
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

    /// The cell has ended: what activities used that are not in the first page is forgotten.
    pub(super) fn keep_one_page(&mut self) {
        self.activities.next = None;
    }
}

impl<E: Effects> Cells<E> {
    /// What the machine has.
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

    /// All cells as they were last seen, by age.
    pub fn list(&self, detail: Detail) -> impl Iterator<Item = CellInfo> {
        self.cells.values().map(move |cell| CellInfo {
            loans: self.loans_of(cell.id),
            ..cell.info(&self.effects, self.boot.unix_ns, detail)
        })
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
        let cell = self.cells.get(&id)?;
        Some(Box::new(CellInfo {
            loans: self.loans_of(id),
            ..cell.info(&self.effects, self.boot.unix_ns, Detail::Full)
        }))
    }

    /// What a cell's activities used, from that slot of its ledger on; of a cell that has ended, nothing.
    ///
    /// # Errors
    /// [`ManagementError::NoSuchCell`].
    pub fn activities(&mut self, name: &str, from: u32) -> Result<ActivityPage, ManagementError> {
        let id = self.find(name)?;
        let held = self.cells.get(&id).and_then(Cell::held);
        let read =
            |space| report::activities(self.effects.report(space), self.effects.ledger(space), from as usize);
        Ok(held.map_or_else(ActivityPage::default, |held| read(&held.space)))
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
    fn info(&self, effects: &E, boot_unix_ns: u64, detail: Detail) -> CellInfo {
        let (mut usage, memory_bytes) = match &self.body {
            Body::Held(held) => {
                let (report, ledger) = (effects.report(&held.space), effects.ledger(&held.space));
                (Usage::read(report, ledger, &self.core_ids), self.memory_bytes)
            }
            // What was its address may be another cell's by now.
            Body::Gone(usage) => (Usage { address: None, ..Usage::clone(usage) }, 0),
        };
        for (core, place) in usage.cores.iter_mut().zip(self.held().into_iter().flat_map(|held| &held.cores))
        {
            core.is_present = place.is_some();
        }
        let mut spec = self.spec.clone();
        // What was taken from it on request it may not ask for.
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
