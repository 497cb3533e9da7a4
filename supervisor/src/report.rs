//! Reads a cell's state and usage in its report, as untrusted data: counts are bounded, indices checked, and sums
//! saturate. The core reads the parts that move cores and memory.

use alloc::string::String;
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use isola_abi::histogram::Distribution;
use isola_abi::id::CoreId;
use isola_abi::ledger::{ActivityReport, Ledger};
use isola_abi::management::{
    ACTIVITIES_PER_PAGE, ActivityPage, ActivityUsage, CoreUsage, Crash, MemoryUsage, NetworkUsage,
};
use isola_abi::report::{CellPhase, CorePhase, CoreReport, CrashKind, CrashReport, MemoryPressure, Report};
use isola_abi::size::ByteSize;

/// Returns the cell's phase. An invalid number counts as silence.
pub fn phase(report: &Report) -> CellPhase {
    CellPhase::from_u32(report.phase.load(Ordering::Acquire)).unwrap_or(CellPhase::Silent)
}

/// Returns the application's exit code.
pub fn exit_code(report: &Report) -> i32 {
    report.exit_code.load(Ordering::Relaxed)
}

/// Returns the phase of the core at a core slot, and the number of its event loop's passes.
pub fn sign(report: &Report, index: usize) -> (CorePhase, u64) {
    report.cores.get(index).map_or((CorePhase::Asleep, 0), |core| (core_phase(core), get(&core.passes)))
}

/// Returns the core slot whose core runs the vcore of the slot `index`.
pub fn runner_slot(report: &Report, index: usize) -> usize {
    report.cores.get(index).map_or(0, |core| core.vcore_runner.load(Ordering::Relaxed) as usize)
}

/// Returns the usage of each of the cell's cores.
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

/// Returns how many slots of the ledger were ever used.
fn activity_count(report: &Report, ledger: Ledger<'_>) -> usize {
    (report.activity_count.load(Ordering::Relaxed) as usize).min(ledger.records().len())
}

/// Returns a page of the usage of the cell's activities, summed over all core slots, from the ledger's slot `from` on.
pub fn activities(report: &Report, ledger: Ledger<'_>, from: usize) -> ActivityPage {
    let count = activity_count(report, ledger);
    let end = from.saturating_add(ACTIVITIES_PER_PAGE).min(count);
    let next = (end < count).then_some(end as u32);
    let mut page = ActivityPage { next, ..ActivityPage::default() };
    for (slot, record) in ledger.records().iter().enumerate().take(end).skip(from) {
        let generation = record.generation.get();
        let (before, now) = (usage(&record.before), usage(&ledger.sum(slot)));
        let name = text(&record.name);
        match (generation.is_in_use(), generation == record.generation.get()) {
            (true, true) => {
                page.activities.push(ActivityUsage { name, ..difference(&now, &before) });
                page.ended = total(&page.ended, &before);
            }
            (false, true) => page.ended = total(&page.ended, &now),
            // The slot is being reused: its earlier usage is read at the next call.
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
        // A core's part below 0 is stored modulo 2^64, and so is the sum.
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

/// Returns the number of the cell's core requests.
pub fn core_requests(report: &Report) -> u32 {
    report.core_requests.load(Ordering::Acquire)
}

/// Returns the distribution of the cell's service latencies, over all core slots.
pub fn service(report: &Report) -> Distribution {
    report.cores.iter().fold(Distribution::default(), |mut all, core| {
        all.add(&core.service.read());
        all
    })
}

/// Returns the usage of the cell's memory.
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

/// Returns the cell's network usage.
pub fn network(report: &Report) -> NetworkUsage {
    NetworkUsage {
        received_frames: get(&report.network.received_frames),
        received_bytes: get(&report.network.received_bytes),
        sent_frames: get(&report.network.sent_frames),
        sent_bytes: get(&report.network.sent_bytes),
        dropped_frames: get(&report.network.dropped_frames),
    }
}

/// Returns the address that the cell reports.
pub fn address(report: &Report) -> Option<Ipv4Addr> {
    let address = report.ipv4_address.load(Ordering::Relaxed);
    (address != 0).then(|| Ipv4Addr::from_bits(address))
}

/// Returns the crash record, if a core has claimed it. An invalid kind counts as an exception.
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

/// Returns the text up to its first zero byte, with invalid UTF-8 replaced.
fn text(bytes: &[AtomicU8]) -> String {
    let bytes: Vec<u8> =
        bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|&byte| byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
