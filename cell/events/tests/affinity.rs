//! Affinity labels: a label keeps its core, leaves a busy one, and never reorders dependent events.

use isola_ebbs::current_core;
use isola_events::affinity::{AffinityStatistics, set_expiry, statistics};
use isola_events::event::{Event, Label, Placement};
use isola_events::{now, parallel, sleep, spawn, spawn_on, yield_now};
use isola_platform::CoreIndex;
use isola_test_task::run_task_on;
use std::collections::HashMap;
use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3_600);

fn core_of(label: u64) -> CoreIndex {
    Placement::Affine(Label(label)).core()
}

/// Keeps the calling core in this event while `is_held`; not for ever, so that a failed test ends.
fn hold(is_held: &AtomicBool) {
    let end = now() + Duration::from_secs(20);
    while is_held.load(Ordering::Relaxed) && now() < end {
        spin_loop();
    }
}

#[test]
fn labels_keep_their_cores_and_spread_over_all_cores() {
    run_task_on(4, || async {
        set_expiry(HOUR);
        let placed: Vec<_> = (0..64).map(core_of).collect();
        assert!((0..64).map(core_of).eq(placed.iter().copied()));
        for core in (0..4).map(CoreIndex) {
            let labels = placed.iter().filter(|placed| **placed == core).count();
            assert!(labels >= 8, "{labels} of 64 labels use core {core:?}: {placed:?}");
        }
        let AffinityStatistics { placed, kept, moved } = statistics();
        assert_eq!((kept, moved), (0, 0));
        assert!((60..=64).contains(&placed), "{placed} of 64 entries");
    });
}

#[test]
fn a_label_whose_time_has_passed_leaves_a_busy_core_and_keeps_an_idle_one() {
    static IS_BUSY: AtomicBool = AtomicBool::new(true);
    fn keep_busy() {
        if IS_BUSY.load(Ordering::Relaxed) {
            spawn(keep_busy);
        }
    }
    const BUSY: CoreIndex = CoreIndex(1);
    run_task_on(3, || async {
        set_expiry(Duration::from_millis(5));
        // The host may run a core's thread late, which counts as a load.
        let (mut on_busy, mut on_idle, mut readings) = (0, 0, 0);
        while readings < 5 {
            sleep(Duration::from_millis(10)).await;
            if (core_of(on_busy), core_of(on_idle)) == (BUSY, CoreIndex(2)) {
                readings += 1;
                continue;
            }
            on_busy = (0..).find(|label| core_of(*label) == BUSY).unwrap();
            on_idle = (0..).find(|label| core_of(*label) == CoreIndex(2)).unwrap();
            readings = 0;
        }
        let before = statistics();
        assert!(before.kept > 0, "{before:?}");
        spawn_on(BUSY, keep_busy);
        while core_of(on_busy) == BUSY {
            sleep(Duration::from_millis(10)).await;
        }
        assert!(statistics().moved > before.moved);
        IS_BUSY.store(false, Ordering::Relaxed);
    });
}

#[test]
fn dependent_events_of_a_label_keep_their_order_while_labels_move() {
    const LABELS: u64 = 16;
    const EVENTS: u64 = 3_000;
    static RAN: AtomicU64 = AtomicU64::new(0);
    static CORES: Mutex<Option<HashMap<u64, Vec<CoreIndex>>>> = Mutex::new(None);
    static LATEST: [AtomicU64; LABELS as usize] = [const { AtomicU64::new(0) }; LABELS as usize];
    run_task_on(4, || async {
        // Each event is placed anew, unless earlier ones wait.
        set_expiry(Duration::ZERO);
        *CORES.lock().unwrap() = Some(HashMap::new());
        // The cores are busy in turn, so that labels have a reason to move.
        parallel(4, |core| async move {
            let labels = (0..LABELS).filter(move |label| *label as usize % 4 == core);
            let labels: Vec<u64> = labels.collect();
            for number in 1..=EVENTS {
                for label in labels.iter().copied() {
                    let event = Event::new().at(Placement::Affine(Label(label))).after(Label(label));
                    event.spawn(move || {
                        let before = LATEST[label as usize].swap(number, Ordering::Relaxed);
                        assert_eq!(before + 1, number, "label {label}");
                        let core = current_core();
                        if let Some(cores) = CORES.lock().unwrap().as_mut() {
                            let cores = cores.entry(label).or_default();
                            if cores.last() != Some(&core) {
                                cores.push(core);
                            }
                        }
                        RAN.fetch_add(1, Ordering::Relaxed);
                    });
                }
                if number % 4 == core as u64 {
                    let end = now() + Duration::from_micros(20 * (number % 5));
                    while now() < end {
                        spin_loop();
                    }
                }
                yield_now().await;
            }
        })
        .await;
        while RAN.load(Ordering::Relaxed) < LABELS * EVENTS {
            yield_now().await;
        }
        let cores = CORES.lock().unwrap().take().unwrap();
        let moves: usize = cores.values().map(|cores| cores.len() - 1).sum();
        assert!(moves > 0, "no label has moved: {:?}", statistics());
    });
    assert_eq!(RAN.load(Ordering::Relaxed), LABELS * EVENTS);
}

#[test]
fn a_refused_event_does_not_hold_its_label() {
    run_task_on(2, || async {
        set_expiry(HOUR);
        let label = (0..).find(|label| core_of(*label) == CoreIndex(1)).unwrap();
        // Holds core 1, so that its mailbox fills.
        static IS_HELD: AtomicBool = AtomicBool::new(true);
        spawn_on(CoreIndex(1), || hold(&IS_HELD));
        static RAN: AtomicU64 = AtomicU64::new(0);
        let event = Event::new().at(Placement::Affine(Label(label))).after(Label(1));
        let mut sent = 0;
        while event.try_spawn(|| _ = RAN.fetch_add(1, Ordering::Relaxed)).is_ok() {
            sent += 1;
        }
        assert!(event.try_spawn(|| ()).is_err());
        assert_eq!(core_of(label), CoreIndex(1));
        IS_HELD.store(false, Ordering::Relaxed);
        while RAN.load(Ordering::Relaxed) < sent {
            yield_now().await;
        }
        // Nothing is counted any more, so the label is placed for each event, and its statistics say so.
        set_expiry(Duration::ZERO);
        let before = statistics();
        (0..10).for_each(|_| _ = core_of(label));
        let after = statistics();
        assert_eq!(after.kept + after.moved, before.kept + before.moved + 10);
    });
}

#[test]
fn a_label_keeps_a_busy_core_while_dependent_events_wait_there() {
    const HELD: CoreIndex = CoreIndex(1);
    static IS_HELD: AtomicBool = AtomicBool::new(true);
    static ORDER: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    run_task_on(3, || async {
        set_expiry(HOUR);
        let label = (0..).find(|label| core_of(*label) == HELD).unwrap();
        spawn_on(HELD, || hold(&IS_HELD));
        let event = Event::new().at(Placement::Affine(Label(label))).after(Label(1));
        event.spawn(|| ORDER.lock().unwrap().push(0));
        // From here on the label would leave its core for each event.
        set_expiry(Duration::ZERO);
        for number in 1..=20 {
            sleep(Duration::from_millis(1)).await;
            event.spawn(move || ORDER.lock().unwrap().push(number));
            assert_eq!(core_of(label), HELD);
        }
        IS_HELD.store(false, Ordering::Relaxed);
        while ORDER.lock().unwrap().len() < 21 {
            yield_now().await;
        }
        assert!(ORDER.lock().unwrap().iter().copied().eq(0..=20));
    });
}
