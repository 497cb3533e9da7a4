//! Programs in user mode, which run in the middle of an event.
//!
//! A program may run for as long as its core has no other work. It is a halt, as far as the rest of the cell can see: the
//! core takes no part in grace periods, other cores interrupt it for a message, and its timer is armed for the next
//! alarm. So the program needs no time slices while nothing else waits, and is interrupted when something does. While
//! events wait, for example those of other programs, it runs to the end of a slice of 200 us from the start of its event.
//! Its cycles are charged to the event's activity.

use crate::event_loop::{EVENTS, EventLoop};
use crate::halt::MayHalt;
use crate::quiescence;
use core::cell::Cell;

/// The outcome of [`run_program`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramOutcome {
    /// The program ran.
    Ran,
    /// The core has other work, and the running event has had its slice of time, or the work cannot wait. The event should
    /// end soon. The program did not run.
    HasOtherWork,
}

/// A core that counts as halted, as it runs a program.
pub struct ProgramCore<'a> {
    events: &'a EventLoop,
    /// The reading of the cycle counter at which the program has to stop: for an alarm, or at the end of its slice.
    until: Cell<u64>,
    /// Whether the program shares the core with other events.
    shares_core: Cell<bool>,
}

impl<'a> ProgramCore<'a> {
    pub(crate) fn new(events: &'a EventLoop, until: u64, shares_core: bool) -> Self {
        Self { events, until: Cell::new(until), shares_core: Cell::new(shares_core) }
    }

    /// Calls `serve`, during which this core does not count as halted for grace periods: `serve` can read data that other
    /// cores replace. Returns whether the program may continue at once: messages interrupt it then, as do alarms and the end
    /// of its slice if `serve` has created events.
    #[inline]
    pub fn serve(&self, serve: impl FnOnce()) -> bool {
        self.events.quiescence.join();
        serve();
        self.events.quiescence.leave() == MayHalt::Yes && (!self.has_new_work() || self.limit_program())
    }

    #[inline]
    fn has_new_work(&self) -> bool {
        let shares_core = !self.shares_core.get() && self.events.has_local_work();
        shares_core || self.events.next_alarm() < self.until.get()
    }

    /// Arms the timer for the work that was created. Returns whether the program may continue until then.
    #[cold]
    fn limit_program(&self) -> bool {
        self.shares_core.set(self.events.has_local_work());
        let until = self.events.program_end(self.shares_core.get());
        self.until.set(until);
        self.events.may_run_until(until)
    }
}

impl core::fmt::Debug for ProgramCore<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ProgramCore")
    }
}

/// Calls `run`, which executes a program in user mode until a trap, unless this core has work that cannot wait (messages,
/// due alarms, work that the loop does between events), or other events and the running one has had its slice. For the
/// platform.
///
/// `run` must return when an interrupt arrives. Immediately before it enters user mode, with interrupts off, it has to
/// check for interrupts that have arrived already.
///
/// # Panics
/// If the event is within a [`read`](quiescence::read), as the data might be freed.
pub fn run_program(run: impl FnOnce(&ProgramCore<'_>)) -> ProgramOutcome {
    assert!(!quiescence::is_reading(), "a program runs within a read of data that other cores may free");
    EVENTS.run_program(run)
}
