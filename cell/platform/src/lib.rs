//! What the library OS needs from below, as traits. What differs between a bare cell and a hosted one is
//! behind these; but for virtual memory, whose trait (`isola_memory::regions::Window`) stands with what needs it.
//!
//! - [`Platform`]: cores, interrupts, timer, console, report, descriptor.
//! - [`network::NetworkQueue`]: a queue pair of a network device.
//! - [`Clock`] and [`Instant`]: time, from the cycle counter.
//! - [`CoreIndex`]: a core of this cell.
//!
//! A platform is chosen once, when a core enters its cell; `isola-ebbs` then knows it as the core's own.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod clock;
mod core_set;
pub mod network;
mod platform;

pub use clock::{Clock, Instant};
pub use core_set::CoreSet;
pub use platform::{CoreIndex, Others, OwnTurn, PendingVectors, Platform};
