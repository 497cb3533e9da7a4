//! A thread of a program, and its execution.

use super::core_block::{CoreBlock, pin};
use super::extended::{self, ExtendedState, InvalidArea, Support};
use super::space::ProgramSpace;
use crate::apic::local;
use crate::cpu::{self, msr};
use crate::interrupts::handle_interrupt;
use crate::tables::{CODE, USER_CODE, USER_DATA};
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::user_context::{TrapAnswer, UserContext, UserRegisters};

/// The result of `isola_user_enter` for a system call; else it is a vector.
const SYSTEM_CALL: u64 = 0x100;

/// Flags of `isola_user_enter`.
const BY_IRET: u32 = 1;
const CLEAR_SELECTORS: u32 = 2;

/// The end of the canonical addresses of the lower half.
const LOWER_HALF: u64 = 1 << 47;

/// The flags of user mode: CF, PF, AF, ZF, SF, TF, DF, OF, NT, RF, AC, ID. Interrupts are always on.
const USER_FLAGS: u64 = 0x25_4dd5;
const INTERRUPTS_ON: u64 = 1 << 9;
const RESERVED_ONE: u64 = 1 << 1;
const TRAP: u64 = 1 << 8;
const RESUME: u64 = 1 << 16;

/// The flags that SYSCALL clears: TF, IF, DF, IOPL, NT, AC.
const CLEARED_FLAGS: u64 = 0x4_7700;

const GENERAL_PROTECTION: u8 = 13;
const PAGE_FAULT: u64 = 14;
const MACHINE_CHECK: u64 = 18;
const FIRST_INTERRUPT: u64 = 32;

unsafe extern "sysv64" {
    /// See `entry.s`.
    fn isola_user_enter(context: *mut UserContext, block: *const CoreBlock, flags: u32) -> EntryResult;
    safe static isola_user_system_call: u8;
}

/// The result of `isola_user_enter`, in RAX and RDX.
#[repr(C)]
struct EntryResult {
    kind: u64,
    error_code: u64,
}

/// The reason why a program stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawTrap {
    /// The instruction SYSCALL.
    SystemCall,
    /// A page fault at an address, with its error code (Intel SDM 3, 4.7).
    PageFault {
        /// The address.
        address: u64,
        /// The error code.
        error_code: u64,
    },
    /// Another exception.
    Exception {
        /// The vector.
        vector: u8,
        /// The error code, or 0.
        error_code: u64,
    },
    /// An interrupt, which was handled.
    Interrupt,
    /// A trap that was served while the program ran.
    Served,
}

/// The system calls that the entry code answers: without any other effect, it sets RAX.
#[derive(Clone, Copy, Debug)]
pub struct QuickCalls<'a> {
    /// By the number of a call: 0 for one that it does not answer; otherwise the three bits from bit 3 on are the position
    /// of the answer.
    pub numbers: &'static [u8; 256],
    /// The answers.
    pub answers: &'a [AtomicU64; 8],
}

/// A thread of a program.
#[derive(Debug)]
pub struct ProgramThread {
    context: UserContext,
    extended: ExtendedState,
    /// A number that no other extended state has, and that this one gets anew when it is changed here.
    state_number: u64,
    /// The core slot at which the thread ran last.
    last_slot: usize,
}

/// The number of the last extended state.
static LAST_STATE: AtomicU64 = AtomicU64::new(0);

fn new_state_number() -> u64 {
    LAST_STATE.fetch_add(1, Ordering::Relaxed) + 1
}

impl ProgramThread {
    /// Creates a thread with these registers and the initial extended state. The processor must support programs
    /// ([`super::is_supported`]).
    pub fn new(context: UserContext) -> Self {
        Self::with(context, ExtendedState::new(Support::get()))
    }

    fn with(context: UserContext, extended: ExtendedState) -> Self {
        Self { context, extended, state_number: new_state_number(), last_slot: 0 }
    }

    /// Creates a thread with the same processor state.
    pub fn duplicate(&self) -> Self {
        Self::with(self.context.clone(), self.extended.duplicate())
    }

    /// Returns the registers.
    pub fn context(&self) -> &UserContext {
        &self.context
    }

    /// Returns the registers, to change them.
    pub fn context_mut(&mut self) -> &mut UserContext {
        &mut self.context
    }

    /// Returns the processor state in the standard format of XSAVE.
    pub fn extended_state(&mut self) -> &[u8] {
        self.extended.bytes_with(&self.context, extended::mxcsr_mask())
    }

    /// Sets the processor state from that format.
    ///
    /// # Errors
    /// [`InvalidArea`] if the bytes are too few or set reserved bits.
    pub fn set_extended_state(&mut self, bytes: &[u8]) -> Result<(), InvalidArea> {
        self.extended.set(bytes, &mut self.context, extended::mxcsr_mask())?;
        self.state_number = new_state_number();
        Ok(())
    }

