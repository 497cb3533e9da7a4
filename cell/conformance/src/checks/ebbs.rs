//! Components with one representative per core or per cell.

use crate::{Outcome, cores};
use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_ebbs::{CellEbb, Ebb, Representative, current_core};
use isola_events::parallel;

static COUNTER: Ebb<Counter> = Ebb::new();
static LATE: Ebb<Late> = Ebb::new();
static MADE: CellEbb<Made> = CellEbb::new();
static SUM: CellEbb<Made> = CellEbb::new();

struct Counter {
    made_on: u32,
    count: Cell<usize>,
}

impl Representative for Counter {
    fn create() -> Self {
        Self { made_on: current_core().0, count: Cell::new(0) }
    }
}

/// A representative that counts its creations in [`MADE`].
struct Late;

impl Representative for Late {
    fn create() -> Self {
        MADE.0.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Late {
    fn touch(&self) {}
}

#[derive(Default)]
struct Made(AtomicUsize);

impl Representative for Made {
    fn create() -> Self {
        Self::default()
    }
}

pub async fn each_core_has_its_own_representative() -> Outcome {
    let counts = parallel(cores(), |part| async move {
        for _ in 0..=part {
            COUNTER.count.set(COUNTER.count.get() + 1);
        }
        (COUNTER.made_on as usize, COUNTER.count.get())
    });
    for (part, (made_on, count)) in counts.await.into_iter().enumerate() {
        ensure!((made_on, count) == (part, part + 1), "core {part}: made on {made_on}, counted {count}");
    }
    Ok(())
}

pub async fn a_representative_is_created_at_its_first_use() -> Outcome {
    let made = || MADE.0.load(Ordering::Relaxed);
    ensure!(made() == 0, "{} were made without a use", made());
    LATE.touch();
    LATE.touch();
    ensure!(made() == 1, "{} were made for one core", made());
    parallel(cores(), |_| async { LATE.touch() }).await;
    ensure!(made() == cores(), "{} were made for {} cores", made(), cores());
    Ok(())
}

pub async fn a_cell_has_one_representative_for_all_cores() -> Outcome {
    let turns = Arc::new(1_000);
    let all = parallel(cores(), move |_| {
        let turns = turns.clone();
        async move {
            (0..*turns).for_each(|_| {
                SUM.0.fetch_add(1, Ordering::Relaxed);
            });
            &raw const *SUM as usize
        }
    });
    let addresses = all.await;
    ensure!(addresses.iter().all(|address| *address == addresses[0]), "{addresses:x?}");
    let sum = SUM.0.load(Ordering::Relaxed);
    ensure!(sum == 1_000 * cores(), "{sum} on {} cores", cores());
    Ok(())
}
