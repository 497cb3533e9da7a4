//! Back-pressure if events are created faster than they run (docs/decisions/0012-overload.md).

use isola_abi::report::CorePhase;
use isola_ebbs::{current_core, platform};
use isola_events::idle::{Idle, on_idle};
use isola_events::overload::{LONG_QUEUE, MAX_MAILBOX_EVENTS};
use isola_events::{
    Event, Placement, exit, room, run, sleep, spawn, spawn_on, spawn_task, spawn_task_on, yield_now,
};
use isola_hosted::Settings;
use isola_platform::CoreIndex;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Runs a cell whose core 0 starts with `main`. Returns the exit code of each core.
fn cell(cores: usize, main: impl Fn() + Sync) -> Vec<i32> {
    let settings = Settings { cores, ..Settings::default() };
    isola_hosted::run(settings, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            main();
        }
        run()
    })
}

/// Keeps the running event running until `is_over`.
fn stall(is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
}

fn at(core: u32) -> Event {
    Event::new().at(Placement::Core(CoreIndex(core)))
}

#[test]
fn a_stalled_core_accepts_a_bounded_number_of_events_and_announces_room() {
    static STALLED: AtomicBool = AtomicBool::new(false);
    static OVER: AtomicBool = AtomicBool::new(false);
    static RAN: AtomicUsize = AtomicUsize::new(0);
    let count = || {
        RAN.fetch_add(1, Ordering::Relaxed);
    };
    cell(2, || {
        spawn_on(CoreIndex(1), || {
            STALLED.store(true, Ordering::Release);
            stall(&OVER);
        });
        spawn_task(async move {
            while !STALLED.load(Ordering::Acquire) {
                yield_now().await;
            }
            let taken = (0..2 * MAX_MAILBOX_EVENTS).filter(|_| at(1).try_spawn(count).is_ok()).count();
            assert_eq!(taken, MAX_MAILBOX_EVENTS);
            static BACK: AtomicBool = AtomicBool::new(false);
            let refused = at(1).try_spawn(|| BACK.store(true, Ordering::Relaxed)).unwrap_err();
            (refused.work)();
            assert!(BACK.load(Ordering::Relaxed) && refused.core == CoreIndex(1));
            spawn(|| OVER.store(true, Ordering::Release));
            room(CoreIndex(1)).await;
            assert!(OVER.load(Ordering::Acquire), "there was room in a full mailbox");
            assert!(at(1).try_spawn(count).is_ok());
            at(1).spawn(|| exit(0));
        })
        .detach();
    });
    assert_eq!(RAN.load(Ordering::Relaxed), MAX_MAILBOX_EVENTS + 1);
}

