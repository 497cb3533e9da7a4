//! The crate on which an application depends: the library OS under one name.
//!
//! ```ignore
//! #![no_std]
//! #![no_main]
//!
//! use isola::prelude::*;
//!
//! isola::app!(main);
//!
//! async fn main(arguments: Arguments) -> ExitCode {
//!     println!("hello from {} cores", isola::core_count());
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`grid`] | the resource grid: policies and entitlements of activities |
//! | [`events`] | events, tasks, timers, fork-join over the cores |
//! | [`future`] | joins, races, error propagation to the first handler |
//! | [`flow`] | bytes from a source to a sink: files, sockets, memory |
//! | [`fibers`] | stacks for blocking code |
//! | [`rcu`] | cells and tables with lock-free readers |
//! | [`net`] | TCP and UDP |
//! | [`channels`] | packets and shared memory between cells of one machine |
//! | [`latency`] | service latencies of requests |
//! | [`network_service`] | the network device of this cell, served to other cells |
//! | [`resolver`] | DNS lookups, and connections to a host name |
//! | [`ebbs`] | components with one representative per core |
//! | [`memory`] | the heap and its replacements |
//! | [`console`] | the destination of `println!` |
//! | [`regions`] | virtual memory that a pager fills |
//! | [`iobuf`] | buffers for zero-copy I/O |
//! | [`messenger`] | remote calls between the machines of an application |
//! | [`files`] | files of the hosted process's host, on every machine |
//! | [`storage`] | the cell's volumes: file systems that keep their files |
//! | [`user_mode`](mod@user_mode) | programs in user mode, their address spaces and threads |
//! | [`sync`] | locks, for state that cores must share |
//! | [`prelude`] | items that nearly every application uses |
//!
//! `main` is a task of the cell's first core; when it returns, the cell ends with its exit code. This crate is also the
//! only one that selects the platform: bare hardware, or with the feature `hosted` a Linux process. The module `linux`
//! (Linux sockets) exists in processes only.
#![no_std]
#![forbid(unsafe_code)]

#[doc(hidden)]
pub extern crate alloc;

mod arguments;
mod begin;
pub mod console;
pub mod files;
mod folder_server;
mod grid_query;
mod memory_account;
mod processes;
mod session;
mod stop;
pub mod storage;
mod volume_server;

// The only selection of the platform: all differences are in these two files and the crates below.
#[cfg_attr(not(feature = "hosted"), path = "on_bare.rs")]
#[cfg_attr(feature = "hosted", path = "on_hosted.rs")]
mod on;

pub use arguments::{Arguments, ExitCode};
pub use isola_abi::query::MemoryPart;
pub use isola_channels as channels;
pub use isola_events as events;
pub use isola_events::future;
pub use isola_fibers as fibers;
pub use isola_flows as flow;
pub use isola_iobuf as iobuf;
pub use isola_messenger as messenger;
pub use isola_net as net;
pub use isola_net::latency;
pub use isola_rcu as rcu;
pub use isola_resolver as resolver;
pub use isola_resources as grid;
pub use isola_user_mode as user_mode;
pub use isola_volume_service::network::server as network_service;
pub use memory_account::{memory_parts, serve_memory_parts};
pub use processes::{MAX_PROCESSES, ProcessUsage, serve_processes};
pub use session::{SessionKey, serve_sessions};
pub use stop::stop_requested;

/// The expansion of this crate's macros. Each item is safe to call from any code, or `unsafe`; none gives access to the
/// machine (`cargo xtask check layering`).
#[doc(hidden)]
pub mod __private {
    pub use crate::begin::{begin, no_components};
    #[cfg(not(feature = "hosted"))]
    pub use crate::on::cell_image;
    #[cfg(feature = "hosted")]
    pub use crate::on::{process, run};
}

/// Components with one representative per core, and the cores themselves.
pub mod ebbs {
    pub use isola_ebbs::{
        CellEbb, DynamicEbb, Ebb, EbbId, EbbInUse, IdError, MachineId, Representative, RootedRepresentative,
        current_core, cycles, ebb_id,
    };
    pub use isola_platform::CoreIndex;
}

