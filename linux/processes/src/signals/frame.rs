//! The frame that a signal handler gets on its stack: `struct rt_sigframe` (Linux's `arch/x86/include/asm/sigframe.h` and
//! `uapi/asm/sigcontext.h`).
//!
//! ```text
//!   +0    address of the restorer, to which the handler returns
//!   +8    ucontext: flags, link, alternate stack | registers | mask of blocked signals
//!   +312  siginfo
//!   ...   processor state in XSAVE's format, at a multiple of 64, with Linux's two magic numbers
//! ```

use super::queue::{INFO_LEN, SignalInfo};
use super::set::{Signal, SignalSet};
use crate::Errno;
use alloc::vec::Vec;
use isola_abi::user_context::UserRegisters;
use isola_linux_abi::numbers::{MINSIGSTKSZ, SS_AUTODISARM, SS_DISABLE, SS_ONSTACK};
use isola_user_mode::USER_END;

/// Length of the frame without the processor state, in bytes.
const FRAME_LEN: u64 = INFO_OFFSET as u64 + INFO_LEN as u64;
/// Offsets in the frame.
const CONTEXT_OFFSET: usize = 8;
const STACK_OFFSET: usize = CONTEXT_OFFSET + 16;
const REGISTERS_OFFSET: usize = CONTEXT_OFFSET + 40;
const STATE_POINTER_OFFSET: usize = REGISTERS_OFFSET + 184;
const MASK_OFFSET: usize = REGISTERS_OFFSET + 256;
const INFO_OFFSET: usize = MASK_OFFSET + 8;

/// Bytes below the stack pointer that a function may use without moving it (System V ABI, 3.2.2).
const RED_ZONE: u64 = 128;

/// `uc_flags`: the state has XSAVE's format; the stack segment is valid; and it is restored strictly.
const CONTEXT_FLAGS: u64 = 1 | 2 | 4;
/// Offset of the software-reserved bytes in the state, and the magic numbers there and behind the state.
const RESERVED_OFFSET: usize = 464;
const MAGIC_1: u32 = 0x4650_5853;
const MAGIC_2: u32 = 0x4650_5845;
/// The length of the state's legacy part.
const XSAVE_LEGACY_LEN: usize = 512;
/// The length of the state's legacy part and header.
const XSAVE_MIN_LEN: usize = 576;
/// The segment selectors of a program in 64-bit mode, as Linux numbers them.
const USER_CS: u16 = 0x33;
const USER_SS: u16 = 0x2b;
/// Flags that a program may change: those of arithmetic, TF, DF, NT, RF, AC, ID.
const USER_FLAGS: u64 = 0x25_4dd5;
/// The flags that a handler starts without: DF, RF, TF.
const CLEARED_FLAGS: u64 = 1 << 10 | 1 << 16 | 1 << 8;

/// An alternate signal stack of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlternateStack {
    /// Its lowest address.
    pub start: u64,
    /// Its length, in bytes; 0 if there is none.
    pub len: u64,
    /// Whether it is disabled while a handler runs on it (`SS_AUTODISARM`).
    pub disarms: bool,
}

impl AlternateStack {
    /// Length of `stack_t`, in bytes.
    pub const BYTES: usize = 24;

