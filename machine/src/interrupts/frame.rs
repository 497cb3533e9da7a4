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
