//! The memory scheduler asks the holder of the activity that is furthest above its part, and only as long as memory is
//! demanded.

use isola_abi::id::ActivityId;
use isola_abi::report::{MemoryPressure, OVER_BUDGET, RECLAIM};
use isola_ebbs::platform;
use isola_events::activity::INFRASTRUCTURE;
use isola_events::future::join_all;
use isola_events::reclaim::{
    MemoryHolder, ReclaimCause, ReserveError, VacatedMemory, is_over_budget, lost_bytes,
    register_memory_holder, reserve, waiting_requests_of,
};
use isola_events::{register_activity, register_activity_under, sleep, spawn_on, spawn_task, spawn_task_for};
use isola_platform::CoreIndex;
use isola_resources::{Entitlement, MEMORY, MemoryBudget, PolicyKind};
use isola_test_task::run_task_on;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A holder whose memory is a number per activity.
#[derive(Clone, Default)]
struct Numbers(Rc<RefCell<Vec<(ActivityId, usize)>>>);

impl Numbers {
    fn of(&self, activity: ActivityId) -> usize {
        self.0.borrow().iter().find(|(of, _)| *of == activity).map_or(0, |(_, bytes)| *bytes)
    }
}

impl MemoryHolder for Numbers {
    fn held(&self, _: ReclaimCause) -> Vec<(ActivityId, usize)> {
        self.0.borrow().clone()
    }

