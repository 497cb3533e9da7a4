//! What an application depends on: the library OS under one name.
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
//! | module | what |
//! |---|---|
//! | [`events`] | events, tasks, timers, fork-join over the cores |
//! | [`future`] | joins, races, errors that flow to the first handler |
//! | [`fibers`] | stacks for code that blocks |
//! | [`rcu`] | cells and tables that cores read without locks |
//! | [`net`] | TCP and UDP |
//! | [`latency`] | how long requests take |
//! | [`resolver`] | addresses of names, and connecting to a name |
//! | [`ebbs`] | components with one representative a core |
//! | [`memory`] | the heap, and what may stand in its place |
//! | [`console`] | where `println!` goes |
//! | [`regions`] | virtual memory that a pager fills |
//! | [`iobuf`] | buffers without copies |
//! | [`messenger`] | calls between the machines of an application |
//! | [`files`] | files of the hosted process, on every machine |
//! | [`sync`] | what cores share where they must |
//! | [`prelude`] | what nearly every application uses |
//!
//! `main` is a task of the cell's first core; the cell ends with its exit code when it returns. This crate is also
//! the one place that picks the platform: bare hardware, or a Linux process with the feature `hosted`. Two modules belong
//! to one platform: `linux`, Linux's sockets, to processes, and `fault_injection`, for tests of crashes, to cells.
#![no_std]
#![forbid(unsafe_code)]

#[doc(hidden)]
pub extern crate alloc;

mod arguments;
mod begin;
pub mod console;
pub mod files;
mod stop;

// The one switch: what differs between the platforms is in these two files and below.
#[cfg_attr(not(feature = "hosted"), path = "on_bare.rs")]
#[cfg_attr(feature = "hosted", path = "on_hosted.rs")]
mod on;

pub use arguments::{Arguments, ExitCode};
pub use isola_events as events;
pub use isola_events::future;
pub use isola_fibers as fibers;
pub use isola_iobuf as iobuf;
pub use isola_messenger as messenger;
pub use isola_net as net;
pub use isola_net::latency;
pub use isola_rcu as rcu;
pub use isola_resolver as resolver;
pub use stop::stop_requested;

/// What the macros of this crate expand to. Each item is safe to call by any code, or `unsafe`; none leads to the machine
/// (`cargo xtask check layering`).
#[doc(hidden)]
pub mod __private {
    pub use crate::begin::{begin, no_components};
    #[cfg(not(feature = "hosted"))]
    pub use crate::on::cell_image;
    #[cfg(feature = "hosted")]
    pub use crate::on::{process, run};
}

/// Components with one representative a core, and the cores themselves.
pub mod ebbs {
    pub use isola_ebbs::{
        CellEbb, DynamicEbb, Ebb, EbbId, InUse, MachineId, NoId, Representative, RootedRepresentative,
        current_core, cycles, ebb_id,
    };
    pub use isola_platform::CoreIndex;
}

/// The cell's memory, and allocators that an application may use in place of the heap.
pub mod memory {
    pub use crate::on::CellHeap;
    pub use isola_abi::report::MemoryPressure;
    pub use isola_events::pressure::{PressureHandler, memory_pressure, on_memory_pressure};
    pub use isola_memory::Hardened;
    pub use isola_memory::hardened::misdeed;
}

/// Virtual memory that a pager fills, which the application chooses or writes.
pub mod regions {
    pub use isola_memory::regions::{
        Colored, Contents, FillError, Filled, Filler, FrameChoice, OnDemand, PageSize, Pager, Prefault,
        Region, RegionError, Stack,
    };
}

#[cfg(not(feature = "hosted"))]
pub use on::fault_injection;
#[cfg(feature = "hosted")]
pub use on::linux;

/// What cores share where they must.
pub mod sync {
    pub use spin::{Mutex, Once};
}

/// What nearly every application uses.
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

/// Makes the binary a cell image, or a Linux process with the feature `hosted`. `$main` is an
/// `async fn(Arguments) -> ExitCode`. An application that wants another global allocator than the cell's heap names it,
/// with its type:
///
/// ```ignore
/// isola::app!(main, allocator: Hardened<CellHeap> = Hardened::new(CellHeap));
/// ```
///
/// One that wants other components than Isola's names a `fn() -> Result<(), InUse>`, which replaces them on the first core
/// before any is used:
///
/// ```ignore
/// isola::app!(main, components: components);
///
/// fn components() -> Result<(), InUse> {
///     CONSOLE.replace(|| Box::new(Quiet))?;
///     NETWORK_MANAGER.replace(|| Box::new(Firewall))
/// }
/// ```
///
/// Both are named in this order: `allocator`, `components`.
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

/// How many cores the cell has now: see [`present_cores`](isola_events::present_cores).
pub fn core_count() -> usize {
    isola_events::present_cores().len()
}

/// The cell's number; 0 for an image that boots alone.
pub fn cell_id() -> u32 {
    platform().descriptor().cell.0
}

/// Memory that the cell can use in all, in bytes: what it has, and what it may still get.
pub fn memory_total() -> usize {
    let memory = &platform().report().memory;
    let [total, room] = [&memory.total_bytes, &memory.room_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
    total.saturating_add(room) as usize
}

/// Memory of the cell that nobody uses now, in bytes, with what it may still get. Asking costs a few loads.
pub fn memory_free() -> usize {
    platform().memory_free()
}

/// The time of day: since 1970-01-01 UTC.
pub fn unix_time() -> Duration {
    Duration::from_nanos(platform().clock().unix_ns(events::now()))
}

/// Returns 64 bits of the processor's generator (RDRAND), or of the host's for a process. On a processor without RDRAND they
/// come from the cycle counter, which an attacker can guess: do not make keys of them there.
pub fn entropy() -> u64 {
    platform().entropy()
}
