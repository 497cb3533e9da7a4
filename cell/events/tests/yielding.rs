//! Long computations that give way to waiting work, and only to that.

use isola_abi::id::ActivityId;
use isola_ebbs::{current_core, cycles, platform};
use isola_events::event::Event;
use isola_events::interrupt::allocate_interrupt;
use isola_events::yielding::GRANULARITY;
use isola_events::{
    Alarm, defer, must_yield, now, processor, register_activity, spawn, spawn_on, spawn_task_for,
    yield_if_needed, yield_now,
};
use isola_platform::CoreIndex;
use isola_resources::{Entitlement, PROCESSOR, PolicyKind, Priority, Weight};
use isola_test_task::run_task_on;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Keeps the core busy.
fn spin(for_cycles: u64) {
    let began = cycles();
    while cycles() - began < for_cycles {}
}

/// Keeps the core busy until events that are not urgent come first.
fn spin_for_granularity() {
    let end = now() + GRANULARITY;
    while now() < end {}
}

/// Returns the number of events of the activity on core 0.
fn events(activity: ActivityId) -> u64 {
    isola_activities::counters(activity, 0).map_or(0, |used| used.events.load(Ordering::Relaxed))
}

/// Creates an event of the activity that sets the returned flag.
fn spawn_for(activity: ActivityId) -> Rc<Cell<bool>> {
    // On one core: the flag is never touched by another.
    thread_local!(static RAN: RefCell<Vec<Rc<Cell<bool>>>> = RefCell::default());
    let ran = Rc::new(Cell::new(false));
    let index = RAN.with_borrow_mut(|all| {
        all.push(ran.clone());
        all.len() - 1
    });
    Event::new().charged_to(activity).spawn(move || RAN.with_borrow(|all| all[index].set(true)));
    ran
}

/// Waits for the end of a task.
async fn ended(done: &Cell<bool>) {
    while !done.get() {
        yield_now().await;
    }
}

/// Two activities with these entitlements, under this policy.
async fn two_activities(policy: PolicyKind, entitlements: [Entitlement; 2]) -> [ActivityId; 2] {
    PROCESSOR.set_policy(Some(policy));
    yield_now().await;
    let activities = ["computation", "other"].map(|name| register_activity(name).unwrap());
    for (activity, entitlement) in activities.iter().zip(entitlements) {
        PROCESSOR.set_entitlement(*activity, entitlement).unwrap();
    }
    // Later events follow the entitlements.
    yield_now().await;
    activities
}

/// When the event of an activity runs while a computation of another one calls `yield_if_needed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    /// At the first call.
    AtOnce,
    /// At the first call after the computation's event has run for [`GRANULARITY`], or a slice on a busy host.
    Later,
    /// After the computation.
    Afterwards,
}

/// Runs a computation of the first activity that creates an event of the second one, and then calls `yield_if_needed`.
async fn event_runs(activities: [ActivityId; 2]) -> Runs {
    let done = Rc::new(Cell::new(false));
    let (result, ended_at) = (Rc::new(Cell::new(Runs::Afterwards)), done.clone());
    let found = result.clone();
    let [own, other] = activities;
    spawn_task_for(own, async move {
        yield_now().await;
        spin(1_000);
        let ran = spawn_for(other);
        yield_if_needed().await;
        let ran_at_once = ran.get();
        spin_for_granularity();
        for _ in 0..100 {
            yield_if_needed().await;
        }
        found.set(match ran.get() {
            _ if ran_at_once => Runs::AtOnce,
            true => Runs::Later,
            false => Runs::Afterwards,
        });
        ended_at.set(true);
    })
    .detach();
    // The observer has the lowest claim by no policy, so it sleeps.
    while !done.get() {
        isola_events::sleep(core::time::Duration::from_millis(1)).await;
    }
    result.get()
}

#[test]
fn a_computation_alone_continues() {
    run_task_on(1, || async {
        for policy in [None, Some(PolicyKind::Wfq)] {
            PROCESSOR.set_policy(policy);
            yield_now().await;
            let alone = register_activity("alone").unwrap();
            spawn_task_for(alone, async {
                for _ in 0..100_000 {
                    yield_if_needed().await;
                }
            })
            .await;
            // Only those at the end of a slice, and the first.
            assert!(events(alone) < 2_000, "{} events", events(alone));
        }
    });
}

