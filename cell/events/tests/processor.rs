//! The division of processor time among activities.

use isola_abi::id::ActivityId;
use isola_ebbs::{cycles, platform};
use isola_events::activity::{APPLICATION, INFRASTRUCTURE, charge_to};
use isola_events::event::Event;
use isola_events::processor::{self, has_policy};
use isola_events::{
    elsewhere, end_activity, register_activity, register_activity_under, sleep, spawn_task_for, yield_now,
};
use isola_platform::CoreIndex;
use isola_resources::{Entitlement, PROCESSOR, PolicyKind, Priority, Rate, ResourceError, Weight};
use isola_test_task::run_task_on;
use std::cell::{Cell, RefCell};
use std::num::NonZeroU32;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Returns the cycles that core 0 has charged to the activity.
fn used(activity: ActivityId) -> u64 {
    isola_activities::counters(activity, 0).map_or(0, |used| used.cycles.load(Ordering::Relaxed))
}

/// Keeps the core busy.
fn spin(for_cycles: u64) {
    let began = cycles();
    while cycles() - began < for_cycles {}
}

/// Returns a part of a core's time.
fn part_of_core(thousandths: u32) -> Rate {
    PROCESSOR.capacity().unwrap().part(thousandths).unwrap()
}

fn by_weight(weight: u32) -> Entitlement {
    Entitlement::by_weight(Weight::new(weight).unwrap())
}

/// An activity that always has one event, of the same length.
#[derive(Clone)]
struct Load {
    activity: ActivityId,
    weight: u32,
    stop: Rc<Cell<bool>>,
    /// The cycles of its longest event but the last, and those that it had used before the last.
    longest: Rc<Cell<u64>>,
    last: Rc<Cell<u64>>,
    /// The number of its events.
    events: Rc<Cell<u64>>,
    before: u64,
}

impl Load {
    fn start(name: &str, weight: u32, event_cycles: u64) -> Self {
        Self::of(register_activity(name).unwrap(), weight, event_cycles)
    }

    /// Starts a load of an activity.
    fn of(activity: ActivityId, weight: u32, event_cycles: u64) -> Self {
        PROCESSOR.set_entitlement(activity, by_weight(weight)).unwrap();
        let load = Self {
            activity,
            weight,
            stop: Rc::default(),
            longest: Rc::default(),
            last: Rc::new(Cell::new(used(activity))),
            events: Rc::default(),
            before: used(activity),
        };
        let this = load.clone();
        spawn_task_for(activity, async move {
            while !this.stop.get() {
                spin(event_cycles);
                this.events.set(this.events.get() + 1);
                yield_now().await;
                // Now the cycles of the event before are in the ledger.
                this.longest.set(this.longest());
                this.last.set(used(activity));
            }
        })
        .detach();
        load
    }

    fn used(&self) -> u64 {
        used(self.activity) - self.before
    }

    /// Returns the cycles of its longest event.
    fn longest(&self) -> u64 {
        self.longest.get().max(used(self.activity) - self.last.get())
    }
}

/// Asserts theorem 1 of start-time fair queueing: as long as both have waiting events, their cycles by weight differ by
/// at most one event of each.
fn assert_fair(loads: &[Load]) {
    for (first, second) in loads.iter().zip(loads.iter().skip(1)) {
        let by_weight = |cycles: u64, load: &Load| cycles as f64 / f64::from(load.weight);
        let difference = (by_weight(first.used(), first) - by_weight(second.used(), second)).abs();
        let bound = by_weight(first.longest(), first) + by_weight(second.longest(), second);
        assert!(difference <= bound, "{difference} > {bound}: {} and {}", first.used(), second.used());
    }
}

