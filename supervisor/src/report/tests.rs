//! Reports of correct cells, and reports with arbitrary contents.

use super::*;
use alloc::vec;
use isola_abi::id::MAX_CORES;
use isola_abi::ledger::{ACTIVITY_NAME_LEN, LEAST_SLOTS};
use isola_abi::report::{BACKTRACE_LEN, CRASH_MESSAGE_LEN};
use isola_supervisor_fake::report::{Activities, blank, filled, write};

#[test]
fn the_report_of_a_silent_cell_is_empty() {
    let report = blank();
    assert_eq!(phase(&report), CellPhase::Silent);
    assert_eq!(crash(&report, &[CoreId(1)]), None);
    assert_eq!(address(&report), None);
    let ledger = Activities::new(LEAST_SLOTS);
    assert_eq!(activities(&report, ledger.ledger(), 0), ActivityPage::default());
    assert_eq!(sign(&report, 0), (CorePhase::Asleep, 0));
}

fn used(name: &str, cycles: u64, events: u64, memory_bytes: i64) -> ActivityUsage {
    ActivityUsage { name: name.into(), cycles, events, memory_bytes }
}

#[test]
fn usage_is_summed_over_all_cores_that_the_cell_ever_had() {
    let (report, ledger) = (blank(), Activities::new(LEAST_SLOTS));
    ledger.register(&report, 0, "application");
    ledger.register(&report, 1, "kv");
    ledger.charge(0, 1, 10, 1000);
    ledger.charge(1, 1, 11, -2000);
    // The third core has left the cell.
    ledger.charge(2, 1, 12, 0);
    let page = activities(&report, ledger.ledger(), 0);
    assert_eq!(page.activities, [used("application", 0, 0, 0), used("kv", 33, 3, -1000)]);
    assert_eq!((page.ended, page.next), (used("", 0, 0, 0), None));
    let cores = cores(&report, ledger.ledger(), &[CoreId(4), CoreId(6)]);
    assert_eq!((cores.len(), cores[1].id, cores[1].event_cycles), (2, CoreId(6), 11));
}

#[test]
fn an_activity_is_not_charged_for_earlier_activities_of_its_slot() {
    let (report, ledger) = (blank(), Activities::new(LEAST_SLOTS));
    let page = || activities(&report, ledger.ledger(), 0);
    ledger.register(&report, 0, "first");
    ledger.charge(3, 0, 100, 4096);
    assert!(ledger.records[0].generation.free());
    assert_eq!((page().activities.len(), page().ended), (0, used("", 100, 1, 4096)));
    ledger.register(&report, 0, "next");
    ledger.charge(3, 0, 7, -96);
    ledger.charge(5, 0, 1, 0);
    assert_eq!((page().activities, page().ended), (vec![used("next", 8, 2, -96)], used("", 100, 1, 4096)));
    // The sum keeps all cycles that the cores have spent.
    assert!(ledger.records[0].generation.free());
    assert_eq!(page().ended, used("", 108, 3, 4000));
}

#[test]
fn many_activities_are_read_page_by_page() {
    const COUNT: usize = 3 * ACTIVITIES_PER_PAGE + 5;
    let (report, ledger) = (blank(), Activities::new(COUNT + 10));
    for slot in 0..COUNT {
        ledger.register(&report, slot, &alloc::format!("tenant {slot}"));
        ledger.charge(slot % 4, slot, slot as u64, 0);
    }
    assert!(ledger.records[40].generation.free());
    let (mut names, mut sum, mut from) = (Vec::new(), 0, Some(0));
    while let Some(slot) = from {
        let page = activities(&report, ledger.ledger(), slot as usize);
        assert!(page.activities.len() <= ACTIVITIES_PER_PAGE);
        sum += page.ended.cycles + page.activities.iter().map(|activity| activity.cycles).sum::<u64>();
        names.extend(page.activities.into_iter().map(|activity| activity.name));
        from = page.next;
    }
    let expected = (0..COUNT).filter(|slot| *slot != 40).map(|slot| alloc::format!("tenant {slot}"));
    assert_eq!(names, expected.collect::<Vec<_>>());
    assert_eq!(sum, (0..COUNT as u64).sum());
    assert_eq!(activities(&report, ledger.ledger(), usize::MAX), ActivityPage::default());
}

#[test]
fn latencies_are_summed_over_past_cores_and_queueing_is_reported_by_core() {
    let report = blank();
    report.cores[0].service.count(1_000, 3);
    report.cores[9].service.count(70_000, 1);
    report.cores[1].queueing.count(500, 2);
    let requests = service(&report);
    assert_eq!((requests.count(), requests.count_from(70_000)), (4, 1));
    let ledger = Activities::new(LEAST_SLOTS);
    let waited: Vec<u64> = cores(&report, ledger.ledger(), &[CoreId(4), CoreId(6)])
        .iter()
        .map(|core| core.queueing.count())
        .collect();
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
    let all = Activities::new(LEAST_SLOTS);
    let ones = |used: &ActivityReport| {
        [&used.cycles, &used.events, &used.memory_bytes].map(|word| word.store(u64::MAX, Ordering::Relaxed))
    };
    all.counters.iter().for_each(|used| _ = ones(used));
    all.records.iter().for_each(|record| {
        ones(&record.before);
        record.name.iter().for_each(|byte| byte.store(0xff, Ordering::Relaxed));
    });
    all.records.iter().skip(3).for_each(|record| assert!(record.generation.claim()));
    all.records.iter().skip(6).for_each(|record| record.generation.give_out());
    let ledger = all.ledger();
    assert_eq!(cores(&report, ledger, &ids).len(), MAX_CORES);
    assert_eq!(cores(&report, ledger, &ids)[0].event_cycles, u64::MAX);
    assert_eq!(service(&report).count(), u64::MAX);
    let page = activities(&report, ledger, 0);
    assert_eq!((page.activities.len(), page.next), (LEAST_SLOTS - 6, None));
    assert!(page.activities.iter().all(|activity| activity.name.len() <= 3 * ACTIVITY_NAME_LEN));
    assert_eq!(sign(&report, 1000), (CorePhase::Asleep, 0));
}
