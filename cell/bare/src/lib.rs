//! The library OS's platform on bare hardware: in a supervisor's cell, or standalone.
//!
//! The modules in their order: each uses only those above it, so that it can be read after them.
//!
//! | module | contents |
//! |---|---|
//! | `state` | the state that follows from the descriptor, set once; the right to program the cores |
//! | `doze` | halting of a core, and waking it by a memory write |
//! | `pending` | interrupts that the loop has not taken yet |
//! | `supervisor` | notifications to the supervisor |
//! | `console` | console output |
//! | `page_tables` | the region area's page tables, and the grace periods of TLB flushes |
//! | `cores` | the vcores that each core runs, and interrupts to them |
//! | `pool` | the cell's memory: the heap and its page allocator |
//! | `idle` | the halt of a core, which zeroes free pages before |
//! | `core_caches` | pages that each core has in advance; requests to return all caches |
//! | `migration` | migration of the region area's pages to other memory |
//! | `hot_plug` | plugging and unplugging of memory |
//! | [`heap`] | the global allocator, which obtains more memory when it runs out |
//! | [`crash`] | panics, exceptions, and their reports |
//! | `regions` | the region area: filling of pages, page faults |
//! | [`programs`] | programs in user mode |
//! | `vectors` | the interrupt vectors of device queues |
//! | `network` | virtio network devices as the stack's queues |
//! | `block` | virtio block devices as queues of the block layer, and the volumes on them |
//! | `platform` | the [`Platform`](isola_platform::Platform) of the cores |
//! | [`start`] | from a core's entry to its event loop, as a list of steps |
//!
//! An application's image gets all of it by [`cell_image!`], which the `isola` crate calls.
#![no_std]
#![allow(
    unsafe_code,
    reason = "core blocks and the heap's memory are raw, and devices use buffers behind the compiler's back"
)]

extern crate alloc;

mod block;
mod channel_block;
mod channel_network;
mod console;
mod core_caches;
mod cores;
pub mod crash;
mod doze;
pub mod heap;
mod hot_plug;
mod idle;
pub mod links;
mod migration;
mod network;
mod page_tables;
mod pending;
mod platform;
mod pool;
pub mod programs;
mod regions;
mod sampler;
pub mod start;
mod state;
mod supervisor;
mod vectors;

/// Makes the binary a cell image. `$begin` is a `fn()` that queues the application's first event; it runs on the first
/// core, before its loop. `$new`, of type `$allocator`, is the global allocator: [`heap::CellHeap`], or the
/// application's own.
#[macro_export]
macro_rules! cell_image {
    ($begin:path, $allocator:ty = $new:expr) => {
        $crate::__private::cell_image!($crate::start::enter_core, $crate::start::before_boot);
        $crate::cell_parts!($begin, $allocator = $new);
    };
}

/// Makes the binary a cell image that starts in cells only, and is smaller: see [`cell_image!`].
#[macro_export]
macro_rules! cells_only_image {
    ($begin:path, $allocator:ty = $new:expr) => {
        $crate::__private::cells_only_image!($crate::start::enter_core);
        $crate::cell_parts!($begin, $allocator = $new);
    };
}

/// Defines the parts of a cell image behind its entry. For [`cell_image!`].
#[doc(hidden)]
#[macro_export]
macro_rules! cell_parts {
    ($begin:path, $allocator:ty = $new:expr) => {
        #[allow(unsafe_code, reason = "the entry of the library OS finds the application by this name")]
        #[unsafe(no_mangle)]
        extern "Rust" fn isola_application_begin() {
            $begin();
        }

        #[global_allocator]
        static ALLOCATOR: $allocator = $new;

        #[panic_handler]
        fn panic(info: &::core::panic::PanicInfo<'_>) -> ! {
            $crate::crash::panicked(info)
        }
    };
}

/// For [`cell_image!`].
#[doc(hidden)]
pub mod __private {
    pub use isola_machine::cell_image;
    pub use isola_machine::cells_only_image;
}
