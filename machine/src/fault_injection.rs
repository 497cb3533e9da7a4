//! Breaking the rules on purpose, so that tests can see that the walls hold.
//!
//! Each of these is stopped by the processor, in a cell and in a supervisor: none reaches memory that code
//! relies on. Where one is not stopped, [`inject`] returns, and the caller knows that a wall is missing.

use crate::apic::local;
use crate::authority::Authority;
use crate::cell;
use core::arch::asm;
use isola_abi::id::ApicId;
use isola_abi::layout::{DESCRIPTOR, DIRECT_MAP, TABLES};
use isola_abi::unplug::Rest;

/// Something that must not be possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// Writing by a null pointer.
    NullPointer,
    /// Writing to memory that is never a cell's: the machine's first page.
    ForeignMemory,
    /// Writing to the image's own code.
    OwnCode,
    /// Executing the image's own constants.
    OwnData,
    /// Executing the stack.
    OwnStack,
    /// Writing to the cell's descriptor.
    Descriptor,
    /// Writing to the interrupt table.
    InterruptTable,
    /// An instruction that doesn't exist.
    NoInstruction,
    /// Reading at an address where nothing is any more.
    ReadAt(usize),
}

/// Interrupts another core with a vector that exceptions or spurious interrupts have, too: the processor does not prevent
/// that, so each core has to handle it. Vectors below 16 are errors, which no local APIC delivers.
pub fn send_reserved_vector(_: Authority, to: ApicId, vector: u8) {
    local::send_any(to, vector);
}

/// Offers a block of the direct map to the supervisor, for the request of that number, though the cell goes on reading it by
/// [`InjectedFault::ReadAt`]. Demands an authority as the block must be one that no Rust value uses.
pub fn offer_and_keep(_: Authority, number: u32, block: usize, len: usize) {
    // SAFETY: the block's bytes are read by `inject` alone, which throws them away.
    unsafe { cell::offer(number, &[(block, len)], 0, Rest::None) };
}

/// Commits an injected fault. Returns where nothing has stopped it.
///
/// Safe without an authority: what the processor stops ends the caller's own cell, and a read by [`InjectedFault::ReadAt`] reaches
/// no more than the cell's page tables map, the registers of its own devices included.
pub fn inject(fault: InjectedFault) {
    static DATA: [u8; 1] = [0xc3]; // RET
    let write_to = |address: u64| {
        // SAFETY: nothing is mapped writable there, see the variants: the write faults, and does not return.
        unsafe { asm!("mov byte ptr [{}], 0x5a", in(reg) address, options(nostack)) };
    };
    match fault {
        InjectedFault::NullPointer => write_to(0),
        InjectedFault::ForeignMemory => write_to(DIRECT_MAP),
        InjectedFault::OwnCode => write_to(crate::interrupts::vectors()),
        InjectedFault::Descriptor => write_to(DESCRIPTOR),
        InjectedFault::InterruptTable => write_to(TABLES),
        InjectedFault::OwnData => {
            // SAFETY: constants are mapped without the right to execute: the call faults.
            unsafe { asm!("call {}", in(reg) DATA.as_ptr(), clobber_abi("C")) };
        }
        InjectedFault::OwnStack => {
            let code = DATA;
            // SAFETY: stacks are mapped without the right to execute: the call faults.
            unsafe { asm!("call {}", in(reg) core::hint::black_box(&code).as_ptr(), clobber_abi("C")) };
        }
        InjectedFault::ReadAt(address) => {
            // SAFETY: the byte is thrown away.
            unsafe {
                asm!("mov al, byte ptr [{}]", in(reg) address, out("al") _, options(nostack, readonly))
            };
        }
        InjectedFault::NoInstruction => {
            // SAFETY: the instruction does nothing but raise its exception.
            unsafe { asm!("ud2", options(nomem, nostack)) };
        }
    }
}
