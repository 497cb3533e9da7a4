//! The schedulers in simulated time, without a cell.

mod arbitrary;
mod bounds;
mod simulation;
mod tree;
