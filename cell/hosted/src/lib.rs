//! The library OS's platform in an ordinary Linux process: a thread is a core.
//!
//! | module | what |
//! |---|---|
//! | [`cell`] | [`run`]: a cell of some cores, from its settings to what each core returned |
//! | [`platform`] | what the cores see: [`Hosted`] |
//! | [`mod@core`] | a thread as a core: its interrupts, its timer, and how it halts |
//! | [`pending`] | interrupts on their way to a core, and the one flag that says whether it must be woken |
//! | [`mod@file`] | a file of Linux as a device that interrupts |
//! | [`window`] | virtual memory that pagers fill: mappings, SIGSEGV |
//! | [`mod@link`] | a network of two cells, or of several, in memory |
//! | [`tap`] | a network device: a TAP interface of the host |
//! | [`heap`] | the cell's memory: a pool, and the global allocator on it |
//! | [`mod@process`] | a process that is one cell: what an application's binary becomes |
//!
//! What the hardware does for a bare cell, Linux does here:
//!
//! | bare | hosted |
//! |---|---|
//! | a processor | a thread, pinned to a processor where it is asked for and there are enough |
//! | an interrupt of another core | a bit, and an eventfd where the core is halted |
//! | the local APIC's timer | a timerfd |
//! | a device's interrupt | a file that epoll watches |
//! | `hlt` | `epoll_wait` |
#![allow(
    unsafe_code,
    reason = "gives each thread a GS segment base of its own, which is what makes it a core; memory and TAP interfaces \
              come from Linux by raw calls"
)]

pub mod cell;
mod control;
pub mod core;
pub mod file;
pub mod heap;
pub mod link;
pub mod pending;
pub mod platform;
pub mod process;
pub mod tap;
pub mod window;

pub use cell::{Pinning, Settings, run};
pub use link::{Loss, link, switch};
pub use platform::Hosted;
