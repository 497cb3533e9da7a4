//! Inodes, directories, bitmaps, descriptors of groups and the superblock.

use super::attributes::block_of;
use super::directory::{DirectoryBlocks, EntryType};
use super::inode::{INODE_LEN, Inode, MOST_TARGET_IN_INODE, device_bits, mode, tree_blocks};
use super::{BLOCK_LEN, BLOCKS_OF_GROUP, Content, Extent, FIRST_FREE_BLOCK, ImageWriter};
use crate::BuildError;
use crate::tree::{DeviceKind, ExtendedAttributes, Node, NodeId, NodeKind, Tree};
use std::collections::BTreeMap;
use std::fs::File;

/// The inode of the root directory, and the first one of other files.
const ROOT_INODE: u32 = 2;
const FIRST_INODE: u32 = 11;
/// The inodes of a block.
const INODES_OF_BLOCK: u64 = (BLOCK_LEN / INODE_LEN) as u64;
/// The most groups: their descriptors are in one block.
const MOST_GROUPS: u64 = (BLOCK_LEN / DESCRIPTOR_LEN) as u64;
const DESCRIPTOR_LEN: usize = 32;
/// The most names of a file.
const MOST_LINKS: u32 = 65_000;
/// The most inodes that share a block of attributes.
const MOST_REFERENCES: u32 = 1024;

/// The sets of attributes, each with its block and its users, so far.
type AttributeBlocks = BTreeMap<ExtendedAttributes, (u64, u32)>;

/// The rest of an image, under construction.
struct Finish<'a> {
    writer: ImageWriter,
    tree: &'a Tree,
    /// The inode numbers of the nodes that have names.
    numbers: BTreeMap<NodeId, u32>,
    /// The inodes from number 11 on, and that of the root.
    inodes: BTreeMap<u32, (Inode, bool)>,
    /// The blocks in use.
    used: Bitmap,
    attribute_blocks: AttributeBlocks,
}

impl ImageWriter {
    /// Writes the names and attributes of all files, which completes the image. `identity` becomes the file system's UUID.
    ///
    /// # Errors
    /// [`BuildError::TooLarge`], [`BuildError::Links`], [`BuildError::Attributes`], [`BuildError::Write`].
    pub fn finish(self, tree: &Tree, identity: [u8; 16]) -> Result<File, BuildError> {
        let mut finish = Finish {
            writer: self,
            tree,
            numbers: BTreeMap::new(),
            inodes: BTreeMap::new(),
            used: Bitmap::default(),
            attribute_blocks: BTreeMap::new(),
        };
        finish.used.set(0, FIRST_FREE_BLOCK);
        finish.write_files()?;
        finish.write_attribute_blocks()?;
        finish.write_groups(identity)?;
        Ok(finish.writer.file)
    }
}

