//! The blocks of files: whether there is space for more, and which are allocated. The checks avoid what `rsext4` cannot
//! do.

use super::{Ext4, Mounted};
use crate::file_system::FileError;
use core::ops::Range;
use rsext4::{DirectoryEntryType, FileExtent, FileExtentMap, FileExtentState, FileExtentTarget, InodeNumber};

/// The blocks that stay free. `rsext4` loses blocks if it runs out of them within a change, so this crate checks before a
/// change that there are enough for its data and this number for its metadata.
const SPARE_BLOCKS: u64 = 32;

/// The most extents of a file without a first block that may get one.
const EXTENTS_IN_INODE: usize = 4;

impl Ext4 {
    /// Returns the most bytes of a file: blocks have numbers of 32 bits.
    pub(super) fn most_len(&self) -> Result<u64, FileError> {
        let mounted = self.mounted.as_ref().ok_or(FileError::Unmounted)?;
        Ok(mounted.statfs().block_size.saturating_mul(u64::from(u32::MAX)))
    }

    /// Returns the blocks that contain a part of a file, as a range of bytes.
    pub(super) fn in_blocks(&self, offset: u64, len: u64) -> Range<u64> {
        let block_len = self.mounted.as_ref().map_or(1, |mounted| mounted.statfs().block_size.max(1));
        let end = offset.saturating_add(len);
        offset - offset % block_len..end.checked_next_multiple_of(block_len).unwrap_or(u64::MAX)
    }

    /// Checks that there is space for `len` bytes at a position of a file, those that are allocated not counted.
    pub(super) fn check_space(&mut self, inode: InodeNumber, offset: u64, len: u64) -> Result<(), FileError> {
        let space = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs();
        let block_len = space.block_size.max(1);
        let first = offset / block_len;
        let blocks = offset.checked_add(len).ok_or(FileError::TooLarge)?.div_ceil(block_len) - first;
        if space.free_blocks >= blocks + SPARE_BLOCKS {
            return Ok(());
        }
        let (start, len) = (first * block_len, blocks * block_len);
        let most = usize::try_from(blocks).unwrap_or(usize::MAX);
        let map =
            self.call(|mounted| mounted.inode_extents(inode, start, len, FileExtentTarget::Data, most))?;
        let within = |extent: &FileExtent| {
            let (from, to) = (extent.logical_start, extent.logical_start.saturating_add(extent.length));
            to.min(start + len).saturating_sub(from.max(start))
        };
        let allocated: u64 = map.extents.iter().map(within).sum();
        let missing = blocks.saturating_sub(allocated / block_len);
        if missing == 0 || space.free_blocks >= missing + SPARE_BLOCKS {
            Ok(())
        } else {
            Err(FileError::NoSpace)
        }
    }

    /// Checks that there is space for a new entry of a directory.
    pub(super) fn check_space_for_entry(&self) -> Result<(), FileError> {
        let space = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs();
        if space.free_blocks < SPARE_BLOCKS || space.free_inodes == 0 {
            return Err(FileError::NoSpace);
        }
        Ok(())
    }

    /// Allocates the first block of a file before any other. `rsext4` damages an extent tree of three levels if an extent
    /// is added before the first one.
    pub(super) fn allocate_first_block(&mut self, inode: InodeNumber) -> Result<(), FileError> {
        if self.has_first_block == Some(inode) {
            return Ok(());
        }
        let block_len = self.mounted.as_ref().ok_or(FileError::Unmounted)?.statfs().block_size;
        let extents = |mounted: &mut Mounted, len| {
            mounted.inode_extents(inode, 0, len, FileExtentTarget::Data, EXTENTS_IN_INODE + 1)
        };
        let has_first =
            |map: &FileExtentMap| map.extents.first().is_some_and(|first| first.logical_start == 0);
        if !has_first(&self.call(|mounted| extents(mounted, block_len))?) {
            let all = self.call(|mounted| extents(mounted, i64::MAX as u64))?;
            if all.extents.len() > EXTENTS_IN_INODE {
                // Linux has made this file.
                return Err(FileError::Unsupported);
            }
            self.check_space(inode, 0, 1)?;
            self.unsynced.add(inode, 0..block_len);
            // A byte of the hole before the position that is written next.
            self.call(|mounted| mounted.write_inode(inode, 0, &[0]))?;
        }
        self.has_first_block = Some(inode);
        Ok(())
    }

    /// Returns whether the extent tree of a file may have three levels. `rsext4` fails to empty a part of such a tree, and
    /// changes nothing.
    pub(super) fn has_deep_tree(&mut self, inode: InodeNumber) -> bool {
        let count = |mounted: &mut Mounted| {
            let block_len = mounted.statfs().block_size as usize;
            // Four blocks, at least half full, of extents of 12 bytes.
            let in_two_levels = 4 * (block_len / 12 / 2);
            let map = mounted.inode_extents(inode, 0, i64::MAX as u64, FileExtentTarget::Data, 0)?;
            Ok(map.mapped_extents >= in_two_levels)
        };
        self.call(count).unwrap_or_default()
    }

    /// Returns whether a file may have blocks that were reserved and not written, also behind its end.
    pub(super) fn may_have_unwritten_blocks(&mut self, inode: InodeNumber) -> Result<bool, FileError> {
        const EXTENTS_IN_QUERY: usize = 256;
        let info = self.call(|mounted| mounted.inode(inode))?;
        if info.file_type() != DirectoryEntryType::RegularFile {
            return Ok(false);
        }
        let allocated_bytes = info.blocks.saturating_mul(512);
        let (mut start, mut written_bytes) = (0, 0);
        loop {
            let len = (i64::MAX as u64).saturating_sub(start);
            let target = FileExtentTarget::Data;
            let map =
                self.call(|mounted| mounted.inode_extents(inode, start, len, target, EXTENTS_IN_QUERY))?;
            let written = map.extents.iter().filter(|extent| extent.state == FileExtentState::Initialized);
            written_bytes += written.map(|extent| extent.length).sum::<u64>();
            match map.extents.last() {
                Some(last) if map.extents.len() == EXTENTS_IN_QUERY => {
                    start = last.logical_start + last.length
                }
                _ => return Ok(written_bytes < allocated_bytes),
            }
        }
    }
}
