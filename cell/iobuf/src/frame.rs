//! A frame to send.

use crate::{Chain, IoBufMut};
use alloc::vec::Vec;

/// An Ethernet frame to send: `head`, followed by `payload`.
#[derive(Debug)]
pub struct Frame {
    /// All headers, from Ethernet's on, with headroom for the device's own. The sender gets the memory back.
    pub head: IoBufMut,
    /// The bytes after the headers: views of memory that may have other readers.
    pub payload: Chain,
    /// The checksum that the device completes; `None` if the frame is complete.
    pub checksum: Option<PartialChecksum>,
    /// The payload of each TCP segment but the last, in bytes, if the device segments the frame and derives the
    /// segments' headers from the frame's; `None` without segmentation. Requires a checksum to complete.
    pub segment_len: Option<u16>,
}

/// The location of a checksum that the device completes, in the form that virtio and most other devices use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// The offset of the first summed byte in the frame; the sum extends to the frame's end.
    pub start: u16,
    /// The distance from `start` to the 16-bit checksum field, which contains the pseudo-header's sum.
    pub offset: u16,
}

impl Frame {
    /// Returns the length of the frame in bytes, without the device's own framing.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Returns whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the frame contains an IPv6 packet, which a device needs to know for segmentation.
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.head.get(12..14) == Some(&[0x86, 0xdd])
    }

    /// Returns the frame's bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(&*self.head).chain(self.payload.parts().map(|part| &**part))
    }

    /// Returns a contiguous copy of the frame, for tests and tools.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}