/// Waits until the loads have run for some time, measured in cycles that they used.
async fn run_loads(loads: &[Load], cycles: u64) {
    let total = || loads.iter().map(Load::used).sum::<u64>();
    let end = total() + cycles;
    while total() < end {
        sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn weights_divide_the_core_whatever_the_length_of_events() {
    run_task_on(1, || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        let loads = [("web", 50, 40_000), ("kv", 33, 7_000), ("batch", 17, 300_000)]
            .map(|(name, weight, length)| Load::start(name, weight, length));
        for _ in 0..20 {
            run_loads(&loads, 20_000_000).await;
            assert_fair(&loads);
        }
        // The observing task is of another activity, whose events compete as well, but only for a moment.
        let total: u64 = loads.iter().map(Load::used).sum();
        // On a loaded host, an event can be much longer than its cycles.
        let length = loads.iter().map(Load::longest).sum::<u64>() as f64 / total as f64;
        for load in &loads {
            let share = load.used() as f64 / total as f64;
            assert!((share - f64::from(load.weight) / 100.0).abs() < 0.005 + length, "{share}");
            assert!(processor::statistics(load.activity).dispatched > 20);
        }
        loads.iter().for_each(|load| load.stop.set(true));
    });
}

#[test]
fn an_activity_with_many_children_gets_no_more_than_its_share() {
    run_task_on(1, || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        let [web, batch] = ["web", "batch"].map(|name| register_activity(name).unwrap());
        PROCESSOR.set_entitlement(web, by_weight(300)).unwrap();
        PROCESSOR.set_entitlement(batch, by_weight(100)).unwrap();
        let child = |parent, name| register_activity_under(parent, name).unwrap();
        let own = Load::of(batch, 100, 20_000);
        let connections: Vec<Load> =
            (0..20).map(|_| Load::of(child(batch, "connection"), 100, 20_000)).collect();
        let queries =
            [("light", 100), ("heavy", 300)].map(|(name, weight)| Load::of(child(web, name), weight, 20_000));
        // The groups begin with the children's first events.
        run_loads(&queries, 10_000_000).await;
        // The ledger counts for the activity that has a slot.
        let used_with_children = || {
            [web, batch]
                .map(|activity| platform().ledger().core(0)[activity.index()].cycles.load(Ordering::Relaxed))
        };
        let before = used_with_children();
        run_loads(&queries, 150_000_000).await;
        let after = used_with_children();
        let [of_web, of_batch] = [after[0] - before[0], after[1] - before[1]];
        let share = of_web as f64 / (of_web + of_batch) as f64;
        // Theorem 1 for the groups, whose events are those of their members.
        let longest: u64 = queries.iter().chain(&connections).chain([&own]).map(Load::longest).max().unwrap();
        let length = 2.0 * longest as f64 / (of_web + of_batch) as f64;
        assert!((share - 0.75).abs() < 0.005 + length, "{share}");
        assert_fair(&queries);
        assert_fair(&connections);
        for load in queries.iter().chain(&connections).chain([&own]) {
            load.stop.set(true);
        }
    });
}

#[test]
fn without_a_policy_all_run_equally_often_whatever_the_length_of_their_events() {
    run_task_on(1, || async {
        let loads = [("short", 50, 10_000), ("long", 50, 100_000)]
            .map(|(name, weight, length)| Load::start(name, weight, length));
        run_loads(&loads, 100_000_000).await;
        let events = |load: &Load| load.events.get();
        assert!(!has_policy() && events(&loads[0]).abs_diff(events(&loads[1])) <= 1);
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        assert!(has_policy());
        let before = [loads[0].used(), loads[1].used()];
        run_loads(&loads, 100_000_000).await;
        let [short, long] = [loads[0].used() - before[0], loads[1].used() - before[1]];
        let bound = 2 * (loads[0].longest() + loads[1].longest());
        assert!(short.abs_diff(long) <= bound, "{short} and {long} by equal weights, {bound}");
        loads.iter().for_each(|load| load.stop.set(true));
    });
}