#[test]
fn without_a_policy_any_waiting_event_runs_at_the_next_call_after_the_granularity() {
    run_task_on(1, || async {
        let order = Rc::new(RefCell::new(Vec::new()));
        for round in 0..10 {
            let pushed = order.clone();
            spawn(move || pushed.borrow_mut().push(round));
            spin_for_granularity();
            assert!(must_yield());
            assert_eq!(order.borrow().len(), round, "asking runs nothing");
            yield_if_needed().await;
            assert_eq!(order.borrow().len(), round + 1);
        }
    });
}

#[test]
fn interrupts_and_alarms_are_handled_at_the_next_call() {
    run_task_on(1, || async {
        let count = Rc::new(Cell::new(0));
        let counted = count.clone();
        let interrupt = allocate_interrupt(move || counted.set(counted.get() + 1)).unwrap();
        for round in 1..=10 {
            platform().interrupt(current_core(), interrupt.vector());
            assert!(must_yield() && count.get() == round - 1, "handlers run between events");
            yield_if_needed().await;
            assert_eq!(count.get(), round);
        }
        let rung = Rc::new(Cell::new(false));
        let ringing = rung.clone();
        let alarm = Alarm::new(move || ringing.set(true));
        alarm.set(Some(now()));
        assert!(must_yield() && !rung.get());
        yield_if_needed().await;
        assert!(rung.get());
    });
}

#[test]
fn a_computation_gives_way_to_messages_of_other_cores_and_to_grace_periods() {
    run_task_on(2, || async {
        let mut continued = 0;
        for round in 0..40 {
            yield_now().await;
            let (go, sent, came) = (
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicBool::new(false)),
                Arc::new(AtomicU64::new(0)),
            );
            let (wait, done, come) = (go.clone(), sent.clone(), came.clone());
            spawn_on(CoreIndex(1), move || {
                while !wait.load(Ordering::Acquire) {}
                match round % 2 {
                    0 => spawn_on(CoreIndex(0), move || _ = come.fetch_add(1, Ordering::Relaxed)),
                    // Runs once this core has been between two events; its own core requests the period.
                    _ => defer(move || _ = come.fetch_add(1, Ordering::Relaxed)),
                }
                spawn(move || done.store(true, Ordering::Release));
            });
            yield_now().await;
            continued += u32::from(!must_yield());
            go.store(true, Ordering::Release);
            while !sent.load(Ordering::Acquire) {}
            assert!(must_yield(), "round {round}");
            while came.load(Ordering::Relaxed) == 0 {
                yield_if_needed().await;
            }
        }
        // A busy host can preempt the core for longer than a slice, but not each time.
        assert!(continued > 0, "the computation never continued");
    });
}

#[test]
fn by_weight_a_computation_gives_way_to_whom_has_received_less() {
    run_task_on(1, || async {
        let by_weight = |weight| Entitlement::by_weight(Weight::new(weight).unwrap());
        let activities = two_activities(PolicyKind::Wfq, [by_weight(500), by_weight(100)]).await;
        assert_eq!(event_runs(activities).await, Runs::AtOnce);
        // The event came while the computation ran unscheduled; it is charged from its start.
        let received = processor::statistics(activities[0]);
        assert!(received.cost >= 1_000, "{received:?}");
        assert_eq!(processor::statistics(activities[1]).dispatched, 1);
    });
}

#[test]
fn by_priority_a_computation_gives_way_to_its_betters_and_then_to_its_equals() {
    run_task_on(1, || async {
        let by_priority = |priority| Entitlement { priority: Priority(priority), ..Entitlement::default() };
        for (own, other, expected) in [(5, 9, Runs::AtOnce), (5, 5, Runs::Later), (9, 5, Runs::Afterwards)] {
            let activities =
                two_activities(PolicyKind::Priority, [by_priority(own), by_priority(other)]).await;
            assert_eq!(event_runs(activities).await, expected, "{own} beside {other}");
        }
    });
}

