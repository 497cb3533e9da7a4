//! The bounds of the running image's segments.

use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::IMAGE;

/// The virtual addresses of the running image's segments. Zero-length in a host program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ImageBounds {
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
    /// First byte behind the initialised variables, which precede the zeroed ones.
    pub variables_end: u64,
}

impl ImageBounds {
    /// Returns the bounds of the running image.
    pub fn of_image() -> Self {
        unsafe extern "C" {
            safe static isola_bounds: ImageBounds;
        }
        isola_bounds
    }

    /// Returns the physical memory of the whole image, if a PVH loader placed it as linked.
    pub fn loaded(&self) -> PhysRange {
        PhysRange::new(PhysAddr(self.text_start - IMAGE), self.data_end - self.text_start)
    }
}
