//! The device's side of shared memory, for a device in software that processes a driver's rings.
//!
//! A driver takes its rings and buffers from a [`SharedMemory`] block ([`SharedMemory::region`],
//! [`SharedMemory::buffer`]). A [`PeerMemory`] reads and writes the block by device address, as a device would: at any
//! time, and never outside of the block, whatever addresses the driver has written into its rings.
//!
//! No reference into the block ever exists: every access, on either side, is a volatile read or write of an aligned word, or
//! a copy by a function in assembly. So one side can corrupt the other's data, but cannot cause undefined behaviour.
//!
//! [`SharedMemory::over`] takes memory that another cell maps, as a device of a service cell does: then that cell has the
//! device's side, and [`PeerMemory`] is not used.
//!
//! Not here: the rules for use of the bytes, and the format of the rings, which driver and device define.

use crate::dma::{Access, DmaBuffer, DmaRegion, SegmentPair, device_piece};
use crate::memory_functions::isola_memcpy;
use alloc::alloc::{alloc_zeroed, dealloc, handle_alloc_error};
use alloc::sync::Arc;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_abi::layout::PAGE_SIZE;

/// Zeroed, page-aligned memory, freed with its last part, or memory that is never freed.
#[derive(Debug)]
pub(crate) struct Block {
    base: NonNull<u8>,
    layout: Layout,
    ownership: Ownership,
}

/// Whether a block frees its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ownership {
    Owned,
    Borrowed,
}

// SAFETY: the block owns its memory, into which no references exist; it is only accessed by volatile reads and writes,
// as memory that a device uses.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Self {
        let len = len.max(1).next_multiple_of(PAGE_SIZE as usize);
        let layout = Layout::from_size_align(len, PAGE_SIZE as usize).expect("a block of sane length");
        // SAFETY: the layout's size is not zero.
        let base = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(base).unwrap_or_else(|| handle_alloc_error(layout));
        Self { base, layout, ownership: Ownership::Owned }
    }

    /// Returns the block in words that are never freed; `None` if they are not whole pages, at least one.
    fn over(words: &'static [AtomicU64]) -> Option<Self> {
        let base = NonNull::from(words).cast::<u8>();
        let len = size_of_val(words);
        let is_pages = [base.addr().get(), len].iter().all(|value| value.is_multiple_of(PAGE_SIZE as usize));
        let layout = Layout::from_size_align(len, PAGE_SIZE as usize).ok()?;
        (is_pages && len > 0).then_some(Self { base, layout, ownership: Ownership::Borrowed })
    }

    /// Returns the address of the `len` bytes from `offset`; `None` if they are not all within the block.
    pub(crate) fn piece(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.layout.size() {
            return None;
        }
        // SAFETY: `offset` is within the block, as checked above.
        Some(unsafe { self.base.add(offset) })
    }

    /// Returns the address of the `len` bytes at device address `address`.
    fn at(&self, address: u64, len: usize) -> Result<NonNull<u8>, OutsideError> {
        let outside = OutsideError { address, len };
        let (start, _) = device_piece(self.base.as_ptr(), 1, Access::DeviceWrites).ok_or(outside)?;
        let offset = address.checked_sub(start).ok_or(outside)?;
        self.piece(usize::try_from(offset).map_err(|_| outside)?, len).ok_or(outside)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.ownership == Ownership::Borrowed {
            return;
        }
        // SAFETY: `new` allocated the memory with the same layout; every part of the block holds a share in it, so none
        // is left.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// Memory for a driver whose device is software. Each part is handed out once and not taken back.
#[derive(Debug)]
pub struct SharedMemory {
    block: Arc<Block>,
    used: AtomicUsize,
}

impl SharedMemory {
    /// Creates a block of at least `len` bytes, rounded up to whole pages.
    pub fn new(len: usize) -> Self {
        Self { block: Arc::new(Block::new(len)), used: AtomicUsize::new(0) }
    }

    /// Returns the block in words of the heap, which another cell may map, and sets them to zero.
    /// `None` if they are not whole pages, at least one, or not in a row for devices.
    ///
    /// # Safety
    /// As long as a part of the block is in use, no other code of this cell accesses the words, also not by another block: the
    /// accesses to a part are not atomic, as those to memory of which the block is the only owner.
    pub unsafe fn over(words: &'static [AtomicU64]) -> Option<Self> {
        let block = Block::over(words)?;
        let len = block.layout.size();
        let piece = device_piece(words.as_ptr().cast(), len, Access::DeviceWrites);
        piece.filter(|(_, in_a_row)| *in_a_row == len)?;
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        Some(Self { block: Arc::new(block), used: AtomicUsize::new(0) })
    }

    /// Returns the device address of the first byte.
    pub fn base(&self) -> Option<u64> {
        device_piece(self.block.base.as_ptr(), 1, Access::DeviceWrites).map(|(address, _)| address)
    }

    /// Takes a region of at least `len` bytes for rings, page-aligned; `None` if less is left.
    pub fn region(&self, len: usize) -> Option<DmaRegion> {
        let len = len.max(1).checked_next_multiple_of(PAGE_SIZE as usize)?;
        let offset = self.take(len)?;
        // SAFETY: `take` hands out each byte once.
        unsafe { DmaRegion::in_block(&self.block, offset, len) }
    }

    /// Takes a buffer of `len` bytes, page-aligned; `None` if less is left.
    pub fn buffer(&self, len: usize) -> Option<SharedBuffer> {
        let offset = self.take(len.checked_next_multiple_of(PAGE_SIZE as usize)?)?;
        Some(SharedBuffer { block: Arc::clone(&self.block), offset, capacity: len, len })
    }

    /// Returns the device's view of the block.
    pub fn peer(&self) -> PeerMemory {
        PeerMemory { block: Arc::clone(&self.block) }
    }

    /// Takes `len` bytes, each of them once.
    fn take(&self, len: usize) -> Option<usize> {
        let size = self.block.layout.size();
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                used.checked_add(len).filter(|&end| end <= size)
            })
            .ok()
    }
}