    /// Decodes a `stack_t`.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] for unknown flags, [`Errno::ENOMEM`] for a stack that is too short.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Self, Errno> {
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
        let flags = word(8) as u32;
        match flags & !SS_AUTODISARM {
            SS_DISABLE => Ok(Self::default()),
            0 | SS_ONSTACK if word(16) < u64::from(MINSIGSTKSZ) => Err(Errno::ENOMEM),
            0 | SS_ONSTACK => Ok(Self { start: word(0), len: word(16), disarms: flags & SS_AUTODISARM != 0 }),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Encodes a `stack_t`, for a thread with this stack pointer.
    pub fn to_bytes(self, stack_pointer: u64) -> [u8; Self::BYTES] {
        let flags = match (self.len, self.contains(stack_pointer)) {
            (0, _) => SS_DISABLE,
            (_, true) => SS_ONSTACK,
            _ => 0,
        };
        let flags = if self.disarms { flags | SS_AUTODISARM } else { flags };
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&flags.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Returns whether a stack pointer is on this stack.
    pub fn contains(self, stack_pointer: u64) -> bool {
        !self.disarms && stack_pointer > self.start && stack_pointer - self.start <= self.len
    }
}

/// The input for a frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameInput<'a> {
    /// The registers of the interrupted program.
    pub registers: &'a UserRegisters,
    /// Its processor state in XSAVE's format.
    pub state: &'a [u8],
    /// Its blocked signals, which are restored when the handler returns.
    pub mask: SignalSet,
    /// The signal.
    pub info: &'a SignalInfo,
    /// The thread's alternate stack, and whether the handler runs on it.
    pub alternate: AlternateStack,
    /// Whether the handler runs on the alternate stack (`SA_ONSTACK`).
    pub on_alternate: bool,
    /// The address of the restorer.
    pub restorer: u64,
    /// The address of a page fault, and the number and code of an exception: facts for the handler.
    pub fault: FaultFacts,
}

/// The exception that caused a signal; zeros for other signals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultFacts {
    /// The vector.
    pub vector: u64,
    /// The error code.
    pub error_code: u64,
    /// The address of a page fault.
    pub address: u64,
}

/// A frame, to be written to the program's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalFrame {
    /// Its address, which becomes the stack pointer.
    pub address: u64,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The address of the siginfo in it, for the handler.
    pub info_address: u64,
    /// The address of the ucontext in it, for the handler.
    pub context_address: u64,
    /// The address of the processor state, and its bytes.
    pub state: (u64, Vec<u8>),
}

impl FrameInput<'_> {
    /// Lays out the frame below the stack pointer, or at the top of the alternate stack.
    ///
    /// # Errors
    /// [`Errno::EFAULT`] if there is no room: the program gets SIGSEGV instead.
    pub fn lay_out(&self) -> Result<SignalFrame, Errno> {
        let was_on_alternate = self.alternate.contains(self.registers.rsp);
        let switches = self.on_alternate && self.alternate.len > 0 && !was_on_alternate;
        let top = if switches {
            self.alternate.start.checked_add(self.alternate.len)
        } else {
            self.registers.rsp.checked_sub(RED_ZONE)
        };
        let state = self.state();
        let below =
            |address: u64, len: u64, alignment: u64| Some(address.checked_sub(len)? & !(alignment - 1));
        let state_address = top.and_then(|top| below(top, state.len() as u64, 64));
        let address = state_address.and_then(|state| below(state, FRAME_LEN, 16)?.checked_sub(8));
        let (Some(address), Some(state_address)) = (address, state_address) else {
            return Err(Errno::EFAULT);
        };
        let is_beyond_alternate = (switches || was_on_alternate) && address < self.alternate.start;
        if is_beyond_alternate || state_address >= USER_END {
            return Err(Errno::EFAULT);
        }
        let mut bytes = alloc::vec![0; FRAME_LEN as usize];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.restorer.to_le_bytes());
        put(CONTEXT_OFFSET, &CONTEXT_FLAGS.to_le_bytes());
        put(STACK_OFFSET, &self.alternate.to_bytes(self.registers.rsp));
        for (index, word) in self.words().into_iter().enumerate() {
            put(REGISTERS_OFFSET + 8 * index, &word.to_le_bytes());
        }
        put(STATE_POINTER_OFFSET, &state_address.to_le_bytes());
        put(MASK_OFFSET, &self.mask.0.to_le_bytes());
        put(INFO_OFFSET, &self.info.to_bytes());
        Ok(SignalFrame {
            address,
            bytes,
            info_address: address + INFO_OFFSET as u64,
            context_address: address + CONTEXT_OFFSET as u64,
            state: (state_address, state),
        })
    }

    /// Returns the words of `struct sigcontext` before the pointer to the processor state.
    fn words(&self) -> [u64; 23] {
        let UserRegisters {
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
            ..
        } = *self.registers;
        let segments = u64::from(USER_CS) | u64::from(USER_SS) << 48;
        let FaultFacts { vector, error_code, address } = self.fault;
        [
            r8,
            r9,
            r10,
            r11,
            r12,
            r13,
            r14,
            r15,
            rdi,
            rsi,
            rbp,
            rbx,
            rdx,
            rax,
            rcx,
            rsp,
            rip,
            rflags,
            segments,
            error_code,
            vector,
            self.mask.0,
            address,
        ]
    }

    /// Returns the processor state with Linux's magic numbers.
    fn state(&self) -> Vec<u8> {
        let mut bytes = self.state.to_vec();
        if bytes.len() < XSAVE_MIN_LEN {
            return bytes;
        }
        let len = bytes.len() as u32;
        let features: [u8; 8] = core::array::from_fn(|index| bytes[512 + index]);
        let reserved = &mut bytes[RESERVED_OFFSET..RESERVED_OFFSET + 24];
        reserved[..4].copy_from_slice(&MAGIC_1.to_le_bytes());
        reserved[4..8].copy_from_slice(&(len + 4).to_le_bytes());
        reserved[8..16].copy_from_slice(&features);
        reserved[16..20].copy_from_slice(&len.to_le_bytes());
        bytes.extend(MAGIC_2.to_le_bytes());
        bytes
    }
}

