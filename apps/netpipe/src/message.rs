//! What messages are made of: one memory, whatever size the other end asks for.

use isola_iobuf::{Chain, IoBuf};

/// Every message is this again and again.
static SLICE: [u8; 64 << 10] = [b'n'; 64 << 10];

/// A message of `size` bytes.
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
    fn a_message_costs_no_memory_of_its_size() {
        for size in [1, SLICE.len(), SLICE.len() + 1, MAX_SIZE] {
            assert_eq!(message(size).len(), size);
            let cost = allocation_counter::measure(|| drop(message(size)));
            assert!(cost.bytes_total < 64 << 10, "{size} bytes allocate {cost:?}");
        }
    }
}