/// A buffer that can be lent to a device in software. It is read and written by copying, as the device may have kept
/// its address.
#[derive(Debug)]
pub struct SharedBuffer {
    block: Arc<Block>,
    offset: usize,
    /// The buffer's size, and the part of it in use, in bytes.
    capacity: usize,
    len: usize,
}

impl SharedBuffer {
    /// Returns the length of the buffer, in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the buffer is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Sets the buffer's length to `len` bytes, or its size if that is less.
    pub fn set_len(&mut self, len: usize) {
        self.len = len.min(self.capacity);
    }

    /// Copies bytes from `offset` on, up to the buffer's end. Returns the number of bytes.
    pub fn read_at(&self, offset: usize, into: &mut [u8]) -> usize {
        let count = into.len().min(self.len.saturating_sub(offset));
        let base = self.offset.checked_add(offset).and_then(|start| self.block.piece(start, count));
        if let (Some(base), Some(into)) = (base, into.get_mut(..count)) {
            read_bytes(base, into);
        }
        count
    }

    /// Copies bytes to `offset`, up to the buffer's end. Returns the number of bytes.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> usize {
        let count = from.len().min(self.len.saturating_sub(offset));
        let base = self.offset.checked_add(offset).and_then(|start| self.block.piece(start, count));
        if let (Some(base), Some(from)) = (base, from.get(..count)) {
            write_bytes(base, from);
        }
        count
    }

    /// Copies from the buffer's beginning, up to the shorter of the two lengths. Returns the number of bytes.
    pub fn read(&self, into: &mut [u8]) -> usize {
        self.read_at(0, into)
    }

    /// Copies to the buffer's beginning, up to the shorter of the two lengths. Returns the number of bytes.
    pub fn write(&mut self, from: &[u8]) -> usize {
        self.write_at(0, from)
    }
}

// SAFETY: the block stays at its address while the buffer holds its share in it, and `take` gave the bytes to this
// buffer alone; the buffer's own accesses need a reference to it, which the driver does not have while the buffer is
// lent.
unsafe impl DmaBuffer for SharedBuffer {
    fn for_each_segment(&self, mut visit: impl FnMut(*const u8, usize)) {
        if let Some(base) = self.block.piece(self.offset, self.len) {
            visit(base.as_ptr(), self.len);
        }
    }

