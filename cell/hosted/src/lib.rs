//! The library OS's platform in an ordinary Linux process: a thread is a core.
//!
//! | module | contents |
//! |---|---|
//! | `settings` | the settings of a cell |
//! | [`cell`] | [`run`]: a cell of some cores, from its settings to the results of its cores |
//! | [`platform`] | the [`Platform`](isola_platform::Platform) of the cores: [`Hosted`] |
//! | [`mod@core`] | a thread as a core: its interrupts, its timer, and its halt |
//! | [`pending`] | pending interrupts of a core, and the flag that says whether a sender has to wake it |
//! | [`mod@file`] | a Linux file as a device that interrupts |
//! | [`region_area`] | the region area: mappings, SIGSEGV |
//! | [`mod@link`] | a network of cells of one process, in memory |
//! | [`tap`] | a network device: a TAP interface of the host |
//! | [`disk`] | a block device: a file of the host |
//! | [`heap`] | the cell's memory: a pool, and the global allocator on it |
//! | [`mod@process`] | a process that is one cell: the form of an application's binary |
//! | `control` | queries of the host tool |
//!
//! Linux takes the part of the hardware:
//!
//! | bare | hosted |
//! |---|---|
//! | a core | a thread, pinned to a processor if requested and if there are enough |
//! | an inter-processor interrupt | a bit, and an eventfd if the core is halted |
//! | the local APIC's timer | a timerfd |
//! | a device's interrupt | a file that epoll watches |
//! | `hlt` | `epoll_wait` |
#![allow(
    unsafe_code,
    reason = "gives each thread a GS segment base of its own, which makes it a core; memory and TAP interfaces \
              come from Linux by raw calls"
)]

pub mod cell;
mod control;
pub mod core;
pub mod disk;
pub mod file;
pub mod heap;
pub mod link;
pub mod pending;
pub mod platform;
pub mod process;
pub mod region_area;
mod settings;
pub mod tap;

pub use cell::run;
pub use link::{Loss, link, switch};
pub use platform::Hosted;
pub use settings::{Pinning, Settings};
