//! Long computations that divide themselves: a task gives way to others where it must, and only there.
//!
//! Events are not preempted, so a long event delays all others of its core. A computation therefore calls
//! [`yield_if_needed`] often, every few thousand instructions. A call that need not yield costs some eighty
//! instructions; a yield costs an event. (`cond_resched` in Linux; `yield_if_needed` in Seastar and glommio.)
//!
//! A computation has to yield if
//!
//! - an interrupt is pending. Interrupts are off within events, so the call opens an interrupt window: a call loses the
//!   caller-saved registers anyway, so the stub saves none here either;
//! - the loop has other work: a message of another core, a due alarm, a grace period that waits for this core, memory
//!   pressure, a request to leave the cell or to end, another vcore's turn;
//! - an event waits that runs first, and the computation's event has run for [`GRANULARITY`]. Without a policy, any
//!   event runs first. With one ([`processor`](crate::processor)), the policy decides as if the computation's event ended
//!   now, with its cycles so far as the cost, and its next one was queued: by weight, for example, the computation
//!   continues until it has used its share;
//! - an urgent event waits, by the policy: of an activity that has used less than its share and had nothing to do
//!   (`wfq`), is below its reservation (`reserve`), or has a higher priority or an earlier deadline;
//! - its activity has reached its limit;
//! - its event has run for [`SLICE`], so that the core's counters move on and its supervisor sees it alive.
//!
//! The task is then queued like any other, and its cycles are charged.

use crate::event_loop::EVENTS;
use crate::task::yield_now;
use core::time::Duration;
use isola_ebbs::platform;
use isola_platform::Instant;

/// The time for which an event runs at most whose task calls [`yield_if_needed`], if nothing waits.
pub const SLICE: Duration = Duration::from_millis(1);

/// The time for which such an event runs at least, if only others wait that are not urgent. A switch costs some 600
/// instructions.
pub const GRANULARITY: Duration = Duration::from_micros(25);

/// Both times in cycles.
#[derive(Clone, Copy)]
pub(crate) struct YieldLimits {
    pub granularity_cycles: u64,
    pub slice_cycles: u64,
}

impl YieldLimits {
    pub fn new() -> Self {
        let clock = platform().clock();
        let cycles =
            |duration| clock.cycles(Instant::default() + duration) - clock.cycles(Instant::default());
        Self { granularity_cycles: cycles(GRANULARITY), slice_cycles: cycles(SLICE) }
    }
}

/// Returns whether the running event should end soon, because other work of the core waits that comes first. For long
/// work outside of tasks, which can queue the rest of itself as another event; tasks call [`yield_if_needed`].
///
/// To be called within an event.
#[inline]
pub fn must_yield() -> bool {
    EVENTS.must_yield()
}

/// Returns whether an interrupt or a message of another core waits, which may bring work that comes first. It costs less than
/// [`must_yield`], because it asks no policy, and serves between two such calls.
///
/// To be called within an event.
#[inline]
pub fn has_arrivals() -> bool {
    EVENTS.has_arrivals()
}

/// Lets waiting work of the core run first, if it comes first; otherwise returns at once.
#[inline]
pub async fn yield_if_needed() {
    if must_yield() {
        yield_now().await;
    }
}