#[test]
fn a_higher_priority_runs_first_and_events_of_an_activity_stay_in_order() {
    run_task_on(1, || async {
        let [urgent, idle] = ["urgent", "idle"].map(|name| register_activity(name).unwrap());
        let priority = |priority| Entitlement { priority: Priority(priority), ..Entitlement::default() };
        PROCESSOR.set_entitlement(urgent, priority(200)).unwrap();
        PROCESSOR.set_entitlement(APPLICATION, priority(100)).unwrap();
        PROCESSOR.set_policy(Some(PolicyKind::Priority));
        yield_now().await;
        thread_local!(static ORDER: RefCell<Vec<(u32, u32)>> = RefCell::default());
        for number in 0..4 {
            for activity in [idle, urgent] {
                Event::new().charged_to(activity).spawn(move || {
                    ORDER.with_borrow_mut(|order| order.push((activity.0, number)));
                });
            }
        }
        // Runs after `urgent` and before `idle`.
        yield_now().await;
        let ran: Vec<_> = (0..4).map(|number| (urgent.0, number)).collect();
        assert_eq!(ORDER.with_borrow(Vec::clone), ran);
        PROCESSOR.set_entitlement(APPLICATION, Entitlement::default()).unwrap();
        sleep(Duration::from_millis(5)).await;
        let ran: Vec<_> = ran.into_iter().chain((0..4).map(|number| (idle.0, number))).collect();
        assert_eq!(ORDER.with_borrow(Vec::clone), ran);
    });
}

#[test]
fn policies_and_entitlements_change_at_any_time_without_losing_or_reordering_events() {
    run_task_on(1, || async {
        const EVENTS: u32 = 200;
        let activities: Vec<_> =
            (0..5).map(|number| register_activity(&format!("activity {number}")).unwrap()).collect();
        thread_local!(static RAN: RefCell<Vec<Vec<u32>>> = RefCell::new(vec![Vec::new(); 5]));
        for round in 0..50_u32 {
            for (number, &activity) in activities.iter().enumerate() {
                for event in 0..EVENTS / 50 {
                    Event::new().charged_to(activity).spawn(move || {
                        RAN.with_borrow_mut(|ran| ran[number].push(round * (EVENTS / 50) + event));
                    });
                }
            }
            let policies = PolicyKind::ALL.map(Some).into_iter().chain([None]);
            PROCESSOR.set_policy(policies.cycle().nth(round as usize * 5).flatten());
            PROCESSOR.set_batch(NonZeroU32::new(round % 4 + 1).unwrap());
            let limit = (round % 3 == 0).then(|| part_of_core(500));
            let entitlement =
                Entitlement { limit, priority: Priority(round as u8), ..by_weight(round * 7 + 1) };
            PROCESSOR.set_entitlement(activities[round as usize % 5], entitlement).unwrap();
            yield_now().await;
        }
        PROCESSOR.set_policy(None);
        yield_now().await;
        yield_now().await;
        let expected: Vec<u32> = (0..EVENTS).collect();
        RAN.with_borrow(|ran| ran.iter().for_each(|ran| assert_eq!(*ran, expected)));
    });
}

#[test]
fn an_activity_at_its_limit_waits_while_the_core_rests() {
    run_task_on(1, || async {
        let load = Load::start("limited", 100, 50_000);
        let limit = part_of_core(100);
        PROCESSOR
            .set_entitlement(load.activity, Entitlement { limit: Some(limit), ..Entitlement::default() })
            .unwrap();
        PROCESSOR.set_policy(Some(PolicyKind::Reserve));
        // The limit holds from the next boundary on.
        yield_now().await;
        let (began, before, idle) = (cycles(), load.used(), idle_cycles());
        sleep(Duration::from_millis(200)).await;
        let (elapsed, spent) = (cycles() - began, load.used() - before);
        let per_second = part_of_core(1_000).units();
        let permitted = elapsed / 10 + per_second / 1_000 + load.longest();
        assert!(spent <= permitted, "{spent} cycles of {permitted} in {elapsed}");
        assert!(spent > 0, "a limited activity is not starved");
        assert!(
            idle_cycles() - idle > elapsed / 2,
            "the core halts while all activities are at their limits"
        );
        load.stop.set(true);
    });
}

fn idle_cycles() -> u64 {
    platform().report().cores[0].idle_cycles.load(Ordering::Relaxed)
}

