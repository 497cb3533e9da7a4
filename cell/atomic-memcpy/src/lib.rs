//! Copies of memory that other threads, programs in user mode, or other cells access at the same time.
//!
//! Such accesses must be atomic, and Rust has atomic accesses to single words only: a loop over words takes twice the
//! instructions of the memory functions, which move 16 bytes at a time, and six times as many for bytes that do not begin at a
//! word. So each function here calls a memory function in assembly, by a call that is in assembly too: the compiler knows the
//! names of the memory functions, and would otherwise treat the bytes as memory that no other thread writes.
//!
//! On x86-64, a load is a series of atomic loads of its bytes, and a store a series of atomic stores. If another thread writes
//! at the same time, a copy gets any mixture of old and new bytes, and does not change afterwards. The compiler moves no other
//! access across a copy.
//!
//! Users: the frames of `isola-memory`, and the rings of `isola-link-rings`. Not here: copies of memory that has no other user.
#![no_std]
#![expect(
    unsafe_code,
    reason = "calls memory functions in assembly, for memory that others access at the same time"
)]

use core::arch::asm;
use core::ffi::{c_int, c_void};

unsafe extern "C" {
    // In images, those of `isola-machine`.
    fn memcpy(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    fn memmove(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void;
    fn memset(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void;
}

/// Copies `len` bytes from `from` to `to`, which do not overlap.
///
/// # Safety
/// The bytes at `from` can be read and those at `to` written. While this function runs, other threads access memory on
/// either side only if all accesses to it are atomic.
#[inline]
pub unsafe fn copy_nonoverlapping(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller upholds the contract of `memcpy`. A block without `nostack` has a stack aligned for calls, and none
    // of the caller's values below its stack pointer.
    unsafe {
        asm!(
            "call {memcpy}",
            memcpy = sym memcpy,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
}

/// Copies `len` bytes from `from` to `to`, which may overlap.
///
/// # Safety
/// As for [`copy_nonoverlapping`].
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as in `copy_nonoverlapping`, for `memmove`.
    unsafe {
        asm!(
            "call {memmove}",
            memmove = sym memmove,
            inout("rdi") to => _,
            inout("rsi") from => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
}

/// Sets `len` bytes at `to` to zero.
///
/// # Safety
/// As for [`copy_nonoverlapping`], without a source.
#[inline]
pub unsafe fn clear(to: *mut u8, len: usize) {
    // SAFETY: as in `copy_nonoverlapping`, for `memset`.
    unsafe {
        asm!(
            "call {memset}",
            memset = sym memset,
            inout("rdi") to => _,
            inout("esi") 0 => _,
            inout("rdx") len => _,
            clobber_abi("C"),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls `check` with all lengths of up to 70 bytes and offsets of up to 20, and with a page.
    fn for_all(mut check: impl FnMut(usize, usize)) {
        (0..=70).for_each(|len| (0..=20).for_each(|offset| check(len, offset)));
        check(4096, 3);
    }

    fn numbers() -> [u8; 4200] {
        core::array::from_fn(|index| (index % 251) as u8 + 1)
    }

    #[test]
    fn a_copy_changes_the_bytes_of_its_length_only() {
        for_all(|len, offset| {
            let (from, mut to) = (numbers(), [0; 4200]);
            // SAFETY: both arrays have more bytes than the highest offset and the length together, and no other user.
            unsafe { copy_nonoverlapping(from.as_ptr().add(7), to.as_mut_ptr().add(offset), len) };
            let mut expected = [0; 4200];
            expected[offset..offset + len].copy_from_slice(&from[7..7 + len]);
            assert_eq!(to, expected, "{len} bytes at {offset}");
        });
    }

    #[test]
    fn a_copy_between_overlapping_bytes_moves_those_before_it() {
        for_all(|len, offset| {
            for (source, target) in [(10, offset), (offset, 10)] {
                let (mut bytes, mut expected) = (numbers(), numbers());
                let start = bytes.as_mut_ptr();
                // SAFETY: as above.
                unsafe { copy(start.add(source), start.add(target), len) };
                expected.copy_within(source..source + len, target);
                assert_eq!(bytes, expected, "{len} bytes from {source} to {target}");
            }
        });
    }

    #[test]
    fn clearing_changes_the_bytes_of_its_length_only() {
        for_all(|len, offset| {
            let (mut bytes, mut expected) = (numbers(), numbers());
            // SAFETY: as above.
            unsafe { clear(bytes.as_mut_ptr().add(offset), len) };
            expected[offset..offset + len].fill(0);
            assert_eq!(bytes, expected, "{len} bytes at {offset}");
        });
    }
}
