//! What several cores read without locks and change now and then (RCU; EbbRT 3.2.1): reading is plain loads, and what
//! was replaced lives until no event that may look at it runs any more ([`isola_events::quiescence`]).
//!
//! - [`RcuCell`]: one value.
//! - [`RcuMap`]: a hash table.
//!
//! Reading takes a closure, so that no reference leaves the event: it cannot await, and a fiber that blocks in it panics.
//! Writers take a lock for each other; readers never wait for them, and see a value or the one before, whole.
//!
//! # Why it is sound
//!
//! A reader gets its references in [`quiescence::read`](isola_events::quiescence::read), within one event. Whoever
//! unlinks an object defers its free by that module, which runs it once every core has been between events since, or is
//! halted: no reference from before is left, and later readers do not find the object. Both sides must be of one cell, as
//! grace periods are: each cell and table remembers whose it is, and panics elsewhere.
#![no_std]
#![allow(
    unsafe_code,
    reason = "readers look at what writers replace, and freeing it waits for them without a lock"
)]

extern crate alloc;

mod cell;
mod map;
mod retired;
mod sync;

pub use cell::RcuCell;
pub use map::RcuMap;
