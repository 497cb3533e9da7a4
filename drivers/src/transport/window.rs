//! Windows of device registers, real or simulated.

use core::fmt;
use isola_machine::registers::Registers;

/// A window of device registers: [`Registers`], or a device model in host tests.
///
/// The caller checks offsets and widths against [`Self::len`]: accesses outside of the window panic.
pub trait RegisterWindow: Send + fmt::Debug + Sized + 'static {
    /// Returns the length of the window, in bytes.
    fn len(&self) -> usize;

    /// Returns whether the window has no registers.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the part of `len` bytes from `offset` on as a window, `None` if it is not entirely inside.
    fn window(&self, offset: usize, len: usize) -> Option<Self>;

    /// Reads a byte.
    fn read_u8(&self, offset: usize) -> u8;

    /// Reads 16 bits.
    fn read_u16(&self, offset: usize) -> u16;

    /// Reads 32 bits.
    fn read_u32(&self, offset: usize) -> u32;

    /// Writes a byte.
    fn write_u8(&self, offset: usize, value: u8);

    /// Writes 16 bits.
    fn write_u16(&self, offset: usize, value: u16);

    /// Writes 32 bits.
    fn write_u32(&self, offset: usize, value: u32);
}

impl RegisterWindow for Registers {
    fn len(&self) -> usize {
        self.len()
    }

    fn window(&self, offset: usize, len: usize) -> Option<Self> {
        self.window(offset, len)
    }

    #[inline]
    fn read_u8(&self, offset: usize) -> u8 {
        self.read_u8(offset)
    }

    #[inline]
    fn read_u16(&self, offset: usize) -> u16 {
        self.read_u16(offset)
    }

    #[inline]
    fn read_u32(&self, offset: usize) -> u32 {
        self.read_u32(offset)
    }

    #[inline]
    fn write_u8(&self, offset: usize, value: u8) {
        self.write_u8(offset, value);
    }

    #[inline]
    fn write_u16(&self, offset: usize, value: u16) {
        self.write_u16(offset, value);
    }

    #[inline]
    fn write_u32(&self, offset: usize, value: u32) {
        self.write_u32(offset, value);
    }
}
