//! The schedulers in simulated time, without a cell.

mod arbitrary;
mod bounds;
mod must_wait;
mod simulation;
mod tree;
