//! The functions on memory that compiled code takes for granted: `memcpy` and its kin, which the link script
//! gives to images under their usual names. In assembly, as a compiler makes calls of `memcpy` out of loops
//! that copy.
//!
//! Moves of eight bytes, four in a row: on emulated processors three to ten times as fast as `rep movsb`, and
//! on real ones not far from it at the sizes that are common. Ends that are no multiple of eight are done by
//! moves that overlap their neighbours; where source and destination overlap, whatever such a move needs is
//! read before anything is written.

use core::arch::naked_asm;

/// `memcpy`. Copies upwards, so that it serves as `memmove` too where the destination is the lower of the two.
///
/// # Safety
/// As C's `memcpy`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 8",
        "jb 5f",
        "mov rcx, [rsi + rdx - 8]",
        "lea r11, [rdi + rdx - 8]",
        "sub rdx, 32",
        "jb 3f",
        "2:",
        "mov r8, [rsi]",
        "mov r9, [rsi + 8]",
        "mov r10, [rsi + 16]",
        "mov [rdi], r8",
        "mov r8, [rsi + 24]",
        "mov [rdi + 8], r9",
        "mov [rdi + 16], r10",
        "mov [rdi + 24], r8",
        "add rsi, 32",
        "add rdi, 32",
        "sub rdx, 32",
        "jae 2b",
        "3:",
        "add rdx, 24", // what is left, without the last eight bytes
        "jle 6f",
        "4:",
        "mov r8, [rsi]",
        "mov [rdi], r8",
        "add rsi, 8",
        "add rdi, 8",
        "sub rdx, 8",
        "ja 4b",
        "6:",
        "mov [r11], rcx",
        "ret",
        "5:",
        "cmp edx, 4",
        "jb 7f",
        "mov ecx, [rsi]",
        "mov r8d, [rsi + rdx - 4]",
        "mov [rdi], ecx",
        "mov [rdi + rdx - 4], r8d",
        "ret",
        "7:",
        "test edx, edx",
        "je 8f",
        "mov r10d, edx",
        "shr r10d", // the middle byte; of two the last, of one the only one
        "movzx ecx, byte ptr [rsi]",
        "movzx r9d, byte ptr [rsi + r10]",
        "movzx r8d, byte ptr [rsi + rdx - 1]",
        "mov [rdi], cl",
        "mov [rdi + r10], r9b",
        "mov [rdi + rdx - 1], r8b",
        "8:",
        "ret",
    )
}

/// `memmove`.
///
/// # Safety
/// As C's `memmove`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "sub rax, rsi",
        "cmp rax, rdx", // unsigned: a destination below the source is far above
        "jae {memcpy}",
        "mov rax, rdi",
        "cmp rdx, 8",
        "jb {memcpy}", // which reads all before it writes
        "mov rcx, [rsi]",
        "sub rdx, 32",
        "jb 3f",
        "2:",
        "mov r8, [rsi + rdx]",
        "mov r9, [rsi + rdx + 8]",
        "mov r10, [rsi + rdx + 16]",
        "mov r11, [rsi + rdx + 24]",
        "mov [rdi + rdx], r8",
        "mov [rdi + rdx + 8], r9",
        "mov [rdi + rdx + 16], r10",
        "mov [rdi + rdx + 24], r11",
        "sub rdx, 32",
        "jae 2b",
        "3:",
        "add rdx, 24", // what is left, without the first eight bytes
        "jle 6f",
        "4:",
        "mov r8, [rsi + rdx]",
        "mov [rdi + rdx], r8",
        "sub rdx, 8",
        "ja 4b",
        "6:",
        "mov [rdi], rcx",
        "ret",
        memcpy = sym isola_memcpy,
    )
}

/// `memset`.
///
/// # Safety
/// As C's `memset`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "movzx esi, sil",
        "mov rcx, 0x0101010101010101",
        "imul rcx, rsi",
        "cmp rdx, 8",
        "jb 5f",
        "lea r11, [rdi + rdx - 8]",
        "sub rdx, 32",
        "jb 3f",
        "2:",
        "mov [rdi], rcx",
        "mov [rdi + 8], rcx",
        "mov [rdi + 16], rcx",
        "mov [rdi + 24], rcx",
        "add rdi, 32",
        "sub rdx, 32",
        "jae 2b",
        "3:",
        "add rdx, 24",
        "jle 6f",
        "4:",
        "mov [rdi], rcx",
        "add rdi, 8",
        "sub rdx, 8",
        "ja 4b",
        "6:",
        "mov [r11], rcx",
        "ret",
        "5:",
        "test edx, edx",
        "je 8f",
        "7:",
        "mov [rdi + rdx - 1], cl",
        "dec edx",
        "jnz 7b",
        "8:",
        "ret",
    )
}

