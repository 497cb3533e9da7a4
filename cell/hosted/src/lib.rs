//! The library OS's platform in an ordinary Linux process: a thread is a core.
//!
//! - [`run`]: runs a cell of some cores and returns what each of them returned.
//! - [`Hosted`]: the platform that its cores see.
//! - [`link`]: a network of two cells, in memory.
//!
//! So far this is what tests need: cores, interrupts, one-shot timers and a report that can be looked at. Pinned
//! threads, a network and off-load come with the hosted platform in full.
#![allow(
    unsafe_code,
    reason = "gives each thread a GS segment base of its own, which is what makes it a core"
)]

mod link;
mod platform;

pub use link::{Loss, link};
pub use platform::{Hosted, Settings, run};
