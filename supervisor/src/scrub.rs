//! Memory made zero, by looking first.

use isola_abi::layout::PAGE_SIZE;

/// Makes all bytes zero. A page that holds nothing is read and not written: on a virtual machine it may have no
/// memory of the host behind it yet, and looking is faster than filling.
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
    fn no_byte_survives_wherever_it_stands() {
        let len = 3 * PAGE_SIZE as usize + 100;
        for place in (0..len).step_by(61).chain([PAGE_SIZE as usize - 1, len - 1]) {
            let mut bytes = vec![0; len];
            bytes[place] = 1;
            scrub(&mut bytes);
            assert!(bytes.iter().all(|byte| *byte == 0), "byte {place}");
        }
    }
}
