//! Data that several cores read without locks and change rarely (RCU; EbbRT 3.2.1). A read consists of plain loads. A
//! replaced value lives until no running event can hold a reference to it ([`isola_events::quiescence`]).
//!
//! - [`RcuCell`]: one value.
//! - [`RcuMap`]: a hash table.
//!
//! A read takes a closure, so that no reference outlives the event: the closure cannot await, and a fiber that blocks
//! in it panics. Writers exclude each other by a lock. Readers never wait for writers; they see the value before or
//! after a write, never a part of both.
//!
//! # Soundness
//!
//! A reader has references only within [`quiescence::read`](isola_events::quiescence::read), and therefore within one
//! event. A writer that unlinks an object defers its free by the same module. The deferred work runs after every core
//! has been between two events, or is halted: all references from before are gone, and later readers do not find the
//! object. Readers and writers must be in the same cell, because grace periods are per cell. Each cell and table
//! records its cell, and panics in another.
#![no_std]
#![allow(
    unsafe_code,
    reason = "readers access data that writers replace; its free waits for them without a lock"
)]

extern crate alloc;

mod cell;
mod map;
mod retired;
mod sync;

pub use cell::RcuCell;
pub use map::RcuMap;
