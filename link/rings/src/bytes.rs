//! Copies of bytes to and from words that another cell may access: the only unsafe code of the crate.
//!
//! Another thread or another cell may access the words at the same time, so the compiler must not see accesses that are not
//! atomic. They are in assembly, long ones in `isola-atomic-memcpy`. On x86-64, a store to a part of a word is, for all other
//! processors, an atomic replacement of these bytes; a longer store is a series of them, and a load a series of atomic loads.
//! So each function here has the effect of code with `fetch_update` or `load` for each word, and is safe for any threads.

#![expect(
    unsafe_code,
    reason = "copies bytes to and from words that another cell may access at the same time"
)]

use crate::sync::AtomicU64;
use core::arch::asm;
use isola_atomic_memcpy::copy_nonoverlapping;

/// Returns the number of bytes to copy, of `len`, from `offset` on.
#[inline]
fn within(words: &[AtomicU64], offset: usize, len: usize) -> usize {
    len.min(size_of_val(words).saturating_sub(offset))
}

/// Copies `bytes` to `words`, from the byte at `offset` on. Bytes behind the last word are left out.
#[inline]
pub fn store_bytes(words: &[AtomicU64], offset: usize, bytes: &[u8]) {
    let len = within(words, offset, bytes.len());
    if len > 0 {
        // SAFETY: `within` has checked that the bytes from `offset` to `offset + len` are in `words`, which may change behind
        // a shared reference. `bytes` is other memory: bytes without atomic access never share memory with atomic words.
        unsafe {
            copy_nonoverlapping(bytes.as_ptr(), words.as_ptr().cast::<u8>().cast_mut().add(offset), len)
        };
    }
}

/// Copies the bytes of `words` from `offset` on to `bytes`. Bytes behind the last word are left out. If another thread or cell
/// writes at the same time, `bytes` gets any mixture of old and new bytes, and does not change afterwards.
#[inline]
pub fn load_bytes(words: &[AtomicU64], offset: usize, bytes: &mut [u8]) {
    let len = within(words, offset, bytes.len());
    if len > 0 {
        // SAFETY: as in `store_bytes`; any bytes are valid.
        unsafe { copy_nonoverlapping(words.as_ptr().cast::<u8>().add(offset), bytes.as_mut_ptr(), len) };
    }
}

/// Stores a 16-bit word at an offset that is a multiple of 2, after all earlier writes. The bytes beside it may be written at
/// the same time. Does nothing if the offset is no such multiple, or behind the last word.
#[inline]
pub fn store_u16(words: &[AtomicU64], offset: usize, value: u16) {
    let len = size_of::<u16>();
    if within(words, offset, len) == len && offset.is_multiple_of(len) {
        // SAFETY: the two bytes are in one of `words`, aligned, so the processor replaces them atomically, after all earlier
        // stores; the block is a barrier for the compiler.
        unsafe {
            let to = words.as_ptr().byte_add(offset);
            asm!("mov word ptr [{to}], {value:x}", to = in(reg) to, value = in(reg) value, options(nostack, preserves_flags));
        }
    }
}

/// Stores a 32-bit word at an offset that is a multiple of 4, as [`store_u16`] does.
#[inline]
pub fn store_u32(words: &[AtomicU64], offset: usize, value: u32) {
    let len = size_of::<u32>();
    if within(words, offset, len) == len && offset.is_multiple_of(len) {
        // SAFETY: as in `store_u16`, for four bytes.
        unsafe {
            let to = words.as_ptr().byte_add(offset);
            asm!("mov dword ptr [{to}], {value:e}", to = in(reg) to, value = in(reg) value, options(nostack, preserves_flags));
        }
    }
}

/// Copies the `to.len()` words of `words` from `first` on, as [`load_bytes`] does; those behind the last word are left out.
#[inline]
pub fn load_words(words: &[AtomicU64], first: usize, to: &mut [u64]) {
    let from = words.get(first..).unwrap_or_default();
    let len = size_of_val(from).min(size_of_val(to));
    // SAFETY: as in `load_bytes`: the first `len` bytes of both slices exist, and any bits are a valid word.
    unsafe { copy_nonoverlapping(from.as_ptr().cast(), to.as_mut_ptr().cast(), len) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::Ordering;
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

    #[test]
    fn short_stores_change_their_own_bytes_only() {
        let all = |store: &dyn Fn(&[AtomicU64])| {
            let words = [const { AtomicU64::new(u64::MAX) }; 2];
            store(&words);
            words.map(AtomicU64::into_inner)
        };
        for offset in 0..20_usize {
            let stored = |value: u32, len: usize| {
                let mut bytes = [0xff; 16];
                if offset.is_multiple_of(len) && offset < 16 {
                    bytes[offset..offset + len].copy_from_slice(&value.to_le_bytes()[..len]);
                }
                [0, 8].map(|word| u64::from_le_bytes(bytes[word..word + 8].try_into().expect("eight bytes")))
            };
            assert_eq!(all(&|words| store_u16(words, offset, 0x1234)), stored(0x1234, 2), "at {offset}");
            let long = 0x1234_5678;
            assert_eq!(all(&|words| store_u32(words, offset, long)), stored(long, 4), "at {offset}");
        }
    }

    #[test]
    fn words_behind_the_last_one_are_left_out() {
        let words = [1, 2, 3].map(AtomicU64::new);
        for (first, expected) in [(0, [1, 2]), (1, [2, 3]), (2, [3, 9]), (3, [9, 9]), (usize::MAX, [9, 9])] {
            let mut to = [9, 9];
            load_words(&words, first, &mut to);
            assert_eq!(to, expected, "from {first}");
        }
    }
}
