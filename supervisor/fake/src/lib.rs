//! A machine of ordinary memory, for tests of the supervisor. It records actions, and fails on demand.
//!
//! [`FakeMachine`] implements the hardware traits of `isola-supervisor-core`. Tests set words in cells' reports like the
//! cells would ([`report`]), and let a supervisor fail before any of its writes ([`Death`]).
//!
//! Not here: anything that an image contains. Only tests depend on this crate.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod death;
pub mod image;
mod machine;
mod memory;
mod owners;
pub mod report;
mod restart;
mod space;

pub use death::Death;
pub use machine::{Action, FakeMachine, FakeState};
pub use memory::{FakeMemory, FakeShared, MEMORY, MIB, memory};
pub use owners::{every_chunk_has_one_owner, every_core_has_one_owner};
pub use restart::{RestartedMachine, restart};
pub use space::{FIRST_DISK, FakeCore, FakeDevice, FakeSpace};
