//! Memory that a driver shares, by device address.
//!
//! Copies change the bytes of their range only, so that a driver may use those beside it. Words of rings are read and written
//! as a whole.

use core::fmt;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_link_rings::bytes::{load_bytes, store_bytes, store_u16, store_u32};

/// The size of a word in bytes.
const WORD: usize = 8;

/// A driver named memory that it does not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideMemory {
    /// The device address.
    pub address: u64,
    /// The length, in bytes.
    pub len: usize,
}

impl fmt::Display for OutsideMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len } = self;
        write!(f, "{len} bytes at {address:#x} are not in the shared memory")
    }
}

impl core::error::Error for OutsideMemory {}

/// The memory that a driver shares.
#[derive(Clone, Debug)]
pub struct DriverMemory<M> {
    words: M,
    /// The device address of the first byte.
    base: u64,
}

impl<M: Deref<Target = [AtomicU64]>> DriverMemory<M> {
    /// Returns the memory in `words`, of which the driver says that its first byte has the device address `base`.
    pub fn new(words: M, base: u64) -> Self {
        Self { words, base }
    }

    /// Returns the offset of the `len` bytes at a device address.
    ///
    /// # Errors
    /// [`OutsideMemory`] if they are not all in the memory.
    pub fn offset(&self, address: u64, len: usize) -> Result<usize, OutsideMemory> {
        let outside = OutsideMemory { address, len };
        let offset = address.checked_sub(self.base).and_then(|offset| usize::try_from(offset).ok());
        let offset = offset.ok_or(outside)?;
        let end = offset.checked_add(len).ok_or(outside)?;
        if end <= self.words.len() * WORD { Ok(offset) } else { Err(outside) }
    }

    /// Reads the bytes at an offset. Bytes outside of the memory are left as they are in `into`: callers have checked the offset
    /// by [`Self::offset`]. If the driver writes at the same time, the result is any mixture of old and new bytes.
    #[inline]
    pub fn read(&self, offset: usize, into: &mut [u8]) {
        load_bytes(&self.words, offset, into);
    }

    /// Writes the bytes at an offset. Bytes outside of the memory are left out, as for [`Self::read`].
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) {
        store_bytes(&self.words, offset, from);
    }

    /// Reads the 16-bit word at an even offset, before all later reads.
    #[inline]
    pub(crate) fn read_u16(&self, offset: usize) -> u16 {
        let word = self.words.get(offset / WORD).map_or(0, |word| word.load(Ordering::Acquire));
        (word >> (8 * (offset % WORD))) as u16
    }

    /// Writes the 16-bit word at an even offset, after all earlier writes.
    #[inline]
    pub(crate) fn write_u16(&self, offset: usize, value: u16) {
        store_u16(&self.words, offset, value);
    }

    /// Writes the 32-bit word at an offset that is a multiple of 4, after all earlier writes.
    #[inline]
    pub(crate) fn write_u32(&self, offset: usize, value: u32) {
        store_u32(&self.words, offset, value);
    }

    /// Reads a word at an offset that is a multiple of 8.
    #[inline]
    pub(crate) fn load(&self, index: usize) -> u64 {
        self.words.get(index).map_or(0, |word| word.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    fn memory(words: usize) -> DriverMemory<Vec<AtomicU64>> {
        DriverMemory::new((0..words).map(|_| AtomicU64::new(0)).collect(), 0x1000)
    }

    #[test]
    fn bytes_come_back_from_every_offset_and_leave_their_neighbours_alone() {
        for offset in 0..20 {
            for len in 0..30 {
                let memory = memory(8);
                memory.write(0, &[0xee; 64]);
                let bytes: Vec<u8> = (1..=len).collect();
                memory.write(offset, &bytes);
                let mut back = vec![0; bytes.len()];
                memory.read(offset, &mut back);
                assert_eq!(back, bytes, "{len} at {offset}");
                let mut all = [0; 64];
                memory.read(0, &mut all);
                let end = offset + bytes.len();
                assert!(
                    all[..offset].iter().chain(&all[end..]).all(|byte| *byte == 0xee),
                    "{len} at {offset}"
                );
            }
        }
    }

    #[test]
    fn addresses_outside_of_the_memory_are_refused() {
        let memory = memory(8);
        assert_eq!(memory.offset(0x1000, 64), Ok(0));
        assert_eq!(memory.offset(0x103f, 1), Ok(63));
        assert_eq!(memory.offset(0x1040, 0), Ok(64));
        for (address, len) in
            [(0xfff, 1), (0x1000, 65), (0x103f, 2), (0x1041, 0), (u64::MAX, 1), (0x1001, usize::MAX)]
        {
            assert_eq!(memory.offset(address, len), Err(OutsideMemory { address, len }));
        }
    }
}
