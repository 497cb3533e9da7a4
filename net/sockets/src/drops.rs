//! Counters for frames that a core drops outside of its protocol stack, by the reasons that the stack's counters
//! define.

use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isola_ebbs::{Ebb, Representative, platform};
use isola_net_stack::{Counter, Counters};

static DROPS: Ebb<Drops> = Ebb::new();

struct Drops {
    counters: RefCell<Counters>,
}

impl Representative for Drops {
    fn create() -> Self {
        Self { counters: RefCell::new(Counters::new()) }
    }
}

/// Counts dropped frames, sent or received. The protocols repeat the data that matters.
#[cold]
pub(crate) fn count_dropped(reason: Counter, frames: usize) {
    DROPS.counters.borrow_mut().add(reason, frames as u64);
    platform().report().network.dropped_frames.fetch_add(frames as u64, Ordering::Relaxed);
}

/// Returns how often this core has dropped frames for this reason outside of its stack.
pub(crate) fn dropped(reason: Counter) -> u64 {
    DROPS.counters.borrow().get(reason)
}
