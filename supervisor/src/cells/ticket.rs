//! Which request an answer that comes later belongs to.
//!
//! A cell is no name for one: whoever asked for something may be gone when it is done, and another may have asked for the
//! same of the same cell since.

/// A request that is answered later. No other ever has the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// Where tickets come from.
#[derive(Debug, Default)]
pub(super) struct Tickets(u64);

impl Tickets {
    /// None given out.
    pub(super) const fn new() -> Self {
        Self(0)
    }

    /// The next one.
    pub(super) fn next(&mut self) -> Ticket {
        self.0 += 1;
        Ticket(self.0)
    }
}
