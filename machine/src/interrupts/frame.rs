//! The state of a core at an exception.

use core::fmt;

/// All registers of a core at an exception. In the order in which they are pushed, from the last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[repr(C)]
#[expect(missing_docs, reason = "they are named as the processor names them")]
pub struct ExceptionFrame {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rbp: u64,
    pub rdi: u64,
    pub rsi: u64,
    pub rdx: u64,
    pub rcx: u64,
    pub rbx: u64,
    pub rax: u64,
    pub vector: u64,
    pub error_code: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

/// The first vector that no exception has. A local APIC accepts interrupts from vector 16 on, which Isola never sends.
pub const FIRST_INTERRUPT: u8 = 32;

/// In the flags: interrupts are on.
const INTERRUPTS_ON: u64 = 1 << 9;

/// The vectors from 16 to 31 whose exceptions push an error code (Intel SDM 3, table 6-1; AMD APM 2, table 8-1).
const WITH_ERROR_CODE: u64 = 1 << 17 | 1 << 21 | 1 << 29 | 1 << 30;

/// The vectors of exceptions that are told apart.
pub mod vector {
    /// Non-maskable interrupt.
    pub const NON_MASKABLE: u64 = 2;
    /// Double fault.
    pub const DOUBLE_FAULT: u64 = 8;
    /// Page fault.
    pub const PAGE_FAULT: u64 = 14;
}

impl ExceptionFrame {
    /// One of nothing.
    pub(crate) const fn zeroed() -> Self {
        Self {
            r15: 0,
            r14: 0,
            r13: 0,
            r12: 0,
            r11: 0,
            r10: 0,
            r9: 0,
            r8: 0,
            rbp: 0,
            rdi: 0,
            rsi: 0,
            rdx: 0,
            rcx: 0,
            rbx: 0,
            rax: 0,
            vector: 0,
            error_code: 0,
            rip: 0,
            cs: 0,
            rflags: 0,
            rsp: 0,
            ss: 0,
        }
    }

    /// Returns how many bytes stand in front of what the processor has pushed, if that was an interrupt with this vector:
    /// the vector, and a 0 where the exception has no error code. An interrupt pushes none, so that with the vectors of
    /// exceptions that have one the frame is a word shorter than its fields say. `None` where interrupts were off, which
    /// come at no other time.
    pub(crate) fn pushed_bytes_of_interrupt(&self) -> Option<u64> {
        let is_short = WITH_ERROR_CODE >> self.vector & 1 != 0;
        let (flags, bytes) = if is_short { (self.cs, 8) } else { (self.rflags, 16) };
        (flags & INTERRUPTS_ON != 0).then_some(bytes)
    }

    /// The exception's name.
    pub fn name(&self) -> &'static str {
        match self.vector {
            0 => "division error",
            1 => "debug exception",
            2 => "non-maskable interrupt",
            3 => "breakpoint",
            4 => "overflow",
            5 => "bound range exceeded",
            6 => "invalid instruction",
            7 => "no floating point unit",
            8 => "double fault",
            10 => "invalid task segment",
            11 => "segment not present",
            12 => "stack segment fault",
            13 => "general protection fault",
            14 => "page fault",
            16 => "floating point error",
            17 => "alignment check",
            18 => "machine check",
            19 => "SIMD floating point error",
            21 => "control protection exception",
            _ => "exception",
        }
    }
}

impl fmt::Display for ExceptionFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vector, error_code, rip, rsp, .. } = self;
        write!(f, "{} (vector {vector}, error {error_code:#x}) at {rip:#x}, stack {rsp:#x}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_an_interrupt_is_told_from_one_with_an_error_code() {
        let (instruction, code, on) = (0xffff_ffff_8010_2345, 0x08, 0x246);
        for vector in 16..32 {
            let has_code = [17, 21, 29, 30].contains(&vector);
            let exception = |rflags| ExceptionFrame {
                vector,
                rip: instruction,
                cs: code,
                rflags,
                rsp: 0xffff_c000_0002_0f00,
                ..ExceptionFrame::zeroed()
            };
            assert_eq!(exception(on & !INTERRUPTS_ON).pushed_bytes_of_interrupt(), None);
            // As an interrupt leaves it there where an error code is expected: each word in the place of the one before.
            let short = ExceptionFrame { error_code: instruction, rip: code, cs: on, ..exception(0x10) };
            let interrupt = if has_code { short } else { exception(on) };
            assert_eq!(interrupt.pushed_bytes_of_interrupt(), Some(if has_code { 8 } else { 16 }));
            let of_exception = exception(on).pushed_bytes_of_interrupt();
            assert_eq!(of_exception, (!has_code).then_some(16), "the local APIC is asked in addition");
        }
    }
}
