//! Ebbs: components with one representative per core, created at the first use (EbbRT 2.2, 3.3.2).
//!
//! | kind | representatives | declared |
//! |---|---|---|
//! | [`Ebb`] | one per core | as a `static` |
//! | [`CellEbb`] | one for all cores of the cell | as a `static` |
//! | [`DynamicEbb`] | one per core, dropped with the last reference | created at run time |
//!
//! A call of an [`Ebb`] finds this core's representative with two loads and one predictable branch, and creates it if
//! there is none. Therefore a core joins a cell without initialisation. An image can declare any number of Ebbs. A call
//! of an Ebb after the first [`FAST`] in order of use costs some twenty instructions. Code that calls an Ebb several
//! times looks it up once. No call takes a lock or executes an atomic read-modify-write.
//!
//! - [`Representative`] and [`RootedRepresentative`]: the types of representatives, with the fault handler that creates
//!   them; an application may [replace](Ebb::replace) that.
//! - [`EbbId`], [`ebb_id!`], [`MachineId`]: ids that are valid on all machines of an application. Only an Ebb that
//!   other machines call needs one.
//! - [`CoreBlock`]: a core's index, platform and representatives.
//! - [`VcoreIdentity`]: the right to run a vcore, by which cores join and leave.
//!
//! The GS segment base is the address of the core block, in a bare cell as in a process: one load, no system call.
#![no_std]
#![allow(
    unsafe_code,
    reason = "per-core data is found through a segment register and owned by its core alone"
)]

extern crate alloc;

mod cell_ebb;
mod cell_table;
mod core_block;
mod dynamic;
mod ebb;
mod factory;
mod id;
mod identity;
mod representative;
mod table;

pub use cell_ebb::CellEbb;
pub use cell_table::CellTable;
pub use core_block::{CoreBlock, current_core, cycles, platform};
pub use dynamic::{DynamicEbb, RootedRepresentative};
pub use ebb::Ebb;
pub use factory::EbbInUse;
pub use id::{EbbId, IdError, MachineId};
pub use identity::VcoreIdentity;
pub use representative::Representative;
pub use table::FAST;
