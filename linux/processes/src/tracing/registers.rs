//! Registers as debuggers see them: `struct user_regs_struct` and `struct user` (Linux's `arch/x86/include/asm/user_64.h`), and
//! the processor state.

use crate::Errno;
use isola_abi::user_context::UserRegisters;
use isola_user_mode::USER_END;

/// The length of `struct user_regs_struct`, in bytes.
pub const REGISTERS_LEN: usize = 8 * WORDS;
/// The length of `struct user`, in bytes.
pub const USER_AREA_LEN: u64 = 912;
/// The offset of the debug registers in `struct user`, of which there are eight.
pub const DEBUG_REGISTERS: u64 = 848;

/// The length of the state of x87 and SSE (`struct user_i387_struct`).
pub const FXSAVE_LEN: usize = 512;
/// The offset in the processor state of the components that are not in their initial states.
pub const PRESENT_COMPONENTS: usize = 512;

/// The number of words of `struct user_regs_struct`.
pub const WORDS: usize = 27;
/// The segment selectors of a program in 64-bit mode, as Linux numbers them.
const USER_CS: u64 = 0x33;
const USER_SS: u64 = 0x2b;

/// Returns the words of `struct user_regs_struct`. `call` is the word `orig_rax`: the number of the call in which the thread is,
/// or -1.
pub fn to_words(registers: &UserRegisters, call: u64) -> [u64; WORDS] {
    let r = registers;
    [
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi,
        r.rdi, call, r.rip, USER_CS, r.rflags, r.rsp, USER_SS, r.fs_base, r.gs_base, 0, 0, 0, 0,
    ]
}

/// Sets registers from these words, and returns `orig_rax`. Segment selectors are ignored: a program has no others. The platform
/// ignores flags that a program must not change.
///
/// # Errors
/// [`Errno::EIO`] for bases of segments that are no program's addresses.
pub fn from_words(words: &[u64; WORDS], registers: &mut UserRegisters) -> Result<u64, Errno> {
    let [
        r15,
        r14,
        r13,
        r12,
        rbp,
        rbx,
        r11,
        r10,
        r9,
        r8,
        rax,
        rcx,
        rdx,
        rsi,
        rdi,
        call,
        rip,
        _,
        rflags,
        rsp,
        _,
        fs_base,
        gs_base,
        ..,
    ] = *words;
    if fs_base >= USER_END || gs_base >= USER_END {
        return Err(Errno::EIO);
    }
    *registers = UserRegisters {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rbp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip,
        rflags,
        rsp,
        fs_base,
        gs_base,
    };
    Ok(call)
}

/// Reports which components of the processor state there are, as debuggers look for it.
pub fn report_components(state: &mut [u8]) {
    /// Where the kernel reports them.
    const COMPONENTS: usize = 464;
    /// x87 and SSE; the end of the upper halves of AVX, and their bit.
    const ALWAYS: u64 = 3;
    const AVX_END: usize = 832;
    const AVX: u64 = 4;
    let avx = if state.len() >= AVX_END { AVX } else { 0 };
    let present = u64::from_le_bytes(core::array::from_fn(|index| state[PRESENT_COMPONENTS + index]));
    let components = present | ALWAYS | avx;
    state[COMPONENTS..COMPONENTS + 8].copy_from_slice(&components.to_le_bytes());
}

/// The arguments of a call.
pub struct Arguments(pub [u64; 6]);

impl From<&UserRegisters> for Arguments {
    fn from(registers: &UserRegisters) -> Self {
        let UserRegisters { rdi, rsi, rdx, r10, r8, r9, .. } = *registers;
        Self([rdi, rsi, rdx, r10, r8, r9])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_those_of_user_regs_struct() {
        let registers =
            UserRegisters { r15: 1, rax: 2, rdi: 3, rip: 4, rsp: 5, fs_base: 6, ..Default::default() };
        let words = to_words(&registers, 59);
        assert_eq!([0, 10, 14, 15, 16, 17, 19, 21].map(|index| words[index]), [1, 2, 3, 59, 4, 0x33, 5, 6]);
        let mut back = UserRegisters::default();
        assert_eq!((from_words(&words, &mut back), back), (Ok(59), registers));
        let mut bad = words;
        bad[22] = USER_END;
        assert_eq!((from_words(&bad, &mut back), back), (Err(Errno::EIO), registers));
    }
}