    #[inline]
    fn segment_pair(&self) -> Option<SegmentPair> {
        let base = self.block.piece(self.offset, self.len).filter(|_| self.len > 0)?;
        Some(SegmentPair { first: (base.as_ptr(), self.len), second: None })
    }
}

/// A block of memory from the side of a device in software.
#[derive(Clone, Debug)]
pub struct PeerMemory {
    block: Arc<Block>,
}

/// A device was asked to access an address outside of the memory that it shares with the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsideError {
    /// The device address.
    pub address: u64,
    /// The length of the access, in bytes.
    pub len: usize,
}

impl fmt::Display for OutsideError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, len } = self;
        write!(
            f,
            "{len} bytes at {address:#x} are not in the memory shared with the driver: refuse the request"
        )
    }
}

impl core::error::Error for OutsideError {}

impl PeerMemory {
    /// Reads the bytes at device address `address`.
    ///
    /// # Errors
    /// [`OutsideError`] if they are not all in the block.
    pub fn read(&self, address: u64, into: &mut [u8]) -> Result<(), OutsideError> {
        read_bytes(self.block.at(address, into.len())?, into);
        Ok(())
    }

    /// Writes the bytes at device address `address`.
    ///
    /// # Errors
    /// [`OutsideError`] if they are not all in the block.
    pub fn write(&self, address: u64, from: &[u8]) -> Result<(), OutsideError> {
        write_bytes(self.block.at(address, from.len())?, from);
        Ok(())
    }

    /// Reads the little-endian word at device address `address` in one access.
    ///
    /// # Errors
    /// [`OutsideError`] if it is not all in the block, or not aligned.
    pub fn read_u16(&self, address: u64) -> Result<u16, OutsideError> {
        let place = self.block.at(address, 2)?.cast::<u16>();
        if !place.is_aligned() {
            return Err(OutsideError { address, len: 2 });
        }
        // SAFETY: `at` returns an address within the block, and it is aligned.
        Ok(u16::from_le(unsafe { place.read_volatile() }))
    }

    /// Writes a little-endian word at device address `address` in one access.
    ///
    /// # Errors
    /// As for the read.
    pub fn write_u16(&self, address: u64, value: u16) -> Result<(), OutsideError> {
        let place = self.block.at(address, 2)?.cast::<u16>();
        if !place.is_aligned() {
            return Err(OutsideError { address, len: 2 });
        }
        // SAFETY: as for the read.
        unsafe { place.write_volatile(value.to_le()) };
        Ok(())
    }
}

/// Copies from memory that the other side may write at the same time: each byte of `into` is one that the memory had. `base`
/// is within a live block for the length of `into`: the callers in this file got it from [`Block::piece`] for that length.
///
/// The function that copies is in assembly, so the compiler assumes nothing of the memory: in particular not that a second
/// read returns the same.
fn read_bytes(base: NonNull<u8>, into: &mut [u8]) {
    // SAFETY: see above; no reference into the block exists, so `into` is elsewhere.
    unsafe { isola_memcpy(into.as_mut_ptr(), base.as_ptr(), into.len()) };
}

