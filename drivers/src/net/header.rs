//! The header in front of each frame (virtio 1.2, 5.1.6).

use crate::virtqueue::HEADER_LEN;

/// The receiver of this header has to complete the checksum.
const NEEDS_CHECKSUM: u8 = 1;

/// The device has validated the checksums.
const DATA_VALID: u8 = 2;

/// The kinds of TCP segments that a device can cut (`VIRTIO_NET_HDR_GSO_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SegmentKind {
    /// TCP over IPv4.
    TcpIpv4 = 1,
    /// TCP over IPv6.
    TcpIpv6 = 4,
}

/// The header, in the device's order: `flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Header {
    pub flags: u8,
    pub segmentation: u8,
    /// Bytes of all protocol headers, if the device cuts the frame.
    pub header_len: u16,
    /// Bytes of payload of each segment, if the device cuts the frame.
    pub segment_len: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
    /// The number of buffers of a received frame; always 1 unless buffers are merged.
    pub buffers: u16,
}

/// The offload that a transmitted frame requests of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// None: the frame is complete.
    None,
    /// Sum the bytes from `start` to the frame's end, and store the sum at `start + offset`, which already has the sum
    /// of the pseudo-header.
    Checksum {
        /// First byte to sum, counted from the frame's first.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
    /// Cut the payload of a TCP segment into several segments, each behind headers derived from the frame's, and
    /// compute the checksum of each as for [`Self::Checksum`].
    Segment {
        /// The protocols.
        kind: SegmentKind,
        /// Length of all headers, in bytes.
        header_len: u16,
        /// Payload of each segment but the last, in bytes.
        segment_len: u16,
        /// As for [`Self::Checksum`].
        start: u16,
        /// As for [`Self::Checksum`].
        offset: u16,
    },
}

/// The device's statement about the TCP or UDP checksum of a received frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivedChecksum {
    /// None: it must be checked.
    Unchecked,
    /// It is valid.
    Valid,
    /// It is incomplete: the frame comes from the same machine and crossed no wire. It needs no check; a receiver that
    /// forwards the frame has to complete the checksum.
    Partial {
        /// First byte to sum, counted from the frame's first.
        start: u16,
        /// Offset of the checksum field from `start`.
        offset: u16,
    },
}

impl Header {
    /// Returns the header of a transmitted frame.
    #[inline(always)]
    pub(super) fn to_send(offload: Offload) -> [u8; HEADER_LEN] {
        let (checksum, segmentation) = match offload {
            Offload::None => return [0; HEADER_LEN],
            Offload::Checksum { start, offset } => ((start, offset), (0, 0, 0)),
            Offload::Segment { kind, header_len, segment_len, start, offset } => {
                ((start, offset), (kind as u8, header_len, segment_len))
            }
        };
        let ((checksum_start, checksum_offset), (segmentation, header_len, segment_len)) =
            (checksum, segmentation);
        let flags = NEEDS_CHECKSUM;
        Self { flags, segmentation, header_len, segment_len, checksum_start, checksum_offset, buffers: 0 }
            .to_bytes()
    }

    /// Returns the bytes of the header, written as two words because each transmitted frame needs one.
    #[inline(always)]
    fn to_bytes(self) -> [u8; HEADER_LEN] {
        let first = u64::from(self.flags)
            | u64::from(self.segmentation) << 8
            | u64::from(self.header_len) << 16
            | u64::from(self.segment_len) << 32
            | u64::from(self.checksum_start) << 48;
        let second = u32::from(self.checksum_offset) | u32::from(self.buffers) << 16;
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&first.to_le_bytes());
        bytes[8..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    /// Parses the header of a received frame.
    pub(super) fn from_bytes(bytes: [u8; HEADER_LEN]) -> Self {
        let [flags, segmentation, a, b, c, d, e, f, g, h, i, j] = bytes;
        Self {
            flags,
            segmentation,
            header_len: u16::from_le_bytes([a, b]),
            segment_len: u16::from_le_bytes([c, d]),
            checksum_start: u16::from_le_bytes([e, f]),
            checksum_offset: u16::from_le_bytes([g, h]),
            buffers: u16::from_le_bytes([i, j]),
        }
    }

    /// Returns the header's statement about the checksum of a frame of `len` bytes, [`ReceivedChecksum::Unchecked`] if
    /// the checksum field would be outside of the frame.
    pub(super) fn received_checksum(&self, len: usize) -> ReceivedChecksum {
        let (start, offset) = (self.checksum_start, self.checksum_offset);
        if self.flags & NEEDS_CHECKSUM != 0 {
            let end = usize::from(start) + usize::from(offset) + 2;
            if end <= len { ReceivedChecksum::Partial { start, offset } } else { ReceivedChecksum::Unchecked }
        } else if self.flags & DATA_VALID != 0 {
            ReceivedChecksum::Valid
        } else {
            ReceivedChecksum::Unchecked
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_are_in_the_order_of_the_specification() {
        let bytes = [1, 2, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x09, 0x0a, 0x0b, 0x0c];
        let header = Header::from_bytes(bytes);
        assert_eq!(header.checksum_start, 0x0807);
        assert_eq!(header.buffers, 0x0c0b);
        assert_eq!(header.to_bytes(), bytes);
        let sent = Header::to_send(Offload::Checksum { start: 34, offset: 16 });
        assert_eq!(sent, [1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 0, 0]);
        let cut = Offload::Segment {
            kind: SegmentKind::TcpIpv6,
            header_len: 86,
            segment_len: 1428,
            start: 54,
            offset: 16,
        };
        assert_eq!(Header::to_send(cut), [1, 4, 86, 0, 0x94, 5, 54, 0, 16, 0, 0, 0]);
        assert_eq!(Header::to_send(Offload::None), [0; 12]);
    }

    #[test]
    fn a_checksum_field_outside_of_the_frame_is_ignored() {
        let mut header = Header::from_bytes([1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 1, 0]);
        assert_eq!(header.received_checksum(52), ReceivedChecksum::Partial { start: 34, offset: 16 });
        assert_eq!(header.received_checksum(51), ReceivedChecksum::Unchecked);
        header.checksum_start = u16::MAX;
        header.checksum_offset = u16::MAX;
        assert_eq!(header.received_checksum(2048), ReceivedChecksum::Unchecked);
        header.flags = DATA_VALID;
        assert_eq!(header.received_checksum(60), ReceivedChecksum::Valid);
        header.flags = 0;
        assert_eq!(header.received_checksum(60), ReceivedChecksum::Unchecked);
    }
}
