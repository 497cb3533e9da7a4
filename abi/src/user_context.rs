//! The registers of a program in user mode, as the entry code of the bare platform saves them.

/// The general registers of a program's thread, and those that a system call changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct UserRegisters {
    /// RAX: number of a system call, and its result.
    pub rax: u64,
    /// RBX.
    pub rbx: u64,
    /// RCX; the instruction SYSCALL sets it to the address of the next instruction.
    pub rcx: u64,
    /// RDX: third argument of a system call.
    pub rdx: u64,
    /// RSI: second argument.
    pub rsi: u64,
    /// RDI: first argument.
    pub rdi: u64,
    /// RBP.
    pub rbp: u64,
    /// R8: fifth argument.
    pub r8: u64,
    /// R9: sixth argument.
    pub r9: u64,
    /// R10: fourth argument.
    pub r10: u64,
    /// R11; the instruction SYSCALL sets it to the flags.
    pub r11: u64,
    /// R12.
    pub r12: u64,
    /// R13.
    pub r13: u64,
    /// R14.
    pub r14: u64,
    /// R15.
    pub r15: u64,
    /// The address of the next instruction.
    pub rip: u64,
    /// The flags. The platform ignores bits that a program must not change.
    pub rflags: u64,
    /// The stack pointer.
    pub rsp: u64,
    /// The base of the FS segment: the thread pointer.
    pub fs_base: u64,
    /// The base of the GS segment.
    pub gs_base: u64,
}

/// The processor state of a program's thread, except x87 and the upper halves of vector registers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C, align(16))]
pub struct UserContext {
    /// The general registers.
    pub registers: UserRegisters,
    /// XMM0 to XMM15.
    pub xmm: [[u8; 16]; 16],
    /// The control and status register of SSE. The platform ignores reserved bits.
    pub mxcsr: u32,
}

/// MXCSR at the start of a program: all exceptions masked, rounding to nearest (Intel SDM 1, 11.6.4).
pub const INITIAL_MXCSR: u32 = 0x1f80;

impl Default for UserContext {
    fn default() -> Self {
        Self { registers: UserRegisters::default(), xmm: [[0; 16]; 16], mxcsr: INITIAL_MXCSR }
    }
}

/// The answer to a trap of a program, on the core on which it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrapAnswer {
    /// The trap was not served: the run of the program ends with it.
    Unserved,
    /// The trap was served, and the program continues at once. After a system call the number is its result, in RAX; after
    /// another trap it is ignored.
    Resume(u64),
    /// The trap was served as for [`Self::Resume`], but the program does not continue before the thread has done other
    /// work.
    Stop(u64),
}
