//! Numbers and lengths of a network device's queues and buffers, which follow from the cell's memory and cores.

use crate::pool;

/// Most buffers per direction of a device queue, in a cell with enough memory.
const LARGEST_QUEUE: usize = 256;

/// The same in the smallest cell: bursts beyond it wait in front of the device.
const SMALLEST_QUEUE: usize = 16;

/// The divisor of the cell's memory that gives the share for initial receive buffers.
const BUFFERS_PART: usize = 64;

/// Length of a receive buffer in bytes: with its reference count half a page, enough for a header and an Ethernet
/// frame. A device that does not merge buffers gets longer ones for longer frames.
pub(super) const BUFFER_LEN: usize = 2048 - 8;

/// The same for a device that coalesces received segments and merges buffers: with its reference count a page. The cost
/// per buffer does not depend on the length of its data.
const MERGED_LEN: usize = 4096 - 8;

/// Least bytes of such buffers per queue: three of the longest frames.
const LEAST_MERGED: usize = 192 << 10;

/// Most bytes of receive buffers per queue.
const MOST_BYTES: usize = LARGEST_QUEUE * 2048;

/// The largest MTU that is used as the network offers it: the usual payload of jumbo frames.
const LONGEST_MTU: u16 = 9000;

/// The payload of every Ethernet frame.
const STANDARD_MTU: u16 = 1500;

/// The divisor of the cell's memory that gives the share for queues of cores that may join later.
const LATER_QUEUES_PART: usize = 16;

/// Upper bound of the ring memory in bytes per buffer of a queue, both directions together.
const RING_BYTES: usize = 512;

/// Returns the number of buffers of this length per queue, for a device with `pairs` queue pairs.
pub(super) fn queue_size(pairs: u8, buffer_len: usize) -> u16 {
    let bytes = pool::total_bytes() / BUFFERS_PART / usize::from(pairs.max(1));
    (bytes.min(MOST_BYTES) / buffer_len).clamp(SMALLEST_QUEUE, LARGEST_QUEUE) as u16
}

/// Returns the number of queue pairs for a device that starts with `cores` pairs: more, for cores that may join, as far
/// as the memory suffices.
pub(super) fn wanted_pairs(cores: u8, slots: u8) -> u8 {
    let each = usize::from(queue_size(cores, BUFFER_LEN)) * (BUFFER_LEN + RING_BYTES);
    let more = u8::try_from(pool::total_bytes() / LATER_QUEUES_PART / each).unwrap_or(u8::MAX);
    cores.saturating_add(more).min(slots).max(cores)
}

/// Returns how many of `wanted` queue pairs a device gets if `vectors` interrupt vectors are left for it and for
/// `later` devices, each of which needs `cores` of them. `None` if there are fewer than `cores` for this device.
pub(super) fn pairs_with_vectors(vectors: usize, later: usize, cores: u8, wanted: u8) -> Option<u8> {
    let spare = vectors.saturating_sub(later.saturating_mul(usize::from(cores)));
    let pairs = usize::from(wanted).min(spare).max(usize::from(cores));
    // At most `wanted` or `cores`.
    (pairs <= vectors).then_some(pairs as u8)
}

/// Returns the buffer length for a device that merges buffers: the longer one if the memory suffices for enough of
/// them.
pub(super) fn merged_len(pairs: u8) -> usize {
    let enough = usize::from(queue_size(pairs, MERGED_LEN)) * MERGED_LEN >= LEAST_MERGED;
    if enough { MERGED_LEN } else { BUFFER_LEN }
}

/// Returns the largest MTU for which the cell has buffers. With less than about 10 MiB per queue that is the standard
/// one.
pub(super) fn longest_mtu(pairs: u8) -> u16 {
    let needed = SMALLEST_QUEUE * usize::from(LONGEST_MTU) * usize::from(pairs.max(1));
    if pool::total_bytes() / BUFFERS_PART >= needed { LONGEST_MTU } else { STANDARD_MTU }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_events::interrupt::QUEUE_VECTORS;

    #[test]
    fn a_device_gets_as_many_queue_pairs_as_there_are_vectors_beyond_those_of_later_devices() {
        let vectors = QUEUE_VECTORS.len();
        assert_eq!(pairs_with_vectors(vectors, 0, 4, 64), Some(64));
        assert_eq!(pairs_with_vectors(50, 0, 4, 64), Some(50), "not only the pairs of the present cores");
        assert_eq!(pairs_with_vectors(50, 3, 4, 64), Some(38));
        assert_eq!(pairs_with_vectors(50, 13, 4, 64), Some(4), "the present cores have queues in any case");
        assert_eq!(pairs_with_vectors(4, 0, 4, 64), Some(4));
        assert_eq!(pairs_with_vectors(3, 0, 4, 64), None);
        // Three devices of a machine with 64 cores, 20 of which are the cell's from the start.
        let mut left = vectors;
        let pairs = [2, 1, 0].map(|later| {
            let pairs = pairs_with_vectors(left, later, 20, 64).unwrap();
            left -= usize::from(pairs);
            pairs
        });
        assert_eq!(pairs, [64, 44, 20]);
    }
}
