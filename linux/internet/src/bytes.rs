//! Bytes between programs and the network stack.

use alloc::vec::Vec;
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_linux_memory::UserBuffer;

/// The longest buffer into which bytes of a program are copied.
const MAX_PIECE: usize = 64 << 10;

/// Copies the next bytes of a program, at most `len`, into buffers for the stack, and moves the position.
pub(crate) fn copy_in(buffer: &mut UserBuffer, len: usize) -> Chain {
    let mut chain = Chain::new();
    let mut left = len.min(buffer.len());
    while left > 0 {
        let now = left.min(MAX_PIECE);
        let mut piece = IoBufMut::with_room(0, now);
        if let Some(bytes) = piece.append(now) {
            buffer.read(bytes);
        }
        chain.push_back(piece.freeze());
        left -= now;
    }
    chain
}

/// Copies bytes to a program, as many as fit. Returns their number.
pub(crate) fn copy_out(chain: &Chain, buffer: &mut UserBuffer) -> usize {
    chain.parts().map(|part| buffer.write(part)).sum()
}

/// A queue of received bytes, as views of the frames in which they arrived.
#[derive(Debug, Default)]
pub(crate) struct ByteQueue {
    chain: Chain,
    /// The bytes of the frames that the views keep allocated.
    storage: usize,
}

impl ByteQueue {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.chain.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }

    /// Returns the number of bytes of memory that the queue keeps allocated.
    pub fn storage(&self) -> usize {
        self.storage
    }

    /// Appends bytes.
    pub fn push(&mut self, chain: Chain) {
        self.storage += chain.parts().map(IoBuf::storage_len).sum::<usize>();
        self.chain.append(chain);
    }

    /// Removes the first bytes, at most `len`.
    pub fn take(&mut self, len: usize) -> Chain {
        if len >= self.chain.len() {
            self.storage = 0;
            return core::mem::take(&mut self.chain);
        }
        let mut taken = Chain::new();
        let mut left = len;
        while left > 0
            && let Some(front) = self.chain.front()
        {
            if front.len() > left {
                if let Some(part) = self.chain.split_to(left) {
                    taken.append(part);
                }
                break;
            }
            left -= front.len();
            if let Some(part) = self.chain.pop_front() {
                self.storage = self.storage.saturating_sub(part.storage_len());
                taken.push_back(part);
            }
        }
        taken
    }

    /// Returns the first bytes, at most `len`, which stay in the queue.
    pub fn peek(&self, len: usize) -> Chain {
        self.chain.slice(0, len.min(self.chain.len())).unwrap_or_default()
    }

    /// Removes all bytes, to be dropped without a lock.
    pub fn clear(&mut self) -> Chain {
        self.take(usize::MAX)
    }
}

/// Returns a number of an option, as `int`.
pub(crate) fn number(value: impl Into<i64>) -> Vec<u8> {
    (value.into().clamp(i32::MIN.into(), i32::MAX.into()) as i32).to_ne_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_counts_the_memory_of_its_views() {
        let mut queue = ByteQueue::default();
        let frame = IoBuf::copy_from_slice(&[7; 1000]);
        let storage = frame.storage_len();
        queue.push(frame.slice(10..12).unwrap().into());
        queue.push(IoBuf::copy_from_slice(b"abcdef").into());
        assert_eq!((queue.len(), queue.storage()), (8, storage + 6));
        assert_eq!(queue.peek(3).to_vec(), b"\x07\x07a");
        assert_eq!(queue.take(4).to_vec(), b"\x07\x07ab");
        // A part of a piece keeps all of it.
        assert_eq!((queue.len(), queue.storage()), (4, 6));
        assert_eq!(queue.take(9).to_vec(), b"cdef");
        assert_eq!((queue.is_empty(), queue.storage()), (true, 0));
    }
}
