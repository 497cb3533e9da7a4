//! Windows of device registers: reads and writes that the compiler neither drops nor merges nor reorders, and
//! that cannot leave the window.

use core::ptr::NonNull;

/// A window of device registers. Whoever has it may use the device.
#[derive(Debug)]
pub struct Registers {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a window is an address and a length; the registers behind it can be used from any core.
unsafe impl Send for Registers {}

macro_rules! accessors {
    ($($read:ident $write:ident $type:ty;)*) => {$(
        #[doc = concat!("Reads the `", stringify!($type), "` at `offset`, in the device's byte order.")]
        ///
        /// # Panics
        /// Where it is not within the window or not aligned: offsets are constants, or checked by
        /// [`Self::window`] beforehand.
        #[inline]
        pub fn $read(&self, offset: usize) -> $type {
            // SAFETY: `place` returns an aligned address within the window, which `new`'s caller vouched for.
            unsafe { self.place::<$type>(offset).read_volatile() }
        }

        #[doc = concat!("Writes the `", stringify!($type), "` at `offset`, in the device's byte order.")]
        ///
        /// # Panics
        /// As reading does.
        #[inline]
        pub fn $write(&self, offset: usize, value: $type) {
            // SAFETY: as for reading.
            unsafe { self.place::<$type>(offset).write_volatile(value) }
        }
    )*};
}

impl Registers {
    /// The window of `len` bytes at `base`.
    ///
    /// # Safety
    /// For as long as the window lives, `base..base + len` must be mapped, must hold device registers (or
    /// memory that is accessed in no other way than through windows), and reading or writing them must not
    /// break memory that Rust code relies on.
    pub const unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Address of the first register.
    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    /// Length of the window, in bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether the window has no registers at all.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The same window once more.
    pub(crate) const fn duplicate(&self) -> Self {
        Self { base: self.base, len: self.len }
    }

    /// The part of the window of `len` bytes from `offset` on, as a window of its own; `None` where it is not
    /// all within this one. Both stay usable: a device's structures may overlap.
    pub fn window(&self, offset: usize, len: usize) -> Option<Self> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset` is within the window, so that the address is within its memory.
        let base = unsafe { self.base.add(offset) };
        Some(Self { base, len })
    }

    #[inline]
    fn place<T>(&self, offset: usize) -> *mut T {
        let end = offset.checked_add(size_of::<T>());
        assert!(end.is_some_and(|end| end <= self.len), "register {offset:#x} is outside of its window");
        // SAFETY: `offset` is within the window.
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
        // SAFETY: the array outlives the window in each test, and is used through it alone meanwhile.
        unsafe { Registers::new(NonNull::from(memory).cast(), 32) }
    }

    #[test]
    fn values_land_where_they_are_written() {
        let mut memory = [0; 4];
        let registers = window(&mut memory);
        registers.write_u32(12, 0x1234_5678);
        assert_eq!(registers.read_u16(14), 0x1234);
        let part = registers.window(8, 8).unwrap();
        assert_eq!(part.read_u64(0), 0x1234_5678_0000_0000);
    }

    #[test]
    fn windows_cannot_be_left() {
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
