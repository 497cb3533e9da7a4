//! More Ebbs than the entries in the tables themselves.

use isola_ebbs::{CellEbb, Ebb, EbbInUse, FAST, Representative, current_core};
use isola_hosted::Settings;
use std::cell::Cell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};

/// Enough Ebbs for several buckets of the tables.
const COUNT: usize = 5 * FAST;

struct Counter {
    made_on: u32,
    count: Cell<u32>,
}

impl Representative for Counter {
    fn create() -> Self {
        Self { made_on: current_core().0, count: Cell::new(0) }
    }
}

#[derive(Default)]
struct Total(AtomicU32);

impl Representative for Total {
    fn create() -> Self {
        Self::default()
    }
}

static COUNTERS: [Ebb<Counter>; COUNT] = [const { Ebb::new() }; COUNT];
static TOTALS: [CellEbb<Total>; COUNT] = [const { CellEbb::new() }; COUNT];

#[test]
fn many_ebbs_have_a_representative_on_each_core_and_in_each_cell() {
    for _ in 0..2 {
        let cores = 4_usize;
        let together = Barrier::new(cores);
        isola_hosted::run(Settings { cores, ..Settings::default() }, Vec::new(), |_| {
            // All cores use the same new buckets at the same time.
            together.wait();
            for turn in 1..=3_u32 {
                for (number, (counter, total)) in COUNTERS.iter().zip(&TOTALS).enumerate() {
                    let before = counter.count.replace(counter.count.get() + number as u32);
                    assert_eq!((before, counter.made_on), ((turn - 1) * number as u32, current_core().0));
                    total.0.fetch_add(number as u32, Ordering::Relaxed);
                }
            }
            together.wait();
            for (number, total) in TOTALS.iter().enumerate() {
                assert_eq!(total.0.load(Ordering::Relaxed), (3 * cores * number) as u32);
            }
        });
    }
}

#[test]
fn each_of_many_ebbs_is_replaceable_before_its_first_use_only() {
    static MANY: [Ebb<Counter>; COUNT] = [const { Ebb::new() }; COUNT];
    let other = || Counter { made_on: 1000, count: Cell::new(0) };
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        for (number, counter) in MANY.iter().enumerate() {
            if number % 2 == 0 {
                assert_eq!(counter.replace(other), Ok(()));
            }
            assert_eq!(counter.made_on, if number % 2 == 0 { 1000 } else { 0 });
            assert_eq!(counter.replace(other), Err(EbbInUse));
        }
    });
}

static CIRCLE: Ebb<Circle> = Ebb::new();

struct Circle;

impl Representative for Circle {
    fn create() -> Self {
        let Circle = *CIRCLE;
        Self
    }
}

#[test]
#[should_panic(expected = "no core of a hosted cell panics")]
fn a_recursive_factory_of_a_late_ebb_panics() {
    isola_hosted::run(Settings::default(), Vec::new(), |_| {
        COUNTERS.iter().for_each(|counter| _ = counter.made_on);
        let Circle = *CIRCLE;
    });
}