/// The state of a program before a handler, from the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SavedContext {
    /// The registers. The bases of the segments are not in the frame.
    pub registers: UserRegisters,
    /// The blocked signals.
    pub mask: SignalSet,
    /// The alternate stack as it was.
    pub alternate: [u8; AlternateStack::BYTES],
    /// The address of the processor state; 0 for its initial state.
    pub state_address: u64,
}

impl SavedContext {
    /// The number of bytes from [`Self::address`] on.
    pub const BYTES: usize = INFO_OFFSET - CONTEXT_OFFSET;

    /// Returns the address of the bytes, for a thread that executes `rt_sigreturn` with this stack pointer: behind the
    /// restorer's address.
    pub fn address(stack_pointer: u64) -> u64 {
        stack_pointer
    }

    /// Clears the bytes of a processor state that are Linux's own, as the processor requires zeros there.
    pub fn clear_reserved(state: &mut [u8]) {
        if let Some(reserved) = state.get_mut(RESERVED_OFFSET..XSAVE_LEGACY_LEN) {
            reserved.fill(0);
        }
    }

    /// Decodes the bytes, which the program may have changed. `now` has the registers that the frame does not.
    pub fn from_bytes(bytes: &[u8; Self::BYTES], now: &UserRegisters) -> Self {
        let word = |at: usize| {
            let at = at - CONTEXT_OFFSET;
            u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]))
        };
        let register = |index: usize| word(REGISTERS_OFFSET + 8 * index);
        let registers = UserRegisters {
            r8: register(0),
            r9: register(1),
            r10: register(2),
            r11: register(3),
            r12: register(4),
            r13: register(5),
            r14: register(6),
            r15: register(7),
            rdi: register(8),
            rsi: register(9),
            rbp: register(10),
            rbx: register(11),
            rdx: register(12),
            rax: register(13),
            rcx: register(14),
            rsp: register(15),
            rip: register(16),
            rflags: now.rflags & !USER_FLAGS | register(17) & USER_FLAGS,
            fs_base: now.fs_base,
            gs_base: now.gs_base,
        };
        Self {
            registers,
            mask: SignalSet(word(MASK_OFFSET)) & !SignalSet::UNBLOCKABLE,
            alternate: core::array::from_fn(|index| bytes[STACK_OFFSET - CONTEXT_OFFSET + index]),
            state_address: word(STATE_POINTER_OFFSET),
        }
    }
}