    /// Executes the program until a trap. `may_run` is called with interrupts off, immediately before; if it returns
    /// false, the program does not run, and the result is [`RawTrap::Interrupt`].
    ///
    /// Registers that a program must not have are corrected: reserved flags and the I/O privilege level are cleared,
    /// interrupts are on, reserved bits of MXCSR are cleared. A non-canonical address of the next instruction, or base
    /// of FS or GS, is a general protection exception.
    ///
    /// The entry code answers `quick` calls. `serve` is called with each other system call and page fault, with interrupts
    /// off. The program continues at once if it answers so, and a trap that it does not serve is the result.
    ///
    /// The caller must be an event of a core that runs no code of another context; it is as halted meanwhile.
    pub fn run(
        &mut self,
        space: &ProgramSpace,
        quick: QuickCalls<'_>,
        may_run: impl FnOnce() -> bool,
        mut serve: impl FnMut(RawTrap, &UserRegisters) -> TrapAnswer,
    ) -> RawTrap {
        let registers = &mut self.context.registers;
        let is_canonical = |base: u64| (base << 16).cast_signed() >> 16 == base.cast_signed();
        if registers.rip >= LOWER_HALF || !is_canonical(registers.fs_base) || !is_canonical(registers.gs_base)
        {
            return RawTrap::Exception { vector: GENERAL_PROTECTION, error_code: 0 };
        }
        registers.rflags = registers.rflags & USER_FLAGS | INTERRUPTS_ON | RESERVED_ONE;
        let is_as_after_system_call = registers.rcx == registers.rip
            && registers.r11 == registers.rflags
            && registers.rip < super::USER_END
            && registers.rflags & (TRAP | RESUME) == 0;
        let mut flags = if is_as_after_system_call { 0 } else { BY_IRET };

        let pinned = pin();
        let (slot, block) = (pinned.slot, pinned.block);
        if !block.is_prepared.load(Ordering::Relaxed) {
            prepare(block);
        }
        space.load(slot, block);
        if !may_run() {
            block.running_space.store(0, Ordering::Release);
            return RawTrap::Interrupt;
        }
        if block.extended_state.load(Ordering::Relaxed) != self.state_number || self.last_slot != slot {
            // SAFETY: the core is prepared. MXCSR is set from the context at entry.
            unsafe { self.extended.load() };
            block.extended_state.store(self.state_number, Ordering::Relaxed);
            self.last_slot = slot;
            flags |= CLEAR_SELECTORS;
        }
        block.set_quick_calls(quick);
        let (kind, error_code, address, answer) = loop {
            // SAFETY: the block is this core's, which is prepared; it has the quick calls, which are borrowed until the program
            // stops, and reads no bytes beyond their arrays; the context's values make no instruction of the entry
            // code fail: they were checked above, or are a program's own, which the processor has stored. A trap returns
            // here, with the registers that a function preserves.
            let EntryResult { kind, error_code } =
                unsafe { isola_user_enter(&raw mut self.context, block, flags) };
            let address = if kind == PAGE_FAULT { cpu::fault_address() } else { 0 };
            let registers = &mut self.context.registers;
            let answer = match kind {
                SYSTEM_CALL => serve(RawTrap::SystemCall, registers),
                PAGE_FAULT => serve(RawTrap::PageFault { address, error_code }, registers),
                _ => TrapAnswer::Unserved,
            };
            if let (SYSTEM_CALL, TrapAnswer::Resume(result) | TrapAnswer::Stop(result)) = (kind, answer) {
                registers.rax = result;
            }
            let by_sysret = kind == SYSTEM_CALL
                && registers.rip < super::USER_END
                && registers.rflags & (TRAP | RESUME) == 0;
            flags = if by_sysret { 0 } else { BY_IRET };
            if !matches!(answer, TrapAnswer::Resume(_)) {
                break (kind, error_code, address, answer);
            }
        };
        // SAFETY: the core has just run this thread.
        unsafe { self.extended.save() };
        block.running_space.store(0, Ordering::Release);
        let trap = match kind {
            _ if answer != TrapAnswer::Unserved => RawTrap::Served,
            SYSTEM_CALL => RawTrap::SystemCall,
            PAGE_FAULT => RawTrap::PageFault { address, error_code },
            vector if vector >= FIRST_INTERRUPT || (vector >= 16 && local::is_in_service(vector as u8)) => {
                handle_interrupt(vector);
                RawTrap::Interrupt
            }
            MACHINE_CHECK => panic!("a machine check interrupted a program"),
            vector => RawTrap::Exception { vector: vector as u8, error_code },
        };
        drop(pinned);
        trap
    }
}

/// Prepares this core for user mode.
#[cold]
fn prepare(block: &CoreBlock) {
    const EFER_SYSTEM_CALLS: u64 = 1;
    let entry = (&raw const isola_user_system_call).addr() as u64;
    // SYSRET loads CS from the upper selector + 16, SS from it + 8; SYSCALL loads CS from the lower, SS from it + 8.
    let segments = u64::from(USER_DATA - 8) << 48 | u64::from(CODE) << 32;
    // SAFETY: every processor that supports programs has these registers. SYSCALL is used by programs only, and leads to
    // the code that expects the block in KERNEL_GS_BASE. The image's code does not depend on the absence of AVX.
    unsafe {
        cpu::write_msr(msr::EFER, cpu::read_msr(msr::EFER) | EFER_SYSTEM_CALLS);
        cpu::write_msr(msr::STAR, segments);
        cpu::write_msr(msr::LSTAR, entry);
        cpu::write_msr(msr::SYSCALL_MASK, CLEARED_FLAGS);
        cpu::write_msr(msr::KERNEL_GS_BASE, block.address());
        Support::get().enable();
    }
    block.mxcsr_mask.store(extended::mxcsr_mask(), Ordering::Relaxed);
    block.extended_state.store(0, Ordering::Relaxed);
    block.is_prepared.store(true, Ordering::Relaxed);
}

const _: () = assert!(USER_DATA == 0x1b && USER_CODE == 0x23 && USER_CODE == USER_DATA + 8);
const _: () = assert!(CODE + 8 == 0x10, "the data segment of ring 0 follows its code segment");
