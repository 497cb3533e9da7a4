//! Stacks: one slot per core, laid out alike in the image's own address space and in those of cells.

use crate::memory::FreeRegions;
use crate::paging::{AddressSpace, Caching, MapError, Rights};
use crate::tables::ExceptionStacks;
use isola_abi::layout::{
    EXCEPTION_STACK_SIZE, FAULT_STACK_OFFSET, NMI_STACK_OFFSET, PAGE_SIZE, STACK_SIZE, STACK_SLOT, STACKS,
    TRAP_PAGE_OFFSET, TRAP_STACK_TOP,
};

/// Memory of the stacks of one core slot of a cell, with their page table, in bytes.
pub(super) const STACKS_BYTES: u64 = STACK_SIZE + 2 * EXCEPTION_STACK_SIZE + 2 * PAGE_SIZE;

/// Returns the tops of the stacks in a stack slot, whose main stack has `stack_bytes`.
pub(crate) fn stack_tops(slot: u64, stack_bytes: u64) -> (u64, ExceptionStacks) {
    let base = STACKS + slot * STACK_SLOT;
    let exceptions = ExceptionStacks {
        double_fault_top: base + FAULT_STACK_OFFSET + EXCEPTION_STACK_SIZE,
        non_maskable_top: base + NMI_STACK_OFFSET + EXCEPTION_STACK_SIZE,
        trap_top: base + TRAP_PAGE_OFFSET + TRAP_STACK_TOP,
    };
    (base + PAGE_SIZE + stack_bytes, exceptions)
}

/// Returns whether all stacks of a stack slot are mapped.
pub(super) fn has_stacks(space: &AddressSpace, slot: u64) -> bool {
    let (top, exceptions) = stack_tops(slot, STACK_SIZE);
    let tops = [top, exceptions.double_fault_top, exceptions.non_maskable_top, exceptions.trap_top];
    tops.iter().all(|top| space.translate(top - 8).is_some())
}

/// Maps the stacks of a stack slot. The pages between them stay unmapped, as guards.
pub(crate) fn map_stacks(
    space: &mut AddressSpace,
    slot: u64,
    stack_bytes: u64,
    stock: &mut FreeRegions,
) -> Result<(), MapError> {
    let base = STACKS + slot * STACK_SLOT;
    let stacks = [
        (PAGE_SIZE, stack_bytes),
        (NMI_STACK_OFFSET, EXCEPTION_STACK_SIZE),
        (FAULT_STACK_OFFSET, EXCEPTION_STACK_SIZE),
        (TRAP_PAGE_OFFSET, PAGE_SIZE),
    ];
    for (offset, len_bytes) in stacks {
        let memory = stock.take(len_bytes).ok_or(MapError::OutOfMemory)?.into_range();
        space.map(base + offset, memory, Rights::ReadWrite, Caching::Cached, stock)?;
    }
    Ok(())
}
