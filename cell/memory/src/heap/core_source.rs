//! The interface by which the heap learns the current core.

use isola_abi::id::MAX_CORES;

/// A source of the current core's index.
///
/// # Safety
/// The index is below [`MAX_CORES`]. Two threads of execution with the same index never run at the same time (the
/// accesses of one happen before those of the next), and within the allocator no thread is interrupted by another of
/// its index.
pub unsafe trait CoreSource {
    /// Returns the index of the current core.
    fn current_core(&self) -> usize;
}

/// The source of every cell, bare or hosted: the core's own block (`isola-ebbs`).
///
/// A core cannot allocate before it has entered its block.
pub struct ThisCore;

// SAFETY: a platform enters one block per core, numbered from 0 in the order of the descriptor's cores, of which there
// are at most `MAX_CORES` (`CoreBlock::new` rejects more, `CoreBlock::enter` demands that no other core has the same
// index). Cores take interrupts only between events, when none is within the allocator.
unsafe impl CoreSource for ThisCore {
    #[inline(always)]
    fn current_core(&self) -> usize {
        let core = isola_ebbs::current_core().0 as usize;
        debug_assert!(core < MAX_CORES);
        core
    }
}
