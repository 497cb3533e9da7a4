//! Deliberate illegal accesses, for tests of the isolation.
//!
//! The processor stops each of them, in a cell and in a supervisor; none reaches memory that other code relies on. If
//! [`inject`] returns, the protection is missing.
//!
//! A crate of its own, so that only images that tests and the demo crash contain this code.
#![no_std]
#![allow(unsafe_code, reason = "safe Rust has no illegal accesses")]

use core::arch::asm;
use isola_abi::id::ApicId;
use isola_abi::layout::{DESCRIPTOR, DIRECT_MAP, TABLES};
use isola_abi::unplug::Shortfall;
use isola_machine::apic::local;
use isola_machine::authority::Authority;
use isola_machine::cell;

/// An illegal operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InjectedFault {
    /// Writes through a null pointer.
    NullPointer,
    /// Writes to memory that never belongs to a cell: the machine's first page.
    ForeignMemory,
    /// Writes to the image's own code.
    OwnCode,
    /// Executes the image's own constants.
    OwnData,
    /// Executes the stack.
    OwnStack,
    /// Writes to the cell's descriptor.
    Descriptor,
    /// Writes to the interrupt table.
    InterruptTable,
    /// Executes an undefined instruction.
    NoInstruction,
    /// Reads an address that is no longer mapped.
    ReadAt(usize),
}

/// Interrupts another core with a vector of an exception or of spurious interrupts. The processor does not prevent
/// that, so each core has to handle it. A local APIC does not deliver vectors below 16.
pub fn send_reserved_vector(_: Authority, to: ApicId, vector: u8) {
    // SAFETY: no memory depends on the interrupt: the handlers of every image detect it, which the tests check.
    unsafe { local::send_unchecked(to, vector) };
}

/// Offers a block of the direct map to the supervisor, for the reclaim request `number`, although the cell still reads
/// it by [`InjectedFault::ReadAt`]. Demands an authority, as no Rust value may use the block.
pub fn offer_and_keep(_: Authority, number: u32, block: usize, len: usize) {
    // SAFETY: only `inject` reads the block's bytes from here on, and it discards them.
    unsafe { cell::offer(number, &[(block, len)], 0, Shortfall::None) };
}

/// Executes a loop of so many rounds with this value as the frame pointer, as code could that does not keep frame pointers.
pub fn spin_with_frame_pointer(value: u64, rounds: u64) {
    // SAFETY: the frame pointer is restored. No instruction between uses it; code that walks the stack, in handlers of
    // interrupts and exceptions, has to check it.
    unsafe {
        asm!(
            "push rbp",
            "mov rbp, {value}",
            "2:",
            "sub {rounds}, 1",
            "ja 2b",
            "pop rbp",
            value = in(reg) value,
            rounds = inout(reg) rounds => _,
        )
    };
}

/// Injects a fault. Returns if the processor does not stop it.
///
/// Safe without an authority: a stopped fault ends the caller's own cell, and a read by [`InjectedFault::ReadAt`]
/// reaches only memory that the cell's page tables map, including the registers of its own devices.
pub fn inject(fault: InjectedFault) {
    static DATA: [u8; 1] = [0xc3]; // RET
    let write_to = |address: u64| {
        // SAFETY: the address is not mapped writable, see the variants: the write faults and does not return.
        unsafe { asm!("mov byte ptr [{}], 0x5a", in(reg) address, options(nostack)) };
    };
    match fault {
        InjectedFault::NullPointer => write_to(0),
        InjectedFault::ForeignMemory => write_to(DIRECT_MAP),
        InjectedFault::OwnCode => write_to((inject as *const ()).addr() as u64),
        InjectedFault::Descriptor => write_to(DESCRIPTOR),
        InjectedFault::InterruptTable => write_to(TABLES),
        InjectedFault::OwnData => {
            // SAFETY: constants are mapped non-executable: the call faults and does not return.
            unsafe { asm!("call {}", in(reg) DATA.as_ptr(), clobber_abi("C")) };
        }
        InjectedFault::OwnStack => {
            let code = DATA;
            // SAFETY: stacks are mapped non-executable: the call faults and does not return.
            unsafe { asm!("call {}", in(reg) core::hint::black_box(&code).as_ptr(), clobber_abi("C")) };
        }
        InjectedFault::ReadAt(address) => {
            // SAFETY: the byte is discarded; the read changes no memory.
            unsafe {
                asm!("mov al, byte ptr [{}]", in(reg) address, out("al") _, options(nostack, readonly))
            };
        }
        InjectedFault::NoInstruction => {
            // SAFETY: the instruction only raises its exception.
            unsafe { asm!("ud2", options(nomem, nostack)) };
        }
    }
}
