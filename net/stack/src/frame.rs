//! What the stack hands to a device, and the memory that its headers live in.

use alloc::vec::Vec;
use isola_iobuf::{Chain, IoBufMut};

/// Where a device is to put the checksum that it completes, as virtio and most others take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChecksumOffload {
    /// First byte of the frame that is summed; the sum goes to the frame's end.
    pub start: u16,
    /// Distance from `start` to the 16-bit field that takes the checksum. It holds the pseudo-header's sum.
    pub offset: u16,
}

/// One Ethernet frame to transmit: `head` (all headers) and then `payload`.
#[derive(Debug)]
pub struct Frame {
    /// The headers, with `Config::headroom` bytes free before them.
    pub head: IoBufMut,
    /// Views of the very memory that the application handed over.
    pub payload: Chain,
    /// The checksum that the device completes; `None` where there is nothing left to do.
    pub checksum: Option<ChecksumOffload>,
    /// Bytes of payload in each frame but the last, where the device cuts this one; `None` where it goes out as it is.
    pub segment_len: Option<u16>,
}

impl Frame {
    /// Length of the frame in bytes, without the device's own framing.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether the frame has no bytes: never, for a frame that a stack made.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the frame in one piece: for tests and tools.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = self.head.to_vec();
        self.payload.parts().for_each(|part| bytes.extend_from_slice(part));
        bytes
    }
}

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
    pub fn take(&mut self) -> IoBufMut {
        self.free.pop().unwrap_or_else(|| IoBufMut::with_room(self.room, 0))
    }

    /// Takes the memory of a header back, where it is of this pool's size.
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
