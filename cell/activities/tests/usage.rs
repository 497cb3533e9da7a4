//! The usage of activities: every kind of it, and that of an activity in the place of an earlier one.

use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
use isola_activities::{
    Usage, counters, end, list, private, register, register_under, start, traffic, usage_of,
};
use isola_ebbs::platform;
use isola_hosted::Settings;
use std::sync::atomic::Ordering;

/// Runs `test` on the first core of a cell with one core.
fn in_cell(test: impl Fn() + Sync) {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        start();
        test();
        0
    });
}

const TRAFFIC: ActivityTraffic = ActivityTraffic {
    received_bytes: 1,
    sent_bytes: 20,
    reads: 300,
    read_bytes: 4_000,
    writes: 50_000,
    written_bytes: 600_000,
};
const USAGE: Usage = Usage { cycles: 70, events: 8, traffic: TRAFFIC };

/// Memory that an activity holds when it ends, and that its slot therefore keeps.
const MEMORY_BYTES: u64 = 9;

/// Counts [`USAGE`] and [`MEMORY_BYTES`] for an activity on this core, as the accounting does.
fn work(activity: ActivityId) {
    traffic(activity, 0).unwrap().count(USAGE.traffic);
    let own = private(activity, 0);
    let slot = own.as_ref().map_or(activity, |own| own.slot());
    for counters in own.and_then(|own| own.counters).into_iter().chain(counters(slot, 0)) {
        counters.cycles.fetch_add(USAGE.cycles, Ordering::Relaxed);
        counters.events.fetch_add(USAGE.events, Ordering::Relaxed);
        counters.memory_bytes.fetch_add(MEMORY_BYTES, Ordering::Relaxed);
    }
}

#[test]
fn every_kind_of_usage_counts_for_the_activity_and_those_above_it() {
    in_cell(|| {
        let above = register("above").unwrap();
        let below = register_under(above, "below").unwrap();
        work(below);
        assert_eq!(usage_of(below), USAGE);
        assert_eq!(usage_of(above), USAGE);
        work(above);
        assert_eq!(usage_of(below), USAGE);
        let twice = |one: u64| 2 * one;
        let traffic = ActivityTraffic {
            received_bytes: twice(TRAFFIC.received_bytes),
            sent_bytes: twice(TRAFFIC.sent_bytes),
            reads: twice(TRAFFIC.reads),
            read_bytes: twice(TRAFFIC.read_bytes),
            writes: twice(TRAFFIC.writes),
            written_bytes: twice(TRAFFIC.written_bytes),
        };
        assert_eq!(usage_of(above), Usage { cycles: 140, events: 16, traffic });
    });
}

#[test]
fn an_activity_begins_without_the_usage_of_an_earlier_one_in_its_slot() {
    in_cell(|| {
        let slots = platform().ledger().records().len();
        let all: Vec<ActivityId> = (2..slots).map(|_| register("first").unwrap()).collect();
        for activity in &all {
            work(*activity);
        }
        assert!(all.iter().all(|activity| end(*activity)));
        let again: Vec<ActivityId> = all.iter().map(|_| register("second").unwrap()).collect();
        assert!(again.iter().all(|activity| activity.index() < slots), "slots of the ledger");
        let unused = |activity: &ActivityId| {
            list()
                .into_iter()
                .find(|one| one.id == *activity)
                .is_some_and(|one| one.usage == Usage::default())
        };
        assert!(again.iter().take(10).all(unused));
        assert_eq!(usage_of(again[0]), Usage::default());
        // What the supervisor subtracts from the counters of the slot.
        let before = &platform().ledger().records()[again[0].index()].before;
        let before = [&before.cycles, &before.events, &before.memory_bytes];
        assert_eq!(
            before.map(|value| value.load(Ordering::Relaxed)),
            [USAGE.cycles, USAGE.events, MEMORY_BYTES]
        );
    });
}

#[test]
fn the_report_has_the_number_of_slots_that_were_ever_in_use() {
    in_cell(|| {
        let reported = || platform().report().activity_count.load(Ordering::Acquire);
        assert_eq!(reported(), 2);
        let activities = ["a", "b"].map(|name| register(name).unwrap());
        assert_eq!(reported(), 4);
        assert!(activities.into_iter().all(end));
        assert_eq!(reported(), 4);
    });
}
