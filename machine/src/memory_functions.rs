//! The memory functions that compiled code calls: `memcpy` and its kin, which the link script provides to images under
//! their usual names. In assembly, as a compiler would turn loops that copy into calls of `memcpy`.
//!
//! They move sixteen bytes at a time, in groups of four or eight: on emulated processors many times as fast as `rep movsb`, and
//! on real ones almost as fast at common sizes. Overlapping moves handle the ends of lengths that are no multiple of
//! sixteen; if source and destination overlap, the bytes that such a move needs are read before any write.

use core::arch::naked_asm;

/// The length from which on memory is copied in groups of eight, with a sixth fewer instructions. A shorter block would gain
/// less than the test for it costs.
const LEAST_LONG: usize = 512;

/// Copies memory upwards, so that `memmove` can use it too if the destination is at the lower address.
///
/// # Safety
/// As C's `memcpy`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub(crate) unsafe extern "sysv64" fn isola_memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    naked_asm!(
        "mov rax, rdi",
        "cmp rdx, 16",
        "jb 5f",
        "movdqu xmm0, [rsi + rdx - 16]",
        "lea r11, [rdi + rdx - 16]",
        "sub rdx, 64",
        "jb 3f",
        "cmp rdx, {least_long} - 64",
        "jae 20f",
        "2:",
        "movdqu xmm1, [rsi]",
        "movdqu xmm2, [rsi + 16]",
        "movdqu xmm3, [rsi + 32]",
        "movdqu xmm4, [rsi + 48]",
        "movdqu [rdi], xmm1",
        "movdqu [rdi + 16], xmm2",
        "movdqu [rdi + 32], xmm3",
        "movdqu [rdi + 48], xmm4",
        "add rsi, 64",
        "add rdi, 64",
        "sub rdx, 64",
        "jae 2b",
        "3:",
        "add rdx, 48", // the remaining length, without the last sixteen bytes
        "jle 6f",
        "4:",
        "movdqu xmm1, [rsi]",
        "movdqu [rdi], xmm1",
        "add rsi, 16",
        "add rdi, 16",
        "sub rdx, 16",
        "ja 4b",
        "6:",
        "movdqu [r11], xmm0",
        "ret",
        "5:",
        "cmp edx, 8",
        "jb 9f",
        "mov rcx, [rsi]",
        "mov r8, [rsi + rdx - 8]",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], r8",
        "ret",
        "9:",
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
        "shr r10d", // the middle byte, or the last of at most two
        "movzx ecx, byte ptr [rsi]",
        "movzx r9d, byte ptr [rsi + r10]",
        "movzx r8d, byte ptr [rsi + rdx - 1]",
        "mov [rdi], cl",
        "mov [rdi + r10], r9b",
        "mov [rdi + rdx - 1], r8b",
        "8:",
        "ret",
        "20:", // a long block, in groups of eight
        "sub rdx, 64",
        "21:",
        "movdqu xmm1, [rsi]",
        "movdqu xmm2, [rsi + 16]",
        "movdqu xmm3, [rsi + 32]",
        "movdqu xmm4, [rsi + 48]",
        "movdqu xmm5, [rsi + 64]",
        "movdqu xmm6, [rsi + 80]",
        "movdqu xmm7, [rsi + 96]",
        "movdqu xmm8, [rsi + 112]",
        "movdqu [rdi], xmm1",
        "movdqu [rdi + 16], xmm2",
        "movdqu [rdi + 32], xmm3",
        "movdqu [rdi + 48], xmm4",
        "movdqu [rdi + 64], xmm5",
        "movdqu [rdi + 80], xmm6",
        "movdqu [rdi + 96], xmm7",
        "movdqu [rdi + 112], xmm8",
        "sub rsi, -128", // shorter than an addition of 128
        "sub rdi, -128",
        "add rdx, -128",
        "jc 21b",
        "add rdx, 64", // the remaining length, without a group of four
        "jns 2b",
        "jmp 3b",
        least_long = const LEAST_LONG,
    )
}

/// Copies memory that may overlap.
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
        "cmp rdx, 16",
        "jb {memcpy}", // memcpy reads short blocks completely before it writes
        "movdqu xmm0, [rsi]",
        "sub rdx, 64",
        "jb 3f",
        "2:",
        "movdqu xmm1, [rsi + rdx]",
        "movdqu xmm2, [rsi + rdx + 16]",
        "movdqu xmm3, [rsi + rdx + 32]",
        "movdqu xmm4, [rsi + rdx + 48]",
        "movdqu [rdi + rdx], xmm1",
        "movdqu [rdi + rdx + 16], xmm2",
        "movdqu [rdi + rdx + 32], xmm3",
        "movdqu [rdi + rdx + 48], xmm4",
        "sub rdx, 64",
        "jae 2b",
        "3:",
        "add rdx, 48", // the remaining length, without the first sixteen bytes
        "jle 6f",
        "4:",
        "movdqu xmm1, [rsi + rdx]",
        "movdqu [rdi + rdx], xmm1",
        "sub rdx, 16",
        "ja 4b",
        "6:",
        "movdqu [rdi], xmm0",
        "ret",
        memcpy = sym isola_memcpy,
    )
}

