//! Requests that are answered later, and the answers. Tickets identify the requests.
//!
//! A cell's name does not identify one: the requester may have disconnected when the request is done, and another may
//! have made the same request for the same cell since.

use alloc::vec::Vec;
use isola_abi::id::CellId;
use isola_abi::management::{CoresResized, ManagementError, MemoryResized};

/// The unique identifier of a request that is answered later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u64);

/// The answer to a request to resize a cell's memory.
pub type Resized = (Ticket, Result<MemoryResized, ManagementError>);

/// The source of tickets.
#[derive(Debug, Default)]
pub(super) struct Tickets(u64);

impl Tickets {
    /// Returns the next ticket.
    pub(super) fn next(&mut self) -> Ticket {
        self.0 += 1;
        Ticket(self.0)
    }
}

/// The delayed answers that the server has not fetched yet.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) tickets: Tickets,
    /// The cells that have ended.
    pub(super) ended: Vec<CellId>,
    /// The answers to requests to create a cell.
    pub(super) created: Vec<(Ticket, Result<CellId, ManagementError>)>,
    /// The answers to requests to resize a cell's memory.
    pub(super) resized: Vec<Resized>,
    /// The answers to requests for more or fewer cores.
    pub(super) cores_resized: Vec<(Ticket, Result<CoresResized, ManagementError>)>,
}
