//! The event loop from an application's view, with threads as cores.

use isola_abi::report::{CorePhase, Report};
use isola_events::activity::{APPLICATION, charge_to};
use isola_events::event::{Event, Label, Placement, current_tag};
use isola_events::idle::{Idle, on_idle};
use isola_events::interrupt::{
    ALLOCATED_VECTORS, Interrupt, InterruptError, allocate_interrupt, on_interrupt,
};
use isola_events::watchdog::set_event_limit;
use isola_events::{
    Alarm, current_activity, exit, now, parallel, register_activity, run, sleep, spawn, spawn_on, spawn_task,
    spawn_task_on, timeout, yield_now,
};
use isola_hosted::{Hosted, Settings};
use isola_platform::{CoreIndex, Platform};
use std::cell::{Cell, RefCell};
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

/// Runs a cell whose core 0 starts with `main`. Returns the exit code of each core, and the platform.
fn cell(cores: usize, main: impl Fn(&'static Hosted) + Sync) -> (Vec<i32>, &'static Hosted) {
    let settings = Settings { cores, ..Settings::default() };
    let results = isola_hosted::run(settings, Vec::new(), |platform| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            main(platform);
        }
        (run(), platform)
    });
    (results.iter().map(|(code, _)| *code).collect(), results[0].1)
}

fn phase(report: &Report, core: usize) -> u32 {
    report.cores[core].phase.load(Ordering::Relaxed)
}

#[test]
fn events_of_a_core_run_in_order_of_creation() {
    let order = Mutex::new(Vec::new());
    let order: &'static Mutex<Vec<u32>> = Box::leak(Box::new(order));
    cell(1, |_| {
        (0..100).for_each(|number| spawn(move || order.lock().unwrap().push(number)));
        spawn(|| spawn(|| exit(0)));
    });
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
}

#[test]
fn all_cores_return_the_exit_code() {
    let (codes, _) = cell(4, |_| spawn_on(CoreIndex(2), || exit(7)));
    assert_eq!(codes, [7, 7, 7, 7]);
}

#[test]
fn a_core_sleeps_until_it_is_needed() {
    let (_, platform) = cell(3, |platform| {
        spawn_on(CoreIndex(1), move || {
            assert_eq!(phase(platform.report(), 1), CorePhase::Running as u32);
            assert_eq!(phase(platform.report(), 2), CorePhase::Asleep as u32);
            assert_eq!(platform.report().cores[2].passes.load(Ordering::Relaxed), 0);
            exit(0);
        });
    });
    assert_eq!(platform.report().activity_count.load(Ordering::Relaxed), 2);
}

#[test]
fn no_wake_up_is_lost_between_cores_that_halt_constantly() {
    fn ping(from: u32, left: u32) {
        match left {
            0 => exit(0),
            _ => spawn_on(CoreIndex(1 - from), move || ping(1 - from, left - 1)),
        }
    }
    cell(2, |_| spawn(|| ping(0, 20_000)));
}

#[test]
fn all_messages_of_many_cores_arrive() {
    static ARRIVED: AtomicUsize = AtomicUsize::new(0);
    cell(4, |_| {
        for sender in 1..4 {
            spawn_on(CoreIndex(sender), || {
                for _ in 0..5_000 {
                    spawn_on(CoreIndex(0), || {
                        if ARRIVED.fetch_add(1, Ordering::Relaxed) + 1 == 15_000 {
                            exit(0);
                        }
                    });
                }
            });
        }
    });
    assert_eq!(ARRIVED.load(Ordering::Relaxed), 15_000);
}

#[test]
fn an_affinity_label_always_selects_the_same_core_and_labels_spread_over_all_cores() {
    cell(4, |_| {
        let cores: Vec<_> = (0..64).map(|label| Placement::Affine(Label(label)).core()).collect();
        for (label, core) in cores.iter().enumerate() {
            assert_eq!(Placement::Affine(Label(label as u64)).core(), *core);
        }
        (0..4).for_each(|core| assert!(cores.contains(&CoreIndex(core)), "no label selects core {core}"));
        exit(0);
    });
}

#[test]
fn events_inherit_their_creators_activity_across_cores_and_tasks() {
    cell(2, |_| {
        let query = register_activity("query").unwrap();
        Event::new().charged_to(query).after(Label(3)).spawn(move || {
            assert_eq!(current_tag().dependency, Some(Label(3)));
            spawn_on(CoreIndex(1), move || {
                assert_eq!(current_activity(), query);
                spawn_task(async move {
                    sleep(Duration::from_millis(1)).await;
                    assert_eq!(current_activity(), query);
                    exit(0);
                })
                .detach();
            });
        });
    });
}