/// Fills memory.
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
        "cmp rdx, 16",
        "jb 5f",
        "movq xmm0, rcx",
        "punpcklqdq xmm0, xmm0",
        "lea r11, [rdi + rdx - 16]",
        "sub rdx, 64",
        "jb 3f",
        "2:",
        "movdqu [rdi], xmm0",
        "movdqu [rdi + 16], xmm0",
        "movdqu [rdi + 32], xmm0",
        "movdqu [rdi + 48], xmm0",
        "add rdi, 64",
        "sub rdx, 64",
        "jae 2b",
        "3:",
        "add rdx, 48", // the remaining length, without the last sixteen bytes
        "jle 6f",
        "4:",
        "movdqu [rdi], xmm0",
        "add rdi, 16",
        "sub rdx, 16",
        "ja 4b",
        "6:",
        "movdqu [r11], xmm0",
        "ret",
        "5:",
        "cmp edx, 8",
        "jb 9f",
        "mov [rdi], rcx",
        "mov [rdi + rdx - 8], rcx",
        "ret",
        "9:",
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

/// Compares memory; also serves as `bcmp`.
///
/// # Safety
/// As C's `memcmp`.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "sysv64" fn isola_memcmp(left: *const u8, right: *const u8, len: usize) -> i32 {
    naked_asm!(
        "xor ecx, ecx",
        "cmp rdx, 8",
        "jb 4f",
        "sub rdx, 16",
        "jbe 3f",
        "2:",
        "movdqu xmm0, [rdi + rcx]",
        "movdqu xmm1, [rsi + rcx]",
        "pcmpeqb xmm0, xmm1",
        "pmovmskb eax, xmm0",
        "xor eax, 0xffff",
        "jne 7f",
        "add rcx, 16",
        "cmp rcx, rdx",
        "jb 2b",
        "3:", // the last sixteen bytes, of which some may have been compared
        "test rdx, rdx",
        "js 9f",
        "movdqu xmm0, [rdi + rdx]",
        "movdqu xmm1, [rsi + rdx]",
        "mov rcx, rdx",
        "pcmpeqb xmm0, xmm1",
        "pmovmskb eax, xmm0",
        "xor eax, 0xffff",
        "jne 7f",
        "ret",
        "7:", // the first difference
        "bsf eax, eax",
        "add rcx, rax",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx ecx, byte ptr [rsi + rcx]",
        "sub eax, ecx",
        "ret",
        "9:", // 8 to 15 bytes: the first eight, then the last eight
        "mov rax, [rdi]",
        "mov rcx, [rsi]",
        "cmp rax, rcx",
        "jne 6f",
        "mov rax, [rdi + rdx + 8]",
        "mov rcx, [rsi + rdx + 8]",
        "cmp rax, rcx",
        "jne 6f",
        "xor eax, eax",
        "ret",
        "6:",
        "bswap rax", // makes the first difference the most significant
        "bswap rcx",
        "cmp rax, rcx",
        "sbb eax, eax",
        "or eax, 1",
        "ret",
        "4:",
        "cmp rcx, rdx",
        "je 5f",
        "movzx eax, byte ptr [rdi + rcx]",
        "movzx r8d, byte ptr [rsi + rcx]",
        "inc rcx",
        "sub eax, r8d",
        "je 4b",
        "ret",
        "5:",
        "xor eax, eax",
        "ret",
    )
}

/// Returns the length of a string.
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
        (0..=255).chain(0..=255).collect()
    }

    #[test]
    fn copies_are_exact_at_every_length_and_distance() {
        let from = 150;
        for (len, to) in (0..200).flat_map(|len| (0..300).map(move |to| (len, to))) {
            let mut expected = numbered();
            expected.copy_within(from..from + len, to);
            let mut bytes = numbered();
            let base = bytes.as_mut_ptr();
            // SAFETY: 300 + 200 bytes are within 512.
            let returned = unsafe { isola_memmove(base.add(to), base.add(from), len) };
            assert_eq!(returned, base.wrapping_add(to));
            assert_eq!(bytes, expected, "{len} bytes from {from} to {to}");
            if to <= from || to >= from + len {
                let mut bytes = numbered();
                let base = bytes.as_mut_ptr();
                // SAFETY: as above, and an upward copy is right for these.
                unsafe { isola_memcpy(base.add(to), base.add(from), len) };
                assert_eq!(bytes, expected, "{len} bytes upwards from {from} to {to}");
            }
        }
    }

    #[test]
    fn copies_of_long_blocks_are_exact() {
        let numbered = || -> Vec<u8> { (0..3000_u32).map(|index| (index * 7 + index / 251) as u8).collect() };
        for len in LEAST_LONG - 70..LEAST_LONG + 300 {
            for to in [0, 1, 500, 899, 936, 999, 1000, 1001, 1064, 1900] {
                let mut expected = numbered();
                expected.copy_within(1000..1000 + len, to);
                let mut bytes = numbered();
                let base = bytes.as_mut_ptr();
                // SAFETY: 1,900 + 812 bytes are within 3,000.
                unsafe { isola_memmove(base.add(to), base.add(1000), len) };
                assert_eq!(bytes, expected, "{len} bytes to {to}");
            }
        }
    }

    #[test]
    fn fills_are_exact_at_every_length() {
        for len in 0..200 {
            let mut bytes = numbered();
            // SAFETY: 7 + 200 bytes are within 512.
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