#[test]
fn events_for_a_full_core_wait_with_their_senders_and_arrive_in_order() {
    const EACH: usize = 5 * MAX_MAILBOX_EVENTS;
    static SENT: AtomicUsize = AtomicUsize::new(0);
    static NEXT: Mutex<[usize; 4]> = Mutex::new([0; 4]);
    cell(4, || {
        for sender in 1..4 {
            spawn_on(CoreIndex(sender), move || {
                for number in 0..EACH {
                    spawn_on(CoreIndex(0), move || {
                        let mut next = NEXT.lock().unwrap();
                        assert_eq!(next[sender as usize], number, "of core {sender}");
                        next[sender as usize] += 1;
                        if *next == [0, EACH, EACH, EACH] {
                            exit(0);
                        }
                    });
                }
                SENT.fetch_add(1, Ordering::Release);
            });
        }
        // Runs until everything is sent, so that the senders only wait for room.
        spawn(|| {
            while SENT.load(Ordering::Acquire) < 3 {
                std::thread::yield_now();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        });
    });
    assert_eq!(*NEXT.lock().unwrap(), [0, EACH, EACH, EACH]);
}

#[test]
fn the_last_event_of_a_halting_core_arrives_once_there_is_room() {
    static STALLED: AtomicBool = AtomicBool::new(false);
    static FULL: AtomicBool = AtomicBool::new(false);
    let codes = cell(2, || {
        spawn_on(CoreIndex(1), || {
            STALLED.store(true, Ordering::Release);
            let of_sender = &platform().report().cores[0].phase;
            while of_sender.load(Ordering::Acquire) != CorePhase::Halted as u32 {
                std::thread::yield_now();
            }
            spawn_task(async {
                sleep(std::time::Duration::from_secs(20)).await;
                exit(1);
            })
            .detach();
        });
        let idle = on_idle(|| {
            if FULL.swap(false, Ordering::Relaxed) {
                at(1).spawn(|| exit(0));
            }
            Idle::MayHalt
        });
        spawn_task(async move {
            while !STALLED.load(Ordering::Acquire) {
                yield_now().await;
            }
            while at(1).try_spawn(|| ()).is_ok() {}
            FULL.store(true, Ordering::Relaxed);
            std::future::pending::<()>().await;
            drop(idle);
        })
        .detach();
    });
    assert_eq!(codes, [0, 0], "a core halts with unsent events and is not woken");
}

#[test]
fn a_cell_ends_however_full_its_mailboxes_are() {
    let codes = cell(3, || {
        fn flood() {
            (0..10).for_each(|_| at(2).spawn(|| std::thread::sleep(std::time::Duration::from_micros(50))));
            spawn(flood);
        }
        spawn_on(CoreIndex(1), || {
            (0..3 * MAX_MAILBOX_EVENTS).for_each(|_| at(2).spawn(|| ()));
            flood();
        });
        spawn_on(CoreIndex(1), || {
            spawn_on(CoreIndex(0), || {
                (0..10 * MAX_MAILBOX_EVENTS).for_each(|_| at(1).spawn(|| ()));
                exit(3);
                exit(4);
            });
        });
    });
    assert_eq!(codes, [3, 3, 3], "all cores leave with the first exit code");
}

#[test]
fn a_full_mailbox_refuses_no_wake_up_of_a_task() {
    const TASKS: usize = 3 * MAX_MAILBOX_EVENTS;
    static WAKERS: Mutex<Vec<std::task::Waker>> = Mutex::new(Vec::new());
    static DONE: AtomicUsize = AtomicUsize::new(0);
    cell(2, || {
        spawn_on(CoreIndex(1), || {
            for _ in 0..TASKS {
                let mut polls = 0;
                let wait = std::future::poll_fn(move |context| {
                    polls += 1;
                    if polls > 1 {
                        return std::task::Poll::Ready(());
                    }
                    WAKERS.lock().unwrap().push(context.waker().clone());
                    std::task::Poll::Pending
                });
                spawn_task(async move {
                    wait.await;
                    if DONE.fetch_add(1, Ordering::Relaxed) + 1 == TASKS {
                        exit(0);
                    }
                })
                .detach();
            }
            // Runs after the first polls of all tasks.
            spawn(|| {
                static FULL: AtomicBool = AtomicBool::new(false);
                spawn_on(CoreIndex(0), || {
                    while at(1).try_spawn(|| ()).is_ok() {}
                    WAKERS.lock().unwrap().drain(..).for_each(std::task::Waker::wake);
                    FULL.store(true, Ordering::Release);
                });
                stall(&FULL);
            });
        });
    });
    assert_eq!(DONE.load(Ordering::Relaxed), TASKS);
}

#[test]
fn a_core_with_a_long_queue_still_accepts_events_of_other_cores() {
    static CAME: AtomicUsize = AtomicUsize::new(0);
    const AWAITED: usize = 500;
    cell(2, || {
        for _ in 0..2 * LONG_QUEUE {
            spawn_task(async {
                while CAME.load(Ordering::Acquire) < AWAITED {
                    yield_now().await;
                }
                exit(0);
            })
            .detach();
        }
        spawn(|| {
            let refused = Event::new().try_spawn(|| ());
            assert!(refused.is_err(), "a long queue accepts an event");
        });
        spawn_task_on(CoreIndex(1), || async {
            for _ in 0..AWAITED {
                at(0).spawn(|| {
                    CAME.fetch_add(1, Ordering::Release);
                });
            }
        });
    });
    assert_eq!(CAME.load(Ordering::Relaxed), AWAITED);
}

#[test]
fn room_on_the_own_core_waits_for_a_short_queue() {
    cell(1, || {
        spawn_task(async {
            (0..2 * LONG_QUEUE).for_each(|_| spawn(|| ()));
            assert!(Event::new().try_spawn(|| ()).is_err());
            room(CoreIndex(0)).await;
            assert!(Event::new().try_spawn(|| exit(0)).is_ok());
        })
        .detach();
    });
}
