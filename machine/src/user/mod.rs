//! Programs in user mode (ring 3): entry and exit, their page tables, and their processor state.
//!
//! ```text
//!   ProgramThread::run ── isola_user_enter ──► the program
//!          ▲                                       │ SYSCALL, exception, interrupt
//!          └────────── a RawTrap ◄─────────────────┘
//! ```
//!
//! A program runs while its core is within [`ProgramThread::run`]. A trap returns from that call, on its caller's stack;
//! an interrupt is handled first. So ring 0 needs no stack per program, and code behind `run` runs as any other code of
//! the cell. The program's page tables stay loaded until another program runs: their upper half is the cell's own.
//!
//! A program has no access to ring 0's memory: its pages alone have the bit "user". SMEP and SMAP are on, so ring 0
//! neither executes nor accesses a program's pages by the program's addresses. Ring 0 works on them by the direct map.
//!
//! All values of a [`UserContext`](isola_abi::user_context::UserContext) can be a program's. None of them makes an
//! instruction of ring 0 fail: see [`ProgramThread::run`].
//!
//! The processor must have what [`is_supported`] lists.

mod core_block;
mod extended;
mod space;
mod tables;
mod thread;

pub(crate) use core_block::{CoreBlock, InterruptedBase, is_user};
pub use extended::InvalidArea;
pub use space::{ProgramSpace, leave_program_space};
pub use tables::{PageGroup, PageState, RemovedTables, TableError, USER_END, table_bytes};
pub use thread::{ProgramThread, QuickCalls, RawTrap};

use crate::cpu::{Features, cpuid};
use core::arch::global_asm;

global_asm!(include_str!("entry.s"), options(att_syntax));

/// Returns whether the processor can run programs: it needs SYSCALL, FSGSBASE, XSAVE, SMEP and SMAP (Intel since
/// Broadwell, AMD since Zen).
pub fn is_supported() -> bool {
    let features = Features::read();
    let has_syscall = cpuid(0x8000_0001, 0).edx & 1 << 11 != 0;
    let has_xsave = cpuid(1, 0).ecx & 1 << 26 != 0;
    has_syscall && has_xsave && features.fsgsbase && features.has_smep_and_smap()
}
