//! What the device of a simulated host does to frames, in the place of the stack: sums, and cuts.

use crate::check;
use isola_net_stack::{Frame, PartialChecksum, RxChecksum, TxChecksum};

/// The frames that go out where the stack hands `frame` over.
pub fn sent(frame: &Frame) -> Vec<Vec<u8>> {
    let whole = frame.to_vec();
    match (frame.checksum, frame.segment_len) {
        (None, None) => vec![whole],
        (Some(offload), None) => vec![summed(whole, offload)],
        (Some(offload), Some(len)) => cut(&whole, frame.head.len(), len.into(), offload),
        (None, Some(_)) => panic!("a frame to be cut whose sums are made already"),
    }
}

/// Cuts a TCP segment into several of `len` bytes of data and a last one: each behind the headers of the first, with what
/// has to be different in them.
fn cut(whole: &[u8], headers_len: usize, len: usize, offload: PartialChecksum) -> Vec<Vec<u8>> {
    let (headers, data) = whole.split_at(headers_len);
    let tcp = usize::from(offload.start);
    let whole_len = whole.len() - tcp;
    assert!(data.len() > len && len > 0, "nothing to cut: {} bytes by {len}", data.len());
    assert!(headers[tcp + 13] & 0x80 == 0, "each piece would tell of a smaller window (CWR)");
    let half = |bytes: &[u8], at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let count = data.len().div_ceil(len);
    let cut = |(number, piece): (usize, &[u8])| {
        let mut bytes = [headers, piece].concat();
        let tcp_len = bytes.len() - tcp;
        match half(headers, 12) {
            0x0800 => {
                bytes[16..18].copy_from_slice(&((tcp - 14 + tcp_len) as u16).to_be_bytes());
                bytes[24..26].fill(0);
                let sum = !ones_sum(&bytes[14..tcp]);
                bytes[24..26].copy_from_slice(&sum.to_be_bytes());
            }
            0x86dd => bytes[18..20].copy_from_slice(&(tcp_len as u16).to_be_bytes()),
            other => panic!("a segment in a frame of type {other:#x}"),
        }
        let seq = u32::from_be_bytes([bytes[tcp + 4], bytes[tcp + 5], bytes[tcp + 6], bytes[tcp + 7]]);
        let seq = seq.wrapping_add((number * len) as u32);
        bytes[tcp + 4..tcp + 8].copy_from_slice(&seq.to_be_bytes());
        if number + 1 < count {
            // What ends something ends it with the last: FIN and PSH.
            bytes[tcp + 13] &= !0x09;
        }
        // The pseudo-header's sum holds the whole's length.
        let at = tcp + usize::from(offload.offset);
        let parts = [half(headers, at), !(whole_len as u16), tcp_len as u16].map(u16::to_be_bytes);
        let sum = ones_sum(parts.as_flattened());
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        summed(bytes, offload)
    };
    data.chunks(len).enumerate().map(cut).collect()
}

/// The sum of 16-bit words in one's complement.
fn ones_sum(bytes: &[u8]) -> u16 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += odd.first().map_or(0, |last| u64::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// Where the checksum stands in UDP's header.
const UDP_CHECKSUM: u16 = 6;

/// Stores the sum of everything from a place on, where that of the pseudo-header stands.
fn summed(mut bytes: Vec<u8>, PartialChecksum { start, offset }: PartialChecksum) -> Vec<u8> {
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let sum = match ones_sum(&bytes[start..]) {
        // In UDP a checksum of zero says that there is none.
        0xffff if offset == UDP_CHECKSUM => 0xffff,
        sum => !sum,
    };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// What a device that a stack leaves its sums to says of those of a received frame.
pub fn received(bytes: &[u8], who_sums: TxChecksum) -> RxChecksum {
    if who_sums == TxChecksum::Device && check::is_summed(bytes) {
        RxChecksum::Verified
    } else {
        RxChecksum::Unverified
    }
}