    fn free(&self, _: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize {
        let mut all = self.0.borrow_mut();
        let Some((_, bytes)) = all.iter_mut().find(|(of, _)| *of == activity) else { return 0 };
        let freed = len_bytes.min(*bytes);
        *bytes -= freed;
        freed
    }

    fn vacate(&self, _: &VacatedMemory, _: u64) -> Option<u64> {
        None
    }
}

fn budget(soft: Option<u64>, hard: Option<u64>) -> Entitlement {
    Entitlement { memory: MemoryBudget { soft, hard }, ..Entitlement::default() }
}

fn demand() {
    platform().report().memory.pressure.fetch_or(RECLAIM, Ordering::Relaxed);
}

async fn until(condition: impl Fn() -> bool) {
    while !condition() {
        sleep(Duration::from_micros(100)).await;
    }
}

#[test]
fn an_activity_above_its_hard_budget_loses_the_excess_and_no_other_loses_any() {
    run_task_on(1, || async {
        let [web, batch] = ["web", "batch"].map(|name| register_activity(name).unwrap());
        let numbers = Numbers::default();
        *numbers.0.borrow_mut() = vec![(web, 5 << 20), (batch, 9 << 20)];
        let holder = register_memory_holder(numbers.clone());
        demand();
        sleep(Duration::from_millis(5)).await;
        assert_eq!((numbers.of(web), numbers.of(batch)), (5 << 20, 9 << 20), "nobody has a budget");
        MEMORY.set_entitlement(batch, budget(None, Some(2 << 20))).unwrap();
        demand();
        until(|| numbers.of(batch) == 2 << 20).await;
        sleep(Duration::from_millis(5)).await;
        assert_eq!((numbers.of(web), numbers.of(batch)), (5 << 20, 2 << 20));
        assert_eq!((lost_bytes(web), lost_bytes(batch)), (0, 7 << 20));
        drop(holder);
        numbers.0.borrow_mut()[1].1 = 9 << 20;
        demand();
        sleep(Duration::from_millis(5)).await;
        assert_eq!(numbers.of(batch), 9 << 20, "the holder was removed");
    });
}

#[test]
fn holders_on_other_cores_free_memory_there() {
    run_task_on(3, || async {
        let batch = register_activity("batch").unwrap();
        MEMORY.set_entitlement(batch, budget(None, Some(1 << 20))).unwrap();
        for core in [1, 2] {
            spawn_on(CoreIndex(core), move || {
                let numbers = Numbers::default();
                numbers.0.borrow_mut().push((batch, 3 << 20));
                std::mem::forget(register_memory_holder(numbers));
            });
        }
        until(|| platform().report().memory.holders.load(Ordering::Relaxed) == 2).await;
        demand();
        until(|| lost_bytes(batch) == 5 << 20).await;
        sleep(Duration::from_millis(5)).await;
        assert_eq!(lost_bytes(batch), 5 << 20, "both have three of the six, and one may stay");
    });
}

#[test]
fn a_reservation_above_the_budget_waits_for_those_of_its_activity_and_delays_no_other() {
    run_task_on(2, || async {
        let [web, batch] = ["web", "batch"].map(|name| register_activity(name).unwrap());
        MEMORY.set_entitlement(web, budget(None, Some(1 << 20))).unwrap();
        let refused = spawn_task_for(web, reserve((1 << 20) + 1)).await;
        assert_eq!(refused.unwrap_err(), ReserveError::MoreThanBudget);
        let first = spawn_task_for(web, reserve(600 << 10)).await.unwrap();
        assert_eq!(first.len_bytes(), 600 << 10);
        let granted: Rc<RefCell<Vec<u32>>> = Rc::default();
        let waiting = [(1, web), (2, web), (3, batch)].map(|(number, activity)| {
            let granted = granted.clone();
            spawn_task_for(activity, async move {
                let reserved = reserve(500 << 10).await.unwrap();
                granted.borrow_mut().push(number);
                sleep(Duration::from_millis(3)).await;
                drop(reserved);
            })
        });
        until(|| *granted.borrow() == [3]).await;
        assert_eq!((waiting_requests_of(web), waiting_requests_of(batch)), (2, 0));
        drop(first);
        join_all(waiting).await;
        assert_eq!(*granted.borrow(), [3, 1, 2], "two of them fit at a time, in their order");
        assert_eq!(waiting_requests_of(web), 0);
    });
}

#[test]
fn a_request_whose_future_is_dropped_keeps_nothing() {
    run_task_on(1, || async {
        let web = register_activity("web").unwrap();
        MEMORY.set_entitlement(web, budget(None, Some(1 << 20))).unwrap();
        for _ in 0..50 {
            let held = spawn_task_for(web, reserve(1 << 20)).await.unwrap();
            // Dropped before or after it is granted, as the timers happen to run.
            let abandoned = spawn_task_for(web, async {
                drop(isola_events::timeout(Duration::from_micros(200), reserve(1 << 20)).await);
            });
            sleep(Duration::from_micros(200)).await;
            drop(held);
            abandoned.await;
        }
    });
}

#[test]
fn a_smaller_request_does_not_overtake_a_larger_one_of_its_activity() {
    run_task_on(1, || async {
        let web = register_activity("web").unwrap();
        MEMORY.set_entitlement(web, budget(None, Some(1 << 20))).unwrap();
        let first = spawn_task_for(web, reserve(600 << 10)).await.unwrap();
        let granted: Rc<RefCell<Vec<usize>>> = Rc::default();
        let waiting = [500 << 10, 100 << 10, 300 << 10, 900 << 10, 1 << 10].map(|len| {
            let granted = granted.clone();
            spawn_task_for(web, async move {
                let reserved = reserve(len).await.unwrap();
                granted.borrow_mut().push(len);
                sleep(Duration::from_millis(2)).await;
                drop(reserved);
            })
        });
        sleep(Duration::from_millis(5)).await;
        assert_eq!(*granted.borrow(), [], "the first of them does not fit, although the second would");
        drop(first);
        join_all(waiting).await;
        assert_eq!(*granted.borrow(), [500 << 10, 100 << 10, 300 << 10, 900 << 10, 1 << 10]);
    });
}

/// Activities come and go, policies and budgets change, requests are abandoned: none of the others is lost, those of an
/// activity are granted in their order, budgets hold, and all memory can be reserved again at the end.
#[test]
fn no_reservation_is_lost_or_reordered_while_the_grid_changes_at_random() {
    /// The most that an activity may have, and how many requests it makes.
    const HARD: u64 = 1 << 20;
    const REQUESTS: usize = 30;
    run_task_on(3, || async {
        let mut random = fastrand::Rng::with_seed(11);
        let tasks: Vec<_> = (0..12)
            .map(|number| {
                let activity = register_activity(&format!("activity {number}")).unwrap();
                MEMORY.set_entitlement(activity, budget(None, Some(HARD))).unwrap();
                let granted: Rc<RefCell<Vec<usize>>> = Rc::default();
                let held = Rc::new(std::cell::Cell::new(0_u64));
                let requests = (0..REQUESTS).map(|request| {
                    let (granted, held) = (granted.clone(), held.clone());
                    let (len, ms) = (1 + random.usize(..HARD as usize), random.u64(..3));
                    let is_abandoned = random.u32(..5) == 0;
                    spawn_task_for(activity, async move {
                        let reserved = if is_abandoned {
                            // In time or not.
                            isola_events::timeout(Duration::from_micros(300), reserve(len)).await.ok()
                        } else {
                            Some(reserve(len).await)
                        };
                        let Some(reserved) = reserved.map(Result::unwrap) else { return };
                        granted.borrow_mut().push(request);
                        held.set(held.get() + len as u64);
                        assert!(held.get() <= HARD, "{} bytes are reserved", held.get());
                        sleep(Duration::from_millis(ms)).await;
                        held.set(held.get() - len as u64);
                        drop(reserved);
                    })
                });
                let requests: Vec<_> = requests.collect();
                (activity, granted, requests)
            })
            .collect();
        let change = spawn_task({
            async move {
                let mut random = fastrand::Rng::with_seed(12);
                loop {
                    MEMORY.set_policy(random.choice(PolicyKind::ALL).filter(|_| random.bool()));
                    MEMORY.set_batch(std::num::NonZeroU32::new(random.u32(1..5)).unwrap());
                    sleep(Duration::from_micros(random.u64(50..900))).await;
                }
            }
        });
        for (activity, granted, requests) in tasks {
            join_all(requests).await;
            assert!(granted.borrow().is_sorted(), "{:?}", granted.borrow());
            assert_eq!(waiting_requests_of(activity), 0);
            assert!(isola_events::end_activity(activity));
            let next = register_activity("successor").unwrap();
            MEMORY.set_entitlement(next, budget(None, Some(HARD))).unwrap();
            // None of its predecessor's bytes is left, whose slot it may have.
            drop(spawn_task_for(next, reserve(HARD as usize)).await.unwrap());
        }
        change.cancel();
    });
}

/// Sets the memory of an activity. The cells of these tests have no pool that counts it.
fn set_used(activity: ActivityId, len_bytes: u64) {
    let counters = platform().ledger().core(0);
    counters[activity.index()].memory_bytes.store(len_bytes, Ordering::Relaxed);
    demand();
}

#[test]
fn an_activity_is_over_its_budget_while_it_keeps_more_than_the_hard_one() {
    run_task_on(1, || async {
        let [web, batch] = ["web", "batch"].map(|name| register_activity(name).unwrap());
        let connection = register_activity_under(web, "connection").unwrap();
        let word = || platform().report().memory.pressure.load(Ordering::Relaxed);
        set_used(web, 4 << 20);
        set_used(INFRASTRUCTURE, 4 << 20);
        MEMORY.set_entitlement(batch, budget(None, Some(1 << 20))).unwrap();
        MEMORY.set_entitlement(INFRASTRUCTURE, budget(None, Some(1 << 20))).unwrap();
        sleep(Duration::from_millis(3)).await;
        assert!(!is_over_budget(web) && !is_over_budget(batch) && word() == 0);
        MEMORY.set_entitlement(web, budget(None, Some(3 << 20))).unwrap();
        until(|| is_over_budget(web)).await;
        assert!(is_over_budget(connection), "the activity above it counts for it");
        assert!(!is_over_budget(batch) && !is_over_budget(INFRASTRUCTURE));
        assert_eq!(MemoryPressure::from_u32(word()), Some(MemoryPressure::None));
        assert_ne!(word() & OVER_BUDGET, 0);
        // No demand: the loop looks again as long as the flag is set.
        platform().ledger().core(0)[web.index()].memory_bytes.store(3 << 20, Ordering::Relaxed);
        until(|| word() == 0).await;
        assert!(!is_over_budget(web) && !is_over_budget(connection));
        set_used(web, 4 << 20);
        until(|| is_over_budget(web)).await;
        MEMORY.set_entitlement(web, budget(None, None)).unwrap();
        until(|| word() == 0).await;
        assert!(!is_over_budget(web));
    });
}

#[test]
fn an_activity_that_can_free_its_excess_is_not_over_its_budget() {
    run_task_on(1, || async {
        let web = register_activity("web").unwrap();
        let numbers = Numbers::default();
        *numbers.0.borrow_mut() = vec![(web, 5 << 20)];
        let _holder = register_memory_holder(numbers.clone());
        MEMORY.set_entitlement(web, budget(None, Some(2 << 20))).unwrap();
        until(|| numbers.of(web) == 2 << 20).await;
        sleep(Duration::from_millis(3)).await;
        assert!(!is_over_budget(web));
    });
}
