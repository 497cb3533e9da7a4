//! Tables and cells compared with simple models, and under concurrent reads and writes.

use isola_ebbs::{Representative, current_core};
use isola_events::quiescence::is_reading;
use isola_events::{exit, run, sleep, spawn, spawn_on, spawn_task, yield_now};
use isola_hosted::Settings;
use isola_platform::CoreIndex;
use isola_rcu::{RcuCell, RcuMap};
use proptest::prelude::*;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Runs a cell whose core 0 starts with `main`.
fn cell(cores: usize, main: impl Fn() + Sync) {
    let settings = Settings { cores, ..Settings::default() };
    let codes = isola_hosted::run(settings, Vec::new(), |_| {
        if current_core() == CoreIndex(0) {
            main();
        }
        run()
    });
    assert!(codes.iter().all(|code| *code == 0));
}

/// A value that detects its use after its drop, and counts drops.
#[derive(Debug)]
struct Watched {
    number: u64,
    alive: AtomicBool,
    dropped: Arc<AtomicUsize>,
}

impl Watched {
    fn new(number: u64, dropped: &Arc<AtomicUsize>) -> Self {
        Self { number, alive: AtomicBool::new(true), dropped: dropped.clone() }
    }

    fn number(&self) -> u64 {
        assert!(self.alive.load(Ordering::Relaxed), "a value is read after it was dropped");
        self.number
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        assert!(self.alive.swap(false, Ordering::Relaxed), "a value is dropped twice");
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A hash function with few values, so that keys share buckets and hashes.
#[derive(Clone, Copy)]
struct FewHashes(u64);

impl BuildHasher for FewHashes {
    type Hasher = Sum;

    fn build_hasher(&self) -> Sum {
        Sum { modulus: self.0, sum: 0 }
    }
}

struct Sum {
    modulus: u64,
    sum: u64,
}

impl Hasher for Sum {
    fn finish(&self) -> u64 {
        (self.sum % self.modulus) << 32
    }

    fn write(&mut self, bytes: &[u8]) {
        self.sum = bytes.iter().fold(self.sum, |sum, byte| sum + u64::from(*byte));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u16, u64),
    Remove(u16),
    Get(u16),
    List,
    /// Lets replaced values be dropped.
    Pause,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0_u16..150;
    let step = prop_oneof![
        6 => (key.clone(), any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
        4 => key.clone().prop_map(Step::Remove),
        3 => key.prop_map(Step::Get),
        1 => Just(Step::List),
        1 => Just(Step::Pause),
    ];
    proptest::collection::vec(step, 1..600)
}

/// Waits until `expected` values were dropped: deferred work runs in an event of its own after the grace period.
async fn settle(dropped: &AtomicUsize, expected: usize) {
    for _ in 0..10_000 {
        if dropped.load(Ordering::Relaxed) >= expected {
            break;
        }
        sleep(Duration::from_micros(100)).await;
    }
    assert_eq!(dropped.load(Ordering::Relaxed), expected);
}

async fn follow(steps: Vec<Step>, modulus: u64) {
    let dropped = Arc::new(AtomicUsize::new(0));
    let map = RcuMap::with_hasher(FewHashes(modulus));
    let mut model = HashMap::new();
    let mut made = 0;
    for step in steps {
        match step {
            Step::Insert(key, value) => {
                made += 1;
                assert_eq!(
                    map.insert(key, Watched::new(value, &dropped)),
                    model.insert(key, value).is_some()
                );
            }
            Step::Remove(key) => assert_eq!(map.remove(&key), model.remove(&key).is_some()),
            Step::Get(key) => assert_eq!(map.read(&key, Watched::number), model.get(&key).copied()),
            Step::List => {
                let mut seen = HashMap::new();
                let _: Option<()> = map.find(|key, value| {
                    assert!(seen.insert(*key, value.number()).is_none(), "key {key} is listed twice");
                    None
                });
                assert_eq!(seen, model);
            }
            Step::Pause => yield_now().await,
        }
        assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
    }
    // Values no longer in the table are dropped, those in the table are not.
    settle(&dropped, made - model.len()).await;
    drop(map);
    assert_eq!(made, dropped.load(Ordering::Relaxed));
}

proptest! {
    #[test]
    fn a_table_behaves_like_a_hash_map(steps in steps(), modulus in prop_oneof![1..4_u64, 5..1000_u64]) {
        cell(1, move || {
            let steps = steps.clone();
            spawn_task(async move {
                follow(steps, modulus).await;
                exit(0);
            }).detach();
        });
    }
}

/// Runs `work` on all cores, and returns when all have finished.
async fn on_all_cores<F: Future<Output = ()> + 'static>(
    cores: u32,
    work: impl Fn(u32) -> F + Send + Clone + 'static,
) {
    let left = Arc::new(AtomicUsize::new(cores as usize));
    for core in 0..cores {
        let (left, work) = (left.clone(), work.clone());
        isola_events::spawn_task_on(CoreIndex(core), move || async move {
            work(core).await;
            left.fetch_sub(1, Ordering::AcqRel);
        });
    }
    while left.load(Ordering::Acquire) > 0 {
        sleep(Duration::from_micros(200)).await;
    }
}

#[test]
fn values_replaced_or_removed_during_a_read_live_until_its_end() {
    cell(1, || {
        spawn_task(async {
            let dropped = Arc::new(AtomicUsize::new(0));
            let map = RcuMap::new();
            map.insert(1, Watched::new(10, &dropped));
            let value = RcuCell::new(Watched::new(20, &dropped));
            map.read(&1, |looked_at| {
                map.insert(1, Watched::new(11, &dropped));
                map.remove(&1);
                // The table grows and shrinks meanwhile.
                (2..100).for_each(|key| assert!(!map.insert(key, Watched::new(key, &dropped))));
                (2..100).for_each(|key| assert!(map.remove(&key)));
                assert_eq!((looked_at.number(), map.read(&1, Watched::number)), (10, None));
            });
            value.read(|looked_at| {
                value.set(Watched::new(21, &dropped));
                assert_eq!((looked_at.number(), value.read(Watched::number)), (20, 21));
            });
            assert_eq!(dropped.load(Ordering::Relaxed), 0, "a value was dropped within the event");
            settle(&dropped, 101).await;
            exit(0);
        })
        .detach();
    });
}

#[test]
fn concurrent_readers_see_complete_values_that_are_alive() {
    const KEYS: u64 = 64;
    const ROUNDS: u64 = 3_000;
    cell(4, || {
        spawn_task(async {
            let dropped = Arc::new(AtomicUsize::new(0));
            let map = Arc::new(RcuMap::with_hasher(FewHashes(40)));
            // Keys that are never removed are always found.
            (0..KEYS).step_by(2).for_each(|key| {
                map.insert(key, Watched::new(key, &dropped));
            });
            let (shared, count) = (map.clone(), dropped.clone());
            on_all_cores(4, move |core| {
                let (map, dropped) = (shared.clone(), count.clone());
                async move {
                    for round in 0..ROUNDS {
                        let key = (round * 7 + u64::from(core)) % KEYS;
                        match (core % 2, key % 2) {
                            (0, 0) => assert!(map.insert(key, Watched::new(key + KEYS * round, &dropped))),
                            (0, _) if round % 3 == 0 => _ = map.remove(&key),
                            (0, _) => _ = map.insert(key, Watched::new(key, &dropped)),
                            _ => {
                                let found = map.read(&key, |value| {
                                    assert!(is_reading());
                                    let number = value.number();
                                    (0..50).for_each(|_| std::hint::spin_loop());
                                    assert_eq!(value.number(), number);
                                    number % KEYS
                                });
                                assert!(
                                    found == Some(key) || (found.is_none() && key % 2 == 1),
                                    "{key}: {found:?}"
                                );
                            }
                        }
                        if round % 500 == 0 {
                            let mut fixed = std::collections::HashSet::new();
                            let _: Option<()> = map.find(|key, value| {
                                assert_eq!(value.number() % KEYS, *key);
                                fixed.insert(*key);
                                None
                            });
                            assert_eq!(fixed.iter().filter(|key| *key % 2 == 0).count() as u64, KEYS / 2);
                        }
                        match round % 40 {
                            0 => sleep(Duration::from_micros(50)).await,
                            1..20 => yield_now().await,
                            _ => {}
                        }
                    }
                }
            })
            .await;
            for _ in 0..10_000 {
                if Arc::strong_count(&dropped) - 1 == map.len() {
                    break;
                }
                sleep(Duration::from_micros(100)).await;
            }
            assert_eq!(map.len(), Arc::strong_count(&dropped) - 1, "a removed value was not dropped");
            exit(0);
        })
        .detach();
    });
}

#[test]
fn reads_are_atomic_and_updates_are_not_lost() {
    cell(3, || {
        spawn_task(async {
            let dropped = Arc::new(AtomicUsize::new(0));
            let value = Arc::new(RcuCell::new((0_u64, 0_u64, Watched::new(0, &dropped))));
            let (shared, count) = (value.clone(), dropped.clone());
            on_all_cores(3, move |_| {
                let (value, dropped) = (shared.clone(), count.clone());
                async move {
                    for round in 0..2_000 {
                        value.update(|(one, two, _)| (one + 1, two + 2, Watched::new(one + 1, &dropped)));
                        value.read(|(one, two, watched)| {
                            assert_eq!((one * 2, *one), (*two, watched.number()));
                        });
                        if round % 3 == 0 {
                            yield_now().await;
                        }
                    }
                }
            })
            .await;
            assert_eq!(value.read(|(one, _, _)| *one), 6_000);
            settle(&dropped, 6_000).await;
            value.set((1, 2, Watched::new(1, &dropped)));
            drop(value);
            exit(0);
        })
        .detach();
    });
}

#[test]
fn a_set_during_an_update_takes_effect_after_it() {
    static UPDATING: AtomicBool = AtomicBool::new(false);
    static SET: AtomicUsize = AtomicUsize::new(0);
    cell(2, || {
        let value = Arc::new(RcuCell::new(0));
        let shared = value.clone();
        spawn_on(CoreIndex(1), move || {
            while !UPDATING.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            shared.set(7);
            SET.store(1, Ordering::Release);
        });
        spawn_task(async move {
            value.update(|value| {
                UPDATING.store(true, Ordering::Release);
                std::thread::sleep(Duration::from_millis(50));
                value + 1
            });
            while SET.load(Ordering::Acquire) == 0 {
                yield_now().await;
            }
            assert_eq!(value.read(|value| *value), 7, "a set value was lost");
            exit(0);
        })
        .detach();
    });
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn a_read_from_another_cell_panics() {
    use std::sync::Mutex;
    static SHARED: Mutex<Option<Arc<RcuCell<u32>>>> = Mutex::new(None);
    cell(1, || {
        *SHARED.lock().unwrap() = Some(Arc::new(RcuCell::new(1)));
        spawn(|| exit(0));
    });
    let value = SHARED.lock().unwrap().take().unwrap();
    cell(1, || {
        value.read(|value| assert_eq!(*value, 1));
        spawn(|| exit(0));
    });
}

/// A table as cells use it: an Ebb with one representative for all cores.
struct Names(RcuMap<String, u32>);

impl Representative for Names {
    fn create() -> Self {
        Self(RcuMap::new())
    }
}

#[test]
fn all_cores_find_the_entries_of_one() {
    static NAMES: isola_ebbs::CellEbb<Names> = isola_ebbs::CellEbb::new();
    cell(2, || {
        for number in 0..1_000 {
            assert!(!NAMES.0.insert(format!("name {number}"), number));
        }
        spawn_on(CoreIndex(1), || {
            assert_eq!(NAMES.0.len(), 1_000);
            assert!((0..1_000).all(|number| NAMES.0.get(format!("name {number}").as_str()) == Some(number)));
            exit(0);
        });
    });
}
