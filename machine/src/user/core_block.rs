//! The state of a core's user mode: its block, in the page of traps of its core slot, above the stack of traps.
//!
//! A block belongs to a core, not to a vcore: [`CoreBlock::here`] finds it by the descriptor table that the core uses.
//! Suspended contexts move to other cores, so a context *pins* itself to its core ([`pin`]) as long as it uses the core's
//! block: a pinned context is not suspended (`cell/suspended.rs`).

use super::thread::QuickCalls;
use crate::cpu;
use crate::interrupts::ExceptionFrame;
use core::arch::asm;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering, compiler_fence};
use isola_abi::id::MAX_CORES;
use isola_abi::layout::{PAGE_SIZE, STACK_SLOT, STACKS, TABLES, TRAP_PAGE_OFFSET, TRAP_STACK_TOP};
use isola_abi::user_context::{UserContext, UserRegisters};

/// The state of a core's user mode. `entry.s` uses the first fields. Zero bytes are the value of a core that has not
/// been in user mode.
#[repr(C)]
pub(crate) struct CoreBlock {
    /// The registers of the thread that runs.
    context: AtomicPtr<UserContext>,
    /// The GS base of the code that entered user mode.
    kernel_gs: AtomicU64,
    /// Its stack pointer.
    kernel_rsp: AtomicU64,
    /// The program's stack pointer, for a moment.
    user_rsp: AtomicU64,
    /// The bits of MXCSR that the processor has.
    pub(super) mxcsr_mask: AtomicU32,
    /// The addresses of the running thread's quick calls: the table of numbers, and the answers.
    quick_numbers: AtomicU64,
    quick_answers: AtomicU64,
    /// Whether a context is pinned.
    is_pinned: AtomicBool,
    /// Whether the core is prepared for user mode.
    pub(super) is_prepared: AtomicBool,
    /// The number of the address space whose program runs, or is about to; 0 for none.
    pub(super) running_space: AtomicU64,
    /// The number of the state in the x87 and upper vector registers; 0 for none.
    pub(super) extended_state: AtomicU64,
}

/// The address of the block of core slot 0.
const FIRST: u64 = STACKS + TRAP_PAGE_OFFSET + TRAP_STACK_TOP;

impl CoreBlock {
    /// Returns the block of a core slot whose stacks are mapped.
    pub(crate) fn of(slot: usize) -> &'static Self {
        // SAFETY: the stacks of the slot are mapped, permanently, and with them this page, which was zeroed. It consists
        // of atomics, and its other user, the processor, pushes below it.
        unsafe { &*((FIRST + slot as u64 * STACK_SLOT) as *const Self) }
    }

    /// Returns the block's address.
    pub(super) fn address(&self) -> u64 {
        core::ptr::from_ref(self).addr() as u64
    }

    /// Sets the calls that the entry code answers. They must exist as long as the core runs the thread.
    #[inline]
    pub(super) fn set_quick_calls(&self, calls: QuickCalls<'_>) {
        let QuickCalls { numbers, answers } = calls;
        self.quick_numbers.store(numbers.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
        self.quick_answers.store(answers.as_ptr().expose_provenance() as u64, Ordering::Relaxed);
    }

    /// Returns whether the calling core runs a program, and serves one of its traps at present.
    pub(super) fn here_runs_program() -> bool {
        let here = pin();
        here.block.running_space.load(Ordering::Relaxed) != 0
    }

    /// Returns whether the core's context must not be suspended.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed)
    }

    /// Forgets the state of an earlier core at the slot.
    pub(crate) fn reset(&self) {
        self.is_prepared.store(false, Ordering::Relaxed);
        self.is_pinned.store(false, Ordering::Relaxed);
        self.running_space.store(0, Ordering::Relaxed);
        self.extended_state.store(0, Ordering::Relaxed);
    }
}

/// A context that stays on its core until this is dropped.
pub(super) struct Pinned {
    pub(super) slot: usize,
    pub(super) block: &'static CoreBlock,
    /// Whether it was pinned before, and stays so.
    is_nested: bool,
}

/// Pins the calling context to its core.
#[inline]
pub(super) fn pin() -> Pinned {
    loop {
        let slot = slot_of_this_core();
        let block = CoreBlock::of(slot);
        let is_nested = block.is_pinned.load(Ordering::Relaxed);
        block.is_pinned.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        // The context may have been suspended, and resumed on another core, before it was pinned.
        if slot_of_this_core() == slot {
            return Pinned { slot, block, is_nested };
        }
        block.is_pinned.store(is_nested, Ordering::Relaxed);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        compiler_fence(Ordering::SeqCst);
        self.block.is_pinned.store(self.is_nested, Ordering::Relaxed);
    }
}

