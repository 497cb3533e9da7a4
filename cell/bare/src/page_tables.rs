//! The region area's page tables, and the grace periods after which all cores have flushed their TLBs.

use crate::state::AUTHORITY;
use isola_abi::id::MAX_CORES;
use isola_ebbs::current_core;
use isola_machine::dma::set_region_area;
use isola_machine::region_area::{RegionArea, flush};
use isola_machine::user::leave_program_space;
use isola_memory::regions::{GracePeriods, Retirement};
use spin::Once;

static TABLES: Once<BareRegionArea> = Once::new();
static GRACE: GracePeriods<MAX_CORES> = GracePeriods::new();

/// The region area. Its implementation of the trait is in `regions`.
pub(crate) struct BareRegionArea {
    pub(crate) tables: RegionArea,
}

/// Records the page tables, on the first core.
pub(crate) fn start(tables: RegionArea) -> &'static BareRegionArea {
    let window = TABLES.call_once(|| BareRegionArea { tables });
    set_region_area(AUTHORITY, &window.tables);
    window
}

/// Returns the page tables, once they are initialised.
pub(crate) fn tables() -> Option<&'static RegionArea> {
    TABLES.get().map(|window| &window.tables)
}

/// Flushes the calling core's TLB.
pub(crate) fn flush_tlb() {
    flush();
}

/// Flushes the calling core's TLB if something was retired since its last flush, and leaves a program's page tables, which
/// may be the retired ones. Returns whether it did.
#[inline]
pub(crate) fn flush_if_retired() -> bool {
    GRACE.pass(current_core().0 as usize, || {
        if !leave_program_space() {
            flush();
        }
    })
}

/// Records that something was removed which cores may still be about to use.
pub(crate) fn retire() -> Retirement {
    GRACE.retire()
}

/// Records that entries were made non-present; flushes this core's TLB at once.
pub(crate) fn retire_entries() -> Retirement {
    let retired = GRACE.retire();
    flush_if_retired();
    retired
}

/// Returns whether every core has passed its loop since then.
pub(crate) fn is_over(retired: Retirement) -> bool {
    GRACE.is_over(retired)
}

/// Marks this core as halted: no grace period waits for it.
pub(crate) fn leave_grace_periods() {
    GRACE.halt(current_core().0 as usize);
}

/// Marks this core as running, if nothing was retired since its last flush. Otherwise returns `false`; the core has to flush
/// then ([`join_grace_periods`]).
#[inline]
pub(crate) fn rejoin_grace_periods() -> bool {
    let core = current_core().0 as usize;
    GRACE.wake(core);
    if GRACE.is_current(core) {
        return true;
    }
    GRACE.halt(core);
    false
}

/// Marks this core as running. A flush ([`flush_if_retired`]) has to follow before it does anything else.
pub(crate) fn join_grace_periods() {
    GRACE.wake(current_core().0 as usize);
}
