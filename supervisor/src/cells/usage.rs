//! A cell's usage, and information on a cell for responses.

use super::cell::{Cell, End};
use crate::report;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use isola_abi::grid::GridSetup;
use isola_abi::histogram::Distribution;
use isola_abi::management::{ActivityPage, CellInfo, CoreUsage, MemoryUsage, NetworkUsage};
use isola_abi::report::CellPhase;
use isola_abi::size::ByteSize;
use isola_supervisor_core::Hardware;
use isola_supervisor_core::trusted_core::OwnedCell;

/// The level of detail of a cell's information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// All known facts.
    Full,
    /// Without arguments, activities, latencies, memory loans and the cores of ended cells, and with only the kind of a crash and the
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

    /// Reads the usage from a cell's report and ledger.
    pub(super) fn read<H: Hardware>(cell: &OwnedCell<H>) -> Self {
        let (report, ledger) = (cell.report(), cell.ledger());
        Self {
            phase: report::phase(report),
            cores: report::cores(report, ledger, cell.core_ids()),
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

impl Cell {
    /// Returns information on the cell for a response, without its loans. `owned` has its resources.
    pub(super) fn info<H: Hardware>(
        &self,
        owned: Option<&OwnedCell<H>>,
        boot_unix_ns: u64,
        detail: Detail,
    ) -> CellInfo {
        let (mut usage, given_bytes, memory_bytes) = match (&self.outcome.usage, owned) {
            // Another cell may have the address by now.
            (Some(usage), _) => {
                (Usage { address: None, ..Usage::clone(usage) }, self.outcome.memory_bytes, 0)
            }
            (None, Some(owned)) => (Usage::read(owned), owned.memory_bytes(), owned.memory_bytes()),
            (None, None) => (Usage::forgotten(End::Killed), 0, 0),
        };
        for (core, present) in usage.cores.iter_mut().zip(owned.into_iter().flat_map(OwnedCell::cores)) {
            core.is_present = present.is_some();
        }
        let mut spec = self.spec.clone();
        // After an unplug, the cell's requests have a lower limit.
        spec.memory_max = spec.memory_max.map(|most| self.growth.limit.map_or(most, ByteSize));
        let mut crash = self.outcome.crash.clone();
        if detail == Detail::Brief {
            spec.arguments.clear();
            spec.grid = GridSetup::default();
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
            exit_code: self.outcome.exit_code,
            cores: usage.cores,
            memory_given: ByteSize(given_bytes),
            memory: ByteSize(memory_bytes),
            image: ByteSize(self.image.copied),
            text: ByteSize(self.image.shared),
            memory_usage: usage.memory,
            device: owned.and_then(OwnedCell::device),
            address: usage.address,
            network: usage.network,
            activities: usage.activities,
            service: usage.service,
            loans: Vec::new(),
            memory_loans: Vec::new(),
            memory_lent: ByteSize(0),
            crash,
            restarts: self.restarting.info(boot_unix_ns),
            created_unix_ns: self.times.created_unix_ns,
            started_unix_ns: self.times.started_unix_ns,
            durations: self.times.durations,
        }
    }
}