/// `memcmp`, and so `bcmp`.
///
/// # Safety
/// As C's `memcmp`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_memcmp(left: *const u8, right: *const u8, len: usize) -> i32 {
    naked_asm!(
        "sub rdx, 8",
        "jb 3f",
        "2:",
        "mov rax, [rdi]",
        "mov rcx, [rsi]",
        "cmp rax, rcx",
        "jne 6f",
        "add rdi, 8",
        "add rsi, 8",
        "sub rdx, 8",
        "jae 2b",
        "3:",
        "add rdx, 8",
        "je 5f",
        "4:",
        "movzx eax, byte ptr [rdi]",
        "movzx ecx, byte ptr [rsi]",
        "sub eax, ecx",
        "jne 7f",
        "inc rdi",
        "inc rsi",
        "dec rdx",
        "jnz 4b",
        "5:",
        "xor eax, eax",
        "7:",
        "ret",
        "6:",
        "bswap rax", // the first byte that differs weighs most
        "bswap rcx",
        "cmp rax, rcx",
        "sbb eax, eax",
        "or eax, 1",
        "ret",
    )
}

/// `strlen`.
///
/// # Safety
/// As C's `strlen`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_strlen(text: *const u8) -> usize {
    naked_asm!(
        "mov rax, rdi",
        "2:",
        "cmp byte ptr [rax], 0",
        "je 3f",
        "inc rax",
        "jmp 2b",
        "3:",
        "sub rax, rdi",
        "ret"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    fn numbered() -> Vec<u8> {
        (0..=255).collect()
    }

    #[test]
    fn copies_are_exact_at_every_length_and_distance() {
        let from = 70;
        for (len, to) in (0..100).flat_map(|len| (0..140).map(move |to| (len, to))) {
            let mut expected = numbered();
            expected.copy_within(from..from + len, to);
            let mut bytes = numbered();
            let base = bytes.as_mut_ptr();
            // SAFETY: 140 + 100 bytes are within 256.
            let returned = unsafe { isola_memmove(base.add(to), base.add(from), len) };
            assert_eq!(returned, base.wrapping_add(to));
            assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
            if to <= from || to >= from + len {
                let mut bytes = numbered();
                let base = bytes.as_mut_ptr();
                // SAFETY: as above, and upwards is right for these.
                unsafe { isola_memcpy(base.add(to), base.add(from), len) };
                assert_eq!(bytes, expected, "{len} bytes upwards from {from} to {to}");
            }
        }
    }

    #[test]
    fn fills_are_exact_at_every_length() {
        for len in 0..200 {
            let mut bytes = numbered();
            // SAFETY: 7 + 200 bytes are within 256.
            unsafe { isola_memset(bytes.as_mut_ptr().add(7), 0x1ab, len) };
            let mut expected = numbered();
            expected[7..7 + len].fill(0xab);
            assert_eq!(bytes, expected, "{len}");
        }
    }

    #[test]
    fn comparison_orders_by_the_first_difference() {
        let left = numbered();
        for len in 0..100 {
            // SAFETY: both are longer.
            assert_eq!(unsafe { isola_memcmp(left.as_ptr(), numbered().as_ptr(), len) }, 0);
            for place in 0..100 {
                let mut right = numbered();
                right[place] = right[place].wrapping_add(1);
                right[place + 1] = 0;
                // SAFETY: both are longer.
                let order = unsafe { isola_memcmp(left.as_ptr(), right.as_ptr(), len) };
                assert_eq!(order < 0, place < len, "{len} {place}");
                assert_eq!(order > 0, place >= 128 && place < len, "{len} {place}");
            }
        }
    }

    #[test]
    fn strings_end_at_zero() {
        // SAFETY: the literal ends with a zero.
        assert_eq!(unsafe { isola_strlen(c"machine".as_ptr().cast()) }, 7);
    }
}