/// Copies to memory that the other side may read at the same time, as [`read_bytes`].
fn write_bytes(base: NonNull<u8>, from: &[u8]) {
    // SAFETY: see `read_bytes`.
    unsafe { isola_memcpy(base.as_ptr(), from.as_ptr(), from.len()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn address_of(buffer: &SharedBuffer) -> u64 {
        let mut piece = None;
        buffer.for_each_segment(|start, len| piece = device_piece(start, len, Access::DeviceWrites));
        piece.unwrap().0
    }

    #[test]
    fn both_sides_see_one_memory() {
        let memory = SharedMemory::new(2 * 4096);
        let mut region = memory.region(100).unwrap();
        let mut buffer = memory.buffer(5).unwrap();
        let peer = memory.peer();
        region.write_u16(6, 0x1234);
        assert_eq!(peer.read_u16(region.device_address(6)), Ok(0x1234));
        peer.write_u16(region.device_address(8), 0xabcd).unwrap();
        assert_eq!(region.read_u16(8), 0xabcd);
        assert_eq!(buffer.write(b"hello world"), 5);
        let mut bytes = [0; 5];
        peer.read(address_of(&buffer), &mut bytes).unwrap();
        assert_eq!(&bytes, b"hello");
        peer.write(address_of(&buffer), b"J").unwrap();
        assert_eq!(buffer.read(&mut bytes), 5);
        assert_eq!(&bytes, b"Jello");
        buffer.set_len(2);
        assert_eq!(buffer.write(b"wide"), 2);
        buffer.set_len(100);
        assert_eq!((buffer.len(), buffer.read(&mut bytes)), (5, 5));
        assert_eq!(&bytes, b"willo");
    }

    #[test]
    fn parts_never_overlap_and_end_with_the_block() {
        let memory = SharedMemory::new(3 * 4096);
        let first = memory.region(1).unwrap();
        let second = memory.buffer(4097).unwrap();
        assert_eq!(first.device_address(0) + 4096, address_of(&second));
        assert!(memory.region(1).is_none());
        assert!(memory.buffer(usize::MAX).is_none());
    }

    #[test]
    fn a_peer_cannot_leave_the_block() {
        let memory = SharedMemory::new(4096);
        let start = memory.region(4096).unwrap().device_address(0);
        let peer = memory.peer();
        for (address, len) in [(start - 1, 2), (start + 4095, 2), (start + 4096, 1), (0, 1), (u64::MAX, 1)] {
            assert_eq!(peer.read(address, &mut [0; 2][..len]), Err(OutsideError { address, len }));
            assert_eq!(peer.write(address, &[0; 2][..len]), Err(OutsideError { address, len }));
        }
        assert!(peer.read_u16(start + 4095).is_err());
        assert!(peer.write_u16(start + 1, 0).is_err());
        assert!(peer.read(start + 4096, &mut []).is_ok());
    }

    #[test]
    fn words_of_another_cell_too_become_a_block_if_they_are_whole_pages() {
        const WORDS: usize = PAGE_SIZE as usize / size_of::<AtomicU64>();
        let memory: &'static [AtomicU64] = Vec::leak((0..4 * WORDS).map(|_| AtomicU64::new(!0)).collect());
        let first = memory.as_ptr().align_offset(PAGE_SIZE as usize);
        let pages = &memory[first..first + 2 * WORDS];
        // SAFETY: no part of these blocks is used.
        let over =
            |start: usize, end: usize| unsafe { SharedMemory::over(&memory[first + start..first + end]) };
        assert!(over(1, WORDS + 1).is_none() && over(0, 0).is_none() && over(0, WORDS + 1).is_none());
        assert!(pages.iter().all(|word| word.load(Ordering::Relaxed) == !0), "a refusal changes no word");
        let shared = over(0, 2 * WORDS).expect("two pages");
        let all = memory.iter().enumerate();
        let zeros = all.filter(|(_, word)| word.load(Ordering::Relaxed) == 0).map(|(index, _)| index);
        assert!(zeros.eq(first..first + 2 * WORDS), "the words of the block alone are cleared");
        let (mut region, mut buffer) = (shared.region(4096).unwrap(), shared.buffer(4096).unwrap());
        assert!(shared.buffer(1).is_none() && shared.region(1).is_none());
        region.write_u16(0, 7);
        buffer.write(&[9]);
        drop((region, buffer, shared));
        assert_eq!([0, WORDS].map(|word| pages[word].load(Ordering::Relaxed)), [7, 9], "they are not freed");
    }

    #[test]
    fn parts_keep_the_block_alive() {
        let memory = SharedMemory::new(8192);
        let (mut region, peer) = (memory.region(1).unwrap(), memory.peer());
        drop(memory);
        region.write_u16(0, 7);
        assert_eq!(peer.read_u16(region.device_address(0)), Ok(7));
    }
}
