//! Which core asks.

use isola_abi::id::MAX_CORES;

/// Says which core runs.
///
/// # Safety
/// The index is below [`MAX_CORES`]. Two threads of execution with the same index never run at the same time
/// (what one did happens before what the next does), and one is never interrupted by another of the same
/// index within the allocator.
pub unsafe trait CoreSource {
    /// The index of the core that runs.
    fn current_core(&self) -> usize;
}

/// The core's own block (`isola-ebbs`) says it: the source of every cell, bare or hosted.
///
/// Nothing can be allocated on a core before it has entered its block.
pub struct ThisCore;

// SAFETY: platforms enter one block a core, numbered from 0 as the descriptor lists the cell's cores, of
// which it has at most `MAX_CORES` (`CoreBlock::new` refuses more, `CoreBlock::enter` demands that no other core has
// the same index).
// Interrupts are taken between events only, when no core is within the allocator.
unsafe impl CoreSource for ThisCore {
    #[inline(always)]
    fn current_core(&self) -> usize {
        let core = isola_ebbs::current_core().0 as usize;
        debug_assert!(core < MAX_CORES);
        core
    }
}
