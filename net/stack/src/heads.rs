//! The memory that the headers of frames live in.

use alloc::vec::Vec;
use isola_iobuf::IoBufMut;

/// Ethernet, IPv6 and the longest TCP header.
const HEADERS: usize = 14 + 40 + 60;

/// Header buffers kept for another use: as many as frames are typically under way to a device.
const POOL: usize = 256;

/// Makes header buffers and takes them back.
#[derive(Debug)]
pub(crate) struct HeadPool {
    free: Vec<IoBufMut>,
    /// Bytes before a transport header: what the layers below and the driver prepend, and that header.
    room: usize,
}

impl HeadPool {
    pub fn new(headroom: usize) -> Self {
        Self { free: Vec::new(), room: headroom + HEADERS }
    }

    /// A buffer with room for all headers in front, and none behind.
    #[inline(always)]
    pub fn take(&mut self) -> IoBufMut {
        self.free.pop().unwrap_or_else(|| IoBufMut::with_room(self.room, 0))
    }

    /// Takes the memory of a header back, where it is of this pool's size.
    #[inline(always)]
    pub fn give(&mut self, mut head: IoBufMut) {
        if self.free.len() >= POOL || head.storage_len() != self.room {
            return;
        }
        head.reset(self.room);
        self.free.push(head);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_that_comes_back_is_used_again_where_it_is_of_the_pool_s_size() {
        let mut pool = HeadPool::new(12);
        let mut head = pool.take();
        assert_eq!(head.headroom(), 12 + HEADERS);
        head.prepend(40).unwrap();
        pool.give(head);
        assert_eq!(pool.free.len(), 1);
        assert_eq!(pool.take().headroom(), 12 + HEADERS);
        pool.give(IoBufMut::with_room(7, 0));
        assert!(pool.free.is_empty());
    }
}