/// Sets the registers for a handler.
pub fn enter_handler(registers: &mut UserRegisters, handler: u64, signal: Signal, frame: &SignalFrame) {
    registers.rip = handler;
    registers.rsp = frame.address;
    registers.rdi = signal.number().into();
    registers.rsi = frame.info_address;
    registers.rdx = frame.context_address;
    registers.rax = 0;
    registers.rflags &= !CLEARED_FLAGS;
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn registers() -> UserRegisters {
        UserRegisters {
            rsp: 0x7ffd_0000_1238,
            rip: 0x40_1000,
            rax: 5,
            r15: 15,
            rflags: 0x246,
            ..Default::default()
        }
    }

    fn input<'a>(registers: &'a UserRegisters, state: &'a [u8], info: &'a SignalInfo) -> FrameInput<'a> {
        FrameInput {
            registers,
            state,
            mask: SignalSet::of(Signal::SIGUSR2),
            info,
            alternate: AlternateStack::default(),
            on_alternate: true,
            restorer: 0x40_2000,
            fault: FaultFacts { vector: 14, error_code: 6, address: 0x1000 },
        }
    }

    #[test]
    fn a_handler_starts_as_after_a_call_and_its_return_restores_all() {
        let (before, info) = (registers(), SignalInfo::kernel(Signal::SIGSEGV));
        let state = vec![0; XSAVE_MIN_LEN];
        let frame = input(&before, &state, &info).lay_out().unwrap();
        assert_eq!(frame.address % 16, 8, "the stack is as after a call");
        assert!(
            frame.state.0.is_multiple_of(64) && frame.state.0 >= frame.address + frame.bytes.len() as u64
        );
        assert!(frame.state.0 + frame.state.1.len() as u64 <= before.rsp - RED_ZONE);
        assert_eq!(frame.bytes[..8], 0x40_2000_u64.to_le_bytes());
        assert_eq!(frame.state.1[464..468], MAGIC_1.to_le_bytes());
        assert_eq!(frame.state.1[XSAVE_MIN_LEN..], MAGIC_2.to_le_bytes());
        let mut handler = before;
        enter_handler(&mut handler, 0x40_3000, Signal::SIGSEGV, &frame);
        assert_eq!((handler.rdi, handler.rip, handler.rsi - frame.address), (11, 0x40_3000, 312));
        // The restorer was popped; the program changed the flags, also one that it must not.
        let mut bytes: [u8; SavedContext::BYTES] = core::array::from_fn(|index| frame.bytes[8 + index]);
        let flags = REGISTERS_OFFSET - 8 + 8 * 17;
        bytes[flags..flags + 8].copy_from_slice(&0x3ed7_u64.to_le_bytes());
        let saved = SavedContext::from_bytes(&bytes, &handler);
        assert_eq!(saved.registers, UserRegisters { rflags: 0xed7 & USER_FLAGS | 0x202, ..before });
        assert_eq!((saved.mask, saved.state_address), (SignalSet::of(Signal::SIGUSR2), frame.state.0));
    }

    #[test]
    fn the_alternate_stack_is_used_once() {
        let (before, info) = (registers(), SignalInfo::kernel(Signal::SIGSEGV));
        let alternate = AlternateStack { start: 0x10_0000, len: 0x2000, disarms: false };
        let state = vec![0; XSAVE_MIN_LEN];
        let frame = FrameInput { alternate, ..input(&before, &state, &info) }.lay_out().unwrap();
        assert!(frame.address > 0x10_0000 && frame.address < 0x10_2000);
        // A second signal, while the handler runs there, continues below.
        let inside = UserRegisters { rsp: frame.address, ..before };
        let second = FrameInput { alternate, ..input(&inside, &state, &info) }.lay_out().unwrap();
        assert!(second.address < frame.address);
        let short = AlternateStack { len: 0x400, ..alternate };
        assert_eq!(
            FrameInput { alternate: short, ..input(&before, &state, &info) }.lay_out(),
            Err(Errno::EFAULT)
        );
        let ordinary = FrameInput { alternate, on_alternate: false, ..input(&before, &state, &info) };
        assert!(ordinary.lay_out().unwrap().address > 0x7ffd_0000_0000);
    }

    #[test]
    fn stacks_without_room_are_an_error() {
        let info = SignalInfo::kernel(Signal::SIGSEGV);
        for rsp in [0, 127, 600] {
            let low = UserRegisters { rsp, ..registers() };
            assert_eq!(input(&low, &[0; XSAVE_MIN_LEN], &info).lay_out(), Err(Errno::EFAULT));
        }
    }

    #[test]
    fn alternate_stacks_are_checked() {
        let stack = AlternateStack { start: 0x1000, len: 0x2000, disarms: false };
        let bytes = stack.to_bytes(0);
        assert_eq!(AlternateStack::from_bytes(&bytes), Ok(stack));
        assert_eq!(stack.to_bytes(0x3000)[8], SS_ONSTACK as u8);
        assert_eq!(stack.to_bytes(0x3001)[8], 0);
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            AlternateStack::from_bytes(&bytes)
        };
        assert_eq!(with(8, 2), Ok(AlternateStack::default()));
        assert_eq!((with(8, 4), with(17, 7)), (Err(Errno::EINVAL), Err(Errno::ENOMEM)));
    }
}
