//! Deferred work: its time, and the cores that stay halted.

use isola_ebbs::current_core;
use isola_events::{
    current_activity, defer, exit, now, register_activity, run, sleep, spawn, spawn_on, spawn_task,
};
use isola_hosted::{Hosted, Settings};
use isola_platform::{CoreIndex, Platform};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

fn cell(cores: usize, main: impl Fn() + Sync) -> &'static Hosted {
    let settings = Settings { cores, ..Settings::default() };
    let platforms = isola_hosted::run(settings, Vec::new(), |platform| {
        if current_core() == CoreIndex(0) {
            main();
        }
        assert_eq!(run(), 0);
        platform
    });
    platforms[0]
}

fn passes(platform: &dyn Platform, core: usize) -> u64 {
    platform.report().cores[core].passes.load(Ordering::Relaxed)
}

#[test]
fn deferred_work_runs_after_its_event_for_the_same_activity() {
    static RAN: AtomicBool = AtomicBool::new(false);
    cell(1, || {
        let query = register_activity("query").unwrap();
        isola_events::Event::new().charged_to(query).spawn(move || {
            defer(move || {
                RAN.store(true, Ordering::Relaxed);
                assert_eq!(current_activity(), query);
                exit(0);
            });
            let start = now();
            while now() - start < Duration::from_millis(5) {}
            assert!(!RAN.load(Ordering::Relaxed));
        });
    });
    assert!(RAN.load(Ordering::Relaxed));
}

#[test]
fn deferred_work_waits_for_running_events_of_other_cores() {
    static READING: AtomicBool = AtomicBool::new(false);
    static DEFERRED: AtomicBool = AtomicBool::new(false);
    static RAN: AtomicBool = AtomicBool::new(false);
    cell(3, || {
        spawn_on(CoreIndex(1), || {
            READING.store(true, Ordering::Release);
            while !DEFERRED.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            assert!(!RAN.load(Ordering::Acquire), "deferred work ran before a reader ended");
        });
        spawn(|| {
            while !READING.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            defer(|| {
                RAN.store(true, Ordering::Release);
                exit(0);
            });
            DEFERRED.store(true, Ordering::Release);
        });
    });
}

#[test]
fn a_grace_period_wakes_no_core_and_keeps_none_running() {
    let platform = cell(4, || {
        // Core 2 has run and is halted; core 3 never ran.
        spawn_on(CoreIndex(2), || ());
        spawn_task(async {
            sleep(Duration::from_millis(20)).await;
            let platform = isola_ebbs::platform();
            let before = passes(platform, 2);
            for _ in 0..100 {
                let ran = std::sync::Arc::new(AtomicBool::new(false));
                let done = ran.clone();
                defer(move || done.store(true, Ordering::Relaxed));
                // Halts this core meanwhile.
                while !ran.load(Ordering::Relaxed) {
                    sleep(Duration::from_micros(300)).await;
                }
            }
            assert_eq!((passes(platform, 2), passes(platform, 3)), (before, 0));
            exit(0);
        })
        .detach();
    });
    assert!(passes(platform, 0) < 100_000, "an idle core polls for a grace period");
}

#[test]
fn work_deferred_before_a_halt_runs_on_a_running_core() {
    static READING: AtomicBool = AtomicBool::new(false);
    static RAN_ON: AtomicUsize = AtomicUsize::new(usize::MAX);
    let platform = cell(2, || {
        spawn_on(CoreIndex(1), || {
            READING.store(true, Ordering::Release);
            // Waits until core 0 is halted.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(RAN_ON.load(Ordering::Acquire), usize::MAX);
        });
        spawn(|| {
            while !READING.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            defer(|| {
                RAN_ON.store(current_core().0 as usize, Ordering::Release);
                exit(0);
            });
        });
    });
    assert_eq!(RAN_ON.load(Ordering::Acquire), 1);
    assert!(passes(platform, 0) < 1_000, "the core waits for the grace period without halting");
}

#[test]
fn all_deferred_work_of_halting_cores_runs() {
    const EACH: usize = 2_000;
    static RAN: AtomicUsize = AtomicUsize::new(0);
    cell(4, || {
        fn again(left: usize) {
            defer(|| {
                if RAN.fetch_add(1, Ordering::Relaxed) + 1 == 4 * EACH {
                    exit(0);
                }
            });
            if left > 1 {
                // Continues at once, after a halt, or on another core.
                match left % 7 {
                    0 => drop(spawn_task(async move {
                        sleep(Duration::from_micros(20)).await;
                        again(left - 1);
                    })),
                    1 => spawn_on(CoreIndex(left as u32 % 4), move || again(left - 1)),
                    _ => spawn(move || again(left - 1)),
                }
            }
        }
        (0..4).for_each(|core| spawn_on(CoreIndex(core), || again(EACH)));
    });
    assert_eq!(RAN.load(Ordering::Relaxed), 4 * EACH);
}
