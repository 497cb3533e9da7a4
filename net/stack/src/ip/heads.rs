//! The memory of frame headers.

use alloc::vec::Vec;
use isola_iobuf::IoBufMut;

/// Ethernet, IPv6 and the longest TCP header.
const HEADERS: usize = 14 + 40 + 60;

/// The most free header buffers: as many as frames are typically in transit to a device.
const POOL: usize = 256;

/// Allocates header buffers and reuses them.
#[derive(Debug)]
pub(crate) struct HeadPool {
    free: Vec<IoBufMut>,
    /// The bytes of a buffer: the transport header, and the headers that lower layers and the driver prepend.
    room: usize,
}

impl HeadPool {
    pub fn new(headroom: usize) -> Self {
        Self { free: Vec::new(), room: headroom + HEADERS }
    }

    /// Returns a buffer with headroom for all headers, and no room behind.
    #[inline(always)]
    pub fn take(&mut self) -> IoBufMut {
        self.free.pop().unwrap_or_else(|| IoBufMut::with_room(self.room, 0))
    }

    /// Takes back the memory of a header, if it has this pool's size.
    #[inline(always)]
    pub fn give(&mut self, mut head: IoBufMut) {
        if self.free.len() >= POOL || head.storage_len() != self.room {
            return;
        }
        head.reset(self.room);
        self.free.push(head);
    }

    /// Frees the memory of all free buffers.
    #[cold]
    pub fn clear(&mut self) {
        self.free = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_header_buffers_of_the_pools_size_are_reused() {
        let mut pool = HeadPool::new(12);
        let mut head = pool.take();
        assert_eq!(head.headroom(), 12 + HEADERS);
        head.prepend(40).unwrap();
        pool.give(head);
        assert_eq!(pool.free.len(), 1);
        assert_eq!(pool.take().headroom(), 12 + HEADERS);
        pool.give(IoBufMut::with_room(7, 0));
        assert!(pool.free.is_empty());
        let head = pool.take();
        pool.give(head);
        pool.clear();
        assert_eq!(pool.free.capacity(), 0);
    }
}
