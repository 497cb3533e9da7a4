//! The switch page: code that stands at `SHARED` in every address space, so that a core can change from one to
//! another while it runs there.

use core::arch::{asm, global_asm};
use isola_abi::layout::SHARED;

global_asm!(
    ".section .text.isola_switch, \"ax\"",
    ".balign 16",
    ".globl isola_switch, isola_switch_end",
    // rdi = root, rsi = top of the stack, rdx = entry, rcx = argument; leaves nothing in other registers
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

/// The bytes that belong at the beginning of the page.
pub(crate) fn code() -> &'static [u8] {
    unsafe extern "C" {
        safe static isola_switch: u8;
        safe static isola_switch_end: u8;
    }
    let start = &raw const isola_switch;
    let len = (&raw const isola_switch_end).addr() - start.addr();
    // SAFETY: the two symbols are the ends of constants of the image.
    unsafe { core::slice::from_raw_parts(start, len) }
}

/// Leaves for another address space, and calls `entry(argument)` there.
///
/// # Safety
/// Both spaces must map the switch page at `SHARED`. The space with this root must have the stack, the entry's
/// code, and the descriptor tables that are in use; interrupts are off.
pub(crate) unsafe fn enter(root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller's.
    unsafe { enter_at(SHARED, root, stack_top, entry, argument) }
}

/// Leaves for an address space that has the image at the same place, and calls `entry(argument)` there.
///
/// # Safety
/// As [`enter`]'s, but that the image takes the place of the switch page.
pub(crate) unsafe fn enter_from_image(root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller's.
    unsafe { enter_at(code().as_ptr() as u64, root, stack_top, entry, argument) }
}

unsafe fn enter_at(code: u64, root: u64, stack_top: u64, entry: u64, argument: u64) -> ! {
    // SAFETY: the caller's.
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
