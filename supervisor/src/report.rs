//! What a cell says of itself, read without believing it: every count is bounded, every number that should
//! name something is checked to, and sums do not overflow.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use isola_abi::growth::{LARGEST_CHUNK, SMALLEST_CHUNK};
use isola_abi::histogram::Distribution;
use isola_abi::id::{CoreId, NodeId, PhysRange};
use isola_abi::ledger::{ActivityReport, Ledger};
use isola_abi::management::{
    ACTIVITIES_PER_PAGE, ActivityPage, ActivityUsage, CoreUsage, Crash, MemoryUsage, NetworkUsage,
};
use isola_abi::places::Order;
use isola_abi::report::{CellPhase, CorePhase, CoreReport, CrashKind, CrashReport, MemoryPressure, Report};
use isola_abi::size::ByteSize;
use isola_abi::unplug::Rest;

/// How far the cell says it has come. What is no phase counts as silence.
pub fn phase(report: &Report) -> CellPhase {
    CellPhase::from_u32(report.phase.load(Ordering::Acquire)).unwrap_or(CellPhase::Silent)
}

/// The application's exit code.
pub fn exit_code(report: &Report) -> i32 {
    report.exit_code.load(Ordering::Relaxed)
}

/// What the core of that index is seen to do: its phase, and how often its event loop came by.
pub fn sign(report: &Report, index: usize) -> (CorePhase, u64) {
    report.cores.get(index).map_or((CorePhase::Asleep, 0), |core| (core_phase(core), get(&core.passes)))
}

/// The place whose core runs what belongs to the one of that index, as far as the cell says.
pub fn carrier(report: &Report, index: usize) -> usize {
    report.cores.get(index).map_or(0, |core| core.carrier.load(Ordering::Relaxed) as usize)
}

/// The order that the core at that place says it has carried out.
pub fn carried_out(report: &Report, place: usize) -> Order {
    Order::from_u32(report.cores.get(place).map_or(0, |core| core.order.load(Ordering::Acquire)))
}

/// The order by which the core at that place says it has suspended what it was in the middle of.
pub fn yielded(report: &Report, place: usize) -> Order {
    Order::from_u32(report.cores.get(place).map_or(0, |core| core.yielded.load(Ordering::Acquire)))
}

/// What each of the cell's cores did.
pub fn cores(report: &Report, ledger: Ledger<'_>, ids: &[CoreId]) -> Vec<CoreUsage> {
    let count = activity_count(report, ledger);
    let usage = |(index, (core, &id)): (usize, (&CoreReport, &CoreId))| CoreUsage {
        id,
        is_present: true,
        phase: core_phase(core),
        interrupts: get(&core.interrupts),
        idle_cycles: get(&core.idle_cycles),
        loop_cycles: get(&core.loop_cycles),
        interrupt_cycles: get(&core.interrupt_cycles),
        long_events: get(&core.long_events),
        longest_event_cycles: get(&core.longest_event_cycles),
        event_cycles: sum(ledger.core(index).iter().take(count).map(|activity| &activity.cycles)),
        queueing: core.queueing.read(),
    };
    report.cores.iter().zip(ids).enumerate().map(usage).collect()
}

/// How many slots activities have had, from the first on.
fn activity_count(report: &Report, ledger: Ledger<'_>) -> usize {
    (report.activity_count.load(Ordering::Relaxed) as usize).min(ledger.records().len())
}

/// What the cell's activities used on all cores that it ever had: a page of the ledger, from that slot on.
pub fn activities(report: &Report, ledger: Ledger<'_>, from: usize) -> ActivityPage {
    let count = activity_count(report, ledger);
    let end = from.saturating_add(ACTIVITIES_PER_PAGE).min(count);
    let next = (end < count).then_some(end as u32);
    let mut page = ActivityPage { next, ..ActivityPage::default() };
    for (slot, record) in ledger.records().iter().enumerate().take(end).skip(from) {
        let generation = record.generation();
        let (before, now) = (usage(&record.before), usage(&ledger.sum(slot)));
        let name = text(&record.name);
        match (generation.is_in_use(), generation == record.generation()) {
            (true, true) => {
                page.activities.push(ActivityUsage { name, ..difference(&now, &before) });
                page.ended = total(&page.ended, &before);
            }
            (false, true) => page.ended = total(&page.ended, &now),
            // It is given to another activity just now: what it used is read the next time.
            (_, false) => {}
        }
    }
    page
}

fn usage(used: &ActivityReport) -> ActivityUsage {
    ActivityUsage {
        name: String::new(),
        cycles: get(&used.cycles),
        events: get(&used.events),
        // Parts below 0 are written modulo 2^64, and so is their sum.
        memory_bytes: get(&used.memory_bytes).cast_signed(),
    }
}

fn total(one: &ActivityUsage, other: &ActivityUsage) -> ActivityUsage {
    ActivityUsage {
        name: String::new(),
        cycles: one.cycles.saturating_add(other.cycles),
        events: one.events.saturating_add(other.events),
        memory_bytes: one.memory_bytes.saturating_add(other.memory_bytes),
    }
}

