//! Writes read-only ext4 file systems without a journal.
//!
//! ```text
//!   block 0      1            2 ..                            then                 to a multiple of 128 MiB
//!   superblock   descriptors  contents of files, as they come  directories, links,  free (a hole of the file)
//!                of groups                                     inodes, bitmaps
//! ```
//!
//! Contents are written while a source is read, before the names of all files are known. All else follows at the end
//! ([`ImageWriter::finish`]). `flex_bg` permits the bitmaps and inode tables of all groups to be in one place, and
//! `sparse_super2` a file system without copies of its superblock. Blocks of files that a later layer removes are free.
//!
//! | module | contents |
//! |---|---|
//! | this | contents of files |
//! | `inode` | inodes and extent trees |
//! | `directory` | the blocks of directories |
//! | `attributes` | blocks of extended attributes |
//! | `finish` | all of the rest |
//!
//! The format is that of `Documentation/filesystems/ext4` in Linux.

mod attributes;
mod directory;
mod finish;
mod inode;

pub use attributes::is_storable;

use crate::{BuildError, MOST_BYTES};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// The bytes of a block.
pub const BLOCK_LEN: usize = 4096;
/// The blocks of a group: those that a bitmap of one block has.
const BLOCKS_OF_GROUP: u64 = 8 * BLOCK_LEN as u64;
/// The bytes of a hole. Shorter runs of zeros are written.
const HOLE_LEN: usize = 64 * 1024;
/// The most extents of a file: four blocks of an extent tree have them. A file with more gets no further holes.
const MOST_EXTENTS: usize = 4 * inode::EXTENTS_OF_BLOCK;
/// Extents that stay free for the rest of a file without holes.
const SPARE_EXTENTS: usize = 256;
/// The most blocks of an extent.
const MOST_BLOCKS_OF_EXTENT: u32 = 32768;
/// The superblock and the descriptors of groups.
const FIRST_FREE_BLOCK: u64 = 2;

/// A file with the file system that it will have.
#[derive(Debug)]
pub struct ImageWriter {
    file: File,
    next_block: u64,
    /// The bytes of contents so far, holes included.
    bytes: u64,
}

/// The contents of a file, in the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The length in bytes.
    pub len: u64,
    extents: Vec<Extent>,
}

/// Adjacent blocks of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    /// The first block, counted within the file.
    logical: u32,
    /// The first block in the image.
    start: u64,
    blocks: u32,
}

impl Content {
    /// Adds blocks at the end.
    fn push(&mut self, logical: u32, start: u64, blocks: u32) {
        if let Some(last) = self.extents.last_mut()
            && last.logical + last.blocks == logical
            && last.start + u64::from(last.blocks) == start
            && last.blocks + blocks <= MOST_BLOCKS_OF_EXTENT
        {
            last.blocks += blocks;
        } else {
            self.extents.push(Extent { logical, start, blocks });
        }
    }

    /// Returns the blocks that are not holes.
    fn blocks(&self) -> u64 {
        self.extents.iter().map(|extent| u64::from(extent.blocks)).sum()
    }
}

impl ImageWriter {
    /// Begins an image in an empty file.
    pub fn new(file: File) -> Self {
        Self { file, next_block: FIRST_FREE_BLOCK, bytes: 0 }
    }

    /// Writes the contents of a file: `len` bytes of `source`.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`] for more than [`MOST_BYTES`] in all files, [`BuildError::Read`] if the source fails or ends
    /// before, [`BuildError::Write`].
    pub fn write_content(&mut self, source: &mut dyn Read, len: u64) -> Result<Content, BuildError> {
        self.bytes = self.bytes.saturating_add(len);
        if self.bytes > MOST_BYTES {
            return Err(BuildError::TooLarge);
        }
        let mut content = Content { len, extents: Vec::new() };
        let mut buffer = vec![0; HOLE_LEN];
        let (mut done, mut logical) = (0, 0);
        while done < len {
            let now = (len - done).min(HOLE_LEN as u64) as usize;
            source.read_exact(&mut buffer[..now]).map_err(BuildError::Read)?;
            let blocks = now.div_ceil(BLOCK_LEN);
            // The rest of the last block is zeros.
            buffer[now..].fill(0);
            let may_be_hole = content.extents.len() + SPARE_EXTENTS < MOST_EXTENTS;
            if !may_be_hole || buffer[..now].iter().any(|byte| *byte != 0) {
                let start = self.write_blocks(&buffer[..blocks * BLOCK_LEN])?;
                content.push(logical, start, blocks as u32);
            }
            done += now as u64;
            logical += blocks as u32;
        }
        Ok(content)
    }

    /// Writes whole blocks at the next free ones. Returns the first block.
    fn write_blocks(&mut self, bytes: &[u8]) -> Result<u64, BuildError> {
        let start = self.next_block;
        self.write_at(start, bytes)?;
        self.next_block += (bytes.len() / BLOCK_LEN) as u64;
        Ok(start)
    }

    fn write_at(&self, block: u64, bytes: &[u8]) -> Result<(), BuildError> {
        self.file.write_all_at(bytes, block * BLOCK_LEN as u64).map_err(BuildError::Write)
    }

    /// Frees the storage of unused blocks, where the host's file system can.
    fn punch_hole(&self, first: u64, blocks: u64) {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // The blocks are free in the file system in any case.
        let _ = fallocate(&self.file, flags, first * BLOCK_LEN as u64, blocks * BLOCK_LEN as u64);
    }

    fn set_len(&self, blocks: u64) -> io::Result<()> {
        self.file.set_len(blocks * BLOCK_LEN as u64)
    }
}
