//! The JSON form of a crash.

use crate::symbols::Frame;
use isola_abi::management::Crash;
use isola_abi::report::CrashKind;
use serde::Serialize;

/// The crash of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct CrashView {
    /// `panic`, `exception`, `double fault`, `hang` or `out of memory`.
    pub kind: &'static str,
    /// The processor exception, if it was one.
    pub exception: Option<&'static str>,
    /// The core.
    pub core: Option<u32>,
    /// The program's message.
    pub message: String,
    /// The address of the instruction.
    pub instruction: u64,
    /// The stack pointer there.
    pub stack_pointer: u64,
    /// The accessed address of a page fault.
    pub fault_address: Option<u64>,
    /// The exception's error code.
    pub error_code: Option<u64>,
    /// The call stack, innermost frame first.
    pub backtrace: Vec<Frame>,
}

impl CrashView {
    /// Creates the JSON form of a crash, with a backtrace that may have symbols.
    pub fn new(crash: &Crash, backtrace: Vec<Frame>) -> Self {
        let exception =
            matches!(crash.kind, CrashKind::Exception | CrashKind::DoubleFault).then_some(crash.vector);
        Self {
            kind: crash_kind(crash.kind),
            exception: exception.map(exception_name),
            core: crash.core.map(|core| core.0),
            message: crash.message.clone(),
            instruction: crash.instruction,
            stack_pointer: crash.stack_pointer,
            fault_address: (exception == Some(PAGE_FAULT)).then_some(crash.fault_address),
            error_code: exception.map(|_| crash.error_code),
            backtrace,
        }
    }
}

/// Returns the name of a kind of crash.
pub fn crash_kind(kind: CrashKind) -> &'static str {
    match kind {
        CrashKind::Panic => "panic",
        CrashKind::Exception => "exception",
        CrashKind::DoubleFault => "double fault",
        CrashKind::Hang => "hang",
        CrashKind::OutOfMemory => "out of memory",
    }
}

const PAGE_FAULT: u32 = 14;

/// Returns the name of a processor exception (Intel SDM volume 3, table 7-1).
fn exception_name(vector: u32) -> &'static str {
    match vector {
        0 => "divide error",
        1 => "debug exception",
        3 => "breakpoint",
        4 => "overflow",
        5 => "bound range exceeded",
        6 => "invalid opcode",
        7 => "device not available",
        8 => "double fault",
        10 => "invalid task state segment",
        11 => "segment not present",
        12 => "stack segment fault",
        13 => "general protection fault",
        PAGE_FAULT => "page fault",
        16 => "floating-point error",
        17 => "alignment check",
        18 => "machine check",
        19 => "vector floating-point error",
        21 => "control protection fault",
        _ => "unexpected vector",
    }
}
