//! Tables that the processor reads by itself: interrupt descriptor table (IDT), global descriptor table (GDT) and task
//! state segment (TSS) (Intel SDM 3, 3.4, 6.14 and 8.7; AMD APM 2, 4.8 and 12.2.5).
//!
//! A core has a page of its own:
//!
//! ```text
//! +0x00  GDT   null | 0x08 code | 0x10 data | 0x18 user data | 0x20 user code | 0x28 task state segment (16 bytes)
//! +0x40  TSS   RSP 0: stack of traps from user mode | IST 1: double fault's stack | IST 2: NMI stack
//! ```
//!
//! The order of the segments is that of SYSCALL and SYSRET (Intel SDM 3, 5.8.8). The gates of the breakpoint and of
//! overflow are open to user mode, where the instructions INT3 and INTO use them.
//!
//! All cores of a cell share the interrupt table. Once a core runs in its cell, the tables are read-only there: the
//! bits "accessed" and "busy", which the processor would set, are set beforehand, or by [`load`], which uses another,
//! writable mapping of the page.

use crate::interrupts::FIRST_INTERRUPT;
use core::arch::asm;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::note::{VECTOR_COUNT, VECTOR_STRIDE};

pub(crate) const CODE: u16 = 0x08;
const DATA: u16 = 0x10;
/// The segments of user mode, with its privilege level.
pub(crate) const USER_DATA: u16 = 0x18 | 3;
pub(crate) const USER_CODE: u16 = 0x20 | 3;
const TASK: u16 = 0x28;
/// The type of the descriptor of a 64-bit TSS that is not in use, and its offset in a core's page.
const TASK_AVAILABLE: u8 = 0x89;
const TASK_TYPE_OFFSET: u64 = TASK as u64 + 5;
const GDT_LEN: u16 = 0x38;
const TSS_OFFSET: usize = 0x40;
const TSS_LEN: u16 = 0x68;

const BREAKPOINT: usize = 3;
const OVERFLOW: usize = 4;
const DOUBLE_FAULT: usize = 8;
/// The vector of the non-maskable interrupt.
pub(crate) const NON_MASKABLE: usize = 2;

/// The tops of a core's exception stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExceptionStacks {
    pub(crate) double_fault_top: u64,
    pub(crate) non_maskable_top: u64,
    /// For traps from user mode.
    pub(crate) trap_top: u64,
}

/// Fills a core's page, which the core will have mapped at `virt`.
pub(crate) fn fill_core_page(page: &mut [u8], virt: u64, stacks: ExceptionStacks) {
    let tss = virt + TSS_OFFSET as u64;
    let gdt = [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00af_fb00_0000_ffff,
        u64::from(TSS_LEN - 1)
            | (tss & 0xff_ffff) << 16
            | u64::from(TASK_AVAILABLE) << 40
            | (tss >> 24 & 0xff) << 56,
        tss >> 32,
    ];
    put_words(page, 0, &gdt);
    put_words(page, TSS_OFFSET + 0x04, &[stacks.trap_top]);
    put_words(page, TSS_OFFSET + 0x24, &[stacks.double_fault_top, stacks.non_maskable_top]);
    // No I/O permission map: its offset is behind the segment's end.
    page[TSS_OFFSET + 0x66..TSS_OFFSET + 0x68].copy_from_slice(&TSS_LEN.to_le_bytes());
}

/// Fills an interrupt table for an image whose entry point of vector 0 is at `vectors`.
pub(crate) fn fill_interrupt_table(page: &mut [u8], vectors: u64) {
    for vector in 0..VECTOR_COUNT as usize {
        put_gate(page, vector, vectors + VECTOR_STRIDE * vector as u64);
    }
}

/// Points all interrupts of a filled table, but not the exceptions, to one handler.
pub(crate) fn lead_interrupts_to(page: &mut [u8], handler: u64) {
    for vector in usize::from(FIRST_INTERRUPT)..VECTOR_COUNT as usize {
        put_gate(page, vector, handler);
    }
}

/// Points the non-maskable interrupt of a filled table to a handler.
pub(crate) fn lead_non_maskable_to(page: &mut [u8], handler: u64) {
    put_gate(page, NON_MASKABLE, handler);
}

/// Makes all gates of a filled table use the current stack.
pub(crate) fn use_current_stack(page: &mut [u8]) {
    for vector in 0..VECTOR_COUNT as usize {
        // The lowest bits of byte 4 are the index of an interrupt stack in the TSS.
        page[16 * vector + 4] = 0;
    }
}

/// Loads the interrupt table on this core.
///
/// # Safety
/// It must be filled, for the code that runs, and stay mapped and unchanged there while it is in use.
pub(crate) unsafe fn load_interrupt_table(virt: u64) {
    let pointer = TablePointer::of_interrupt_table(virt);
    // SAFETY: the caller guarantees a filled table at `virt`; LIDT only reads `pointer`.
    unsafe { asm!("lidt [{}]", in(reg) &raw const pointer, options(readonly, nostack, preserves_flags)) };
}

fn put_gate(page: &mut [u8], vector: usize, handler: u64) {
    let stack = match vector {
        DOUBLE_FAULT => 1,
        NON_MASKABLE => 2,
        _ => 0,
    };
    // Present, an interrupt gate: interrupts stay off. The privilege level is that of INT instructions.
    let kind = if matches!(vector, BREAKPOINT | OVERFLOW) { 0xee } else { 0x8e };
    let low =
        handler & 0xffff | u64::from(CODE) << 16 | stack << 32 | kind << 40 | (handler >> 16 & 0xffff) << 48;
    put_words(page, 16 * vector, &[low, handler >> 32]);
}

