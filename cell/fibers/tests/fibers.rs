//! Fibers in blocking code, and the events beside them.

use isola_ebbs::current_core;
use isola_events::activity::{APPLICATION, charge_to};
use isola_events::future::{join, join_all, ready};
use isola_events::{
    current_activity, quiescence, register_activity, sleep, spawn, spawn_task, spawn_task_for, start_task,
    timeout, yield_now,
};
use isola_fibers::{STACK_LEN, block_on, is_in_fiber, spawn_fiber, spawn_fiber_with_stack};
use isola_platform::CoreIndex;
use isola_test_task::run_task_on;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

/// A library that blocks, several calls deep.
fn recurse(depth: u32, sum: u64) -> u64 {
    let mut on_stack = [depth; 16];
    std::hint::black_box(&mut on_stack);
    if depth == 0 {
        block_on(sleep(Duration::from_micros(100)));
        return sum;
    }
    if depth.is_multiple_of(7) {
        block_on(yield_now());
    }
    let result = recurse(depth - 1, sum + u64::from(depth));
    assert!(on_stack.iter().all(|value| *value == depth));
    result
}

#[test]
fn events_run_while_many_fibers_block_at_depth() {
    run_task_on(1, || async {
        let ticks = Rc::new(Cell::new(0));
        let count = ticks.clone();
        let ticking = spawn_task(async move {
            loop {
                yield_now().await;
                count.set(count.get() + 1);
            }
        })
        .cancel_on_drop();
        let fibers: Vec<_> =
            (0..200_u64).map(|number| spawn_fiber(move || recurse(50, number)).unwrap()).collect();
        let results = join_all(fibers).await;
        assert_eq!(results, (0..200).map(|number| number + 1275).collect::<Vec<_>>());
        assert!(ticks.get() > 7, "events did not run while fibers blocked");
        drop(ticking);
    });
}

#[test]
fn a_ready_future_returns_at_once_and_a_pending_one_costs_one_event() {
    fn events() -> u64 {
        isola_ebbs::platform().ledger().core(0)[0].events.load(Ordering::Relaxed)
    }
    run_task_on(1, || async {
        let fiber = spawn_fiber(|| {
            let before = events();
            let sum: u32 = (0..100).map(|number| block_on(ready(number))).sum();
            assert_eq!((sum, events()), (4950, before));
            (0..100).for_each(|_| block_on(yield_now()));
            assert_eq!(events(), before + 100);
        });
        fiber.unwrap().await;
    });
}

#[test]
fn a_fiber_continues_for_its_latest_activity() {
    run_task_on(1, || async {
        let (query, other) = (register_activity("query").unwrap(), register_activity("other").unwrap());
        let noise = spawn_task(async move {
            charge_to(other);
            loop {
                yield_now().await;
                charge_to(other);
            }
        })
        .cancel_on_drop();
        let fiber = spawn_task_for(query, async move {
            let fiber = spawn_fiber(move || {
                assert_eq!(current_activity(), query);
                block_on(yield_now());
                assert_eq!(current_activity(), query);
                charge_to(other);
                block_on(sleep(Duration::from_micros(200)));
                assert_eq!(current_activity(), other);
                charge_to(APPLICATION);
                (0..10).for_each(|_| block_on(yield_now()));
                assert_eq!(current_activity(), APPLICATION);
            });
            fiber.unwrap().await;
            assert_eq!(current_activity(), query);
        });
        fiber.await;
        drop(noise);
    });
}

