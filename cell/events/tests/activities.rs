//! Activities that come and go: as many at a time as the cell's memory allows, and any number in succession.

use isola_abi::id::ActivityId;
use isola_abi::ledger::{self, LEAST_SLOTS};
use isola_activities::name_of;
use isola_ebbs::platform;
use isola_events::activity::{APPLICATION, activities, charge_all_to, charge_piece, charge_to, charge_until};
use isola_events::{
    Alarm, end_activity, now, register_activity, register_activity_under, sleep, spawn_task_for, yield_now,
};
use isola_test_task::run_task;
use std::cell::Cell;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns the cycles charged to the activity since it got its slot, as the supervisor computes them.
fn cycles(activity: ActivityId) -> u64 {
    let ledger = platform().ledger();
    let before = &ledger.record(activity).unwrap().before;
    ledger.sum(activity.index()).cycles.into_inner() - before.cycles.load(Ordering::Relaxed)
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
fn the_ledger_has_as_many_activities_as_the_cells_memory_allows() {
    run_task(|| async {
        let slots = platform().ledger().records().len();
        assert!(slots > 10 * LEAST_SLOTS, "{slots} slots on a host with much memory");
        assert!(slots <= ledger::slots(u64::MAX, 1));
        let all: Vec<ActivityId> =
            (2..slots).map(|number| register_activity(&format!("tenant {number}")).unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), slots - 2);
        let more = register_activity("one more").unwrap();
        assert!(more.index() >= slots, "a further activity is private");
        work(all[slots - 3], 1_000_000).await;
        assert!(cycles(all[slots - 3]) >= 1_000_000 && cycles(all[7]) == 0);
        assert!(end_activity(all[100]) && !end_activity(all[100]));
        assert_eq!(register_activity("another"), Ok(all[100]));
        assert_eq!(name_of(all[100]), "another", "the slot still has a part of the longer name");
    });
}

/// Returns the cycles of an activity, its descendants' included.
fn used(activity: ActivityId) -> u64 {
    activities().into_iter().find(|one| one.id == activity).unwrap().usage.cycles
}

/// Keeps the core busy. Returns for how long: the host may suspend it meanwhile.
fn spin(for_cycles: u64) -> u64 {
    let began = isola_ebbs::cycles();
    while isola_ebbs::cycles() - began < for_cycles {}
    isola_ebbs::cycles() - began
}

#[test]
fn events_of_private_activities_are_charged_to_them_and_in_the_ledger() {
    run_task(|| async {
        let service = register_activity("service").unwrap();
        let [one, two] = ["one", "two"].map(|name| register_activity_under(service, name).unwrap());
        let mut spent = Vec::new();
        for (activity, amount) in [(one, 2_000_000), (two, 5_000_000), (service, 1_000_000)] {
            let task = spawn_task_for(activity, async move {
                let mut spent = 0;
                for _ in 0..4 {
                    spent += spin(amount / 4);
                    yield_now().await;
                }
                spent
            });
            spent.push(task.await);
        }
        yield_now().await;
        let found = [one, two, service].map(used);
        let expected = [spent[0], spent[1], spent.iter().sum()];
        for (found, expected) in found.into_iter().zip(expected) {
            assert!((expected..expected + 500_000).contains(&found), "{found} instead of {expected}");
        }
        assert_eq!(cycles(service), found[2], "the supervisor sees the service only");
        let events = activities().into_iter().find(|activity| activity.id == one).unwrap().usage.events;
        assert!(events >= 4, "{events}");
    });
}

#[test]
fn each_way_to_charge_a_part_of_an_event_counts_for_private_activities() {
    run_task(|| async {
        const PIECE: u64 = 1_000_000;
        let service = register_activity("service").unwrap();
        let all: Vec<_> =
            (0..5).map(|number| register_activity_under(service, &format!("{number}")).unwrap()).collect();
        let charged = all.clone();
        // The cycles of each, by readings of the counter beside the calls: the host may suspend the core in a piece.
        let expected = spawn_task_for(all[0], async move {
            let piece = |since: u64| {
                spin(PIECE);
                isola_ebbs::cycles() - since
            };
            // The event begins for 0. All of it up to here is then for 1.
            let first = piece(isola_ebbs::cycles());
            charge_all_to(charged[1]);
            let second = piece(isola_ebbs::cycles());
            charge_to(charged[2]);
            let third = piece(isola_ebbs::cycles());
            // The last piece only is for 3, and from here on, too.
            let since = isola_ebbs::cycles();
            let fourth = piece(since);
            charge_piece(since, since + fourth, charged[3]);
            // What runs here is for 4, and the rest for 3 again.
            let since = isola_ebbs::cycles();
            let fifth = piece(since);
            charge_until(since + fifth, charged[4]);
            let sixth = piece(isola_ebbs::cycles());
            charge_to(APPLICATION);
            spin(PIECE);
            [0, first + second, third, fourth + sixth, fifth]
        })
        .await;
        yield_now().await;
        let found: Vec<u64> = all.iter().map(|activity| used(*activity)).collect();
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.abs_diff(expected) < PIECE / 5, "{found} instead of {expected}");
        }
        let (in_ledger, sum) = (used(service), found.iter().sum::<u64>());
        assert!(in_ledger >= sum && in_ledger - sum < PIECE / 5, "{in_ledger} instead of {sum}");
    });
}

#[test]
fn work_of_handlers_for_a_private_activity_does_not_lengthen_the_next_event() {
    run_task(|| async {
        let service = register_activity("service").unwrap();
        let query = register_activity_under(service, "query").unwrap();
        let spent = Rc::new(Cell::new(0));
        let spent_by_handler = spent.clone();
        let alarm = Alarm::new(move || {
            charge_to(query);
            spent_by_handler.set(spin(1_000_000));
        });
        alarm.set(Some(now() + Duration::from_millis(1)));
        while spent.get() == 0 {
            sleep(Duration::from_millis(1)).await;
        }
        spin(10_000_000);
        yield_now().await;
        let (found, expected) = (used(query), spent.get());
        assert!((expected..expected + 500_000).contains(&found), "{found} instead of {expected}");
    });
}

#[test]
fn slots_are_reused_and_no_activity_is_charged_for_an_earlier_one() {
    run_task(|| async {
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
        let others: Vec<_> = (2..slots).map(|_| register_activity("other").unwrap()).collect();
        let next = others.into_iter().find(|other| *other == query).unwrap();
        assert_eq!((next, cycles(next)), (query, 0));
    });
}