#[test]
fn every_cycle_is_charged_to_its_owner() {
    let work = |cycles: u64| {
        let start = isola_ebbs::cycles();
        while isola_ebbs::cycles() - start < cycles {}
    };
    static BEGAN: AtomicU64 = AtomicU64::new(0);
    static ENDS: AtomicU64 = AtomicU64::new(0);
    let start = isola_ebbs::cycles();
    let (_, platform) = cell(1, |_| {
        spawn(|| BEGAN.store(isola_ebbs::cycles(), Ordering::Relaxed));
        let query = register_activity("query").unwrap();
        spawn(move || work(3_000_000));
        spawn(move || {
            charge_to(query);
            work(9_000_000);
        });
        spawn_task(async {
            sleep(Duration::from_millis(20)).await;
            ENDS.store(isola_ebbs::cycles(), Ordering::Relaxed);
            exit(0);
        })
        .detach();
    });
    let whole = isola_ebbs::cycles() - start;
    let core = &platform.report().cores[0];
    let used = platform.ledger().core(0);
    let cycles = |activity: u32| used[activity as usize].cycles.load(Ordering::Relaxed);
    let idle = core.idle_cycles.load(Ordering::Relaxed);
    assert!(cycles(APPLICATION.0) >= 3_000_000);
    assert!(cycles(2) >= 9_000_000 && cycles(2) < whole);
    assert!(idle > 0);
    let charged = idle
        + core.loop_cycles.load(Ordering::Relaxed)
        + core.interrupt_cycles.load(Ordering::Relaxed)
        + (0..3).map(cycles).sum::<u64>();
    assert!(charged <= whole, "{charged} of {whole} cycles charged");
    let served = ENDS.load(Ordering::Relaxed) - BEGAN.load(Ordering::Relaxed);
    assert!(charged >= served, "{charged} of {served} cycles charged from the first event to the last");
}

#[test]
fn alarms_ring_in_the_order_of_their_deadlines() {
    let rung: &'static Mutex<Vec<u64>> = Box::leak(Box::new(Mutex::new(Vec::new())));
    cell(1, |_| {
        for ms in [7, 3, 5, 1, 9] {
            spawn_task(async move {
                sleep(Duration::from_millis(ms)).await;
                rung.lock().unwrap().push(ms);
                if ms == 9 {
                    exit(0);
                }
            })
            .detach();
        }
    });
    assert_eq!(*rung.lock().unwrap(), [1, 3, 5, 7, 9]);
}

#[test]
fn an_alarm_rings_no_earlier_than_set_and_not_once_unset() {
    cell(1, |_| {
        let start = now();
        let never = Rc::new(Alarm::new(|| panic!("an alarm that was unset rang")));
        never.set(Some(start + Duration::from_millis(2)));
        let moved = Rc::new(Alarm::new(move || {
            assert!(now() - start >= Duration::from_millis(10));
            exit(0);
        }));
        moved.set(Some(start + Duration::from_millis(3)));
        let keep = moved.clone();
        spawn(move || {
            never.set(None);
            moved.set(Some(start + Duration::from_millis(10)));
            assert!(moved.is_set() && !never.is_set());
        });
        spawn_task(async move {
            let _keep = keep;
            pending::<()>().await;
        })
        .detach();
    });
}

#[test]
fn a_timeout_ends_only_a_future_that_takes_too_long() {
    cell(1, |_| {
        spawn_task(async {
            let late = timeout(Duration::from_millis(2), sleep(Duration::from_secs(60))).await;
            let early = timeout(Duration::from_secs(60), async { 5 }).await;
            exit(if late.is_err() && early == Ok(5) { 0 } else { 1 });
        })
        .detach();
    });
}

#[test]
fn a_task_returns_its_output_and_can_be_cancelled() {
    struct Dropped(Rc<Cell<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(true);
        }
    }
    cell(1, |_| {
        spawn_task(async {
            let double = |n: u32| spawn_task(async move { 2 * n });
            assert_eq!(double(4).await + double(5).await, 18);
            let dropped = Rc::new(Cell::new(false));
            let guard = Dropped(dropped.clone());
            let endless = spawn_task(async move {
                let _guard = guard;
                pending::<()>().await;
            });
            sleep(Duration::from_millis(1)).await;
            assert!(!dropped.get());
            endless.cancel();
            assert!(dropped.get());
            exit(0);
        })
        .detach();
    });
}

#[test]
fn a_waker_works_from_another_core_and_after_its_task_has_ended() {
    cell(2, |_| {
        spawn_task(async {
            let polls = RefCell::new(0);
            poll_fn(|context| {
                *polls.borrow_mut() += 1;
                let waker: Waker = context.waker().clone();
                if *polls.borrow() == 1 {
                    spawn_on(CoreIndex(1), move || {
                        waker.wake_by_ref();
                        spawn_task_on(CoreIndex(0), move || async move {
                            sleep(Duration::from_millis(2)).await;
                            waker.wake();
                            spawn(|| exit(0));
                        });
                    });
                    return Poll::Pending;
                }
                Poll::Ready(())
            })
            .await;
        })
        .detach();
    });
}

