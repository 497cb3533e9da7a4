//! Ebbs in hosted cells, whose cores are threads.

use isola_ebbs::{CellEbb, Ebb, Representative, current_core};
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
fn an_ebb_has_a_representative_per_core_and_a_cell_ebb_one_per_cell() {
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
fn cells_of_one_process_share_no_representatives() {
    for _ in 0..3 {
        let totals = isola_hosted::run(Settings { cores: 2, ..Settings::default() }, Vec::new(), |_| {
            COUNTER.count.set(COUNTER.count.get() + 1);
            TOTAL.0.fetch_add(1, Ordering::Relaxed);
            COUNTER.count.get()
        });
        assert_eq!(totals, [1, 1]);
    }
}
