//! The tests of joining, calls and pacing once more: over channels between cells of one machine.
#![allow(clippy::duplicate_mod, reason = "each of the tests has the common part")]

#[path = "joining.rs"]
mod joining;
#[path = "machines.rs"]
mod machines;
#[path = "pacing.rs"]
mod pacing;
#[path = "sharing.rs"]
mod sharing;
