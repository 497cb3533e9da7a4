//! The ELF note by which a cell image says how it is entered.
//!
//! The image carries a `PT_NOTE` entry of owner [`OWNER`] and type [`TYPE`], whose 24-byte description is an
//! [`ImageNote`] in little-endian order. Beside it stands the PVH note that makes the same image boot alone.

/// The note's owner, without the closing zero byte that ELF adds.
pub const OWNER: &str = "Isola";

/// The note's type.
pub const TYPE: u32 = 1;

/// Distance between the entry points of two interrupt vectors, in bytes.
pub const VECTOR_STRIDE: u64 = 16;

/// Number of interrupt vectors that an image has entry points for.
pub const VECTOR_COUNT: u64 = 256;

/// In a segment's flags: only who boots alone uses it, so a cell under a supervisor is without it. One of those that ELF
/// leaves to systems.
pub const BOOT_ALONE: u32 = 0x0010_0000;

/// How an image is entered.
///
/// `entry` is called as `extern "sysv64" fn(core_index: u64) -> !` on every core of the cell: in the cell's
/// address space, on the core's own stack, with interrupts off, GDT, TSS and interrupt table loaded, and
/// everything the cell needs to know at [`crate::layout::DESCRIPTOR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageNote {
    /// [`crate::VERSION`] that the image was built with.
    pub version: u32,
    /// Address of the entry point.
    pub entry: u64,
    /// Address of the first interrupt vector's entry point; the others follow at [`VECTOR_STRIDE`].
    pub vectors: u64,
}

impl ImageNote {
    /// Length of the description, in bytes: version, zero, entry, vectors.
    pub const LEN: usize = 24;

    /// Reads a description, or returns `None` where its length is not [`Self::LEN`].
    pub fn decode(description: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = description.try_into().ok()?;
        let (version, rest) = bytes.split_first_chunk::<4>()?;
        let (_, rest) = rest.split_first_chunk::<4>()?;
        let (entry, rest) = rest.split_first_chunk::<8>()?;
        let (vectors, _) = rest.split_first_chunk::<8>()?;
        Some(Self {
            version: u32::from_le_bytes(*version),
            entry: u64::from_le_bytes(*entry),
            vectors: u64::from_le_bytes(*vectors),
        })
    }
}