fn put_words(page: &mut [u8], offset: usize, words: &[u64]) {
    for (word, place) in words.iter().zip(page[offset..].chunks_exact_mut(8)) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// The operand of LGDT and LIDT.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(2))]
pub(crate) struct TablePointer {
    limit: u16,
    base: u64,
}

impl TablePointer {
    /// The GDT in a core's page.
    pub(crate) const fn of_core_page(virt: u64) -> Self {
        Self { limit: GDT_LEN - 1, base: virt }
    }

    /// An interrupt table.
    pub(crate) const fn of_interrupt_table(virt: u64) -> Self {
        Self { limit: PAGE_SIZE as u16 - 1, base: virt }
    }
}

/// Loads a core's page and an interrupt table on this core. `writable` is an address at which the page is mapped
/// writable now; `core_page` and `interrupt_table` are the addresses at which the core will have them mapped.
///
/// # Safety
/// The page must be filled, `interrupt_table` likewise for the code that runs from here on, both while they are in use.
/// No interrupt or exception may occur before the address space that maps them is loaded.
pub(crate) unsafe fn load(writable: u64, core_page: u64, interrupt_table: u64) {
    // The descriptor of a TSS that was in use says "busy", which LTR rejects.
    // SAFETY: the page is mapped there, and belongs to this core.
    unsafe { ((writable + TASK_TYPE_OFFSET) as *mut u8).write_volatile(TASK_AVAILABLE) };
    let now = TablePointer::of_core_page(writable);
    let then = TablePointer::of_core_page(core_page);
    let interrupts = TablePointer::of_interrupt_table(interrupt_table);
    // SAFETY: the new segments are equal to those that the code already uses; LTR sets the busy bit through the
    // writable mapping.
    unsafe {
        asm!(
            "lgdt [{now}]",
            "push {code}",
            "lea {scratch}, [rip + 2f]",
            "push {scratch}",
            "retfq",
            "2:",
            "mov ds, {data:e}",
            "mov es, {data:e}",
            "mov ss, {data:e}",
            "ltr {task:x}",
            "lgdt [{then}]",
            "lidt [{interrupts}]",
            now = in(reg) &raw const now,
            then = in(reg) &raw const then,
            interrupts = in(reg) &raw const interrupts,
            code = const CODE,
            data = in(reg) u32::from(DATA),
            task = in(reg) u32::from(TASK),
            scratch = out(reg) _,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn word(page: &[u8], offset: usize) -> u64 {
        u64::from_le_bytes(page[offset..offset + 8].try_into().unwrap())
    }

    #[test]
    fn the_task_segment_is_where_its_descriptor_says() {
        let mut page = vec![0; 4096];
        let virt = 0xffff_e123_4567_8000;
        let stacks = ExceptionStacks {
            double_fault_top: 0x1111_2222_3333_4440,
            non_maskable_top: 0x5550,
            trap_top: 0x6667_7778_8889_9990,
        };
        fill_core_page(&mut page, virt, stacks);
        let (low, high) = (word(&page, 0x28), word(&page, 0x30));
        let base = low >> 16 & 0xff_ffff | low >> 56 << 24 | high << 32;
        assert_eq!(base, virt + 0x40);
        assert_eq!(low & 0xffff, 0x67);
        assert_eq!(low >> 40 & 0xff, 0x89);
        // SDM 3, figure 8-11: RSP 0 at byte 4, IST 1 at byte 36, IST 2 at byte 44, I/O map at byte 102.
        assert_eq!(word(&page, 0x40 + 4), stacks.trap_top);
        assert_eq!(word(&page, 0x40 + 36), stacks.double_fault_top);
        assert_eq!(word(&page, 0x40 + 44), stacks.non_maskable_top);
        assert_eq!(page[0x40 + 102], 104);
    }

    #[test]
    fn segments_are_in_the_order_of_sysret() {
        let mut page = vec![0; 4096];
        let stacks = ExceptionStacks { double_fault_top: 0, non_maskable_top: 0, trap_top: 0 };
        fill_core_page(&mut page, 0, stacks);
        assert_eq!(USER_CODE, USER_DATA + 8);
        let access = |selector: u16| word(&page, usize::from(selector & !7)) >> 40 & 0xff;
        // Present, accessed; privilege levels 0 and 3; code, or writable data.
        assert_eq!([CODE, DATA, USER_DATA, USER_CODE].map(access), [0x9b, 0x93, 0xf3, 0xfb]);
        assert!((0..GDT_LEN).step_by(8).all(|at| at == 0 || word(&page, at.into()) != 0 || at >= TASK + 8));
    }

    #[test]
    fn gates_lead_to_their_vectors() {
        let mut page = vec![0; 4096];
        let vectors = 0xffff_ffff_8012_3450;
        fill_interrupt_table(&mut page, vectors);
        for vector in 0..256usize {
            let (low, high) = (word(&page, 16 * vector), word(&page, 16 * vector + 8));
            let handler = low & 0xffff | low >> 48 << 16 | high << 32;
            assert_eq!(handler, vectors + 16 * vector as u64);
            let stack = low >> 32 & 7;
            assert_eq!(stack, [(8, 1), (2, 2)].iter().find(|(v, _)| *v == vector).map_or(0, |(_, s)| *s));
            // INT3 and INTO in user mode, and no other INT instruction.
            assert_eq!(low >> 40 & 0xff, if matches!(vector, 3 | 4) { 0xee } else { 0x8e });
            assert_eq!(low >> 16 & 0xffff, 8);
        }
    }
}
