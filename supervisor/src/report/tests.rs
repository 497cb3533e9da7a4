//! Reports of cells that mean well and of cells that do not.

use super::*;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicI32, AtomicU32};
use isola_abi::growth::GrowthRequest;
use isola_abi::histogram::{BUCKETS, Histogram};
use isola_abi::id::MAX_CORES;
use isola_abi::report::{
    ACTIVITY_NAME_LEN, ActivityReport, BACKTRACE_LEN, CONSOLE_LEN, CRASH_MESSAGE_LEN, ConsoleRing,
    MemoryReport, NetworkReport,
};
use isola_abi::unplug::Offer;

/// A value whose every byte is `fill`.
const fn word(fill: u8) -> AtomicU64 {
    AtomicU64::new(u64::from_ne_bytes([fill; 8]))
}

const fn half(fill: u8) -> AtomicU32 {
    AtomicU32::new(u32::from_ne_bytes([fill; 4]))
}

/// A report whose every byte is `fill`.
pub(crate) fn filled<const FILL: u8>() -> Box<Report> {
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
            reserved: half(FILL),
        },
        offer: Offer::default(),
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
        activity_names: [const { [const { AtomicU8::new(FILL) }; ACTIVITY_NAME_LEN] }; MAX_ACTIVITIES],
        cores: [const {
            CoreReport {
                phase: half(FILL),
                activity: half(FILL),
                order: half(FILL),
                yielded: half(FILL),
                forgotten: half(FILL),
                carrier: half(FILL),
                passes: word(FILL),
                interrupts: word(FILL),
                idle_cycles: word(FILL),
                loop_cycles: word(FILL),
                interrupt_cycles: word(FILL),
                long_events: word(FILL),
                longest_event_cycles: word(FILL),
                activities: [const {
                    ActivityReport { cycles: word(FILL), events: word(FILL), memory_bytes: word(FILL) }
                }; MAX_ACTIVITIES],
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

/// The report of a cell that has not said anything.
pub(crate) fn blank() -> Box<Report> {
    filled::<0>()
}

/// Writes a text as a cell does.
pub(crate) fn write(place: &[AtomicU8], value: &str) {
    place.iter().zip(value.bytes()).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
}

#[test]
fn a_silent_cell_says_nothing() {
    let report = blank();
    assert_eq!(phase(&report), CellPhase::Silent);
    assert_eq!(crash(&report, &[CoreId(1)]), None);
    assert_eq!(address(&report), None);
    assert!(activities(&report, 2).is_empty());
    assert_eq!(sign(&report, 0), (CorePhase::Asleep, 0));
}

#[test]
fn usage_is_summed_over_the_cell_s_cores() {
    let report = blank();
    report.activity_count.store(2, Ordering::Relaxed);
    write(&report.activity_names[1], "kv");
    for (index, core) in report.cores.iter().enumerate().take(3) {
        core.activities[1].cycles.store(10 + index as u64, Ordering::Relaxed);
        core.activities[1].events.store(1, Ordering::Relaxed);
        let freed_elsewhere = 1000_u64.wrapping_sub(3000 * index as u64);
        core.activities[1].memory_bytes.store(freed_elsewhere, Ordering::Relaxed);
    }
    // The third core is not the cell's.
    let activities = activities(&report, 2);
    assert_eq!(
        activities[1],
        ActivityUsage { name: "kv".into(), cycles: 21, events: 2, memory_bytes: -1000 }
    );
    let cores = cores(&report, &[CoreId(4), CoreId(6)]);
    assert_eq!((cores.len(), cores[1].id, cores[1].event_cycles), (2, CoreId(6), 11));
}

#[test]
fn the_latency_of_requests_is_summed_over_cores_that_have_gone_too_and_queueing_is_told_by_core() {
    let report = blank();
    report.cores[0].service.count(1_000, 3);
    report.cores[9].service.count(70_000, 1);
    report.cores[1].queueing.count(500, 2);
    let requests = service(&report);
    assert_eq!((requests.count(), requests.count_from(70_000)), (4, 1));
    let waited: Vec<u64> =
        cores(&report, &[CoreId(4), CoreId(6)]).iter().map(|core| core.queueing.count()).collect();
    assert_eq!(waited, [0, 2]);
}

#[test]
fn a_crash_is_read_as_written() {
    let report = blank();
    let record = &report.crash;
    record.claimed_by.store(2, Ordering::Relaxed);
    record.core_index.store(1, Ordering::Relaxed);
    record.kind.store(CrashKind::DoubleFault as u32, Ordering::Relaxed);
    record.backtrace[0].store(7, Ordering::Relaxed);
    write(&record.message, "the stack has overflowed");
    let crash = crash(&report, &[CoreId(4), CoreId(6)]).unwrap();
    assert_eq!((crash.kind, crash.core), (CrashKind::DoubleFault, Some(CoreId(6))));
    assert_eq!(crash.backtrace, [7]);
    assert_eq!(crash.message, "the stack has overflowed");
}

#[test]
fn a_report_full_of_ones_is_bounded() {
    let report = filled::<0xff>();
    let ids: Vec<CoreId> = (0..100).map(CoreId).collect();
    assert_eq!(phase(&report), CellPhase::Silent);
    let crash = crash(&report, &ids).unwrap();
    assert_eq!((crash.kind, crash.core), (CrashKind::Exception, None));
    assert_eq!(crash.backtrace.len(), BACKTRACE_LEN);
    assert!(crash.message.len() <= 3 * CRASH_MESSAGE_LEN);
    assert_eq!(cores(&report, &ids).len(), MAX_CORES);
    assert_eq!(cores(&report, &ids)[0].event_cycles, u64::MAX);
    assert_eq!(service(&report).count(), u64::MAX);
    assert_eq!(activities(&report, 100).len(), MAX_ACTIVITIES);
    assert_eq!(sign(&report, 1000), (CorePhase::Asleep, 0));
    assert_eq!(request(&report).least_bytes, 2 * LARGEST_CHUNK);
    assert_eq!(request(&blank()).least_bytes, SMALLEST_CHUNK);
}
