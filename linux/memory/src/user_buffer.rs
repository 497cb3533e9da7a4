//! Bytes of a program, as parts of frames.

use alloc::vec::Vec;
use isola_memory::frame::{FRAME_SIZE, Frame};
use smallvec::SmallVec;

/// A part of a frame.
#[derive(Clone, Debug)]
pub struct FramePart {
    /// The frame. The reference keeps its memory in use, also if the program unmaps the page meanwhile.
    pub frame: Frame,
    /// Offset of the first byte.
    pub offset: usize,
    /// Number of bytes.
    pub len: usize,
}

/// Bytes of a program: the buffers of a call, resolved to frames, in the call's order, with a position. The frames of a
/// buffer to write to are the program's own: writable, and no copies on write.
///
/// Another thread of the program can change the bytes at any time. The frames are pinned: after a `fork`, they are still
/// those of the process.
#[derive(Debug, Default)]
pub struct UserBuffer {
    /// Most buffers have one part, or two if they cross a page: those need no memory of the heap.
    parts: SmallVec<[FramePart; 2]>,
    /// The part with the position, and the position's offset in it.
    part: usize,
    offset: usize,
    left: usize,
}

impl UserBuffer {
    /// Creates a buffer of these parts.
    ///
    /// # Panics
    /// If a part is not within its frame.
    pub fn new(parts: Vec<FramePart>) -> Self {
        Self::of_parts(SmallVec::from_vec(parts))
    }

    /// Creates a buffer of one part.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn of_part(part: FramePart) -> Self {
        assert!(
            part.offset.checked_add(part.len).is_some_and(|end| end <= FRAME_SIZE),
            "a part is not within its frame"
        );
        let mut buffer = Self::default();
        buffer.push(part);
        buffer
    }

    fn of_parts(parts: SmallVec<[FramePart; 2]>) -> Self {
        let within =
            |part: &FramePart| part.offset.checked_add(part.len).is_some_and(|end| end <= FRAME_SIZE);
        assert!(parts.iter().all(within), "a part is not within its frame");
        let left = parts.iter().map(|part| part.len).sum();
        parts.iter().for_each(|part| part.frame.pin());
        Self { parts, part: 0, offset: 0, left }
    }

    /// Reserves memory for so many parts more.
    pub(crate) fn reserve(&mut self, parts: usize) {
        self.parts.reserve(parts);
    }

    /// Returns the most owners of a frame.
    pub(crate) fn most_owners(&self) -> u32 {
        self.parts.iter().map(|part| part.frame.owners()).max().unwrap_or(0)
    }

    /// Returns the number of parts.
    pub(crate) fn parts(&self) -> usize {
        self.parts.len()
    }

    /// Adds a part of a frame at the end.
    pub(crate) fn push(&mut self, part: FramePart) {
        part.frame.pin();
        self.left += part.len;
        self.parts.push(part);
    }

    /// Removes the last part, which must not have been read or written.
    pub(crate) fn pop(&mut self) {
        if let Some(part) = self.parts.pop() {
            self.left -= part.len;
            part.frame.unpin();
        }
    }

    /// Creates a buffer of frames of its own with these bytes: for calls of the kernel itself, and for tests.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        let part = |bytes: &[u8]| {
            let frame = Frame::zeroed();
            frame.write(0, bytes);
            FramePart { frame, offset: 0, len: bytes.len() }
        };
        Self::new(bytes.chunks(FRAME_SIZE).map(part).collect())
    }

    /// Returns the number of bytes from the position on.
    pub fn len(&self) -> usize {
        self.left
    }

    /// Ends the buffer at most `len` bytes behind the position.
    pub fn limit(&mut self, len: usize) {
        self.left = self.left.min(len);
    }

    /// Returns whether no bytes are left.
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Shortens the buffer to at most `len` bytes from the position on.
    pub fn truncate(&mut self, len: usize) {
        self.left = self.left.min(len);
    }

    /// Copies bytes from the position on, as many as are left and fit. Returns their number, and moves the position.
    pub fn read(&mut self, bytes: &mut [u8]) -> usize {
        let mut done = 0;
        self.advance(bytes.len(), |part| {
            part.frame.read(part.offset, &mut bytes[done..done + part.len]);
            done += part.len;
        });
        done
    }

    /// Copies bytes to the position, as many as fit. Returns their number, and moves the position.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        self.advance(bytes.len(), |part| {
            part.frame.write(part.offset, &bytes[done..done + part.len]);
            done += part.len;
        });
        done
    }

    /// Writes zeros, at most `len`. Returns their number, and moves the position.
    pub fn clear(&mut self, len: usize) -> usize {
        let mut done = 0;
        self.advance(len, |part| {
            part.frame.clear(part.offset, part.len);
            done += part.len;
        });
        done
    }

    /// Returns all bytes from the position on, and moves the position to the end.
    pub fn read_all(&mut self) -> Vec<u8> {
        let mut bytes = alloc::vec![0; self.left];
        self.read(&mut bytes);
        bytes
    }

    /// Passes the parts of at most `len` bytes from the position on to `see`, and moves the position behind them.
    pub fn advance(&mut self, len: usize, mut see: impl FnMut(&FramePart)) {
        let mut len = len.min(self.left);
        self.left -= len;
        while len > 0 {
            let part = &self.parts[self.part];
            let now = (part.len - self.offset).min(len);
            if now > 0 {
                see(&FramePart { frame: part.frame.clone(), offset: part.offset + self.offset, len: now });
            }
            len -= now;
            self.offset += now;
            if self.offset == part.len {
                self.part += 1;
                self.offset = 0;
            }
        }
    }
}

impl Clone for UserBuffer {
    fn clone(&self) -> Self {
        self.parts.iter().for_each(|part| part.frame.pin());
        Self { parts: self.parts.clone(), part: self.part, offset: self.offset, left: self.left }
    }
}

impl Drop for UserBuffer {
    fn drop(&mut self) {
        self.parts.iter().for_each(|part| part.frame.unpin());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_continue_over_the_borders_of_parts() {
        let (first, second) = (Frame::zeroed(), Frame::zeroed());
        let part = |frame: &Frame, offset, len| FramePart { frame: frame.clone(), offset, len };
        let parts = alloc::vec![
            part(&first, FRAME_SIZE - 3, 3),
            part(&second, 7, 0),
            part(&second, 100, 2),
            part(&first, 0, 4)
        ];
        let mut buffer = UserBuffer::new(parts.clone());
        assert_eq!((buffer.len(), buffer.write(b"abcd"), buffer.len()), (9, 4, 5));
        assert_eq!((buffer.write(b"efghijk"), buffer.is_empty()), (5, true));
        let mut buffer = UserBuffer::new(parts);
        let mut bytes = [0; 2];
        assert_eq!((buffer.read(&mut bytes), &bytes), (2, b"ab"));
        assert_eq!(buffer.clear(1), 1);
        assert_eq!(buffer.read_all(), b"defghi");
        let mut byte = [0];
        first.read(FRAME_SIZE - 1, &mut byte);
        assert_eq!(byte, [0]);
    }

    #[test]
    fn a_buffer_of_bytes_has_them() {
        let bytes: Vec<u8> = (0..10_000_u32).map(|number| number as u8).collect();
        assert_eq!(UserBuffer::of_bytes(&bytes).read_all(), bytes);
        let mut part = UserBuffer::of_bytes(&bytes);
        part.advance(5000, |_| ());
        part.limit(3);
        assert_eq!((part.len(), part.read_all()), (3, bytes[5000..5003].to_vec()));
    }
}
