//! The content of messages: views of one static buffer, for any size that the peer requests.

use isola_iobuf::{Chain, IoBuf};

/// The buffer that every message repeats.
static SLICE: [u8; 64 << 10] = [b'n'; 64 << 10];

/// Returns a message of `size` bytes.
pub(crate) fn message(size: usize) -> Chain {
    let mut message = Chain::new();
    while message.len() < size {
        let mut slice = IoBuf::from_static(&SLICE);
        slice.truncate(size - message.len());
        message.push_back(slice);
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::MAX_SIZE;

    #[test]
    fn a_message_allocates_no_memory_for_its_content() {
        for size in [1, SLICE.len(), SLICE.len() + 1, MAX_SIZE] {
            assert_eq!(message(size).len(), size);
            let cost = allocation_counter::measure(|| drop(message(size)));
            assert!(cost.bytes_total < 64 << 10, "{size} bytes allocate {cost:?}");
        }
    }
}
