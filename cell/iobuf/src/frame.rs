//! A frame on its way to a device.

use crate::{Chain, IoBufMut};
use alloc::vec::Vec;

/// An Ethernet frame to send: `head`, and behind it `payload`.
#[derive(Debug)]
pub struct Frame {
    /// All headers, from Ethernet's on: memory of the sender's own, which comes back to it, with room before them for the
    /// device's.
    pub head: IoBufMut,
    /// What follows the headers: views of memory that somebody may still read.
    pub payload: Chain,
    /// The checksum that the device fills in; `None` where the frame is complete.
    pub checksum: Option<PartialChecksum>,
    /// Bytes of payload in each TCP segment but the last, where the device cuts the frame into several and makes the headers
    /// of each from those of the frame; `None` where it goes out as it is. Only with a checksum to be filled in.
    pub segment_len: Option<u16>,
}

/// Where a device is to put the checksum that it completes, as virtio and most others take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartialChecksum {
    /// First byte of the frame that is summed; the sum goes to the frame's end.
    pub start: u16,
    /// Distance from `start` to the 16-bit field that takes the checksum. It holds the pseudo-header's sum.
    pub offset: u16,
}

impl Frame {
    /// Length of the frame in bytes, without the device's own framing.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    /// Whether the frame has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the packet in it is one of IPv6: what a device has to know to cut it.
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.head.get(12..14) == Some(&[0x86, 0xdd])
    }

    /// The frame's bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        core::iter::once(&*self.head).chain(self.payload.parts().map(|part| &**part))
    }

    /// A copy of the frame in one piece: for tests and tools.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| bytes.extend_from_slice(piece));
        bytes
    }
}
