//! A simulated user mode, for tests of the Linux personality as ordinary programs of the host.
//!
//! - [`SimulatedUserMode`] implements [`UserMode`](isola_user_mode::UserMode): it creates [`SimulatedSpace`]s, and has the
//!   [`Program`]s of the test.
//! - [`SimulatedSpace`]: an address space as a map of pages. It checks that a removed frame stays in memory until a flush
//!   is over. The test decides when flushes end ([`SimulatedUserMode::hold_flushes`]).
//! - [`Program`]: a list of steps, which are closures, at an address. A thread with that address in RIP executes them.
//!   A [`Step`] accesses memory by a [`Processor`], with a TLB and page faults as a processor's.
//! - [`run`]: runs a future to its end, with a call between the polls.
//!
//! Not simulated: instructions, page tables, the extended processor state beyond its bytes.
#![forbid(unsafe_code)]

mod executor;
mod program;
mod space;
mod thread;

pub use executor::{poll_once, run, run_with};
pub use program::{Program, STEP_SIZE, Step};
pub use space::{SimulatedSpace, SimulatedUserMode};
pub use thread::{EXTENDED_STATE_SIZE, Processor, SimulatedThread};
