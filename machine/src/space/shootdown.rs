//! TLB shootdown: ensures that no core of a cell has a stale translation in its TLB, without trust in the cell.
//!
//! The gate of the non-maskable interrupt leads to a page that the supervisor has written; the cell can execute and
//! read it, but not write it. If the supervisor has incremented the generation of the cell's page tables since this
//! core's last flush, the code there reloads CR3 and records the generation in the core's own page of descriptor
//! tables. Then it continues at the image's own handler, with all registers unchanged.
//!
//! ```text
//!   supervisor: unmaps, generation + 1, NMI ---> core: reloads CR3, records the generation ---> the image's handler
//!   supervisor: reads the generation in the core's page; the memory is free
//! ```
//!
//! A cell has no writable mapping of the interrupt table, of the page with this code, of the task state segment that
//! selects the interrupt's stack, or of the page in which the generation is recorded; the code clears CR0.WP for a
//! single store. So stores of a cell, stray or deliberate, cannot forge the record. Privileged instructions can, as
//! they can do anything at this level of isolation: those that a cell contains, and those of this page and of its
//! image, if the cell jumps to them.
//!
//! The supervisor does not record the generation in its own memory, as its restart creates a new address space: this
//! code would load the root of one that no longer exists.

use crate::memory::direct;
use core::arch::global_asm;
use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, Ordering};
use isola_abi::descriptor::LiveWords;
use isola_abi::id::PhysAddr;
use isola_abi::layout::{DESCRIPTOR, PAGE_SIZE, SHARED};
use isola_abi::note::VECTOR_STRIDE;
use isola_abi::unplug::UnplugRequest;

/// The address of the page: behind the switch page.
pub(super) const SHOOTDOWN: u64 = SHARED + PAGE_SIZE;

/// The offset of the recorded generation in a core's page of descriptor tables: behind the TSS.
const NOTE_OFFSET: usize = 0x100;

/// The address of the generation of the cell's page tables, in the cell.
const GENERATION: u64 =
    DESCRIPTOR + (offset_of!(LiveWords, unplug_request) + UnplugRequest::GENERATION_OFFSET) as u64;

global_asm!(
    ".section .text.isola_shootdown, \"ax\"",
    ".balign 16",
    ".globl isola_shootdown, isola_shootdown_end",
    "isola_shootdown:",
    "push rax",
    "push rcx",
    "push rdx",
    "sub rsp, 16",
    "sgdt [rsp + 6]",
    "mov rdx, [rsp + 8]", // the base of the descriptor table: the core's page
    "add rsp, 16",
    "movabs rax, {generation}",
    "mov ecx, [rax]",
    "cmp ecx, [rdx + {note}]",
    "je 2f",
    "mov rax, cr0",
    "btr rax, 16", // write protection
    "mov cr0, rax",
    "mov rax, cr3",
    "mov cr3, rax", // no page is global: this empties the TLB
    "mov [rdx + {note}], ecx",
    "mov rax, cr0",
    "bts rax, 16",
    "mov cr0, rax",
    "2:",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "jmp [rip + isola_shootdown_end]", // the address of the image's handler follows
    ".balign 8",
    "isola_shootdown_end:",
    ".text",
    generation = const GENERATION,
    note = const NOTE_OFFSET,
);

/// Fills the page for an image whose entry point of vector 0 is at `vectors`.
pub(super) fn fill(page: &mut [u8], vectors: u64) {
    unsafe extern "C" {
        safe static isola_shootdown: u8;
        safe static isola_shootdown_end: u8;
    }
    let start = &raw const isola_shootdown;
    let len = (&raw const isola_shootdown_end).addr() - start.addr();
    // SAFETY: the two symbols are the bounds of constants of the image.
    let code = unsafe { core::slice::from_raw_parts(start, len) };
    let handler = vectors + crate::tables::NON_MASKABLE as u64 * VECTOR_STRIDE;
    page[..len].copy_from_slice(code);
    page[len..len + 8].copy_from_slice(&handler.to_le_bytes());
}

/// Returns the last generation recorded for the core at `slot`.
///
/// # Safety
/// The pages of descriptor tables of a cell must begin at `core_pages`, with one for that slot.
pub(super) unsafe fn noted(core_pages: PhysAddr, slot: usize) -> u32 {
    // SAFETY: the caller guarantees the page.
    unsafe { note(core_pages, slot) }.load(Ordering::Acquire)
}

/// Records a generation for a core that has yet to enter its core slot: when it does, it loads the page tables as they
/// are then.
///
/// # Safety
/// As for [`noted`].
pub(super) unsafe fn note_entry(core_pages: PhysAddr, slot: usize, generation: u32) {
    // SAFETY: the caller guarantees the page.
    unsafe { note(core_pages, slot) }.store(generation, Ordering::Release);
}

unsafe fn note<'a>(core_pages: PhysAddr, slot: usize) -> &'a AtomicU32 {
    let page = direct(PhysAddr(core_pages.0 + slot as u64 * PAGE_SIZE));
    // SAFETY: the page is in the direct map, as the caller guarantees, and the word is used for nothing else.
    unsafe { &*page.add(NOTE_OFFSET).cast::<AtomicU32>() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_region;

    #[test]
    fn the_code_ends_with_a_jump_to_the_image_s_own_handler() {
        let (mut page, vectors) = ([0; PAGE_SIZE as usize], 0xffff_ffff_8012_3000_u64);
        fill(&mut page, vectors);
        let handler = (vectors + 2 * VECTOR_STRIDE).to_le_bytes();
        let end = page.windows(8).position(|word| word == handler).expect("its address");
        // FF /4 with an address relative to the next instruction; padding follows.
        let jump = page[..end].windows(6).rposition(|code| code[..2] == [0xff, 0x25]).expect("a jump");
        let distance = u32::from_le_bytes(page[jump + 2..jump + 6].try_into().unwrap());
        assert_eq!(jump + 6 + distance as usize, end);
        let generation = page.windows(8).any(|word| word == GENERATION.to_le_bytes());
        assert!(generation && page[end + 8..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn each_core_slot_has_its_own_record() {
        let mut pages = test_region(3);
        pages.scrub();
        let start = pages.range().start;
        // SAFETY: the region belongs to the test, and has a page for each slot.
        unsafe {
            note_entry(start, 1, 7);
            note_entry(start, 2, 9);
            assert_eq!([0, 1, 2].map(|slot| noted(start, slot)), [0, 7, 9]);
        }
    }
}
