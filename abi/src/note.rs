//! The ELF note of a cell image, with the image's entry points.
//!
//! The image has a `PT_NOTE` entry of owner [`OWNER`] and type [`TYPE`], whose 24-byte description is an [`ImageNote`]
//! in little-endian order. Next to it is the PVH note by which a loader boots the same image standalone.

/// The note's owner, without the terminating zero byte that ELF adds.
pub const OWNER: &str = "Isola";

/// The note's type.
pub const TYPE: u32 = 1;

/// The distance between the entry points of two consecutive interrupt vectors, in bytes.
pub const VECTOR_STRIDE: u64 = 16;

/// The number of interrupt vectors for which an image has entry points.
pub const VECTOR_COUNT: u64 = 256;

/// A flag of a segment that only a standalone image uses. The supervisor does not load the segment into a cell. The bit
/// is in the range that ELF reserves for operating systems (`PF_MASKOS`).
pub const BOOT_ALONE: u32 = 0x0010_0000;

/// The entry points of an image.
///
/// The supervisor calls `entry` as `extern "sysv64" fn(core_index: u64) -> !` on each core of the cell: in the cell's
/// address space, on the core's own stack, with interrupts off, GDT, TSS and interrupt table loaded, and the descriptor
/// at [`crate::layout::DESCRIPTOR`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageNote {
    /// The [`crate::VERSION`] of the image's build.
    pub version: u32,
    /// The address of the entry point.
    pub entry: u64,
    /// The address of the first interrupt vector's entry point; the others follow at [`VECTOR_STRIDE`].
    pub vectors: u64,
}

impl ImageNote {
    /// The length of the description, in bytes: version, zero, entry, vectors.
    pub const LEN: usize = 24;

    /// Decodes a description. Returns `None` if its length is not [`Self::LEN`].
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
