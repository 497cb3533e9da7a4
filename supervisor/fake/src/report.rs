//! Reports of cells, with the words that a cell would write.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use isola_abi::core_slots::{CoreSlots, OrderKind};
use isola_abi::growth::GrowthRequest;
use isola_abi::histogram::{BUCKETS, Histogram};
use isola_abi::id::MAX_CORES;
use isola_abi::ledger::{ActivityRecord, ActivityReport, Ledger};
use isola_abi::report::{
    BACKTRACE_LEN, CONSOLE_LEN, CRASH_MESSAGE_LEN, CellPhase, ConsoleRing, CorePhase, CoreReport, CrashKind,
    CrashReport, MemoryReport, NetworkReport, Report,
};
use isola_abi::unplug::UnplugOffer;

/// Returns a value whose every byte is `fill`.
const fn word(fill: u8) -> AtomicU64 {
    AtomicU64::new(u64::from_ne_bytes([fill; 8]))
}

const fn half(fill: u8) -> AtomicU32 {
    AtomicU32::new(u32::from_ne_bytes([fill; 4]))
}

/// Returns a report whose every byte is `fill`.
pub fn filled<const FILL: u8>() -> Box<Report> {
    Box::new(Report {
        version: half(FILL),
        phase: half(FILL),
        exit_code: AtomicI32::new(i32::from_ne_bytes([FILL; 4])),
        activity_count: half(FILL),
        ipv4_address: half(FILL),
        core_requests: half(FILL),
        crash: CrashReport {
            claimed_by: half(FILL),
            kind: half(FILL),
            core_index: half(FILL),
            vector: half(FILL),
            error_code: word(FILL),
            fault_address: word(FILL),
            instruction: word(FILL),
            stack_pointer: word(FILL),
            backtrace: [const { word(FILL) }; BACKTRACE_LEN],
            message: [const { AtomicU8::new(FILL) }; CRASH_MESSAGE_LEN],
        },
        memory: MemoryReport {
            total_bytes: word(FILL),
            used_bytes: word(FILL),
            peak_bytes: word(FILL),
            room_bytes: word(FILL),
            pressure: half(FILL),
            holders: half(FILL),
        },
        link_request: Default::default(),
        offer: UnplugOffer::default(),
        memory_request: GrowthRequest {
            number: half(FILL),
            node: half(FILL),
            least_bytes: word(FILL),
            largest_bytes: word(FILL),
        },
        network: NetworkReport {
            received_frames: word(FILL),
            received_bytes: word(FILL),
            sent_frames: word(FILL),
            sent_bytes: word(FILL),
            dropped_frames: word(FILL),
        },
        cores: [const {
            CoreReport {
                phase: half(FILL),
                activity: half(FILL),
                order: half(FILL),
                yielded: half(FILL),
                flushed_generation: half(FILL),
                vcore_runner: half(FILL),
                passes: word(FILL),
                interrupts: word(FILL),
                idle_cycles: word(FILL),
                loop_cycles: word(FILL),
                interrupt_cycles: word(FILL),
                long_events: word(FILL),
                longest_event_cycles: word(FILL),
                queueing: Histogram { counts: [const { word(FILL) }; BUCKETS] },
                service: Histogram { counts: [const { word(FILL) }; BUCKETS] },
            }
        }; MAX_CORES],
        answers: isola_abi::query::Answers::new(),
        console: ConsoleRing {
            begun: word(FILL),
            written: word(FILL),
            read: word(FILL),
            bytes: [const { AtomicU8::new(FILL) }; CONSOLE_LEN],
        },
    })
}

/// Returns the report of a cell that has reported nothing.
pub fn blank() -> Box<Report> {
    filled::<0>()
}

/// The ledger of a cell with the largest number of core slots.
pub struct Activities {
    /// The records.
    pub records: Vec<ActivityRecord>,
    /// The counters.
    pub counters: Vec<ActivityReport>,
}

impl Activities {
    /// Returns a ledger of `slots` slots, none of which is in use.
    pub fn new(slots: usize) -> Self {
        Self {
            records: (0..slots).map(|_| ActivityRecord::default()).collect(),
            counters: (0..slots * MAX_CORES).map(|_| ActivityReport::default()).collect(),
        }
    }

    /// Returns the ledger.
    pub fn ledger(&self) -> Ledger<'_> {
        Ledger::new(&self.records, &self.counters)
    }

    /// Registers an activity at a free slot, like a cell.
    pub fn register(&self, report: &Report, slot: usize, name: &str) {
        let record = &self.records[slot];
        assert!(record.generation.claim());
        record.name.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        write(&record.name, name);
        let before = self.ledger().sum(slot);
        record.before.cycles.store(before.cycles.into_inner(), Ordering::Relaxed);
        record.before.events.store(before.events.into_inner(), Ordering::Relaxed);
        record.before.memory_bytes.store(before.memory_bytes.into_inner(), Ordering::Relaxed);
        record.generation.give_out();
        report.activity_count.fetch_max(slot as u32 + 1, Ordering::Relaxed);
    }

    /// Charges usage on a core to the activity of a slot.
    pub fn charge(&self, core: usize, slot: usize, cycles: u64, memory_bytes: i64) {
        let used = &self.ledger().core(core)[slot];
        used.cycles.fetch_add(cycles, Ordering::Relaxed);
        used.events.fetch_add(1, Ordering::Relaxed);
        used.memory_bytes.fetch_add(memory_bytes.cast_unsigned(), Ordering::Relaxed);
    }
}

/// Writes a text like a cell.
pub fn write(place: &[AtomicU8], value: &str) {
    place.iter().zip(value.bytes()).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
}

/// Sets the phase in a cell's report.
pub fn says(report: &Report, phase: CellPhase) {
    report.phase.store(phase as u32, Ordering::Release);
}

/// Makes the core at a core slot carry out its order.
pub fn obeys(report: &Report, slots: &CoreSlots, slot: usize) {
    let order = slots.at(slot);
    let echo = if matches!(order.kind, OrderKind::Yield) { order.left() } else { order };
    report.cores[slot].order.store(echo.to_u32(), Ordering::Release);
}

/// Makes the core at a core slot yield: it reports its event as suspended.
pub fn yields(report: &Report, slots: &CoreSlots, slot: usize) {
    report.cores[slot].yielded.store(slots.at(slot).to_u32(), Ordering::Release);
}

/// Sets a core's phase and number of passes in a cell's report.
pub fn signs(report: &Report, index: usize, phase: CorePhase, passes: u64) {
    report.cores[index].phase.store(phase as u32, Ordering::Relaxed);
    report.cores[index].passes.store(passes, Ordering::Relaxed);
}

/// Sets a crash in a cell's report.
pub fn crashes(report: &Report, kind: CrashKind, message: &str) {
    report.crash.claimed_by.store(1, Ordering::Relaxed);
    report.crash.kind.store(kind as u32, Ordering::Relaxed);
    write(&report.crash.message, message);
    says(report, CellPhase::Crashed);
}
