//! The machine, and the facts about a cell.

use super::Supervisor;
use super::cells::Cell;
use isola_abi::descriptor::NetworkAddress;
use isola_abi::histogram::Histogram;
use isola_abi::id::{CellId, CoreId, NodeId};
use isola_abi::management::*;
use isola_abi::report::{CellPhase, CorePhase, CrashKind, MemoryPressure};
use isola_abi::size::ByteSize;
use isola_abi::topology::CoreSite;
use std::time::{SystemTime, UNIX_EPOCH};

/// The number of cores for cells.
const CORES: u32 = 3;

impl Supervisor {
    pub(super) fn free_cores(&self) -> u32 {
        let locked = self.cells.iter().filter(|cell| !cell.info.state.has_ended());
        CORES - locked.map(|cell| cell.info.spec.cores).sum::<u32>()
    }

    pub(super) fn info(&self, spec: CellSpec, image_len: u64) -> CellInfo {
        let first = CORES - self.free_cores() + 1;
        let (waits, requests) = (Histogram::new(), Histogram::new());
        waits.count(500, 7);
        requests.count(1 << 20, 1_000);
        requests.count(1 << 30, 20);
        let usage = |id| CoreUsage {
            id: CoreId(id),
            is_present: true,
            phase: CorePhase::Halted,
            interrupts: 12,
            idle_cycles: 1_000_000,
            loop_cycles: 2_000,
            interrupt_cycles: 3_000,
            event_cycles: 4_000,
            long_events: 0,
            longest_event_cycles: 1_500,
            queueing: waits.read(),
        };
        CellInfo {
            id: CellId(self.next_id),
            state: CellState::Created,
            phase: CellPhase::Silent,
            exit_code: None,
            cores: (first..first + spec.cores).map(usage).collect(),
            memory_given: spec.memory,
            memory: spec.memory,
            image: ByteSize(image_len),
            text: ByteSize(0),
            memory_usage: MemoryUsage {
                total: ByteSize(60 << 20),
                used: ByteSize(1 << 20),
                peak: ByteSize(2 << 20),
                pressure: MemoryPressure::Low,
                ..MemoryUsage::default()
            },
            device: (spec.network != NetworkSpec::None).then(|| device(self.next_id % 8)),
            address: match spec.network {
                NetworkSpec::None => None,
                NetworkSpec::Dhcp => Some([10, 0, 2, 128].into()),
                NetworkSpec::Static(NetworkAddress { ip, .. }) => Some(ip),
            },
            network: NetworkUsage { received_frames: 5, received_bytes: 500, ..NetworkUsage::default() },
            service: requests.read(),
            activities: first_page(&spec),
            loans: vec![],
            memory_loans: vec![],
            memory_lent: ByteSize(0),
            crash: None,
            restarts: Restarts::default(),
            created_unix_ns: now(),
            started_unix_ns: None,
            durations: Durations { create_ns: Some(1_000_000), ..Durations::default() },
            spec,
        }
    }

    pub(super) fn machine(&self) -> MachineInfo {
        let core = |id, owner| CoreInfo { id, node: NodeId(0), site: CoreSite::alone(id), owner };
        let mut cores = vec![core(CoreId(0), CoreOwner::Supervisor)];
        for id in 1..=CORES {
            let of = |cell: &&Cell| {
                !cell.info.state.has_ended() && cell.info.cores.iter().any(|core| core.id == CoreId(id))
            };
            let owner =
                self.cells.iter().find(of).map_or(CoreOwner::Free, |cell| CoreOwner::Cell(cell.info.id));
            cores.push(core(CoreId(id), owner));
        }
        MachineInfo {
            cores,
            memory_total: ByteSize(1 << 30),
            memory_free: ByteSize(1 << 29),
            memory_dirty: ByteSize(1 << 28),
            memory_quarantined: ByteSize(0),
            memory_supervisor: ByteSize(8 << 20),
            memory_images: ByteSize(2 << 20),
            devices_total: 8,
            devices_free: 7,
            disks_total: 4,
            disks_free: 4,
            tsc_hz: 2_100_000_000,
            boot_ns: 12_000_000,
            uptime_ns: 1_000_000_000,
            restarts: 0,
        }
    }
}

/// Returns the location of the machine's network device of that number, counted from 0.
pub(super) fn device(number: u32) -> DeviceLocation {
    let arguments = std::env::var("FAKE_ARGUMENTS").unwrap_or_default();
    if arguments.contains("microvm") {
        DeviceLocation::Mmio { address: 0xfeb0_2c00 - u64::from(number) * 0x200 }
    } else {
        DeviceLocation::Pci { bus: 0, device: 2 + number as u8, function: 0 }
    }
}

pub(super) fn crash() -> Crash {
    Crash {
        kind: CrashKind::Exception,
        core: Some(CoreId(1)),
        vector: 14,
        error_code: 2,
        fault_address: 0x10,
        instruction: isola_abi::layout::IMAGE + 0x1000,
        stack_pointer: isola_abi::layout::STACKS,
        backtrace: vec![isola_abi::layout::IMAGE + 0x2000],
        message: "a wild write".into(),
    }
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// Returns the first page of the activities of a cell.
fn first_page(spec: &CellSpec) -> ActivityPage {
    let mut page = page(0);
    if spec.arguments.first().is_some_and(|first| first == "hostile") {
        page.activities.push(ActivityUsage { name: "\"}\n\\ 1".into(), ..ActivityUsage::default() });
    }
    page
}

/// Returns a page of the activities of any cell: two pages of one slot each, and a third with ended activities only.
pub(super) fn page(from: u32) -> ActivityPage {
    let used = |name: &str, cycles, events, memory_bytes| ActivityUsage {
        name: name.into(),
        cycles,
        events,
        memory_bytes,
    };
    let (activities, ended) = match from {
        0 => (vec![used("infrastructure", 4_000, 7, -2048)], used("", 50, 1, 0)),
        1 => (vec![used("tenant", 123, 4, 0)], ActivityUsage::default()),
        _ => (Vec::new(), used("", 7, 2, 4096)),
    };
    ActivityPage { activities, ended, next: (from < 2).then_some(from + 1) }
}
