//! Calls divided among activities, by the resource `rpc`.

mod common;

use common::{SharedMachineId, bytes, join_first, machine, run_cells, serve_all};
use isola_abi::id::ActivityId;
use isola_ebbs::EbbId;
use isola_events::future::join_all;
use isola_events::{now, register_activity, sleep, spawn_task_for, timeout};
use isola_hosted::{Loss, switch};
use isola_iobuf::Chain;
use isola_messenger::{
    MAX_CALLS, MachineId, NoSuchActivity, SERVED_CALLS, call, charge_calls_of, rpc_report, serve,
};
use isola_resources::{Entitlement, PolicyKind, RPC, Rate, Weight};
use isola_test_cells::TestCell;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Answers with no bytes after the time that the request says: `IDENTIFIER.MICROSECONDS`.
const TIMED: EbbId = EbbId::of_path(module_path!(), "TIMED");

/// What the handler of [`TIMED`] has done.
#[derive(Default)]
struct Log {
    /// The identifiers, in the order in which their calls began.
    names: RefCell<Vec<String>>,
    /// The time of ended calls, by the identifier's first letter.
    ns: RefCell<BTreeMap<char, u64>>,
    in_progress: Cell<usize>,
    most_in_progress: Cell<usize>,
}

/// Serves [`TIMED`] as the first machine, and calls `then`.
async fn serve_timed<F: Future<Output = ()>>(then: impl FnOnce(Rc<Log>) -> F) {
    let log = Rc::new(Log::default());
    let handled = log.clone();
    let _timed = serve(TIMED, move |call| {
        let log = handled.clone();
        async move {
            let begun = now();
            log.in_progress.set(log.in_progress.get() + 1);
            log.most_in_progress.set(log.most_in_progress.get().max(log.in_progress.get()));
            let text = String::from_utf8(call.request.to_vec()).unwrap();
            let (name, micros) = text.rsplit_once('.').unwrap();
            let first = name.chars().next().unwrap();
            log.names.borrow_mut().push(name.to_owned());
            sleep(Duration::from_micros(micros.parse().unwrap())).await;
            log.in_progress.set(log.in_progress.get() - 1);
            *log.ns.borrow_mut().entry(first).or_default() += now().as_ns() - begun.as_ns();
            Ok(Chain::new())
        }
    })
    .unwrap();
    spawn_task_for(isola_resources::INFRASTRUCTURE, serve_all()).detach();
    then(log).await;
}

fn weigh(activity: ActivityId, weight: u32) {
    RPC.set_entitlement(activity, Entitlement::by_weight(Weight::new(weight).unwrap())).unwrap();
}

fn cost(activity: ActivityId) -> u64 {
    let report = rpc_report();
    report.iter().filter(|client| client.activity == activity.0).map(|client| client.cost).sum()
}

/// Calls [`TIMED`] without end, `parallel` times at the same time, until the flag is set.
async fn load(parallel: usize, request: &'static str, ends: &'static AtomicBool) {
    let calls = (0..parallel).map(|_| async move {
        while !ends.load(Ordering::Acquire) {
            call(MachineId::FIRST, TIMED, bytes(request.as_bytes())).await.unwrap();
        }
    });
    join_all(calls).await;
}

