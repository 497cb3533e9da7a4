//! Ebbs on threads as cores.

use isola_ebbs::{CellEbb, Ebb, Handover, Representative, current_core, fold_this_core};
use isola_hosted::Settings;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

static COUNTER: Ebb<Counter> = Ebb::new();
static OTHER: Ebb<Counter> = Ebb::new();
static TOTAL: CellEbb<Total> = CellEbb::new();

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

#[test]
fn each_core_has_a_representative_of_its_own_and_the_cell_one_for_all() {
    let settings = Settings { cores: 8, ..Settings::default() };
    isola_hosted::run(settings, Vec::new(), |_| {
        for turn in 1..=1_000 {
            COUNTER.count.set(COUNTER.count.get() + 1);
            assert_eq!((COUNTER.count.get(), COUNTER.made_on), (turn, current_core().0));
            TOTAL.0.fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(OTHER.count.get(), 0);
    });
}

#[test]
fn cells_of_one_process_share_nothing() {
    for _ in 0..3 {
        let totals = isola_hosted::run(Settings { cores: 2, ..Settings::default() }, Vec::new(), |_| {
            COUNTER.count.set(COUNTER.count.get() + 1);
            TOTAL.0.fetch_add(1, Ordering::Relaxed);
            COUNTER.count.get()
        });
        assert_eq!(totals, [1, 1]);
    }
}

static PARTS: Ebb<Part> = Ebb::new();
static EMPTY: Ebb<Part> = Ebb::new();

/// What a core has counted, and does not want to take along.
struct Part(Cell<u32>);

impl Representative for Part {
    fn create() -> Self {
        Self(Cell::new(0))
    }

    fn fold(&self) -> Option<Handover> {
        let part = self.0.take();
        (part > 0).then(|| Box::new(move || PARTS.0.set(PARTS.0.get() + part)) as Handover)
    }
}

#[test]
fn parts_of_all_cores_that_leave_come_together_on_the_one_that_stays() {
    let handed_on = std::sync::Mutex::new(Vec::new());
    let left = std::sync::Barrier::new(24);
    let totals = isola_hosted::run(Settings { cores: 24, ..Settings::default() }, Vec::new(), |_| {
        let _ = EMPTY.0.get();
        PARTS.0.set(current_core().0 + 1);
        if current_core().0 > 0 {
            let handovers = fold_this_core();
            assert_eq!(handovers.len(), 1, "of the two, one has something to hand on");
            handed_on.lock().unwrap().extend(handovers);
            assert!(fold_this_core().is_empty());
        }
        left.wait();
        if current_core().0 == 0 {
            std::mem::take(&mut *handed_on.lock().unwrap()).into_iter().for_each(|handover| handover());
        }
        PARTS.0.get()
    });
    assert_eq!(totals[0], (1..=24).sum::<u32>());
    assert!(totals[1..].iter().all(|part| *part == 0));
}
