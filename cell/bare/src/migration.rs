//! Migration of region pages on bare hardware, by the page tables of the region area.

use crate::page_tables::{is_over, retire, tables};
use core::ops::ControlFlow;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_memory::regions::{Extent, PageMover, Retirement, movable_from};

/// Whether any migration was ever started. Until then page faults skip the check.
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

/// Migrates pages of the cell's regions.
pub(crate) struct Migration;

/// Cancels the migration of a page that was touched. Returns whether a page is present now: another core may have
/// cancelled it before, or the page may have migrated by now.
#[inline]
pub(crate) fn cancel(address: u64) -> bool {
    HAS_BEGUN.load(Ordering::Relaxed) && tables().is_some_and(|tables| tables.stay(address))
}

// SAFETY: pages of regions are filled with memory that comes from the page allocator page by page, and retired memory
// is collected when every core has passed its loop since. Regions are touched by events, which a halted core does not
// run, so that no core reaches the old page once that period is over.
unsafe impl PageMover for Migration {
    fn region_from(&self, address: usize) -> Option<Extent> {
        movable_from(address)
    }

    fn visit_movable(
        &self,
        address: usize,
        end: usize,
        most: usize,
        see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
    ) -> usize {
        let Some(tables) = tables() else { return end };
        let see = &mut |address: u64, frame: NonNull<u8>| see(address as usize, frame);
        tables.look_at_movable(address as u64, end as u64, most, see) as usize
    }

    fn begin(&self, address: usize, frame: NonNull<u8>) {
        // Visible to every core that sees the page non-present: the entry is changed by a locked instruction after
        // this.
        HAS_BEGUN.store(true, Ordering::Relaxed);
        if let Some(tables) = tables() {
            tables.begin_migration(address as u64, frame);
        }
    }

    fn record_begun(&self) -> Retirement {
        retire()
    }

    fn is_over(&self, begun: Retirement) -> bool {
        is_over(begun)
    }

    unsafe fn finish(&self, address: usize, from: NonNull<u8>, to: NonNull<u8>) -> bool {
        // SAFETY: the caller's promise; every running core has flushed since, and a halted one does before it runs an
        // event.
        tables().is_some_and(|tables| unsafe { tables.finish_migration(address as u64, from, to) })
    }
}