fn difference(now: &ActivityUsage, before: &ActivityUsage) -> ActivityUsage {
    ActivityUsage {
        name: String::new(),
        cycles: now.cycles.saturating_sub(before.cycles),
        events: now.events.saturating_sub(before.events),
        memory_bytes: now.memory_bytes.saturating_sub(before.memory_bytes),
    }
}

/// How often the cell has requested a core.
pub fn core_requests(report: &Report) -> u32 {
    report.core_requests.load(Ordering::Acquire)
}

/// How long the cell's requests took, on all cores that it ever had.
pub fn service(report: &Report) -> Distribution {
    report.cores.iter().fold(Distribution::default(), |mut all, core| {
        all.add(&core.service.read());
        all
    })
}

/// What the cell uses of its memory.
pub fn memory(report: &Report) -> MemoryUsage {
    MemoryUsage {
        total: ByteSize(get(&report.memory.total_bytes)),
        used: ByteSize(get(&report.memory.used_bytes)),
        peak: ByteSize(get(&report.memory.peak_bytes)),
        room: ByteSize(get(&report.memory.room_bytes)),
        pressure: MemoryPressure::from_u32(report.memory.pressure.load(Ordering::Relaxed))
            .unwrap_or_default(),
    }
}

/// Memory that a cell requests to have on top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requested {
    /// The request's number; 0: there was none yet.
    pub number: u32,
    /// The least that will do: a power of two, from [`SMALLEST_CHUNK`] on. Anything above [`LARGEST_CHUNK`] is
    /// more than any cell gets at once.
    pub least_bytes: u64,
    /// The most that is wanted; any number.
    pub largest_bytes: u64,
    /// Where; any number.
    pub node: NodeId,
}

/// What the cell requests to have on top.
pub fn request(report: &Report) -> Requested {
    let number = report.memory_request.number.load(Ordering::Acquire);
    let least = get(&report.memory_request.least_bytes).clamp(SMALLEST_CHUNK, LARGEST_CHUNK + 1);
    Requested {
        number,
        least_bytes: least.next_power_of_two(),
        largest_bytes: get(&report.memory_request.largest_bytes),
        node: NodeId(report.memory_request.node.load(Ordering::Relaxed)),
    }
}

/// Memory that a cell offers to give back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offered {
    /// The blocks: any numbers.
    pub blocks: Vec<PhysRange>,
    /// What of the request they do not cover, in the cell's words.
    pub rest: Rest,
    /// How much it has moved for that, in its words: any number.
    pub moved_bytes: u64,
}

/// What the cell offers for the request of that number; `None` as long as it offers nothing.
pub fn offer(report: &Report, number: u32) -> Option<Offered> {
    let offer = (report.offer.number() == number).then_some(&report.offer)?;
    let (blocks, rest) = offer.read();
    Some(Offered { blocks: blocks.collect(), rest, moved_bytes: offer.moved_bytes() })
}

/// The cell's traffic.
pub fn network(report: &Report) -> NetworkUsage {
    NetworkUsage {
        received_frames: get(&report.network.received_frames),
        received_bytes: get(&report.network.received_bytes),
        sent_frames: get(&report.network.sent_frames),
        sent_bytes: get(&report.network.sent_bytes),
        dropped_frames: get(&report.network.dropped_frames),
    }
}

/// The address that the cell says it uses.
pub fn address(report: &Report) -> Option<Ipv4Addr> {
    let address = report.ipv4_address.load(Ordering::Relaxed);
    (address != 0).then(|| Ipv4Addr::from_bits(address))
}

/// The record of what went wrong, where a core has claimed it. What is no kind counts as an exception.
pub fn crash(report: &Report, ids: &[CoreId]) -> Option<Crash> {
    let record: &CrashReport = &report.crash;
    if record.claimed_by.load(Ordering::Relaxed) == 0 {
        return None;
    }
    Some(Crash {
        kind: CrashKind::from_u32(record.kind.load(Ordering::Relaxed)).unwrap_or(CrashKind::Exception),
        core: ids.get(record.core_index.load(Ordering::Relaxed) as usize).copied(),
        vector: record.vector.load(Ordering::Relaxed),
        error_code: get(&record.error_code),
        fault_address: get(&record.fault_address),
        instruction: get(&record.instruction),
        stack_pointer: get(&record.stack_pointer),
        backtrace: record.backtrace.iter().map(get).take_while(|&address| address != 0).collect(),
        message: text(&record.message),
    })
}

fn core_phase(core: &CoreReport) -> CorePhase {
    CorePhase::from_u32(core.phase.load(Ordering::Relaxed)).unwrap_or(CorePhase::Running)
}

fn get(value: &AtomicU64) -> u64 {
    value.load(Ordering::Relaxed)
}

fn sum<'a>(values: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    values.map(get).fold(0, u64::saturating_add)
}

/// Text up to its first zero byte, with what is no UTF-8 replaced.
fn text(bytes: &[AtomicU8]) -> String {
    let bytes: Vec<u8> =
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
pub(crate) mod tests;