#[test]
fn stacks_are_reused_and_concurrent_fibers_have_different_ones() {
    fn address() -> usize {
        let local = 0_u8;
        (&raw const local).addr() / STACK_LEN / 2
    }
    run_task_on(1, || async {
        let mut one_by_one = BTreeSet::new();
        for _ in 0..50 {
            one_by_one.insert(spawn_fiber(address).unwrap().await);
        }
        assert!(one_by_one.len() <= 2, "{} stacks for consecutive fibers", one_by_one.len());
        let addresses = Rc::new(RefCell::new(Vec::new()));
        let fibers = (0..20).map(|_| {
            let addresses = addresses.clone();
            let body = move || {
                let local = Cell::new(0_u64);
                addresses.borrow_mut().push(local.as_ptr().addr());
                for round in 0..20 {
                    local.set(round);
                    block_on(yield_now());
                    assert_eq!(local.get(), round);
                }
            };
            spawn_fiber(body).unwrap()
        });
        join_all(fibers.collect::<Vec<_>>()).await;
        let distinct: BTreeSet<_> = addresses.borrow().iter().copied().collect();
        assert_eq!(distinct.len(), 20);
    });
}

#[test]
fn a_fiber_can_spawn_and_await_fibers_tasks_and_timeouts() {
    run_task_on(1, || async {
        let fiber = spawn_fiber(|| {
            let inner = spawn_fiber_with_stack(1024 * 1024, || {
                block_on(sleep(Duration::from_micros(50)));
                let large = std::hint::black_box([7_u8; 128 * 1024]);
                u32::from(large[100])
            });
            let task = start_task(async {
                assert!(!is_in_fiber(), "a task that a fiber polls counts as a fiber");
                yield_now().await;
                5
            });
            assert!(is_in_fiber());
            assert!(block_on(timeout(Duration::from_millis(1), pending::<()>())).is_err());
            let (inner, task) = block_on(join(inner.unwrap(), task));
            inner + task
        });
        assert!(!is_in_fiber());
        assert_eq!(fiber.unwrap().await, 12);
    });
}

#[test]
fn a_wake_up_during_a_blocking_poll_is_not_lost() {
    run_task_on(1, || async {
        let fiber = spawn_fiber(|| {
            let came = Rc::new(Cell::new(false));
            let mut asked = false;
            let notify = came.clone();
            block_on(poll_fn(move |context| {
                if came.get() {
                    return Poll::Ready(());
                }
                if !asked {
                    asked = true;
                    let (notify, waker) = (notify.clone(), context.waker().clone());
                    spawn(move || {
                        notify.set(true);
                        waker.wake();
                    });
                    // The wake-up arrives here, after the check above.
                    (0..5).for_each(|_| block_on(yield_now()));
                }
                Poll::Pending
            }));
        });
        fiber.unwrap().await;
    });
}

#[test]
fn fibers_run_on_the_core_that_spawned_them() {
    run_task_on(3, || async {
        let cores = isola_events::parallel(30, |_| async {
            let fiber = spawn_fiber(|| {
                let before = current_core();
                for _ in 0..20 {
                    block_on(sleep(Duration::from_micros(20)));
                    block_on(yield_now());
                    assert_eq!(current_core(), before);
                }
                before
            });
            fiber.unwrap().await
        })
        .await;
        assert_eq!(cores, (0..30).map(|part| CoreIndex(part % 3)).collect::<Vec<_>>());
    });
}

#[test]
fn a_fiber_without_a_handle_continues_and_an_endless_one_blocks_no_exit() {
    run_task_on(1, || async {
        let done = Rc::new(Cell::new(false));
        let notify = done.clone();
        drop(spawn_fiber(move || {
            block_on(sleep(Duration::from_micros(100)));
            notify.set(true);
        }));
        spawn_fiber(|| block_on(pending::<()>())).unwrap().detach();
        while !done.get() {
            yield_now().await;
        }
    });
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn blocking_outside_of_a_fiber_panics() {
    run_task_on(1, || async { block_on(yield_now()) });
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn blocking_in_a_task_that_a_fiber_polls_panics() {
    run_task_on(1, || async {
        let fiber = spawn_fiber(|| start_task(async { block_on(yield_now()) }).detach());
        fiber.unwrap().await;
    });
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn blocking_within_a_read_panics() {
    run_task_on(1, || async {
        spawn_fiber(|| quiescence::read(|| block_on(yield_now()))).unwrap().await;
    });
}
