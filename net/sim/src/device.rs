//! The offloads of a simulated host's device: checksums and TCP segmentation.

use crate::check;
use isola_net_stack::{Frame, PartialChecksum, RxChecksum, TxChecksum};

/// Returns the frames that the device sends if the stack transmits `frame`.
pub fn sent(frame: &Frame) -> Vec<Vec<u8>> {
    let whole = frame.to_vec();
    match (frame.checksum, frame.segment_len) {
        (None, None) => vec![whole],
        (Some(offload), None) => vec![summed(whole, offload)],
        (Some(offload), Some(len)) => cut(&whole, frame.head.len(), len.into(), offload),
        (None, Some(_)) => panic!("a frame to be cut whose sums are made already"),
    }
}

/// Splits a TCP segment into several of `len` bytes of data and a last one. Each gets the headers of the first, with
/// the necessary changes.
fn cut(whole: &[u8], headers_len: usize, len: usize, offload: PartialChecksum) -> Vec<Vec<u8>> {
    let (headers, data) = whole.split_at(headers_len);
    let tcp = usize::from(offload.start);
    let whole_len = whole.len() - tcp;
    assert!(data.len() > len && len > 0, "nothing to cut: {} bytes by {len}", data.len());
    assert!(headers[tcp + 13] & 0x80 == 0, "each segment would report a smaller window (CWR)");
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
            // Only the last segment has FIN and PSH.
            bytes[tcp + 13] &= !0x09;
        }
        // The pseudo-header's sum includes the length of the whole segment.
        let at = tcp + usize::from(offload.offset);
        let parts = [half(headers, at), !(whole_len as u16), tcp_len as u16].map(u16::to_be_bytes);
        let sum = ones_sum(parts.as_flattened());
        bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        summed(bytes, offload)
    };
    data.chunks(len).enumerate().map(cut).collect()
}

/// Returns the one's complement sum of 16-bit words.
fn ones_sum(bytes: &[u8]) -> u16 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += odd.first().map_or(0, |last| u64::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    sum as u16
}

/// The offset of the checksum in UDP's header.
const UDP_CHECKSUM: u16 = 6;

/// Stores the checksum of all bytes from `start` on, in place of the pseudo-header's sum.
fn summed(mut bytes: Vec<u8>, PartialChecksum { start, offset }: PartialChecksum) -> Vec<u8> {
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let sum = match ones_sum(&bytes[start..]) {
        // In UDP a checksum of zero means that there is none.
        0xffff if offset == UDP_CHECKSUM => 0xffff,
        sum => !sum,
    };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    bytes
}

/// Returns the checksum state of a received frame, as the device reports it: verified only if the device has the
/// offload and the checksum is correct.
pub fn received(bytes: &[u8], tx_checksum: TxChecksum) -> RxChecksum {
    if tx_checksum == TxChecksum::Device && check::is_summed(bytes) {
        RxChecksum::Verified
    } else {
        RxChecksum::Unverified
    }
}
