//! The switch page: code that is mapped at `SHARED` in every address space, so that a core can change from one to
//! another while it executes there.

use core::arch::{asm, global_asm};
use isola_abi::layout::SHARED;

global_asm!(
    ".section .text.isola_switch, \"ax\"",
    ".balign 16",
    ".globl isola_switch, isola_switch_end",
    // rdi = root, rsi = top of the stack, rdx = entry, rcx = argument; zeroes all other registers
    "isola_switch:",
    "mov cr3, rdi",
    "mov rsp, rsi",
    "mov rax, rdx",
    "mov rdi, rcx",
    "xor ebx, ebx",
    "xor ecx, ecx",
    "xor edx, edx",
    "xor esi, esi",
    "xor ebp, ebp", // the outermost frame, where backtraces end
    "xor r8d, r8d",
    "xor r9d, r9d",
    "xor r10d, r10d",
    "xor r11d, r11d",
    "xor r12d, r12d",
    "xor r13d, r13d",
    "xor r14d, r14d",
    "xor r15d, r15d",
    "call rax",
    "ud2",
    "isola_switch_end:",
    ".text",
);

/// Returns the code, which belongs at the beginning of the page.
pub(crate) fn code() -> &'static [u8] {
    unsafe extern "C" {
        safe static isola_switch: u8;
        safe static isola_switch_end: u8;
    }
    let start = &raw const isola_switch;
    let len = (&raw const isola_switch_end).addr() - start.addr();
    // SAFETY: the two symbols are the bounds of constants of the image.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// Changes to another address space, and calls `entry(argument)` there.
///
/// # Safety
/// Both spaces must map the switch page at `SHARED`. The space with this root must map the stack, the entry's code, and
/// the descriptor tables that are in use; interrupts must be off.
pub(crate) unsafe fn enter(root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller guarantees all of this.
    unsafe { enter_at(SHARED, root, stack_top, entry, argument) }
}

/// Changes to an address space that maps the image at the same address, and calls `entry(argument)` there.
///
/// # Safety
/// As for [`enter`], except that both spaces must map the image instead of the switch page.
pub(crate) unsafe fn enter_from_image(root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller guarantees all of this.
    unsafe { enter_at(code().as_ptr() as u64, root, stack_top, entry, argument) }
}

unsafe fn enter_at(code: u64, root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller guarantees that both spaces map `code`, and the contract of `enter`.
    unsafe {
        asm!(
            "jmp {code}",
            code = in(reg) code,
            in("rdi") root,
            in("rsi") stack_top,
            in("rdx") entry,
            in("rcx") argument,
            options(noreturn)
        )
    }
}