/// The cell's memory, and allocators that can replace the heap.
pub mod memory {
    pub use crate::on::CellHeap;
    pub use isola_abi::report::MemoryPressure;
    pub use isola_events::pressure::{PressureHandler, memory_pressure, on_memory_pressure};
    pub use isola_events::reclaim::{
        HolderRegistration, MemoryHolder, ReclaimCause, Reservation, ReserveError, VacateHandler,
        VacatedMemory, on_vacate, register_memory_holder, reserve, used_bytes,
    };
    pub use isola_memory::Hardened;
    pub use isola_memory::frame::Frame;
    pub use isola_memory::hardened::misuse_injection;
}

/// Virtual memory, filled by a pager that the application selects or implements.
pub mod regions {
    pub use isola_memory::regions::{
        Colored, Contents, FillError, FillOutcome, Filler, FrameChoice, OnDemand, PageSize, Pager, Prefault,
        Region, RegionError, Stack,
    };
}

#[cfg(feature = "hosted")]
pub use on::linux;

/// Locks, for state that cores must share.
pub mod sync {
    pub use spin::{Mutex, Once};
}

/// Items that nearly every application uses.
pub mod prelude {
    pub use crate::alloc::borrow::ToOwned;
    pub use crate::alloc::boxed::Box;
    pub use crate::alloc::string::{String, ToString};
    pub use crate::alloc::vec::Vec;
    pub use crate::alloc::{format, vec};
    pub use crate::{Arguments, ExitCode, println};
}

use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_ebbs::platform;

/// Makes the binary a cell image, or with the feature `hosted` a Linux process. `$main` is an `async fn(Arguments) ->
/// ExitCode`. An application can name another global allocator than the cell's heap, with its type:
///
/// ```ignore
/// isola::app!(main, allocator: Hardened<CellHeap> = Hardened::new(CellHeap));
/// ```
///
/// It can also name a `fn() -> Result<(), EbbInUse>` that replaces components of Isola. The function runs on the first
/// core before the first use of any component:
///
/// ```ignore
/// isola::app!(main, components: components);
///
/// fn components() -> Result<(), EbbInUse> {
///     CONSOLE.replace(|| Box::new(Quiet))?;
///     NETWORK_MANAGER.replace(|| Box::new(Firewall))
/// }
/// ```
///
/// With both, `allocator` comes before `components`.
#[macro_export]
macro_rules! app {
    ($main:path $(, components: $components:path)?) => {
        $crate::app!(
            $main, allocator: $crate::memory::CellHeap = $crate::memory::CellHeap $(, components: $components)?
        );
    };
    ($main:path, allocator: $allocator:ty = $new:expr) => {
        $crate::app!($main, allocator: $allocator = $new, components: $crate::__private::no_components);
    };
    ($main:path, allocator: $allocator:ty = $new:expr, components: $components:path) => {
        $crate::isola_binary!($main, $components, $allocator = $new);
    };
}

/// Prints a line on the cell's console.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::console::print_line(::core::format_args!($($argument)*))
    };
}

/// Returns the cell's present number of cores: see [`present_cores`](isola_events::present_cores).
pub fn core_count() -> usize {
    isola_events::present_cores().len()
}

/// Returns the cell's id; 0 in a standalone image.
pub fn cell_id() -> u32 {
    platform().descriptor().cell.0
}

/// Returns all memory that the cell can use, in bytes: its pool and its obtainable memory.
pub fn memory_total() -> usize {
    let memory = &platform().report().memory;
    let [total, room] = [&memory.total_bytes, &memory.room_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
    total.saturating_add(room) as usize
}

/// Returns the cell's free memory, in bytes, obtainable memory included. Costs a few loads.
pub fn memory_free() -> usize {
    platform().memory_free()
}

/// Frees memory that the heap keeps for later objects: the caches of all cores, when each is idle, and unused pages. For a time
/// at which much memory has become free, such as the end of a start.
pub fn release_unused_memory() {
    platform().release_unused();
}

/// Returns the time of day since 1970-01-01 UTC.
pub fn unix_time() -> Duration {
    Duration::from_nanos(platform().clock().unix_ns(events::now()))
}

/// Returns the means to run programs in user mode; `None` if the processor lacks what they need (docs/isolation.md), or in
/// a process.
pub fn user_mode() -> Option<&'static dyn user_mode::UserMode> {
    on::user_mode()
}

/// Returns 64 bits of the processor's generator (RDRAND), or in a process of the host's. On a processor without RDRAND
/// they come from the cycle counter, which an attacker can guess: do not make keys of them there.
pub fn entropy() -> u64 {
    platform().entropy()
}
