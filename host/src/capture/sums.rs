//! Checksums that the cell left to its device: the capture precedes the device, so they are incomplete.

use isola_abi::query::PartialSum;

/// The offset of the checksum in the UDP header. A UDP checksum of 0 means none.
const UDP_OFFSET: u16 = 6;

/// Completes a checksum as the device does: sums the bytes from `start` on, including the sum of the pseudo-header that
/// the checksum field contains. A frame that the device would segment counts as one segment. A field outside of the
/// frame remains unchanged.
pub fn complete(frame: &mut [u8], sum: PartialSum) {
    let at = usize::from(sum.start) + usize::from(sum.offset);
    let Some(summed) = frame.get(usize::from(sum.start)..) else { return };
    let (words, rest) = summed.as_chunks::<2>();
    let odd = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    let mut total = words.iter().map(|word| u64::from(u16::from_be_bytes(*word))).sum::<u64>() + odd;
    while total > 0xffff {
        total = (total & 0xffff) + (total >> 16);
    }
    let mut filled = !(total as u16);
    if filled == 0 && sum.offset == UDP_OFFSET {
        filled = 0xffff;
    }
    if let Some(checksum) = frame.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) {
        *checksum = filled.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};

    /// Returns a TCP segment whose checksum field has the pseudo-header's sum only, and the complete segment.
    fn partial(payload: &[u8]) -> (Vec<u8>, Vec<u8>) {
        let mut whole = Vec::new();
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64);
        builder.tcp(80, 4000, 7, 1000).write(&mut whole, payload).unwrap();
        let mut partial = whole.clone();
        let mut pseudo = 6 + (20 + payload.len()) as u32 + 0x0a00 + 1 + 0x0a00 + 2;
        pseudo = (pseudo & 0xffff) + (pseudo >> 16);
        partial[50..52].copy_from_slice(&(pseudo as u16).to_be_bytes());
        (partial, whole)
    }

    #[test]
    fn an_offloaded_checksum_is_completed() {
        for payload in [&b""[..], b"odd", b"even", &[0xff; 1460]] {
            let (mut frame, whole) = partial(payload);
            complete(&mut frame, PartialSum { start: 34, offset: 16, segment_len: None });
            assert_eq!(frame, whole, "{} bytes", payload.len());
            let packet = SlicedPacket::from_ethernet(&frame).unwrap();
            assert!(matches!(packet.transport, Some(TransportSlice::Tcp(_))));
        }
    }

    #[test]
    fn a_checksum_field_outside_of_the_frame_changes_nothing() {
        let (frame, _) = partial(b"x");
        for (start, offset) in [(u16::MAX, u16::MAX), (frame.len() as u16, 0), (34, 1000), (34, 20)] {
            let mut same = frame.clone();
            complete(&mut same, PartialSum { start, offset, segment_len: None });
            assert_eq!(same, frame, "{start}, {offset}");
        }
    }
}
