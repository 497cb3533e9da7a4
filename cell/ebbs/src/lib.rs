//! Ebbs: components with one representative a core, made on first use (EbbRT 2.2, 3.3.2).
//!
//! | kind | representatives | declared |
//! |---|---|---|
//! | [`Ebb`] | one a core | as a `static` |
//! | [`CellEbb`] | one for all cores of the cell | as a `static` |
//! | [`DynamicEbb`] | one a core, torn down with the last reference | made while the cell runs |
//!
//! Invoking an [`Ebb`] finds this core's representative with two loads and one predictable branch, and makes it where
//! there is none: that is why a core joins a cell without any initialisation. An image declares as many Ebbs as it likes;
//! those after the first [`FAST`] that are used take a call of some twenty instructions each time. Code that invokes an Ebb several times looks
//! once. No invocation takes a lock or does an atomic read-modify-write.
//!
//! - [`Representative`] and [`RootedRepresentative`]: what stands for an Ebb; with the fault handler that makes it, which an
//!   application may [replace](Ebb::replace).
//! - [`EbbId`], [`ebb_id!`], [`MachineId`]: names that hold on all machines of an application. Who wants to be called from
//!   another machine needs one; an Ebb that stays in its cell does not.
//! - [`CoreBlock`]: what a core knows of itself: its index, its platform, its representatives.
//! - [`CoreIdentity`]: the right to run as a core of the cell, by which processor cores come and go.
//!
//! The core block is found through the GS segment, in a bare cell as in a process: one load, no system call.
#![no_std]
#![allow(
    unsafe_code,
    reason = "per-core data is found through a segment register and owned by its core alone"
)]

extern crate alloc;

mod cell_ebb;
mod core_block;
mod dynamic;
mod ebb;
mod factory;
mod id;
mod identity;
mod table;

pub use cell_ebb::CellEbb;
pub use core_block::{CoreBlock, current_core, cycles, platform};
pub use dynamic::{DynamicEbb, RootedRepresentative};
pub use ebb::{Ebb, Representative};
pub use factory::InUse;
pub use id::{EbbId, MachineId, NoId};
pub use identity::CoreIdentity;
pub use table::{CellTable, FAST};
