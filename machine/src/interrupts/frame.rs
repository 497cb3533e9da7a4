//! The state of a core at an exception.

use core::fmt;

/// All registers of a core at an exception, in ascending order of their addresses: the register pushed last is the
/// first field.
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

/// The first vector that belongs to no exception. Local APICs accept interrupts from vector 16 on, but Isola sends none
/// below this.
pub const FIRST_INTERRUPT: u8 = 32;

/// The flag by which interrupts are enabled.
const INTERRUPTS_ON: u64 = 1 << 9;

/// The vectors from 16 to 31 whose exceptions push an error code (Intel SDM 3, table 6-1; AMD APM 2, table 8-1).
const WITH_ERROR_CODE: u64 = 1 << 17 | 1 << 21 | 1 << 29 | 1 << 30;

/// Vectors of exceptions with special treatment.
pub mod vector {
    /// Non-maskable interrupt.
    pub const NON_MASKABLE: u64 = 2;
    /// Double fault.
    pub const DOUBLE_FAULT: u64 = 8;
    /// Page fault.
    pub const PAGE_FAULT: u64 = 14;
}

impl ExceptionFrame {
    /// Returns a frame of zeros.
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

    /// Returns the number of bytes between the saved registers and the processor's frame if an interrupt with this
    /// vector caused the entry: the vector, and a 0 for exceptions without an error code. An interrupt pushes no error
    /// code, so for vectors of exceptions that have one, the frame is a word shorter than its fields say. Returns
    /// `None` if interrupts were off, as no interrupt occurs then.
    pub(crate) fn pushed_bytes_of_interrupt(&self) -> Option<u64> {
        let is_short = WITH_ERROR_CODE >> self.vector & 1 != 0;
        let (flags, bytes) = if is_short { (self.cs, 8) } else { (self.rflags, 16) };
        (flags & INTERRUPTS_ON != 0).then_some(bytes)
    }

    /// Returns the exception's name.
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
    fn an_interrupt_s_frame_differs_from_one_with_an_error_code() {
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
            // An interrupt leaves the frame so if an error code is expected: each word is in the place of the preceding
            // one.
            let short = ExceptionFrame { error_code: instruction, rip: code, cs: on, ..exception(0x10) };
            let interrupt = if has_code { short } else { exception(on) };
            assert_eq!(interrupt.pushed_bytes_of_interrupt(), Some(if has_code { 8 } else { 16 }));
            let of_exception = exception(on).pushed_bytes_of_interrupt();
            assert_eq!(of_exception, (!has_code).then_some(16), "the local APIC's in-service bit decides");
        }
    }
}