#[test]
fn work_by_a_substitute_counts_for_the_activity_that_it_was_done_for() {
    run_task_on(1, || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        let loads = [("served", 100, 20_000), ("other", 100, 20_000)]
            .map(|(name, weight, length)| Load::start(name, weight, length));
        let served = loads[0].activity;
        let stop = Rc::new(Cell::new(false));
        let stopped = stop.clone();
        let substitute = spawn_task_for(INFRASTRUCTURE, async move {
            let mut longest = 0;
            while !stopped.get() {
                let before = used(served);
                charge_to(served);
                spin(10_000);
                charge_to(INFRASTRUCTURE);
                longest = longest.max(used(served) - before);
                sleep(Duration::from_micros(100)).await;
            }
            longest
        });
        run_loads(&loads, 300_000_000).await;
        stop.set(true);
        let longest_piece = substitute.await;
        let events =
            processor::statistics(served).dispatched + processor::statistics(loads[1].activity).dispatched;
        assert!(events > 200, "{events} events competed");
        // As between two activities, and the piece that is not charged before the end of its event.
        let difference = loads[0].used().abs_diff(loads[1].used());
        let bound = loads[0].longest() + loads[1].longest() + 2 * longest_piece;
        assert!(difference <= bound, "{difference} > {bound}");
        loads.iter().for_each(|load| load.stop.set(true));
    });
}

#[test]
fn events_without_competitors_bypass_the_scheduler() {
    run_task_on(1, || async {
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        let alone = register_activity("alone").unwrap();
        spawn_task_for(alone, async {
            for _ in 0..1_000 {
                yield_now().await;
            }
        })
        .await;
        let received = processor::statistics(alone);
        assert!(received.dispatched < 10, "{received:?}");
        assert_eq!(received.waiting, 0);
    });
}

#[test]
fn the_policy_holds_on_all_cores() {
    run_task_on(3, || async {
        assert!(!elsewhere(CoreIndex(1), || async { has_policy() }).await);
        PROCESSOR.set_policy(Some(PolicyKind::Edf));
        for core in 0..3 {
            assert!(
                elsewhere(CoreIndex(core), || async {
                    yield_now().await;
                    has_policy()
                })
                .await
            );
        }
        PROCESSOR.set_policy(None);
        for core in 0..3 {
            assert!(
                !elsewhere(CoreIndex(core), || async {
                    yield_now().await;
                    has_policy()
                })
                .await
            );
        }
    });
}

#[test]
fn an_entitlement_ends_with_its_activity() {
    run_task_on(1, || async {
        PROCESSOR.set_policy(Some(PolicyKind::Priority));
        yield_now().await;
        let slots = platform().ledger().records().len();
        let all: Vec<_> = (2..slots).map(|_| register_activity("tenant").unwrap()).collect();
        let important = Entitlement { priority: Priority(255), ..Entitlement::default() };
        PROCESSOR.set_entitlement(all[0], important).unwrap();
        // A second waiting event makes it a client of the scheduler.
        let count = Rc::new(Cell::new(0));
        let run_once = |activity| {
            let count = count.clone();
            spawn_task_for(activity, async move { count.set(count.get() + 1) }).detach();
        };
        run_once(all[0]);
        run_once(all[0]);
        yield_now().await;
        yield_now().await;
        assert_eq!(count.get(), 2);
        assert!(end_activity(all[0]));
        assert_eq!(PROCESSOR.set_entitlement(all[0], important), Err(ResourceError::NoSuchActivity(all[0])));
        let next = register_activity("successor").unwrap();
        assert_eq!(next, all[0], "all other slots are in use");
        let middle = Entitlement { priority: Priority(100), ..Entitlement::default() };
        PROCESSOR.set_entitlement(APPLICATION, middle).unwrap();
        yield_now().await;
        run_once(next);
        run_once(next);
        yield_now().await;
        assert_eq!(count.get(), 2, "with the entitlement of its predecessor it would run before this task");
        sleep(Duration::from_millis(1)).await;
        assert_eq!(count.get(), 4);
    });
}

#[test]
fn contradictory_entitlements_are_refused() {
    run_task_on(1, || async {
        let entitlement = Entitlement {
            reservation: Some(Rate::per_second(20).unwrap()),
            limit: Some(Rate::per_second(10).unwrap()),
            ..Entitlement::default()
        };
        let refused = PROCESSOR.set_entitlement(APPLICATION, entitlement).unwrap_err();
        assert!(matches!(refused, ResourceError::Entitlement(_)));
        assert_eq!(ResourceError::NoSuchActivity(ActivityId(7)).to_string(), "the cell has no activity 7");
    });
}
