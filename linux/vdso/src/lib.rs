//! The vDSO: a shared object that the personality maps in each Linux program, so that clock reads need no system call.
//!
//! ```text
//!   [vvar]  the clock page ([`ClockPage`]): read-only for programs, written by the cell
//!   [vdso]  the image ([`IMAGE`]): read-only and executable
//! ```
//!
//! `image/` has the image's code, for ring 3. `build.rs` compiles and links it. C libraries find the image by
//! `AT_SYSINFO_EHDR`, and its functions by their names with the version `LINUX_2.6`. The unsafe code of the image accesses
//! the clock page, and the addresses that the program passes.
//!
//! Not here: the mapping (`isola-linux-processes`).
#![no_std]
#![forbid(unsafe_code)]

#[path = "../image/page.rs"]
mod page;

pub use page::ClockPage;

/// The bytes of the image, an ELF file whose one segment is the file.
pub const IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/vdso.so"));

impl ClockPage {
    /// The number of bytes.
    pub const LEN: usize = size_of::<Self>();

    /// Returns the bytes, from the beginning of the page.
    pub fn bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.is_usable.to_le_bytes());
        for (place, word) in
            bytes[8..].chunks_exact_mut(8).zip([self.zero_cycles, self.ns_per_cycle, self.unix_ns_at_zero])
        {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }
}
