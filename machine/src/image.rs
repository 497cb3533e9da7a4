//! The parts of an image beside its own code: entry point, note and panic handler.

use crate::authority::Authority;
use core::panic::PanicInfo;
use isola_abi::management::RestartCause;

/// Makes the binary an image that owns the machine. `$main` is a `fn(`[`crate::boot::Machine`]`) -> !`.
#[macro_export]
macro_rules! machine_image {
    ($main:path) => {
        #[allow(unsafe_code, reason = "boot code finds the image by this name")]
        const _: () = {
            /// Called by boot code with the address of the start info.
            #[unsafe(no_mangle)]
            extern "sysv64" fn isola_image_main(start_info: u64) -> ! {
                // SAFETY: boot code calls this function, once a run.
                unsafe { $crate::boot::own_machine(start_info, $main) }
            }
        };
    };
}

/// Makes the binary a cell image. `$entry` is a `fn(u64) -> !`, called on every core of the cell with the index of its
/// core slot, see `isola_abi::note::ImageNote`. The image needs a heap from the first instruction on: a standalone boot
/// allocates some tens of KiB, and [`crate::cell::Cell::open`] a few. `$before_boot` is a `fn()` that the image calls
/// first when it boots alone, for a heap that needs initialisation.
#[macro_export]
macro_rules! cell_image {
    ($entry:path) => {
        $crate::cell_image!($entry, || ());
    };
    ($entry:path, $before_boot:expr) => {
        #[allow(unsafe_code, reason = "boot code finds the image by this name")]
        const _: () = {
            /// Called by boot code with the address of the start info.
            #[unsafe(no_mangle)]
            extern "sysv64" fn isola_image_main(start_info: u64) -> ! {
                let before_boot: fn() = $before_boot;
                before_boot();
                // SAFETY: boot code calls this function, once a run.
                unsafe { $crate::standalone::boot(start_info, isola_cell_entry) }
            }
        };

        $crate::cell_entry!($entry);
    };
}

/// Makes the binary a cell image that starts in cells only, and contains no code of a standalone boot: see
/// [`cell_image!`](crate::cell_image).
#[macro_export]
macro_rules! cells_only_image {
    ($entry:path) => {
        #[allow(unsafe_code, reason = "boot code finds the image by this name")]
        const _: () = {
            /// Called by boot code.
            #[unsafe(no_mangle)]
            extern "sysv64" fn isola_image_main(_: u64) -> ! {
                $crate::image::refuse_boot()
            }
        };

        $crate::cell_entry!($entry);
    };
}

/// Defines the entry of a cell, and the note that names it. For [`cell_image!`](crate::cell_image).
#[doc(hidden)]
#[macro_export]
macro_rules! cell_entry {
    ($entry:path) => {
        #[allow(unsafe_code, reason = "boot code and the note find the entry by this name")]
        #[unsafe(no_mangle)]
        extern "sysv64" fn isola_cell_entry(core_index: u64) -> ! {
            $entry(core_index)
        }

        #[allow(unsafe_code, reason = "assembly is how a note is made")]
        mod isola_note {
            // The note's owner is "Isola" (six bytes with the terminating zero, padded to eight); its type is 1.
            ::core::arch::global_asm!(
                ".section .note.isola, \"a\", @note",
                ".balign 4",
                ".long 6, {len}, {kind}",
                ".asciz \"Isola\"",
                ".balign 4",
                ".long {version}, 0",
                ".quad isola_cell_entry, isola_vectors",
                ".text",
                len = const $crate::image::NOTE_LEN,
                kind = const $crate::image::NOTE_TYPE,
                version = const $crate::image::ABI_VERSION,
            );
        }
    };
}

/// For [`cell_image!`](crate::cell_image).
#[doc(hidden)]
pub const NOTE_LEN: usize = isola_abi::note::ImageNote::LEN;
#[doc(hidden)]
pub const NOTE_TYPE: u32 = isola_abi::note::TYPE;
#[doc(hidden)]
pub const ABI_VERSION: u32 = isola_abi::VERSION;

/// Ends a machine that has booted an image for cells only.
#[doc(hidden)]
pub fn refuse_boot() -> ! {
    crate::serial::init();
    crate::serial_line!("this image starts in cells only (it was built with the feature `cells-only`)");
    crate::power::exit(Authority::OWN, 1)
}

/// Handles a panic of an image that owns the machine: prints location and message on the serial port, and restarts the
/// image if it supports restarts; otherwise ends the machine with exit code 1.
pub fn panic_to_serial(info: &PanicInfo<'_>) -> ! {
    crate::serial::print(format_args!("{info}\n"));
    crate::restart::restart(Authority::OWN, RestartCause::Panic)
}

/// Defines the symbol that replaces the prebuilt `core`'s reference to the unwinder; images have none.
#[unsafe(no_mangle)]
extern "C" fn isola_no_unwinding() -> ! {
    crate::serial_line!("unwinding, though images abort");
    crate::power::exit(Authority::OWN, 1)
}
