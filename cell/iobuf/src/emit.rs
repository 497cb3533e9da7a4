//! A writer of numbers and bytes into a buffer, from front to back.

/// Writes bytes from front to back. A write that does not fit writes nothing and returns `None`.
///
/// For the result of [`IoBufMut::append`](crate::IoBufMut::append) or [`IoBufMut::prepend`](crate::IoBufMut::prepend):
/// the caller reserves a header of known length once, then fills it.
#[derive(Debug)]
pub struct Emitter<'a> {
    left: &'a mut [u8],
}

impl<'a> Emitter<'a> {
    /// Returns an emitter that fills `bytes`.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        Self { left: bytes }
    }

    /// Returns the number of bytes not yet written.
    pub fn remaining(&self) -> usize {
        self.left.len()
    }

    /// Writes bytes.
    pub fn put_slice(&mut self, bytes: &[u8]) -> Option<()> {
        if bytes.len() > self.left.len() {
            return None;
        }
        let (target, left) = core::mem::take(&mut self.left).split_at_mut(bytes.len());
        target.copy_from_slice(bytes);
        self.left = left;
        Some(())
    }

    /// Writes one byte.
    pub fn put_u8(&mut self, value: u8) -> Option<()> {
        self.put_slice(&[value])
    }

    /// Writes a big-endian `u16`, the order of network headers.
    pub fn put_u16_be(&mut self, value: u16) -> Option<()> {
        self.put_slice(&value.to_be_bytes())
    }

    /// Writes a big-endian `u32`.
    pub fn put_u32_be(&mut self, value: u32) -> Option<()> {
        self.put_slice(&value.to_be_bytes())
    }

    /// Writes a big-endian `u64`.
    pub fn put_u64_be(&mut self, value: u64) -> Option<()> {
        self.put_slice(&value.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chain, IoBufMut};

    #[test]
    fn a_cursor_reads_the_emitted_values() {
        let mut buf = IoBufMut::with_room(0, 20);
        let mut emit = Emitter::new(buf.append(20).unwrap());
        emit.put_u8(1).unwrap();
        emit.put_u16_be(0x0203).unwrap();
        emit.put_u32_be(0x0405_0607).unwrap();
        emit.put_u64_be(0x0809_0a0b_0c0d_0e0f).unwrap();
        emit.put_slice(b"end").unwrap();
        assert_eq!(emit.remaining(), 2);
        let chain = Chain::from(buf.freeze());
        let mut cursor = chain.cursor();
        assert_eq!((cursor.read_u8(), cursor.read_u16_be()), (Some(1), Some(0x0203)));
        assert_eq!(
            (cursor.read_u32_be(), cursor.read_u64_be()),
            (Some(0x0405_0607), Some(0x0809_0a0b_0c0d_0e0f))
        );
        assert_eq!(cursor.read_array(), Some(*b"end"));
    }

    #[test]
    fn a_write_that_does_not_fit_writes_nothing() {
        let mut bytes = [7; 3];
        let mut emit = Emitter::new(&mut bytes);
        assert_eq!(emit.put_u32_be(0), None);
        assert_eq!(emit.put_u16_be(0x0102), Some(()));
        assert_eq!(emit.put_u16_be(0), None);
        assert_eq!(emit.put_slice(&[]), Some(()));
        assert_eq!(emit.remaining(), 1);
        assert_eq!(bytes, [1, 2, 7]);
    }
}
