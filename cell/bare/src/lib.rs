//! The library OS's platform on bare hardware: in a supervisor's cell, or standalone.
//!
//! | module | contents |
//! |---|---|
//! | [`start`] | from a core's entry to its event loop, as a list of steps |
//! | [`platform`] | the [`Platform`](isola_platform::Platform) of the cores: [`platform::Bare`] |
//! | `doze` | halting and waking of cores |
//! | [`console`] | console output |
//! | [`crash`] | panics, exceptions, and their reports |
//! | [`heap`] | the cell's memory as the global allocator |
//! | [`grow`] | plugging and unplugging of memory |
//! | `pending` | interrupts that the loop has not taken yet |
//! | [`window`] | the region area: page tables, page faults |
//! | `migration` | migration of its pages to other memory |
//! | [`network`] | virtio network devices as the stack's queues |
//!
//! An application's image gets all of it by [`cell_image!`], which the `isola` crate calls.
#![no_std]
#![allow(
    unsafe_code,
    reason = "core blocks and the heap's memory are raw, and devices use buffers behind the compiler's back"
)]

extern crate alloc;

pub mod console;
pub mod crash;
mod doze;
pub mod grow;
pub mod heap;
mod migration;
pub mod network;
mod pending;
pub mod platform;
pub mod start;
pub mod window;

/// Makes the binary a cell image. `$begin` is a `fn()` that queues the application's first event; it runs on the first
/// core, before its loop. `$new`, of type `$allocator`, is the global allocator: [`heap::CellHeap`], or the
/// application's own.
#[macro_export]
macro_rules! cell_image {
    ($begin:path, $allocator:ty = $new:expr) => {
        $crate::__private::cell_image!($crate::start::enter_core, $crate::start::before_boot);

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

/// The platform's right to program its cores. Private to this crate.
// SAFETY: this crate is the platform of the image: it sets all handlers, and decides which interrupts are sent.
const AUTHORITY: isola_machine::authority::Authority =
    unsafe { isola_machine::authority::Authority::assume() };

/// For [`cell_image!`].
#[doc(hidden)]
pub mod __private {
    pub use isola_machine::cell_image;
}
