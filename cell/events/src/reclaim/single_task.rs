//! A task of which at most one exists in the cell, and which misses no call.
//!
//! ```text
//! caller                                    the task
//!   makes a reason visible                    ┌─► RUNS
//!   LOOKS_AGAIN; was it IDLE? spawn           │   looks for reasons
//!                                             └── RUNS -> IDLE, or another call was made
//! ```
//!
//! All changes are read-modify-writes: the task sees the reasons of each call that it overwrites with RUNS.

use crate::sync::{AtomicU32, Ordering};

/// The task does not exist, or it runs, or it has to look again before it ends.
const IDLE: u32 = 0;
const RUNS: u32 = 1;
const LOOKS_AGAIN: u32 = 2;

/// The state of the task.
pub(super) struct SingleTask(AtomicU32);

/// Whether the caller must spawn the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum MustSpawn {
    Yes,
    No,
}

/// Whether the task ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum MayEnd {
    Yes,
    /// It was called meanwhile.
    No,
}

impl Default for SingleTask {
    fn default() -> Self {
        Self(AtomicU32::new(IDLE))
    }
}

impl SingleTask {
    /// Makes the task look after this call.
    pub fn call(&self) -> MustSpawn {
        if self.0.swap(LOOKS_AGAIN, Ordering::AcqRel) == IDLE { MustSpawn::Yes } else { MustSpawn::No }
    }

    /// Begins a look of the task.
    pub fn begin(&self) {
        self.0.swap(RUNS, Ordering::AcqRel);
    }

    /// Ends a look of the task.
    pub fn end(&self) -> MayEnd {
        let ended = self.0.compare_exchange(RUNS, IDLE, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() { MayEnd::Yes } else { MayEnd::No }
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{AtomicUsize, fence};
    use loom::sync::Arc;
    use loom::thread;

    /// The reasons as bits, and those that the task has seen.
    #[derive(Default)]
    struct Cell {
        task: SingleTask,
        reasons: AtomicUsize,
        seen: AtomicUsize,
        running: AtomicUsize,
        /// Beside the pressure level: a pass of a loop is to call the task.
        flag: AtomicUsize,
    }

    impl Cell {
        fn call(&self) {
            if self.task.call() == MustSpawn::Yes {
                self.run();
            }
        }

        fn run(&self) {
            assert_eq!(self.running.fetch_add(1, Ordering::Relaxed), 0, "two tasks run");
            loop {
                self.task.begin();
                self.seen.fetch_or(self.reasons.load(Ordering::Relaxed), Ordering::Relaxed);
                // The next task begins after this one, which has ended by then.
                self.running.fetch_sub(1, Ordering::Relaxed);
                if self.task.end() == MayEnd::Yes {
                    return;
                }
                self.running.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn the_task_sees_the_reason_of_each_call_and_exists_once() {
        loom::model(|| {
            let cell = Arc::new(Cell::default());
            let caller = thread::spawn({
                let cell = cell.clone();
                move || {
                    for reason in [1, 2] {
                        cell.reasons.fetch_or(reason, Ordering::Relaxed);
                        cell.call();
                    }
                }
            });
            cell.reasons.fetch_or(4, Ordering::Relaxed);
            cell.call();
            caller.join().unwrap();
            assert_eq!(cell.seen.load(Ordering::Relaxed), 7, "a reason was missed");
        });
    }

    /// A demand sets the flag; passes of two cores see it, clear it, and call the task.
    #[test]
    fn a_demand_is_seen_or_its_flag_is_still_set() {
        loom::model(|| {
            let cell = Arc::new(Cell::default());
            let demand = |cell: &Cell, bit: usize| {
                cell.reasons.fetch_or(bit, Ordering::Relaxed);
                cell.flag.fetch_or(1, Ordering::SeqCst);
            };
            let pass = |cell: &Cell| {
                if cell.flag.load(Ordering::Relaxed) != 0 {
                    cell.flag.fetch_and(0, Ordering::SeqCst);
                    cell.call();
                }
            };
            demand(&cell, 1);
            let other = thread::spawn({
                let cell = cell.clone();
                move || {
                    demand(&cell, 2);
                    pass(&cell);
                }
            });
            pass(&cell);
            other.join().unwrap();
            fence(Ordering::SeqCst);
            let is_seen = cell.seen.load(Ordering::Relaxed) == 3;
            assert!(is_seen || cell.flag.load(Ordering::Relaxed) != 0, "a demand was missed");
        });
    }
}
