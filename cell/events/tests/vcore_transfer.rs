//! Cores that join and leave while the cell runs: vcores lose no state, whichever core runs them.

use isola_ebbs::{Ebb, Representative, current_core};
use isola_events::{
    Label, Placement, elsewhere, exit, on_cores_changed, on_vcore_moved, present_cores, run, sleep, spawn,
    spawn_on, spawn_task, yield_now,
};
use isola_hosted::{Hosted, Settings};
use isola_platform::CoreIndex;
use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

static COUNTER: Ebb<Counter> = Ebb::new();

/// Per-core state.
struct Counter {
    core: CoreIndex,
    count: Cell<u64>,
}

impl Representative for Counter {
    fn create() -> Self {
        Self { core: current_core(), count: Cell::new(0) }
    }
}

/// Runs a cell whose first event is `begin`, and to which `manage` plugs and unplugs cores meanwhile.
fn cell(cores: usize, core_slot_count: usize, begin: fn(), manage: impl FnOnce(&'static Hosted) + Send) {
    let settings = Settings { cores, core_slot_count, ..Settings::default() };
    let manage = Mutex::new(Some(manage));
    thread::scope(|scope| {
        isola_hosted::run(settings, Vec::new(), |platform| {
            if current_core() == CoreIndex(0) {
                spawn(begin);
                let manage = manage.lock().unwrap().take();
                manage.map(|manage| scope.spawn(move || manage(platform)));
            }
            run()
        });
    });
}

fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::sleep(Duration::from_micros(100));
    }
}

#[test]
fn tasks_timers_and_representatives_continue_on_every_core_that_runs_the_vcore() {
    const CORE: CoreIndex = CoreIndex(2);
    const STEPS: u64 = 600;
    static STEPS_DONE: AtomicU64 = AtomicU64::new(0);
    static MOVES: AtomicU64 = AtomicU64::new(0);
    fn begin() {
        spawn_on(CORE, || {
            on_vcore_moved(|| assert_eq!(COUNTER.core, CORE));
            for task in 0..3 {
                spawn_task(async move {
                    for step in 0..STEPS {
                        match (step + task) % 3 {
                            0 => sleep(Duration::from_micros(200)).await,
                            1 => yield_now().await,
                            _ => assert_eq!(
                                elsewhere(CoreIndex(0), async || current_core()).await,
                                CoreIndex(0)
                            ),
                        }
                        assert_eq!((current_core(), COUNTER.core), (CORE, CORE));
                        COUNTER.count.set(COUNTER.count.get() + 1);
                        STEPS_DONE.store(COUNTER.count.get(), Ordering::Relaxed);
                    }
                    while MOVES.load(Ordering::Relaxed) < 50 {
                        sleep(Duration::from_micros(500)).await;
                    }
                    if COUNTER.count.get() == 3 * STEPS {
                        exit(0);
                    }
                })
                .detach();
            }
        });
    }
    cell(3, 3, begin, |platform| {
        for _ in 0..50 {
            platform.unplug_core(CORE);
            thread::sleep(Duration::from_micros(300));
            platform.plug_core(CORE);
            thread::sleep(Duration::from_micros(300));
            MOVES.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert_eq!(STEPS_DONE.load(Ordering::Relaxed), 3 * STEPS);
}

#[test]
fn work_is_spread_over_present_cores_and_handlers_are_called_for_changes() {
    const NEW: CoreIndex = CoreIndex(1);
    static SEEN: AtomicU64 = AtomicU64::new(0);
    static RAN_ON_NEW: AtomicU64 = AtomicU64::new(0);
    static ENDS: AtomicU64 = AtomicU64::new(0);
    fn begin() {
        assert_eq!(present_cores().len(), 1);
        assert!((0..64).all(|label| Placement::Affine(Label(label)).core() == CoreIndex(0)));
        on_cores_changed(|cores| {
            if cores.contains(NEW) {
                spawn_on(NEW, || {
                    assert_eq!(COUNTER.core, NEW);
                    RAN_ON_NEW.fetch_add(1, Ordering::Relaxed);
                });
            }
            SEEN.store(cores.len() as u64, Ordering::Relaxed);
        });
        SEEN.store(1, Ordering::Relaxed);
        spawn_task(async {
            while ENDS.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            exit(0);
        })
        .detach();
    }
    cell(1, 2, begin, |platform| {
        wait_until(|| SEEN.load(Ordering::Relaxed) == 1);
        for round in 1..=20 {
            platform.plug_core(NEW);
            wait_until(|| RAN_ON_NEW.load(Ordering::Relaxed) >= round && SEEN.load(Ordering::Relaxed) == 2);
            platform.unplug_core(NEW);
            wait_until(|| SEEN.load(Ordering::Relaxed) == 1);
        }
        ENDS.store(1, Ordering::Relaxed);
    });
    assert_eq!(RAN_ON_NEW.load(Ordering::Relaxed), 20);
}

#[test]
fn an_event_for_a_vcore_in_transit_runs_exactly_once() {
    const MESSAGES: u64 = 20_000;
    static SENT: AtomicU64 = AtomicU64::new(0);
    static RECEIVED: AtomicU64 = AtomicU64::new(0);
    static SUM: AtomicU64 = AtomicU64::new(0);
    fn send() {
        for _ in 0..50 {
            let number = SENT.fetch_add(1, Ordering::Relaxed);
            spawn_on(CoreIndex((number % 4) as u32), move || {
                SUM.fetch_add(number, Ordering::Relaxed);
                if RECEIVED.fetch_add(1, Ordering::Relaxed) + 1 == MESSAGES {
                    exit(0);
                }
            });
        }
        if SENT.load(Ordering::Relaxed) < MESSAGES {
            spawn(send);
        }
    }
    fn begin() {
        spawn_on(CoreIndex(3), send);
    }
    cell(4, 4, begin, |platform| {
        for round in 0_u32.. {
            if RECEIVED.load(Ordering::Relaxed) >= MESSAGES {
                break;
            }
            let core = CoreIndex(1 + round % 3);
            platform.unplug_core(core);
            let next = CoreIndex(1 + (round + 1) % 3);
            platform.unplug_core(next);
            platform.plug_core(core);
            platform.plug_core(next);
        }
    });
    assert_eq!(SUM.load(Ordering::Relaxed), MESSAGES * (MESSAGES - 1) / 2);
}

#[test]
fn a_core_that_was_never_needed_leaves_and_joins_without_allocations() {
    static ENDS: AtomicU64 = AtomicU64::new(0);
    fn begin() {
        spawn_task(async {
            while ENDS.load(Ordering::Relaxed) == 0 {
                sleep(Duration::from_millis(1)).await;
            }
            exit(0);
        })
        .detach();
    }
    cell(2, 2, begin, |platform| {
        use isola_abi::report::CorePhase;
        use isola_platform::Platform;
        let phase = || platform.report().cores[1].phase.load(Ordering::Relaxed);
        for _ in 0..10 {
            platform.unplug_core(CoreIndex(1));
            assert_eq!(phase(), CorePhase::Asleep as u32);
            platform.plug_core(CoreIndex(1));
            assert_eq!(phase(), CorePhase::Asleep as u32);
        }
        ENDS.store(1, Ordering::Relaxed);
    });
}
