//! Memory that the cell returns to the supervisor while it runs, see [`isola_abi::unplug`].
//!
//! The supervisor sends a reclaim request. In its next pass a core withdraws free memory from the page allocator and
//! offers it; a later pass sees which blocks the supervisor has taken. No core waits for that. If fewer whole chunks
//! are free than requested, all cores return their caches, and the supervisor asks again a moment later. If that does
//! not suffice, pages of regions migrate to other chunks: one core migrates some in each of its passes, and answers at
//! the end. If memory is still missing, the holders of dispensable memory free some (`reclaim`). An allocation that finds
//! no memory meanwhile ends both.

use super::reclaim::{Reclaim, ReclaimProgress};
use crate::core_caches::return_all_caches;
use crate::migration::Migration;
use crate::page_tables::{is_over, retire};
use crate::pool::{self, pages};
use crate::supervisor;
use core::ptr::NonNull;
use isola_abi::id::NodeId;
use isola_abi::unplug::{CHUNK, Shortfall};
use isola_ebbs::cycles;
use isola_machine::cell;
use isola_memory::pages::{KnownContents, WithdrawnMemory};
use isola_memory::regions::{Compaction, CompactionProgress, Retirement};

/// The time for which cores are not asked again to return their caches, in ns.
const CACHES_AGAIN_NS: u64 = 100_000_000;

/// The time for which pages may migrate for one request, in ns: the supervisor waits for five seconds in all.
const MIGRATION_NS: u64 = 1_000_000_000;

/// The state of unplugging.
pub(super) struct Unplug {
    /// The last offer and its request, until the cell has seen the outcome.
    offered: Option<(u32, WithdrawnMemory)>,
    /// The last request whose outcome the cell has seen.
    acknowledged: u32,
    /// The last request that the cell has answered.
    answered: u32,
    /// Range slots of unplugged memory, reusable when every core has passed its loop.
    retired: Option<(Retirement, u64)>,
    /// The cycle count at which cores were last asked to return their caches.
    caches_asked_at: u64,
    /// The migration of pages that increases the memory for a request.
    compaction: Compaction,
    /// The request for which the last compaction was started, and its cycle count.
    compacted: (u32, u64),
    /// The freeing of memory in use.
    reclaim: Reclaim,
}

/// The outcome of an offer.
#[derive(Default)]
pub(super) struct UnplugOutcome {
    /// Bytes that the cell no longer owns.
    pub(super) len_bytes: u64,
    /// The number of ranges that can be added in their place.
    pub(super) slots: usize,
}

/// The memory that the cell can spare.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Spare {
    /// All free memory.
    AllFree,
    /// None: a core waits for memory right now.
    Nothing,
}

impl Unplug {
    pub(super) const fn new() -> Self {
        Self {
            offered: None,
            acknowledged: 0,
            answered: 0,
            retired: None,
            caches_asked_at: 0,
            compaction: Compaction::new(),
            compacted: (0, 0),
            reclaim: Reclaim::new(),
        }
    }

    /// Returns whether a request is open.
    pub(super) fn is_requested() -> bool {
        cell::unplug_request().0 != cell::settlement().number
    }

    /// Returns whether there is an outcome to see or a request to answer.
    pub(super) fn has_news(&self) -> bool {
        cell::settlement().number != self.acknowledged || cell::unplug_request().0 != self.answered
    }

    /// Frees range slots that no core can be using any more. Returns their number.
    pub(super) fn reuse(&mut self) -> usize {
        let Some((_, slots)) = self.retired.take_if(|(retired, _)| is_over(*retired)) else { return 0 };
        // SAFETY: every core has passed its loop since these ranges were unplugged, and was outside of any allocator
        // then.
        unsafe { pages().reuse(slots) };
        slots.count_ones() as usize
    }

    /// Handles the outcome of the last offer, and answers a request.
    pub(super) fn check(&mut self, spare: Spare, tsc_hz: u64) -> UnplugOutcome {
        let mut outcome = self.settle_offer();
        outcome.slots = self.reuse();
        let (number, len_bytes) = cell::unplug_request();
        if number != cell::settlement().number && number != self.answered && self.offered.is_none() {
            self.answer(number, usize::try_from(len_bytes).unwrap_or(usize::MAX), spare, tsc_hz);
        } else {
            self.compaction.end(pages());
            self.reclaim.end();
        }
        outcome
    }

    /// Returns whether a compaction or a reclaim is in progress, so that passes have to continue it.
    pub(super) fn is_migrating(&self) -> bool {
        !self.compaction.is_over() || self.reclaim.is_active()
    }

    /// Ends the compaction and the reclaim, as an allocation needs the memory that they hold back. Returns whether one was
    /// in progress.
    pub(super) fn stop_migrating(&mut self) -> bool {
        let was_migrating = self.is_migrating();
        self.compaction.end(pages());
        self.reclaim.end();
        was_migrating
    }

