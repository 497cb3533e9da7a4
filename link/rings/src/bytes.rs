//! Copies of bytes to and from shared words: the only unsafe code of the crate. The memory functions of images move 16 bytes
//! at a time, to and from any address; a loop over atomic words takes twice the instructions, and six times as many for
//! bytes that do not begin at a word.

#![expect(
    unsafe_code,
    reason = "copies bytes to and from words that another cell may access at the same time"
)]

use crate::sync::AtomicU64;
use core::ptr;
use core::sync::atomic::{Ordering, compiler_fence};

/// Returns the number of bytes to copy, of `len`, from `offset` on.
#[inline]
fn within(words: &[AtomicU64], offset: usize, len: usize) -> usize {
    len.min(size_of_val(words).saturating_sub(offset))
}

/// Copies `bytes` to `words`, from the byte at `offset` on. Bytes behind the last word are left out.
#[inline]
pub(crate) fn store_bytes(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let len = within(words, offset, bytes.len());
    if len == 0 {
        return;
    }
    // SAFETY: `within` has checked that the bytes from `offset` to `offset + len` are in `words`, which may change behind a
    // shared reference. `bytes` is other memory: bytes without atomic access never share memory with atomic words. In this
    // cell, only the ring of this half writes to it. The peer's reads are those of another program.
    unsafe {
        let to = words.as_ptr().cast::<u8>().cast_mut().add(offset);
        ptr::copy_nonoverlapping(bytes.as_ptr(), to, len);
    }
    compiler_fence(Ordering::SeqCst);
}

/// Copies the bytes of `words` from `offset` on to `bytes`. Bytes behind the last word are left out. If a peer writes at the
/// same time, `bytes` gets any mixture of old and new bytes, and does not change afterwards.
#[inline]
pub(crate) fn load_bytes(words: &[AtomicU64], offset: usize, bytes: &mut [u8]) {
    let len = within(words, offset, bytes.len());
    if len == 0 {
        return;
    }
    // SAFETY: as in `store_bytes`; any bytes are valid. A peer that violates the protocol may write meanwhile: that is a
    // write of another program to shared memory. The fence keeps the compiler from reading the words instead of the copy.
    unsafe {
        let from = words.as_ptr().cast::<u8>().add(offset);
        ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), len);
    }
    compiler_fence(Ordering::SeqCst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    #[test]
    fn bytes_come_back_from_every_offset_and_leave_others_alone() {
        for (offset, len) in (0..40).flat_map(|offset| (0..40).map(move |len| (offset, len))) {
            let words: Vec<AtomicU64> = (0..4).map(|_| AtomicU64::new(u64::MAX)).collect();
            let bytes: Vec<u8> = (1..=len as u8).collect();
            store_bytes(&words, offset, &bytes);
            let fits = len.min(32_usize.saturating_sub(offset));
            let mut expected = vec![0xff; 32];
            for (index, byte) in bytes.iter().take(fits).enumerate() {
                expected[offset + index] = *byte;
            }
            let stored: Vec<u8> =
                words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).collect();
            assert_eq!(stored, expected, "{len} bytes at {offset}");
            let mut back = vec![0; len];
            load_bytes(&words, offset, &mut back);
            assert_eq!(back[..fits], bytes[..fits], "{len} bytes at {offset}");
            assert!(back[fits..].iter().all(|byte| *byte == 0), "{len} bytes at {offset}");
        }
    }
}
