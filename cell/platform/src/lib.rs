//! The traits that a platform implements for the library OS. They contain all differences between a bare cell and a
//! hosted one except virtual memory, whose trait (`isola_memory::regions::AddressWindow`) is in the crate that uses it.
//!
//! - [`Platform`]: cores, interrupts, timer, console, report, descriptor.
//! - [`Sampler`]: samples of the cores' call stacks.
//! - [`network::NetworkQueue`]: a queue pair of a network device.
//! - [`block::BlockQueue`]: a queue of a block device.
//! - [`Clock`] and [`Instant`]: time, derived from the cycle counter.
//! - [`MemoryDemand`]: memory that the platform wants back. [`PlatformMemory`]: the memory by use.
//! - [`CoreIndex`]: a core of this cell.
//!
//! A core gets its platform once, when it enters its cell; `isola-ebbs` stores it in the core's block.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod block;
mod clock;
mod core_set;
mod links;
mod memory;
pub mod network;
mod platform;
mod sampler;

pub use clock::{Clock, Instant};
pub use core_set::{CoreIndex, CoreSet};
pub use links::{LinkPort, PeerWords};
pub use memory::{MemoryDemand, PlatformMemory, VacatedMemory};
pub use platform::{OtherVectors, PendingVectors, Platform, ResumeOutcome};
pub use sampler::{NoSampleMemory, SampleCounts, Sampler};
