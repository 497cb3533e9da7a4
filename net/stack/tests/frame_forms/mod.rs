//! One frame in the forms that take the fast path and the general one, for tests that compare their results.

use isola_iobuf::IoBuf;
use isola_net_sim::Peer;
use isola_net_stack::RxChecksum;

/// Offset of the TCP header in a frame over IPv4.
pub const TCP: usize = 34;

/// The form of a side's received frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrameForm {
    /// Unchanged, with a checksum verified by the device.
    Verified,
    /// Unchanged, with an unverified checksum.
    Unverified,
    /// With padding options that no fast-path frame has.
    General,
}

impl FrameForm {
    /// Delivers a frame to the stack of `peer` in this form.
    pub fn deliver(self, peer: &mut Peer, frame: Vec<u8>) {
        let (frame, checksum) = match self {
            Self::Verified => (frame, RxChecksum::Verified),
            Self::Unverified => (frame, RxChecksum::Unverified),
            Self::General => (padded(frame), RxChecksum::Verified),
        };
        peer.stack.receive(peer.now, IoBuf::from(frame), checksum);
    }
}

/// Appends four bytes of padding to a frame's options: the same segment, but for the general path.
fn padded(mut frame: Vec<u8>) -> Vec<u8> {
    let words = frame[TCP + 12] >> 4;
    let behind = TCP + 4 * usize::from(words);
    frame.splice(behind..behind, [1; 4]);
    frame[TCP + 12] = (words + 1) << 4;
    let mut ip = etherparse::Ipv4Header::from_slice(&frame[14..TCP]).expect("an IPv4 header").0;
    ip.total_len += 4;
    ip.header_checksum = ip.calc_header_checksum();
    frame[14..TCP].copy_from_slice(&ip.to_bytes());
    frame
}
