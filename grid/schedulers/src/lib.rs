//! Schedulers of the resource grid: they decide which client's request a resource serves next (omni-kernel 2.1, 2.2).
//!
//! A [`Scheduler`] holds the requests that wait for one resource, in one queue per *client* (an activity at that
//! resource). Clients are the leaves of a tree whose inner nodes are *groups*: a cell's processes, a process's
//! connections. Each group has a policy of its own, which divides the group's service among its members:
//!
//! | policy | serves first | work-conserving |
//! |---|---|---|
//! | [`Fifo`](PolicyKind::Fifo) | the request that arrived first | yes |
//! | [`Priority`](PolicyKind::Priority) | the member of the highest priority | yes |
//! | [`Wfq`](PolicyKind::Wfq) | the member that has received least in proportion to its weight (start-time fair queueing) | yes |
//! | [`Edf`](PolicyKind::Edf) | the request with the earliest deadline | yes |
//! | [`Reserve`](PolicyKind::Reserve) | members below their reservation; then, of those below their limit, by weight (mClock) | up to the limits |
//!
//! A resource without competitors has no scheduler: its callers call its functions.
//! [Decision 0065](../../../docs/decisions/0065-schedulers-of-the-grid.md) has the reasons.
//!
//! The unit of cost is the resource's choice: cycles, bytes, requests, descriptors. A request has a known cost, or the
//! scheduler estimates it from the client's earlier ones; [`Scheduler::complete`] then reports the actual cost.
//! [`Scheduler::transfer`] moves a cost to another client when the owner of finished work becomes known.
//!
//! Requests of a client are dispatched in the order of their arrival. This satisfies all dependency labels, as requests
//! of different activities do not depend on each other (omni-kernel 2.3).
//!
//! The crate is safe, allocates only for queues and members, and reads no clock: callers pass the time in nanoseconds.
//! It does not know cores, events or activities; the cell's library OS maps those to clients.

#![no_std]

extern crate alloc;

mod order;
mod policies;
mod policy;
mod scheduler;
mod tag;
mod tree;

pub use isola_abi::grid::{Entitlement, EntitlementError, PolicyKind, Priority, Rate, Weight};
pub use scheduler::{ClientStatistics, Cost, Dispatch, Dispatched, NoSuchClient, Scheduler, Ticket};
pub use tree::{ClientId, GroupId, MAX_DEPTH, TreeError};
