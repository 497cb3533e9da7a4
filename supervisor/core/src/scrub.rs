//! Scrubbing: zeroes memory; reads before it writes.

use isola_abi::layout::PAGE_SIZE;

/// Zeroes all bytes. A page that is zero is only read: on a virtual machine it may have no memory of the host yet, and
/// reading is faster than writing.
pub fn scrub(bytes: &mut [u8]) {
    for page in bytes.chunks_mut(PAGE_SIZE as usize) {
        if !is_zero(page) {
            page.fill(0);
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    let (lines, rest) = page.as_chunks::<64>();
    lines.iter().all(|line| {
        let (words, _) = line.as_chunks::<8>();
        words.iter().fold(0, |sum, word| sum | u64::from_ne_bytes(*word)) == 0
    }) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn scrub_zeroes_a_nonzero_byte_at_any_position() {
        let len = 3 * PAGE_SIZE as usize + 100;
        for place in (0..len).step_by(61).chain([PAGE_SIZE as usize - 1, len - 1]) {
            let mut bytes = vec![0; len];
            bytes[place] = 1;
            scrub(&mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0), "byte {place}");
        }
    }
}