#[test]
fn interrupts_run_their_handlers_between_events() {
    cell(1, |platform| {
        on_interrupt(0x41, || exit(0x41)).unwrap().keep();
        spawn(|| platform.interrupt(CoreIndex(0), 0x40));
        spawn(|| platform.interrupt(CoreIndex(0), 0x41));
    });
}

#[test]
fn vectors_are_allocated_until_all_are_used_and_freed_when_dropped() {
    cell(1, |platform| {
        let seen: &'static Mutex<Vec<u8>> = Box::leak(Box::new(Mutex::new(Vec::new())));
        let vectors: Vec<_> =
            (0..ALLOCATED_VECTORS.len()).map(|_| allocate_interrupt(|| ()).unwrap()).collect();
        assert_eq!(
            vectors.iter().map(Interrupt::vector).collect::<Vec<_>>(),
            ALLOCATED_VECTORS.collect::<Vec<_>>()
        );
        assert_eq!(allocate_interrupt(|| ()).unwrap_err(), InterruptError::NoneFree);
        drop(vectors);
        let first = allocate_interrupt(|| seen.lock().unwrap().push(1)).unwrap();
        let second = allocate_interrupt(|| seen.lock().unwrap().push(2)).unwrap();
        let (gone, stays) = (first.vector(), second.vector());
        assert_ne!(gone, stays);
        drop(first);
        second.keep();
        spawn(move || {
            platform.interrupt(CoreIndex(0), gone);
            platform.interrupt(CoreIndex(0), stays);
            spawn(|| exit(i32::from(*seen.lock().unwrap() != [2])));
        });
    });
}

#[test]
fn a_vector_has_one_handler_per_core_at_a_time() {
    let (codes, _) = cell(2, |_| {
        let first = on_interrupt(0x41, || ()).unwrap();
        assert_eq!(on_interrupt(0x41, || ()).unwrap_err(), InterruptError::Taken { vector: 0x41 });
        drop(first);
        on_interrupt(0x41, || ()).unwrap().keep();
        spawn_on(CoreIndex(1), || {
            let here = on_interrupt(0x41, || ());
            exit(i32::from(here.is_err()));
        });
    });
    assert_eq!(codes, [0, 0]);
}

#[test]
fn only_events_above_the_limit_are_counted_as_long() {
    let (_, platform) = cell(1, |_| {
        let spin = |ms| {
            let start = now();
            while now() - start < Duration::from_millis(ms) {}
        };
        set_event_limit(Some(Duration::from_secs(100)));
        spawn(move || spin(3));
        spawn(|| set_event_limit(Some(Duration::from_millis(2))));
        spawn(move || spin(5));
        spawn_task(async move { spin(8) }).detach();
        spawn(|| set_event_limit(None));
        spawn(move || {
            spin(30);
            exit(0);
        });
    });
    let core = &platform.report().cores[0];
    assert_eq!(core.long_events.load(Ordering::Relaxed), 2);
    let longest = platform.clock().cycles(isola_events::Instant::default() + Duration::from_millis(30))
        - platform.clock().cycles(isola_events::Instant::default());
    assert!(core.longest_event_cycles.load(Ordering::Relaxed) >= longest);
}

#[test]
fn a_polling_idle_handler_keeps_the_core_up_until_it_is_dropped() {
    let (_, platform) = cell(1, |_| {
        let polls = Rc::new(Cell::new(0));
        let counted = polls.clone();
        let handler = on_idle(move || {
            counted.set(counted.get() + 1);
            if counted.get() == 100 { Idle::Worked } else { Idle::KeepPolling }
        });
        spawn_task(async move {
            while polls.get() < 1_000 {
                yield_now().await;
                sleep(Duration::from_micros(100)).await;
            }
            assert_eq!(isola_ebbs::platform().report().cores[0].idle_cycles.load(Ordering::Relaxed), 0);
            drop(handler);
            sleep(Duration::from_millis(5)).await;
            exit(0);
        })
        .detach();
    });
    assert!(platform.report().cores[0].idle_cycles.load(Ordering::Relaxed) > 0);
}

#[test]
fn parallel_parts_run_on_all_cores_and_results_are_in_order() {
    cell(4, |_| {
        spawn_task(async {
            for round in 0..200 {
                let parts = round % 9;
                let results = parallel(parts, move |part| async move {
                    if part % 2 == 0 {
                        yield_now().await;
                    }
                    (part, isola_ebbs::current_core())
                })
                .await;
                let expected: Vec<_> = (0..parts).map(|part| (part, CoreIndex(part as u32 % 4))).collect();
                assert_eq!(results, expected);
            }
            exit(0);
        })
        .detach();
    });
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn an_event_for_a_core_that_does_not_exist_panics() {
    cell(1, |_| spawn_on(CoreIndex(1), || ()));
}

#[test]
fn a_panic_on_a_core_ends_the_other_cores() {
    let outcome = std::panic::catch_unwind(|| cell(3, |_| spawn_on(CoreIndex(2), || panic!("on purpose"))));
    assert!(outcome.is_err());
}