impl Finish<'_> {
    /// Numbers the nodes, and writes all that belongs to one.
    fn write_files(&mut self) -> Result<(), BuildError> {
        let tree = self.tree;
        let nodes = tree.nodes_in_use();
        self.numbers.insert(tree.root(), ROOT_INODE);
        let others = nodes.keys().filter(|node| **node != tree.root());
        self.numbers.extend(others.copied().zip(FIRST_INODE..));
        for (id, usage) in &nodes {
            let node = tree.node(*id);
            let number = self.numbers[id];
            let is_directory = matches!(node.kind, NodeKind::Directory(_));
            let links = match (is_directory, usage.names) {
                // `dir_nlink`: a directory with more has one link.
                (true, names) if names >= MOST_LINKS => 1,
                (false, names) if names > MOST_LINKS => return Err(BuildError::Links { most: MOST_LINKS }),
                (_, names) => names as u16,
            };
            let parent = self.numbers[&usage.parent];
            let inode = self.write_file(node, number, parent, links)?;
            self.inodes.insert(number, (inode, is_directory));
        }
        Ok(())
    }

    fn write_file(&mut self, node: &Node, number: u32, parent: u32, links: u16) -> Result<Inode, BuildError> {
        let new = |bits| Inode::new(bits, &node.attributes, links);
        let (mut inode, mut blocks) = match &node.kind {
            NodeKind::File(content) => {
                let mut inode = new(mode::FILE);
                let blocks = self.set_content(&mut inode, content)?;
                (inode, blocks)
            }
            NodeKind::Directory(names) => {
                let mut bytes = DirectoryBlocks::new(number, parent);
                for (name, entry) in names {
                    bytes.push(name, self.numbers[&entry.node], entry_type(self.tree.node(entry.node)));
                }
                let mut inode = new(mode::DIRECTORY);
                let blocks = self.write_bytes(&mut inode, bytes.finish())?;
                (inode, blocks)
            }
            NodeKind::Symlink(target) if target.len() <= MOST_TARGET_IN_INODE => {
                let mut inode = new(mode::SYMLINK);
                inode.set_target(target);
                (inode, 0)
            }
            NodeKind::Symlink(target) => {
                let mut inode = new(mode::SYMLINK);
                let blocks = self.write_bytes(&mut inode, target.clone())?;
                (inode, blocks)
            }
            NodeKind::Device(kind, major, minor) => {
                let mut inode = new(device_bits(*kind));
                inode.set_device(*major, *minor);
                (inode, 0)
            }
            NodeKind::Fifo => (new(mode::FIFO), 0),
        };
        if !node.extended.is_empty() {
            inode.set_attribute_block(self.attribute_block(&node.extended)?);
            blocks += 1;
        }
        inode.set_blocks(blocks);
        Ok(inode)
    }

    /// Writes the contents of a directory or link.
    fn write_bytes(&mut self, inode: &mut Inode, mut bytes: Vec<u8>) -> Result<u64, BuildError> {
        let len = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(BLOCK_LEN), 0);
        let mut content = Content { len, extents: Vec::new() };
        for (logical, block) in bytes.chunks(BLOCK_LEN).enumerate() {
            let start = self.writer.write_blocks(block)?;
            content.push(logical as u32, start, 1);
        }
        self.set_content(inode, &content)
    }

    /// Sets the contents of an inode. Returns the number of their blocks.
    fn set_content(&mut self, inode: &mut Inode, content: &Content) -> Result<u64, BuildError> {
        inode.set_len(content.len);
        for Extent { start, blocks, .. } in &content.extents {
            self.used.set(*start, u64::from(*blocks));
        }
        let count = tree_blocks(content.extents.len());
        let first = self.writer.next_block;
        let blocks: Vec<u64> = (first..first + count as u64).collect();
        for block in inode.set_extents(&content.extents, &blocks) {
            self.writer.write_blocks(&block)?;
        }
        self.used.set(first, count as u64);
        Ok(content.blocks() + count as u64)
    }

    /// Returns the block with these attributes, for one more inode.
    fn attribute_block(&mut self, attributes: &ExtendedAttributes) -> Result<u64, BuildError> {
        if let Some((block, references)) = self.attribute_blocks.get_mut(attributes)
            && *references < MOST_REFERENCES
        {
            *references += 1;
            return Ok(*block);
        }
        // A block that has all its references is complete.
        if let Some((block, references)) = self.attribute_blocks.get(attributes) {
            self.writer.write_at(*block, &block_of(attributes, *references)?)?;
        }
        let block = self.writer.write_blocks(&[0; BLOCK_LEN])?;
        self.used.set(block, 1);
        self.attribute_blocks.insert(attributes.clone(), (block, 1));
        Ok(block)
    }

    fn write_attribute_blocks(&mut self) -> Result<(), BuildError> {
        for (attributes, (block, references)) in &self.attribute_blocks {
            self.writer.write_at(*block, &block_of(attributes, *references)?)?;
        }
        Ok(())
    }

    fn write_groups(&mut self, identity: [u8; 16]) -> Result<(), BuildError> {
        let first = self.writer.next_block;
        let inodes = u64::from(self.inodes.keys().next_back().copied().unwrap_or(FIRST_INODE));
        let layout = Layout::new(first, inodes).ok_or(BuildError::TooLarge)?;
        self.used.set(first, layout.metadata_blocks());
        self.free_unused(first);
        let mut descriptors = vec![0; BLOCK_LEN];
        let mut free = (0, 0);
        for group in 0..layout.groups {
            let of_group = self.write_group(&layout, group, &mut free)?;
            let at = group as usize * DESCRIPTOR_LEN;
            descriptors[at..at + DESCRIPTOR_LEN].copy_from_slice(&of_group);
        }
        self.writer.write_at(1, &descriptors)?;
        self.writer.set_len(layout.groups * BLOCKS_OF_GROUP).map_err(BuildError::Write)?;
        let superblock = superblock(&layout, free, identity);
        // Last, so that an image that is not complete is no file system.
        self.writer.write_at(0, &superblock)
    }

    /// Frees the storage of contents that no file has.
    fn free_unused(&self, end: u64) {
        let mut first = FIRST_FREE_BLOCK;
        while first < end {
            let is_used = self.used.get(first);
            let last = (first..end).find(|block| self.used.get(*block) != is_used).unwrap_or(end);
            if !is_used {
                self.writer.punch_hole(first, last - first);
            }
            first = last;
        }
    }

    /// Writes the bitmaps and inodes of a group, and adds its free blocks and inodes to `free`. Returns its descriptor.
    fn write_group(
        &self,
        layout: &Layout,
        group: u64,
        free: &mut (u64, u64),
    ) -> Result<[u8; DESCRIPTOR_LEN], BuildError> {
        let blocks = self.used.of_group(group);
        let free_blocks =
            BLOCKS_OF_GROUP - blocks.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        self.writer.write_at(layout.block_bitmap(group), &blocks)?;

        let first = group * layout.inodes_of_group;
        let range = (first + 1) as u32..(first + layout.inodes_of_group + 1) as u32;
        let mut bitmap = Bitmap::default();
        // Reserved inodes, and bits behind the last inode.
        if group == 0 {
            bitmap.set(0, u64::from(FIRST_INODE) - 1);
        }
        let mut table = vec![0; (layout.inodes_of_group as usize) * INODE_LEN];
        let mut directories = 0_u16;
        for (number, (inode, is_directory)) in self.inodes.range(range) {
            let index = u64::from(*number) - 1 - first;
            bitmap.set(index, 1);
            let at = index as usize * INODE_LEN;
            table[at..at + INODE_LEN].copy_from_slice(&inode.0);
            directories += u16::from(*is_directory);
        }
        let used: u64 = bitmap.0.iter().map(|byte| u64::from(byte.count_ones())).sum();
        let free_inodes = layout.inodes_of_group - used;
        bitmap.set(layout.inodes_of_group, BLOCKS_OF_GROUP - layout.inodes_of_group);
        self.writer.write_at(layout.inode_bitmap(group), &bitmap.of_group(0))?;
        self.writer.write_at(layout.inode_table(group), &table)?;

        free.0 += free_blocks;
        free.1 += free_inodes;
        let mut descriptor = [0; DESCRIPTOR_LEN];
        let words = [
            (0, layout.block_bitmap(group)),
            (4, layout.inode_bitmap(group)),
            (8, layout.inode_table(group)),
        ];
        for (at, block) in words {
            descriptor[at..at + 4].copy_from_slice(&(block as u32).to_le_bytes());
        }
        for (at, count) in [(12, free_blocks as u16), (14, free_inodes as u16), (16, directories)] {
            descriptor[at..at + 2].copy_from_slice(&count.to_le_bytes());
        }
        Ok(descriptor)
    }
}

