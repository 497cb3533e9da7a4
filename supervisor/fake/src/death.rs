//! The time at which a supervisor fails: before one of its writes to state that survives a restart.
//!
//! After that point the supervisor's code continues to run, but none of its writes takes effect. The next supervisor
//! finds the state before the failure.

use core::cell::Cell;

/// The count of a supervisor's writes, and the write at which it fails.
#[derive(Debug, Default)]
pub struct Death {
    writes: Cell<u32>,
    /// The first write without effect.
    at: Cell<Option<u32>>,
    /// The first write without effect of the next supervisor.
    next_at: Cell<Option<u32>>,
}

impl Death {
    /// Makes the write with this number, counted from here, and all later ones have no effect.
    pub fn is_at(&self, write: u32) {
        self.writes.set(0);
        self.at.set(Some(write));
    }

    /// Makes the next supervisor fail as well, at its write with this number.
    pub fn comes_again_at(&self, write: u32) {
        self.next_at.set(Some(write));
    }

    /// Returns whether the supervisor has failed.
    pub fn has_come(&self) -> bool {
        self.at.get().is_some_and(|at| self.writes.get() > at)
    }

    /// Cancels the failure.
    pub fn is_called_off(&self) {
        self.at.set(None);
    }

    /// Begins the count of the next supervisor.
    pub(crate) fn begin(&self) {
        self.writes.set(0);
        self.at.set(self.next_at.take());
    }

    /// Counts a write of the supervisor. Returns whether it takes effect.
    pub(crate) fn lets_write(&self) -> bool {
        let write = self.writes.get();
        self.writes.set(write + 1);
        self.at.get().is_none_or(|at| write < at)
    }
}
