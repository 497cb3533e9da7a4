//! Tickets identify requests that are answered later.
//!
//! A cell's name does not identify one: the requester may have disconnected when the request is done, and another may
//! have made the same request for the same cell since.

/// The unique identifier of a request that is answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The source of tickets.
#[derive(Debug, Default)]
pub(super) struct Tickets(u64);

impl Tickets {
    /// Returns a source whose first ticket is 1.
    pub(super) const fn new() -> Self {
        Self(0)
    }

    /// Returns the next ticket.
    pub(super) fn next(&mut self) -> Ticket {
        self.0 += 1;
        Ticket(self.0)
    }
}
