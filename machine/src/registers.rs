//! Bounds-checked ranges of device registers: the compiler neither drops nor merges nor reorders their reads and
//! writes, and no access leaves the range.

use core::ptr::NonNull;

/// A range of device registers. The value is the right to use the device.
#[derive(Debug)]
pub struct Registers {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the value is an address and a length; the registers can be used from any core.
unsafe impl Send for Registers {}

macro_rules! accessors {
    ($($read:ident $write:ident $type:ty;)*) => {$(
        #[doc = concat!("Reads the `", stringify!($type), "` at `offset`, in the device's byte order.")]
        ///
        /// # Panics
        /// If the word is not within the range or not aligned: offsets are constants, or [`Self::window`] has checked
        /// them.
        #[inline]
        pub fn $read(&self, offset: usize) -> $type {
            // SAFETY: `place` returns an aligned address within the range, for which the caller of `new` guarantees
            // valid accesses.
            unsafe { self.place::<$type>(offset).read_volatile() }
        }

        #[doc = concat!("Writes the `", stringify!($type), "` at `offset`, in the device's byte order.")]
        ///
        /// # Panics
        /// As the read.
        #[inline]
        pub fn $write(&self, offset: usize, value: $type) {
            // SAFETY: as for the read.
            unsafe { self.place::<$type>(offset).write_volatile(value) }
        }
    )*};
}

impl Registers {
    /// Creates the range of `len` bytes at `base`.
    ///
    /// # Safety
    /// As long as the value lives, `base..base + len` must be mapped and contain device registers (or memory that is
    /// accessed only through values of this type), and no read or write there may break memory that Rust code relies
    /// on.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Returns the address of the first register.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Returns the length of the range, in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the same range a second time.
    pub(crate) const fn duplicate(&self) -> Self {
        Self { base: self.base, len: self.len }
    }

    /// Returns the part of `len` bytes from `offset` as a range of its own; `None` if this range does not contain it.
    /// Both stay usable: a device's structures may overlap.
    pub fn window(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset` is within the range, so the address is within its memory.
        let base = unsafe { self.base.add(offset) };
        Some(Self { base, len })
    }

    #[inline]
    fn place<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.len), "register {offset:#x} is outside of its window");
        // SAFETY: `offset` is within the range, as checked above.
        let place = unsafe { self.base.add(offset) }.cast::<T>();
        assert!(place.is_aligned(), "register {offset:#x} is not aligned");
        place.as_ptr()
    }

    accessors! {
        read_u8 write_u8 u8;
        read_u16 write_u16 u16;
        read_u32 write_u32 u32;
        read_u64 write_u64 u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(memory: &mut [u64; 4]) -> Registers {
        // SAFETY: the array outlives the range in each test, and is accessed only through it meanwhile.
        unsafe { Registers::new(NonNull::from(memory).cast(), 32) }
    }

    #[test]
    fn words_are_written_at_their_offsets() {
        let mut memory = [0; 4];
        let registers = window(&mut memory);
        registers.write_u32(12, 0x1234_5678);
        assert_eq!(registers.read_u16(14), 0x1234);
        let part = registers.window(8, 8).unwrap();
        assert_eq!(part.read_u64(0), 0x1234_5678_0000_0000);
    }

    #[test]
    fn parts_beyond_the_range_do_not_exist() {
        let mut memory = [0; 4];
        let registers = window(&mut memory);
        assert!(registers.window(24, 9).is_none());
        assert!(registers.window(usize::MAX, 2).is_none());
        assert!(registers.window(32, 0).is_some_and(|part| part.is_empty()));
    }

    #[test]
    #[should_panic(expected = "outside of its window")]
    fn reading_past_the_end_panics() {
        window(&mut [0; 4]).read_u32(29);
    }

    #[test]
    #[should_panic(expected = "not aligned")]
    fn reading_off_alignment_panics() {
        window(&mut [0; 4]).read_u32(2);
    }
}
