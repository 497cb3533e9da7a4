//! Ebbs: components with one representative a core, made on first use (EbbRT 2.2, 3.3.2).
//!
//! - [`Ebb`]: a typed reference, declared once as a `static`. Invoking it finds this core's representative
//!   with two loads and one predictable branch, and makes it where there is none: that is why a core joins
//!   a cell without any initialisation.
//! - [`CellEbb`]: the same with one representative for all cores of the cell.
//! - [`CoreBlock`]: what a core knows of itself: its index, its platform, its representatives.
//!
//! The core block is found through the GS segment, in a bare cell as in a process: one load, no system call.
//! Identifiers are given out when an Ebb is first used, so that two cannot clash; ids that hold across
//! machines, teardown and folding are not here yet.
#![no_std]
#![allow(
    unsafe_code,
    reason = "per-core data is found through a segment register and owned by its core alone"
)]

extern crate alloc;

mod core_block;
mod ebb;

pub use core_block::{CoreBlock, current_core, cycles, platform};
pub use ebb::{CellEbb, Ebb, EbbTable, MAX_EBBS, Representative};
