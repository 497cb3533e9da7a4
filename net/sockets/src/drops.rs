//! What a core drops outside of its protocol stack, by the reasons that the stack's counters have for it.

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

/// Notes frames that were dropped, whether to send or received. What matters comes again.
#[cold]
pub(crate) fn count_dropped(reason: Counter, frames: usize) {
    DROPS.counters.borrow_mut().add(reason, frames as u64);
    platform().report().network.dropped_frames.fetch_add(frames as u64, Ordering::Relaxed);
}

/// How often this core has dropped something for that reason, outside of its stack.
pub(crate) fn dropped(reason: Counter) -> u64 {
    DROPS.counters.borrow().get(reason)
}