fn entry_type(node: &Node) -> EntryType {
    match &node.kind {
        NodeKind::File(_) => EntryType::File,
        NodeKind::Directory(_) => EntryType::Directory,
        NodeKind::Symlink(_) => EntryType::Symlink,
        NodeKind::Device(DeviceKind::Character, ..) => EntryType::Character,
        NodeKind::Device(DeviceKind::Block, ..) => EntryType::Block,
        NodeKind::Fifo => EntryType::Fifo,
    }
}

/// The places of the groups' metadata: all bitmaps, then all inode tables.
struct Layout {
    groups: u64,
    inodes_of_group: u64,
    first: u64,
}

impl Layout {
    /// Returns the layout of a file system with metadata from a block on; `None` if there would be too many groups.
    fn new(first: u64, inodes: u64) -> Option<Self> {
        let mut groups = first.div_ceil(BLOCKS_OF_GROUP).max(inodes.div_ceil(BLOCKS_OF_GROUP)).max(1);
        loop {
            let inodes_of_group = inodes.div_ceil(groups).next_multiple_of(INODES_OF_BLOCK);
            let layout = Self { groups, inodes_of_group, first };
            if groups > MOST_GROUPS {
                return None;
            }
            if first + layout.metadata_blocks() <= groups * BLOCKS_OF_GROUP {
                return Some(layout);
            }
            groups += 1;
        }
    }