    fn settle_offer(&mut self) -> UnplugOutcome {
        let settlement = cell::settlement();
        let mut outcome = UnplugOutcome::default();
        if settlement.number == self.acknowledged {
            return outcome;
        }
        if let Some((_, withdrawn)) = self.offered.take_if(|(number, _)| *number == settlement.number) {
            for (bit, (start, len)) in withdrawn.blocks().iter().enumerate() {
                if settlement.taken >> bit & 1 == 1 {
                    outcome.len_bytes += *len as u64;
                } else {
                    take_back(*start, *len);
                }
            }
            if withdrawn.slots() != 0 {
                let before = self.retired.map_or(0, |(_, slots)| slots);
                self.retired = Some((retire(), before | withdrawn.slots()));
            }
        }
        self.acknowledged = settlement.number;
        // A request that the supervisor has closed unanswered needs no answer any more.
        self.answered = settlement.number;
        cell::acknowledge(settlement.number);
        supervisor::notify();
        outcome
    }

    /// Answers a request, or continues a compaction or a reclaim for it.
    fn answer(&mut self, number: u32, len_bytes: usize, spare: Spare, tsc_hz: u64) {
        if spare == Spare::AllFree && self.continue_compaction(number, tsc_hz) {
            return;
        }
        self.compaction.end(pages());
        if spare == Spare::AllFree
            && self.reclaim.is_active()
            && self.reclaim.is_for(number)
            && self.reclaim.advance(tsc_hz) == ReclaimProgress::InProgress
        {
            return;
        }
        self.reclaim.end();
        if !is_past(self.caches_asked_at, CACHES_AGAIN_NS, tsc_hz) {
            // Frees the pages of objects that other cores have returned since.
            pool::trim();
        }
        let withdrawn = match spare {
            Spare::AllFree => pages().withdraw(len_bytes),
            Spare::Nothing => WithdrawnMemory::default(),
        };
        let (found, missing) = (withdrawn.len_bytes(), len_bytes.saturating_sub(withdrawn.len_bytes()));
        // While parts of one reclaim are requested, each of them begins where the last one ended.
        let has_compacted = self.compacted.0 == number || self.reclaim.is_recent(tsc_hz);
        let rest = if missing == 0 {
            Shortfall::None
        } else if spare == Spare::Nothing {
            Shortfall::InUse
        } else if withdrawn.is_full() || (has_compacted && found > 0) {
            Shortfall::More
        } else if !has_compacted && is_past(self.caches_asked_at, CACHES_AGAIN_NS, tsc_hz) {
            self.caches_asked_at = cycles().max(1);
            return_all_caches();
            Shortfall::Soon
        } else if !has_compacted && found > 0 {
            // The supervisor asks again for the missing part, for which the compaction then runs.
            Shortfall::Soon
        } else if !has_compacted {
            self.compacted = (number, cycles());
            self.compaction.start(missing.min(pages().spare_bytes()) / CHUNK as usize);
            return self.answer(number, len_bytes, spare, tsc_hz);
        } else if self.reclaim.is_cut_short(number) {
            Shortfall::Soon
        } else if !self.reclaim.has_failed(number) {
            self.reclaim.start(number, missing, tsc_hz);
            return self.answer(number, len_bytes, spare, tsc_hz);
        } else if pages().spare_bytes() >= missing.min(4 * CHUNK as usize) {
            Shortfall::Scattered
        } else {
            Shortfall::InUse
        };
        let moved_bytes = if self.compacted.0 == number { self.compaction.moved_bytes() } else { 0 };
        // SAFETY: the blocks are withdrawn from the page allocator, where they were free; `offered` holds them until
        // the supervisor has settled the offer.
        unsafe { cell::offer(number, withdrawn.blocks(), moved_bytes as u64, rest) };
        self.answered = number;
        self.offered = Some((number, withdrawn));
        pool::publish();
        supervisor::notify();
    }

    /// Continues the compaction for a request. Returns whether there is more to do.
    fn continue_compaction(&mut self, number: u32, tsc_hz: u64) -> bool {
        let (compacted, began) = self.compacted;
        self.is_migrating()
            && compacted == number
            && !is_past(began, MIGRATION_NS, tsc_hz)
            && self.compaction.step(pages(), &Migration) == CompactionProgress::InProgress
    }
}

/// Returns whether more than `ns` have passed since the cycle counter read `since_cycles`; always true for 0.
fn is_past(since_cycles: u64, ns: u64, tsc_hz: u64) -> bool {
    let cycles = cycles().wrapping_sub(since_cycles);
    since_cycles == 0 || u128::from(cycles) * 1_000_000_000 > u128::from(tsc_hz) * u128::from(ns)
}

/// Takes back an offered block that the supervisor did not take.
fn take_back(start: usize, len: usize) {
    let Some(memory) = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(start)) else { return };
    // SAFETY: the block was withdrawn, and the supervisor leaves it to the cell. The node matters only if the range
    // that contained the block has left.
    let _ = unsafe { pages().plug(NodeId(0), memory, len, KnownContents::Unknown) };
}