#[test]
fn calls_of_machines_get_time_in_proportion_to_the_weights_of_their_activities() {
    static LONG: SharedMachineId = SharedMachineId::new();
    static SHORT: SharedMachineId = SharedMachineId::new();
    static ENDS: AtomicBool = AtomicBool::new(false);
    let [a, b, c] = switch(Loss::Never);
    let first = || {
        serve_timed(|log| async move {
            let activities = ["long", "short"].map(|name| register_activity(name).unwrap());
            for (activity, weight) in activities.iter().zip([300, 100]) {
                weigh(*activity, weight);
            }
            assert_eq!(charge_calls_of(MachineId::FIRST, ActivityId(4000)).await, Err(NoSuchActivity));
            charge_calls_of(LONG.get().await, activities[0]).await.unwrap();
            charge_calls_of(SHORT.get().await, activities[1]).await.unwrap();
            RPC.set_policy(Some(PolicyKind::Wfq));
            sleep(Duration::from_millis(100)).await;
            let before = activities.map(cost);
            let begun = now();
            log.most_in_progress.set(0);
            sleep(Duration::from_secs(2)).await;
            let elapsed = now().as_ns() - begun.as_ns();
            let costs = [0, 1].map(|index| cost(activities[index]) - before[index]);
            ENDS.store(true, Ordering::Release);
            let total: u64 = costs.iter().sum();
            let share = costs[0] as f64 / total as f64;
            assert!((share - 0.75).abs() < 0.02, "{share:.4} instead of 0.75");
            // The time of all slots, and no more.
            let slots = elapsed * SERVED_CALLS as u64;
            assert!(total < slots + slots / 20 && total > slots / 2, "{total} ns of {slots} ns");
            assert_eq!(log.most_in_progress.get(), SERVED_CALLS);
            std::future::pending::<()>().await;
        })
    };
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, first).until_others_end(),
            TestCell::new(2, 1, b, || async {
                LONG.set(join_first().await);
                load(MAX_CALLS, "long.5000", &ENDS).await;
            }),
            TestCell::new(3, 1, c, || async {
                SHORT.set(join_first().await);
                load(MAX_CALLS, "short.1000", &ENDS).await;
            }),
        ],
    );
}

#[test]
fn without_a_policy_all_calls_are_answered_at_once() {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let [a, b] = switch(Loss::Never);
    let first = || {
        serve_timed(|log| async move {
            while log.most_in_progress.get() < MAX_CALLS {
                sleep(Duration::from_millis(5)).await;
            }
            assert!(rpc_report().is_empty());
            ENDS.store(true, Ordering::Release);
            std::future::pending::<()>().await;
        })
    };
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, first).until_others_end(),
            TestCell::new(2, 1, b, || async {
                join_first().await;
                load(MAX_CALLS, "all.20000", &ENDS).await;
            }),
        ],
    );
}

#[test]
fn an_activity_that_floods_a_machine_with_calls_leaves_another_of_its_cell_its_share() {
    static NEVER: AtomicBool = AtomicBool::new(false);
    let [a, b] = switch(Loss::Never);
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, || serve_timed(|_| std::future::pending())).until_others_end(),
            TestCell::new(2, 1, b, || async {
                join_first().await;
                RPC.set_policy(Some(PolicyKind::Wfq));
                let [flood, victim] = ["flood", "victim"].map(|name| register_activity(name).unwrap());
                spawn_task_for(flood, load(500, "flood.10000", &NEVER)).detach();
                sleep(Duration::from_millis(50)).await;
                // In the order of arrival, a call would wait for 500 of 10 ms in 16 slots.
                let latency = spawn_task_for(victim, async {
                    let mut longest = 0;
                    for _ in 0..50 {
                        let begun = now();
                        call(MachineId::FIRST, TIMED, bytes(b"victim.100")).await.unwrap();
                        longest = longest.max(now().as_ns() - begun.as_ns());
                    }
                    longest
                });
                let longest = latency.await;
                assert!(longest < 150_000_000, "a call took {longest} ns");
                assert!(cost(flood) > cost(victim) && cost(victim) > 0);
            }),
        ],
    );
}

