//! A reader of numbers and bytes from a chain.

use crate::Chain;

/// Reads a chain from front to back. A read beyond the end returns `None` and does not move the cursor.
#[derive(Clone, Debug)]
pub struct Cursor<'a> {
    chain: &'a Chain,
    part: usize,
    offset: usize,
    left: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(chain: &'a Chain) -> Self {
        Self { chain, part: 0, offset: 0, left: chain.len() }
    }

    /// Returns the number of bytes until the end.
    pub fn remaining(&self) -> usize {
        self.left
    }

    /// Returns the contiguous bytes at the cursor; empty only at the end.
    pub fn chunk(&self) -> &'a [u8] {
        self.chain.part(self.part).map_or(&[], |part| &part[self.offset..])
    }

    /// Skips `count` bytes.
    pub fn advance(&mut self, count: usize) -> Option<()> {
        self.left = self.left.checked_sub(count)?;
        let mut left = count;
        while left > 0 {
            let here = self.chunk().len();
            if left < here {
                self.offset += left;
                return Some(());
            }
            left -= here;
            self.part += 1;
            self.offset = 0;
        }
        Some(())
    }

    /// Fills `out`.
    pub fn read_slice(&mut self, out: &mut [u8]) -> Option<()> {
        if out.len() > self.left {
            return None;
        }
        let mut filled = 0;
        while filled < out.len() {
            let chunk = self.chunk();
            let take = chunk.len().min(out.len() - filled);
            out[filled..filled + take].copy_from_slice(&chunk[..take]);
            filled += take;
            self.advance(take)?;
        }
        Some(())
    }

    /// Reads `N` bytes.
    pub fn read_array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut out = [0; N];
        self.read_slice(&mut out)?;
        Some(out)
    }

    /// Reads one byte.
    pub fn read_u8(&mut self) -> Option<u8> {
        self.read_array::<1>().map(|[byte]| byte)
    }

    /// Reads a big-endian `u16`, the order of network headers.
    pub fn read_u16_be(&mut self) -> Option<u16> {
        self.read_array().map(u16::from_be_bytes)
    }

    /// Reads a big-endian `u32`.
    pub fn read_u32_be(&mut self) -> Option<u32> {
        self.read_array().map(u32::from_be_bytes)
    }

    /// Reads a big-endian `u64`.
    pub fn read_u64_be(&mut self) -> Option<u64> {
        self.read_array().map(u64::from_be_bytes)
    }

    /// Returns the distance to the next occurrence of `byte`, if there is one.
    pub fn find(&self, byte: u8) -> Option<usize> {
        let mut ahead = self.clone();
        let mut distance = 0;
        while ahead.left > 0 {
            let chunk = ahead.chunk();
            if let Some(at) = chunk.iter().position(|&candidate| candidate == byte) {
                return Some(distance + at);
            }
            distance += chunk.len();
            ahead.advance(chunk.len())?;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IoBuf;

    fn chain(parts: &[&[u8]]) -> Chain {
        parts.iter().map(|part| IoBuf::copy_from_slice(part)).collect()
    }

    #[test]
    fn a_cursor_reads_across_parts_and_stops_at_the_end() {
        let chain = chain(&[&[1], &[2, 3, 4], &[5, 6, 7]]);
        let mut cursor = chain.cursor();
        assert_eq!(cursor.read_u16_be(), Some(0x0102));
        assert_eq!(cursor.find(6), Some(3));
        assert_eq!(cursor.read_u32_be(), Some(0x0304_0506));
        assert_eq!(cursor.read_u16_be(), None);
        assert_eq!(cursor.read_u8(), Some(7));
        assert_eq!(cursor.read_u8(), None);
        assert_eq!(cursor.remaining(), 0);
    }
}
