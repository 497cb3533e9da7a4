//! When a supervisor goes wrong: before which of its writes to what outlives it.
//!
//! From there on it seems to go on, and nothing that it does is done: what the next one finds is what was there then.

use core::cell::Cell;

/// The writes of a supervisor, of which the last ones may be done by nobody.
#[derive(Debug, Default)]
pub(crate) struct Death {
    writes: Cell<u32>,
    /// The first that is not done.
    at: Cell<Option<u32>>,
    /// The same of the supervisor that comes next.
    next_at: Cell<Option<u32>>,
}

impl Death {
    /// Of the writes from here on, the one of that number is not done, nor is any behind it.
    pub(crate) fn is_at(&self, write: u32) {
        self.writes.set(0);
        self.at.set(Some(write));
    }

    /// The next supervisor goes wrong as well, at that write of its first ones.
    pub(crate) fn comes_again_at(&self, write: u32) {
        self.next_at.set(Some(write));
    }

    /// Whether it has come.
    pub(crate) fn has_come(&self) -> bool {
        self.at.get().is_some_and(|at| self.writes.get() > at)
    }

    /// It does not come any more.
    pub(crate) fn is_called_off(&self) {
        self.at.set(None);
    }

    /// Another supervisor begins.
    pub(super) fn begin(&self) {
        self.writes.set(0);
        self.at.set(self.next_at.take());
    }

    /// The supervisor writes. Returns whether it is there to.
    pub(super) fn lets_write(&self) -> bool {
        let write = self.writes.get();
        self.writes.set(write + 1);
        self.at.get().is_none_or(|at| write < at)
    }
}