/// Returns the core slot whose descriptor table this core uses.
#[inline]
fn slot_of_this_core() -> usize {
    let mut pointer = MaybeUninit::<[u8; 10]>::uninit();
    // SAFETY: the instruction stores ten bytes, of which the last eight are the base.
    let base = unsafe {
        asm!("sgdt [{}]", in(reg) pointer.as_mut_ptr(), options(nostack, preserves_flags));
        pointer.as_ptr().cast::<u8>().add(2).cast::<u64>().read_unaligned()
    };
    // The pages of the slots follow that of the interrupt table.
    (base.wrapping_sub(TABLES + PAGE_SIZE) / PAGE_SIZE) as usize % MAX_CORES
}

/// A GS base to restore after a non-maskable interrupt or a fatal exception that may have interrupted a program, or the
/// entry code.
pub(crate) struct InterruptedBase(Option<u64>);

impl InterruptedBase {
    /// Sets the GS base that the image's code expects, if the interrupted code may have had another. To be called with
    /// the frame on a stack of a core slot.
    pub(crate) fn replace(frame: &ExceptionFrame) -> Self {
        let stack = (core::ptr::from_ref(frame).addr() as u64).wrapping_sub(STACKS);
        let slot = stack / STACK_SLOT;
        if slot >= MAX_CORES as u64 {
            return Self(None);
        }
        // The stubs of the vectors serve ring 0 as well: there, the stack of traps tells that they came from a program.
        let trap_page = STACKS + slot * STACK_SLOT + TRAP_PAGE_OFFSET;
        let is_trapped = frame.rsp.wrapping_sub(trap_page) < PAGE_SIZE;
        if !(is_user(frame) || is_in_entry_code(frame.rip) || is_trapped) {
            return Self(None);
        }
        let base = cpu::gs_base();
        // SAFETY: the code that entered user mode on this core had this base, which all code of the image expects.
        unsafe { cpu::set_gs_base(CoreBlock::of(slot as usize).kernel_gs.load(Ordering::Relaxed)) };
        Self(Some(base))
    }

    /// Restores the GS base of the interrupted code.
    pub(crate) fn restore(self) {
        if let Some(base) = self.0 {
            // SAFETY: the interrupted code, which continues, had this base.
            unsafe { cpu::set_gs_base(base) };
        }
    }
}

/// Returns whether a program was interrupted.
pub(crate) fn is_user(frame: &ExceptionFrame) -> bool {
    frame.cs & 3 == 3
}

/// Returns whether an instruction belongs to the part of the entry code in which the GS base can be a program's.
fn is_in_entry_code(instruction: u64) -> bool {
    unsafe extern "C" {
        safe static isola_user_begin: u8;
        safe static isola_user_end: u8;
    }
    ((&raw const isola_user_begin).addr() as u64..(&raw const isola_user_end).addr() as u64)
        .contains(&instruction)
}

const _: () = {
    use core::mem::offset_of;
    assert!(STACKS.wrapping_neg() == 0x4000_0000_0000 && STACK_SLOT == 0x20_0000 && MAX_CORES == 64);
    assert!(TRAP_PAGE_OFFSET == 0xc_0000 && PAGE_SIZE == 4096);
    assert!(offset_of!(CoreBlock, context) == 0 && offset_of!(CoreBlock, kernel_gs) == 0x08);
    assert!(offset_of!(CoreBlock, kernel_rsp) == 0x10 && offset_of!(CoreBlock, user_rsp) == 0x18);
    assert!(offset_of!(CoreBlock, mxcsr_mask) == 0x20);
    assert!(offset_of!(CoreBlock, quick_numbers) == 0x28 && offset_of!(CoreBlock, quick_answers) == 0x30);
    assert!(TRAP_STACK_TOP + size_of::<CoreBlock>() as u64 <= PAGE_SIZE);
    assert!(offset_of!(UserContext, registers) == 0 && offset_of!(UserRegisters, rax) == 0);
    assert!(offset_of!(UserRegisters, rbx) == 0x08 && offset_of!(UserRegisters, rcx) == 0x10);
    assert!(offset_of!(UserRegisters, rdx) == 0x18 && offset_of!(UserRegisters, rsi) == 0x20);
    assert!(offset_of!(UserRegisters, rdi) == 0x28 && offset_of!(UserRegisters, rbp) == 0x30);
    assert!(offset_of!(UserRegisters, r8) == 0x38 && offset_of!(UserRegisters, r11) == 0x50);
    assert!(offset_of!(UserRegisters, r12) == 0x58 && offset_of!(UserRegisters, r15) == 0x70);
    assert!(offset_of!(UserRegisters, rip) == 0x78 && offset_of!(UserRegisters, rflags) == 0x80);
    assert!(offset_of!(UserRegisters, rsp) == 0x88 && offset_of!(UserRegisters, fs_base) == 0x90);
    assert!(offset_of!(UserRegisters, gs_base) == 0x98);
    assert!(offset_of!(UserContext, xmm) == 0xa0 && offset_of!(UserContext, mxcsr) == 0x1a0);
};
