//! What the device of a simulated host does to frames, in the place of the stack: sums, and cuts.

use crate::check;
use isola_net_stack::{ChecksumOffload, Frame, RxChecksum, TxChecksum};

/// The frames that go out where the stack hands `frame` over.
pub fn sent(frame: &Frame) -> Vec<Vec<u8>> {
    let whole = frame.to_vec();
    match frame.checksum {
        None => vec![whole],
        Some(offload) => vec![summed(whole, offload)],
    }
}

/// Stores the sum of everything from a place on, where that of the pseudo-header stands.
fn summed(mut bytes: Vec<u8>, ChecksumOffload { start, offset }: ChecksumOffload) -> Vec<u8> {
    let (start, at) = (usize::from(start), usize::from(start) + usize::from(offset));
    let (pairs, odd) = bytes[start..].as_chunks::<2>();
    let mut sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    sum += odd.first().map_or(0, |last| u64::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    // Of UDP a sum of zero says that there is none.
    let sum = if sum == 0xffff { 0xffff } else { !(sum as u16) };
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