#[test]
fn a_limit_holds_and_its_removal_is_followed_at_once() {
    let [a, b] = switch(Loss::Never);
    run_cells(
        machine(),
        [
            TestCell::new(1, 1, a, || serve_timed(|_| std::future::pending())).until_others_end(),
            TestCell::new(2, 1, b, || async {
                join_first().await;
                let slow = register_activity("slow").unwrap();
                let limited = |limit| Entitlement { limit, ..Entitlement::default() };
                RPC.set_entitlement(slow, limited(Rate::per_second(1_000_000).ok())).unwrap();
                RPC.set_policy(Some(PolicyKind::Reserve));
                let ask = || spawn_task_for(slow, call(MachineId::FIRST, TIMED, bytes(b"slow.30000")));
                ask().await.unwrap();
                let mut second = Box::pin(ask());
                assert!(timeout(Duration::from_millis(300), &mut second).await.is_err(), "the limit holds");
                // Calls that are dropped while they wait keep no slot.
                let dropped = spawn_task_for(slow, async {
                    for _ in 0..40 {
                        let call = call(MachineId::FIRST, TIMED, bytes(b"dropped.0"));
                        assert!(timeout(Duration::from_millis(1), call).await.is_err());
                    }
                });
                dropped.await;
                RPC.set_entitlement(slow, limited(None)).unwrap();
                timeout(Duration::from_secs(5), second).await.expect("the removal holds at once").unwrap();
                let many = (0..2 * MAX_CALLS).map(|_| call(MachineId::FIRST, TIMED, bytes(b"many.1000")));
                let many = timeout(Duration::from_secs(5), join_all(many)).await.expect("all slots are free");
                assert!(many.iter().all(Result::is_ok));
            }),
        ],
    );
}

#[test]
fn no_call_is_lost_or_overtakes_its_activity_while_the_grid_changes_at_random() {
    const CALLS: usize = 300;
    static DONE: AtomicUsize = AtomicUsize::new(0);
    /// Changes the grid of a cell until all calls are answered.
    async fn change(seed: u64, activities: &[ActivityId]) {
        let mut random = fastrand::Rng::with_seed(seed);
        let policies = [None, Some(PolicyKind::Wfq), Some(PolicyKind::Fifo), Some(PolicyKind::Reserve)];
        let begun = now();
        while DONE.load(Ordering::Acquire) < 3 * CALLS {
            assert!(now() < begun + Duration::from_secs(60), "{DONE:?} calls were answered");
            match random.u8(..4) {
                0 | 1 => RPC.set_policy(policies[random.usize(..policies.len())]),
                2 => weigh(activities[random.usize(..activities.len())], random.u32(1..1000)),
                _ => RPC.set_limit(random.bool().then(|| Rate::per_second(8_000_000_000).unwrap())),
            }
            sleep(Duration::from_micros(random.u64(..3000))).await;
        }
    }
    let [a, b] = switch(Loss::Never);
    let first = || {
        serve_timed(|log| async move {
            let caller = register_activity("caller").unwrap();
            change(5, &[caller]).await;
            for activity in ["a", "b", "c"] {
                let names = log.names.borrow();
                let numbers = names.iter().filter_map(|name| name.strip_prefix(activity)?.strip_prefix('-'));
                let numbers: Vec<usize> = numbers.map(|number| number.parse().unwrap()).collect();
                let overtaken = numbers.iter().enumerate().find(|(position, number)| position != *number);
                assert_eq!((overtaken, numbers.len()), (None, CALLS), "of {activity}");
            }
        })
    };
    let second = || async {
        join_first().await;
        let activities = ["a", "b", "c"].map(|name| (register_activity(name).unwrap(), name));
        for (activity, name) in activities {
            let calls = move || async move {
                for number in 0..CALLS {
                    spawn_task_for(activity, async move {
                        let request = format!("{name}-{number}.{}", number * 7 % 3 * 300);
                        call(MachineId::FIRST, TIMED, bytes(request.as_bytes())).await.unwrap();
                        DONE.fetch_add(1, Ordering::AcqRel);
                    })
                    .detach();
                    if number % 40 == 0 {
                        sleep(Duration::from_millis(2)).await;
                    }
                }
            };
            spawn_task_for(activity, calls()).detach();
        }
        change(6, &activities.map(|(activity, _)| activity)).await;
    };
    run_cells(machine(), [TestCell::new(1, 1, a, first), TestCell::new(2, 1, b, second)]);
}