#[test]
fn by_deadline_and_by_arrival_a_computation_gives_way_to_earlier_events() {
    run_task_on(1, || async {
        let by_deadline = |deadline_ns| Entitlement { deadline_ns, ..Entitlement::default() };
        let (early, late) = (1_000_000, 100_000_000_000);
        for (policy, own, other, expected) in [
            (PolicyKind::Edf, late, early, Runs::AtOnce),
            (PolicyKind::Edf, early, late, Runs::Afterwards),
            (PolicyKind::Fifo, early, late, Runs::Later),
        ] {
            let activities = two_activities(policy, [by_deadline(own), by_deadline(other)]).await;
            assert_eq!(event_runs(activities).await, expected, "{policy:?}, {own} beside {other}");
        }
    });
}

#[test]
fn a_computation_gives_way_to_an_activity_below_its_reservation() {
    run_task_on(1, || async {
        let half = PROCESSOR.capacity().unwrap().part(500).unwrap();
        let by_weight = |weight| Entitlement::by_weight(Weight::new(weight).unwrap());
        let reserved = Entitlement { reservation: Some(half), ..by_weight(1) };
        let activities = two_activities(PolicyKind::Reserve, [by_weight(10_000), reserved]).await;
        assert_eq!(event_runs(activities).await, Runs::AtOnce);
    });
}

#[test]
fn computations_of_unequal_steps_share_by_weight_and_switch_only_where_they_must() {
    run_task_on(1, || async {
        let by_weight = |weight| Entitlement::by_weight(Weight::new(weight).unwrap());
        let activities = two_activities(PolicyKind::Wfq, [by_weight(300), by_weight(100)]).await;
        let stop = Rc::new(Cell::new(false));
        let calls = Rc::new(Cell::new(0_u64));
        for (activity, step) in activities.into_iter().zip([3_000, 50_000]) {
            let (stop, calls) = (stop.clone(), calls.clone());
            spawn_task_for(activity, async move {
                while !stop.get() {
                    spin(step);
                    calls.set(calls.get() + 1);
                    yield_if_needed().await;
                }
            })
            .detach();
        }
        let used = |activity| {
            isola_activities::counters(activity, 0).map_or(0, |used| used.cycles.load(Ordering::Relaxed))
        };
        let [mut fast, mut slow] = [0, 0];
        while fast + slow < 600_000_000 {
            isola_events::sleep(core::time::Duration::from_millis(5)).await;
            [fast, slow] = activities.map(used);
        }
        let dispatched = activities.map(|activity| processor::statistics(activity).dispatched);
        stop.set(true);
        // Either can be one event ahead. On a busy host, an event can be much longer than its steps.
        let longest = platform().report().cores[0].longest_event_cycles.load(Ordering::Relaxed);
        let share = fast as f64 / (fast + slow) as f64;
        let bound = 0.01 + 2.0 * longest as f64 / (fast + slow) as f64;
        assert!((share - 0.75).abs() < bound, "{share}, bound {bound}");
        // For each step of 50,000 cycles there are 50 of 3,000 cycles, in a few events of 25 us.
        assert!(dispatched[0] < calls.get() / 2, "{dispatched:?} events for {} calls", calls.get());
    });
}

#[test]
fn a_policy_of_none_and_a_task_that_has_ended_leave_nothing_behind() {
    run_task_on(1, || async {
        let done = Rc::new(Cell::new(false));
        let set = done.clone();
        PROCESSOR.set_policy(Some(PolicyKind::Wfq));
        yield_now().await;
        let activity = register_activity("short").unwrap();
        spawn_task_for(activity, async move {
            spawn_for(register_activity("other").unwrap());
            spin_for_granularity();
            assert!(must_yield());
            set.set(true);
        })
        .detach();
        ended(&done).await;
        PROCESSOR.set_policy(None);
        yield_now().await;
        let last = spawn_for(activity);
        spin_for_granularity();
        yield_if_needed().await;
        assert!(last.get());
    });
}
