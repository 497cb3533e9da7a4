//! Inodes of 256 bytes, and extent trees of one or two levels.

use super::{BLOCK_LEN, Extent};
use crate::tree::{Attributes, DeviceKind};

/// The bytes of an inode.
pub const INODE_LEN: usize = 256;
/// The extents of a block of an extent tree.
pub const EXTENTS_OF_BLOCK: usize = (BLOCK_LEN - ENTRY_LEN) / ENTRY_LEN;
/// The bytes of a symbolic link's target that the inode has itself.
pub const MOST_TARGET_IN_INODE: usize = 59;

/// The bytes of an extent, of an index entry, and of their header.
const ENTRY_LEN: usize = 12;
/// The extents of an inode.
const EXTENTS_OF_INODE: usize = 4;
/// The inode's blocks are an extent tree (`EXT4_EXTENTS_FL`).
const EXTENTS_FLAG: u32 = 0x8_0000;
/// The bytes of the fields behind the first 128.
const EXTRA_LEN: u16 = 32;

/// The type bits of a mode.
pub mod mode {
    pub const FIFO: u16 = 0o010_000;
    pub const CHARACTER: u16 = 0o020_000;
    pub const DIRECTORY: u16 = 0o040_000;
    pub const BLOCK: u16 = 0o060_000;
    pub const FILE: u16 = 0o100_000;
    pub const SYMLINK: u16 = 0o120_000;
}

/// An inode, as the disk has it.
pub struct Inode(pub [u8; INODE_LEN]);

impl Inode {
    pub fn new(type_bits: u16, attributes: &Attributes, links: u16) -> Self {
        let mut inode = Self([0; INODE_LEN]);
        let Attributes { permissions, user, group, modified } = *attributes;
        inode.put16(0x00, type_bits | (permissions & 0o7777) as u16);
        inode.put16(0x02, user as u16);
        inode.put16(0x78, (user >> 16) as u16);
        inode.put16(0x18, group as u16);
        inode.put16(0x7a, (group >> 16) as u16);
        inode.put16(0x1a, links);
        inode.put16(0x80, EXTRA_LEN);
        // Two bits continue the seconds, thirty are nanoseconds. The base is signed.
        let seconds = modified.seconds.clamp(i64::from(i32::MIN), (3 << 32) + i64::from(i32::MAX));
        let epoch = ((seconds - i64::from(seconds as i32)) >> 32) as u32 & 3;
        let extra = epoch | modified.nanoseconds.min(999_999_999) << 2;
        for (base, more) in [(0x08, 0x8c), (0x0c, 0x84), (0x10, 0x88), (0x90, 0x94)] {
            inode.put32(base, seconds as u32);
            inode.put32(more, extra);
        }
        inode
    }

    fn put16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    fn put32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    pub fn set_len(&mut self, len: u64) {
        self.put32(0x04, len as u32);
        self.put32(0x6c, (len >> 32) as u32);
    }

    /// Sets the number of blocks that the inode uses, those of its extent tree and attributes included.
    pub fn set_blocks(&mut self, blocks: u64) {
        let units = blocks * (BLOCK_LEN as u64 / 512);
        self.put32(0x1c, units as u32);
        self.put16(0x74, (units >> 32) as u16);
    }

    /// Sets the block of the extended attributes.
    pub fn set_attribute_block(&mut self, block: u64) {
        self.put32(0x68, block as u32);
    }

    /// Sets the target of a short symbolic link.
    pub fn set_target(&mut self, target: &[u8]) {
        self.0[0x28..0x28 + target.len()].copy_from_slice(target);
        self.set_len(target.len() as u64);
    }

    /// Sets the numbers of a device.
    pub fn set_device(&mut self, major: u32, minor: u32) {
        if major < 256 && minor < 256 {
            self.put32(0x28, major << 8 | minor);
        } else {
            self.put32(0x2c, minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12);
        }
    }

    /// Sets the extents. Returns the blocks of the extent tree, which the caller writes at `blocks`, as many as
    /// [`tree_blocks`] says.
    pub fn set_extents(&mut self, extents: &[Extent], blocks: &[u64]) -> Vec<Vec<u8>> {
        self.put32(0x20, EXTENTS_FLAG);
        let root = if blocks.is_empty() {
            node(extents.iter().copied().map(leaf_entry), EXTENTS_OF_INODE, 0)
        } else {
            let first = extents.chunks(EXTENTS_OF_BLOCK).map(|part| part[0].logical);
            let entries = first.zip(blocks).map(|(logical, block)| index_entry(logical, *block));
            node(entries, EXTENTS_OF_INODE, 1)
        };
        self.0[0x28..0x28 + root.len()].copy_from_slice(&root);
        let leaf = |part: &[Extent]| {
            let mut bytes = node(part.iter().copied().map(leaf_entry), EXTENTS_OF_BLOCK, 0);
            bytes.resize(BLOCK_LEN, 0);
            bytes
        };
        if blocks.is_empty() { Vec::new() } else { extents.chunks(EXTENTS_OF_BLOCK).map(leaf).collect() }
    }
}

/// Returns the number of blocks of an extent tree, beside its root in the inode.
pub fn tree_blocks(extents: usize) -> usize {
    if extents <= EXTENTS_OF_INODE { 0 } else { extents.div_ceil(EXTENTS_OF_BLOCK) }
}

/// Returns the type bits of a device.
pub fn device_bits(kind: DeviceKind) -> u16 {
    match kind {
        DeviceKind::Character => mode::CHARACTER,
        DeviceKind::Block => mode::BLOCK,
    }
}

/// Returns a node of an extent tree.
fn node(entries: impl Iterator<Item = [u8; ENTRY_LEN]>, most: usize, depth: u16) -> Vec<u8> {
    let entries: Vec<_> = entries.collect();
    let header = [0xf30a, entries.len() as u16, most as u16, depth, 0, 0];
    let mut bytes: Vec<u8> = header.into_iter().flat_map(u16::to_le_bytes).collect();
    entries.iter().for_each(|entry| bytes.extend_from_slice(entry));
    bytes
}

fn leaf_entry(extent: Extent) -> [u8; ENTRY_LEN] {
    let mut entry = [0; ENTRY_LEN];
    entry[0..4].copy_from_slice(&extent.logical.to_le_bytes());
    entry[4..6].copy_from_slice(&(extent.blocks as u16).to_le_bytes());
    entry[6..8].copy_from_slice(&((extent.start >> 32) as u16).to_le_bytes());
    entry[8..12].copy_from_slice(&(extent.start as u32).to_le_bytes());
    entry
}

fn index_entry(logical: u32, block: u64) -> [u8; ENTRY_LEN] {
    let mut entry = [0; ENTRY_LEN];
    entry[0..4].copy_from_slice(&logical.to_le_bytes());
    entry[4..8].copy_from_slice(&(block as u32).to_le_bytes());
    entry[8..10].copy_from_slice(&((block >> 32) as u16).to_le_bytes());
    entry
}
