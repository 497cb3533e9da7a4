//! Activities that come and go: as many at a time as the cell's memory allows, and any number in succession.

use isola_abi::id::ActivityId;
use isola_abi::ledger::{self, LEAST_SLOTS};
use isola_ebbs::platform;
use isola_events::activity::{APPLICATION, INFRASTRUCTURE, charge_to};
use isola_events::{end_activity, exit, register_activity, run, spawn_task, yield_now};
use isola_hosted::Settings;
use std::collections::HashSet;
use std::sync::atomic::Ordering;

/// Runs `main` as the only task of a cell with one core.
fn in_cell<F: Future<Output = ()> + 'static>(main: fn() -> F) {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        spawn_task(async move {
            main().await;
            exit(0);
        })
        .detach();
        run()
    });
}

fn name(activity: ActivityId) -> String {
    let record = platform().ledger().record(activity).unwrap();
    let bytes = record.name.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0);
    String::from_utf8(bytes.collect()).unwrap()
}

/// Returns the cycles charged to the activity since it got its slot, as the supervisor computes them.
fn cycles(activity: ActivityId) -> u64 {
    let ledger = platform().ledger();
    let before = &ledger.record(activity).unwrap().before;
    ledger.sum(usize::from(activity.0)).cycles.into_inner() - before.cycles.load(Ordering::Relaxed)
}

/// Spends cycles for an activity.
async fn work(activity: ActivityId, spent: u64) {
    charge_to(activity);
    let began = isola_ebbs::cycles();
    while isola_ebbs::cycles() - began < spent {}
    charge_to(APPLICATION);
    yield_now().await;
}

#[test]
fn a_cell_has_as_many_activities_as_its_memory_allows() {
    in_cell(|| async {
        let slots = platform().ledger().records().len();
        assert!(slots > 10 * LEAST_SLOTS, "{slots} slots on a host with much memory");
        assert!(slots <= ledger::slots(u64::MAX, 1));
        let all: Vec<ActivityId> =
            (2..slots).map(|number| register_activity(&format!("tenant {number}")).unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), slots - 2);
        assert_eq!(register_activity("one too many"), None);
        work(all[slots - 3], 1_000_000).await;
        assert!(cycles(all[slots - 3]) >= 1_000_000 && cycles(all[7]) == 0);
        assert_eq!(name(all[100]), "tenant 102");
        assert!(end_activity(all[100]) && !end_activity(all[100]));
        assert_eq!(register_activity("another"), Some(all[100]));
        assert_eq!(name(all[100]), "another", "the slot still has a part of the longer name");
    });
}

#[test]
fn slots_are_reused_and_no_activity_is_charged_for_an_earlier_one() {
    in_cell(|| async {
        let slots = platform().ledger().records().len();
        let mut seen = HashSet::new();
        for _ in 0..3 * slots {
            let query = register_activity("query").expect("the slots of ended activities are free");
            assert_eq!(cycles(query), 0);
            seen.insert(query);
            assert!(end_activity(query));
        }
        assert_eq!(seen.len(), slots - 2, "a slot stays free for as long as possible");
        let query = register_activity("query").unwrap();
        work(query, 1_000_000).await;
        assert!(cycles(query) >= 1_000_000);
        assert!(end_activity(query));
        // With all other slots in use, the next activity gets the same slot.
        let others: Vec<_> = (3..slots).map(|_| register_activity("other").unwrap()).collect();
        let next = others.iter().find(|other| **other == query).copied();
        let next = next.unwrap_or_else(|| register_activity("next").unwrap());
        assert_eq!((next, cycles(next)), (query, 0));
    });
}

#[test]
fn predefined_activities_cannot_be_ended() {
    in_cell(|| async {
        assert!(!end_activity(APPLICATION) && !end_activity(INFRASTRUCTURE) && !end_activity(ActivityId(9)));
        assert_eq!([name(APPLICATION), name(INFRASTRUCTURE)], ["application", "infrastructure"]);
    });
}
