//! What an image needs beside its own code: an entry point, notes by which it is known, the functions that
//! compiled code takes for granted, and knowledge of where its own segments are.

use crate::authority::Authority;
use core::panic::PanicInfo;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::IMAGE;
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

/// Makes the binary a cell image. `$entry` is a `fn(u64) -> !`, called on every core of the cell with the core's
/// index, as `isola_abi::note::ImageNote` says. The image needs a heap from the first instruction on: what
/// boots it alone allocates some tens of KiB, and [`crate::cell::Cell::open`] a few. Where the heap has to be made
/// first, `$before_boot` is a `fn()` that makes it, called when the image boots alone.
#[macro_export]
macro_rules! cell_image {
    ($entry:path) => {
        $crate::cell_image!($entry, || ());
    };
    ($entry:path, $before_boot:expr) => {
        #[allow(unsafe_code, reason = "boot code and the note find the image by these names")]
        const _: () = {
            /// Called by a supervisor, or by boot code.
            #[unsafe(no_mangle)]
            extern "sysv64" fn isola_cell_entry(core_index: u64) -> ! {
                $entry(core_index)
            }

            /// Called by boot code with the address of the start info.
            #[unsafe(no_mangle)]
            extern "sysv64" fn isola_image_main(start_info: u64) -> ! {
                let before_boot: fn() = $before_boot;
                before_boot();
                // SAFETY: boot code calls this function, once a run.
                unsafe { $crate::alone::boot(start_info, isola_cell_entry) }
            }
        };

        #[allow(unsafe_code, reason = "assembly is how a note is made")]
        mod isola_note {
            // Of owner "Isola" (six bytes with the closing zero, eight with padding) and type 1.
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

/// Where the running image's segments are: a virtual address range each. In a program of the host, nowhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Bounds {
    /// First byte of the code.
    pub text_start: u64,
    /// First byte behind the code.
    pub text_end: u64,
    /// First byte of the constants.
    pub rodata_start: u64,
    /// First byte behind the constants.
    pub rodata_end: u64,
    /// First byte of the variables.
    pub data_start: u64,
    /// First byte behind the variables.
    pub data_end: u64,
    /// First byte behind those that do not begin as zero, which come first.
    pub variables_end: u64,
}

impl Bounds {
    /// The running image's.
    pub fn of_image() -> Self {
        unsafe extern "C" {
            safe static isola_bounds: Bounds;
        }
        isola_bounds
    }

    /// Where the whole image stands in physical memory, when it was loaded as linked: by a PVH loader.
    pub fn loaded(&self) -> PhysRange {
        PhysRange::new(PhysAddr(self.text_start - IMAGE), self.data_end - self.text_start)
    }
}

/// What the panic handler of an image that owns the machine does: says where and why on the serial port, and
/// begins the image anew, where it is made for that; else ends the machine with exit code 1.
pub fn panic_to_serial(info: &PanicInfo<'_>) -> ! {
    crate::serial::print(format_args!("{info}\n"));
    crate::restart::restart(Authority::OWN, RestartCause::Panic)
}

/// Stands where the prebuilt `core` refers to the unwinder, which no image has.
#[unsafe(no_mangle)]
extern "C" fn isola_no_unwinding() -> ! {
    crate::serial_line!("unwinding, though images abort");
    crate::power::exit(Authority::OWN, 1)
}
