//! The blocks of directories: entries one behind the other.

use super::BLOCK_LEN;

/// The type of a directory's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryType {
    File = 1,
    Directory = 2,
    Character = 3,
    Block = 4,
    Fifo = 5,
    Symlink = 7,
}

/// The blocks of a directory, under construction.
pub struct DirectoryBlocks {
    bytes: Vec<u8>,
    /// The start of the last entry.
    last: usize,
}

impl DirectoryBlocks {
    /// Begins a directory with the entries of itself and its parent.
    pub fn new(own: u32, parent: u32) -> Self {
        let mut blocks = Self { bytes: Vec::new(), last: 0 };
        blocks.push(b".", own, EntryType::Directory);
        blocks.push(b"..", parent, EntryType::Directory);
        blocks
    }

    pub fn push(&mut self, name: &[u8], inode: u32, entry_type: EntryType) {
        let len = (8 + name.len()).next_multiple_of(4);
        let used = self.bytes.len() % BLOCK_LEN;
        if self.bytes.is_empty() || used + len > BLOCK_LEN || used == 0 {
            self.fill_block();
        }
        self.last = self.bytes.len();
        self.bytes.extend_from_slice(&inode.to_le_bytes());
        self.bytes.extend_from_slice(&(len as u16).to_le_bytes());
        self.bytes.push(name.len() as u8);
        self.bytes.push(entry_type as u8);
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.last + len, 0);
    }

    /// Makes the last entry end with its block.
    fn fill_block(&mut self) {
        if self.bytes.is_empty() {
            return;
        }
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK_LEN), 0);
        let len = (self.bytes.len() - self.last) as u16;
        self.bytes[self.last + 4..self.last + 6].copy_from_slice(&len.to_le_bytes());
    }

    pub fn finish(mut self) -> Vec<u8> {
        self.fill_block();
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_with_their_blocks() {
        let mut blocks = DirectoryBlocks::new(11, 2);
        for index in 0..40 {
            blocks.push(&[b'a' + index; 255], 100 + u32::from(index), EntryType::File);
        }
        let bytes = blocks.finish();
        assert_eq!(bytes.len() % BLOCK_LEN, 0);
        let (mut at, mut inodes) = (0, Vec::new());
        while at < bytes.len() {
            let len = usize::from(u16::from_le_bytes([bytes[at + 4], bytes[at + 5]]));
            inodes.push(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
            assert_eq!(at / BLOCK_LEN, (at + len - 1) / BLOCK_LEN);
            at += len;
        }
        assert_eq!(inodes, [11, 2].into_iter().chain(100..140).collect::<Vec<_>>());
    }
}
