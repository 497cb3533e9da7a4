//! Rings and words in memory that driver and device share. [`RingMemory`] checks bounds and alignment once, when it
//! takes a ring from the memory, so that an access is one or two instructions.
//!
//! Accesses are volatile reads and writes of words, as those of [`DmaRegion`]. Invariant: parts are taken in ascending
//! order, so no two overlap, and each has one owner on the driver's side.

use crate::dma::DmaRegion;
use alloc::sync::Arc;
use core::fmt;
use core::ptr::NonNull;

/// The memory of rings. It stays at its address while this value or a part of it lives.
#[derive(Debug)]
pub struct RingMemory {
    region: Arc<OwnedRegion>,
    /// The end of the last part, in bytes.
    cut_to: usize,
}

/// Owns a region without access to its bytes.
#[derive(Debug)]
struct OwnedRegion(DmaRegion);

// SAFETY: nothing is read from or written to the region through this type.
unsafe impl Sync for OwnedRegion {}

/// An entry of a ring.
///
/// # Safety
/// `read` and `write` must access only the bytes of `Self` at the given address.
pub unsafe trait RingEntry: Copy {
    /// Reads a little-endian entry.
    ///
    /// # Safety
    /// The address must be aligned and valid.
    unsafe fn read(address: *const Self) -> Self;

    /// Writes a little-endian entry.
    ///
    /// # Safety
    /// As for the read.
    unsafe fn write(address: *mut Self, value: Self);
}

// SAFETY: both functions access the word at the given address alone.
unsafe impl RingEntry for u16 {
    #[inline(always)]
    unsafe fn read(address: *const Self) -> Self {
        // SAFETY: the caller guarantees an aligned, valid address.
        Self::from_le(unsafe { address.read_volatile() })
    }

    #[inline(always)]
    unsafe fn write(address: *mut Self, value: Self) {
        // SAFETY: the caller guarantees an aligned, valid address.
        unsafe { address.write_volatile(value.to_le()) }
    }
}

macro_rules! pairs {
    ($($word:ty)*) => {$(
        // SAFETY: both functions access only the two words of the array at the given address.
        unsafe impl RingEntry for [$word; 2] {
            #[inline(always)]
            unsafe fn read(address: *const Self) -> Self {
                let first = address.cast::<$word>();
                // SAFETY: the caller guarantees an aligned, valid address; the second word is within the array.
                unsafe { [<$word>::from_le(first.read_volatile()), <$word>::from_le(first.add(1).read_volatile())] }
            }

            #[inline(always)]
            unsafe fn write(address: *mut Self, [one, two]: Self) {
                let first = address.cast::<$word>();
                // SAFETY: the caller guarantees an aligned, valid address; the second word is within the array.
                unsafe {
                    first.write_volatile(one.to_le());
                    first.add(1).write_volatile(two.to_le());
                }
            }
        }
    )*};
}

pairs! { u32 u64 }

impl RingMemory {
    /// Takes over a region.
    pub fn new(region: DmaRegion) -> Self {
        Self { region: Arc::new(OwnedRegion(region)), cut_to: 0 }
    }

    /// Takes a ring of `len` entries, the first at byte `offset`.
    ///
    /// # Panics
    /// If `len` is no power of two, or the ring is not within the memory, not aligned, or begins before the end of the
    /// last part.
    pub fn ring<T: RingEntry>(&mut self, offset: usize, len: usize) -> DmaRing<T> {
        assert!(len.is_power_of_two(), "a ring's positions wrap around at a power of two");
        let address = self.cut(offset, len * size_of::<T>(), align_of::<T>());
        DmaRing { base: address.cast(), mask: len - 1, _memory: Arc::clone(&self.region) }
    }

    /// Takes a word at byte `offset`.
    ///
    /// # Panics
    /// As for a ring.
    pub fn word(&mut self, offset: usize) -> DmaWord {
        let address = self.cut(offset, size_of::<u16>(), align_of::<u16>());
        DmaWord { address: address.cast(), _memory: Arc::clone(&self.region) }
    }

    fn cut(&mut self, offset: usize, len: usize, align: usize) -> NonNull<u8> {
        assert!(offset >= self.cut_to, "parts of a ring's memory are cut out one after the other");
        let address = self.region.0.piece(offset, len, align).expect("a ring lies in its memory");
        self.cut_to = offset + len;
        address
    }

    /// Returns the device address of the byte at `offset`.
    ///
    /// # Panics
    /// As [`DmaRegion::device_address`].
    pub fn device_address(&self, offset: usize) -> u64 {
        self.region.0.device_address(offset)
    }

    /// Leaks the memory, as a device may still use it.
    pub fn leak(&self) {
        core::mem::forget(Arc::clone(&self.region));
    }
}

/// A ring of entries. Positions increase without end; the ring uses them modulo its length.
pub struct DmaRing<T> {
    base: NonNull<T>,
    mask: usize,
    _memory: Arc<OwnedRegion>,
}

// SAFETY: on the driver's side only this ring accesses the entries (`RingMemory::cut`), and they are plain words.
unsafe impl<T: RingEntry> Send for DmaRing<T> {}

impl<T: RingEntry> DmaRing<T> {
    /// Reads the entry at a position.
    #[inline(always)]
    pub fn read(&self, position: usize) -> T {
        // SAFETY: the masked position is within the ring, which is aligned and in memory that `self` keeps alive.
        unsafe { T::read(self.base.add(position & self.mask).as_ptr()) }
    }

    /// Writes the entry at a position.
    #[inline(always)]
    pub fn write(&mut self, position: usize, value: T) {
        // SAFETY: as for the read.
        unsafe { T::write(self.base.add(position & self.mask).as_ptr(), value) }
    }
}

impl<T> fmt::Debug for DmaRing<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaRing({} entries)", self.mask + 1)
    }
}

/// A word of 16 bits.
#[derive(Debug)]
pub struct DmaWord {
    address: NonNull<u16>,
    _memory: Arc<OwnedRegion>,
}

// SAFETY: on the driver's side only this value accesses the word (`RingMemory::cut`).
unsafe impl Send for DmaWord {}

impl DmaWord {
    /// Reads the word.
    #[inline(always)]
    pub fn read(&self) -> u16 {
        // SAFETY: the word is aligned and in memory that `self` keeps alive.
        unsafe { u16::read(self.address.as_ptr()) }
    }

    /// Writes the word.
    #[inline(always)]
    pub fn write(&mut self, value: u16) {
        // SAFETY: as for the read.
        unsafe { u16::write(self.address.as_ptr(), value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_wrap_around_and_parts_are_at_their_offsets() {
        let mut memory = RingMemory::new(DmaRegion::new(4096));
        let mut ring = memory.ring::<[u32; 2]>(4, 4);
        let mut word = memory.word(4 + 4 * 8);
        ring.write(6, [1, 2]);
        word.write(3);
        assert_eq!((ring.read(2), ring.read(3), word.read()), ([1, 2], [0, 0], 3));
    }

    #[test]
    #[should_panic(expected = "one after the other")]
    fn no_two_parts_overlap() {
        let mut memory = RingMemory::new(DmaRegion::new(4096));
        let _ring = memory.ring::<u16>(0, 4);
        memory.word(6);
    }

    #[test]
    #[should_panic(expected = "lies in its memory")]
    fn a_ring_that_exceeds_its_memory_panics() {
        RingMemory::new(DmaRegion::new(4096)).ring::<[u64; 2]>(16, 256);
    }
}