    fn table_blocks(&self) -> u64 {
        self.inodes_of_group / INODES_OF_BLOCK
    }

    fn metadata_blocks(&self) -> u64 {
        self.groups * (2 + self.table_blocks())
    }

    fn block_bitmap(&self, group: u64) -> u64 {
        self.first + group
    }

    fn inode_bitmap(&self, group: u64) -> u64 {
        self.first + self.groups + group
    }

    fn inode_table(&self, group: u64) -> u64 {
        self.first + 2 * self.groups + group * self.table_blocks()
    }
}

/// Bits in the order of ext4's bitmaps; those behind the end are 0.
#[derive(Default)]
struct Bitmap(Vec<u8>);

impl Bitmap {
    fn set(&mut self, first: u64, count: u64) {
        for bit in first..first + count {
            let at = (bit / 8) as usize;
            if at >= self.0.len() {
                self.0.resize(at + 1, 0);
            }
            self.0[at] |= 1 << (bit % 8);
        }
    }

    fn get(&self, bit: u64) -> bool {
        self.0.get((bit / 8) as usize).is_some_and(|byte| byte >> (bit % 8) & 1 == 1)
    }

    fn of_group(&self, group: u64) -> Vec<u8> {
        let first = (group as usize * BLOCK_LEN).min(self.0.len());
        let mut bytes = self.0[first..(first + BLOCK_LEN).min(self.0.len())].to_vec();
        bytes.resize(BLOCK_LEN, 0);
        bytes
    }
}

/// Returns the first block.
fn superblock(layout: &Layout, free: (u64, u64), identity: [u8; 16]) -> Vec<u8> {
    /// `ext_attr`, `sparse_super2`.
    const COMPATIBLE: u32 = 0x8 | 0x200;
    /// `filetype`, `extents`, `flex_bg`.
    const INCOMPATIBLE: u32 = 0x2 | 0x40 | 0x200;
    /// `large_file`, `dir_nlink`, `extra_isize`.
    const READ_ONLY_COMPATIBLE: u32 = 0x2 | 0x20 | 0x40;
    let mut block = vec![0; BLOCK_LEN];
    let superblock = &mut block[1024..2048];
    for (at, word) in [
        (0x00, (layout.groups * layout.inodes_of_group) as u32),
        (0x04, (layout.groups * BLOCKS_OF_GROUP) as u32),
        (0x0c, free.0 as u32),
        (0x10, free.1 as u32),
        // Blocks and clusters of 1024 << 2 bytes.
        (0x18, 2),
        (0x1c, 2),
        (0x20, BLOCKS_OF_GROUP as u32),
        (0x24, BLOCKS_OF_GROUP as u32),
        (0x28, layout.inodes_of_group as u32),
        (0x4c, 1),
        (0x54, FIRST_INODE),
        (0x5c, COMPATIBLE),
        (0x60, INCOMPATIBLE),
        (0x64, READ_ONLY_COMPATIBLE),
        // Hashes of names treat bytes as unsigned.
        (0x160, 2),
    ] {
        superblock[at..at + 4].copy_from_slice(&u32::to_le_bytes(word));
    }
    for (at, half) in [
        // No limit of mounts; the magic number; clean; errors are ignored.
        (0x36, 0xffff),
        (0x38, 0xef53),
        (0x3a, 1),
        (0x3c, 1),
        (0x58, INODE_LEN as u16),
        (0x15c, 32),
        (0x15e, 32),
    ] {
        superblock[at..at + 2].copy_from_slice(&u16::to_le_bytes(half));
    }
    superblock[0x68..0x78].copy_from_slice(&identity);
    // All groups are one flexible group.
    superblock[0x174] = 8;
    block
}
