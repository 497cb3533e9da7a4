//! Memory that goes back to the supervisor while the cell runs, see [`isola_abi::unplug`].
//!
//! The supervisor asks; in its next pass a core takes free memory out of the page allocator and offers it; what became of
//! the offer is seen in a later pass. Nothing waits for that. Where less is free in whole granules than is asked for, all
//! cores give back what they keep, and the supervisor asks again a moment later. Where that is not enough either, pages of
//! regions go to other granules: one core does that, a bit in each of its passes, and answers when it is done. Whoever
//! finds no memory meanwhile has it end.

use crate::heap::{self, pages};
use crate::migration::Migration;
use crate::platform;
use crate::window::{is_over, retire, squeeze};
use core::ptr::NonNull;
use isola_abi::id::NodeId;
use isola_abi::unplug::{GRANULE, Rest};
use isola_ebbs::cycles;
use isola_machine::cell;
use isola_memory::pages::{Contents, Withdrawn};
use isola_memory::regions::{Compaction, Progress, Retired};

/// How long cores are not asked again for what they keep, in ns.
const SQUEEZE_AGAIN_NS: u64 = 100_000_000;

/// How long pages may be on their way elsewhere for one request, in ns: the supervisor waits for five seconds in all.
const MOVE_NS: u64 = 1_000_000_000;

/// How far the cell is with what it gives back.
pub(super) struct Returns {
    /// What it has offered last, and for which request, until it sees what became of it.
    offered: Option<(u32, Withdrawn)>,
    /// The last request of which it has seen what became.
    acknowledged: u32,
    /// The last request that it has answered.
    answered: u32,
    /// Slots of ranges that have left, which are used again when every core has passed its loop.
    retired: Option<(Retired, u64)>,
    /// When cores were last asked for what they keep, in cycles.
    squeezed_at: u64,
    /// Pages that go elsewhere, so that there is more for a request.
    compaction: Compaction,
    /// The request for which that was begun last, and when, in cycles.
    compacted: (u32, u64),
}

/// What became of what a cell gave back.
#[derive(Default)]
pub(super) struct Gone {
    /// So many bytes are not its own any more.
    pub(super) len_bytes: u64,
    /// So many more ranges can be added.
    pub(super) slots: usize,
}

/// Whether the cell can do without memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Can {
    /// As far as it is free.
    Spare,
    /// A core waits for memory right now.
    Not,
}

impl Returns {
    pub(super) const fn new() -> Self {
        Self {
            offered: None,
            acknowledged: 0,
            answered: 0,
            retired: None,
            squeezed_at: 0,
            compaction: Compaction::new(),
            compacted: (0, 0),
        }
    }

    /// Whether a request is open.
    pub(super) fn is_asked() -> bool {
        cell::unplug_request().0 != cell::settlement().number
    }

    /// Whether there is anything to see or to answer.
    pub(super) fn has_news(&self) -> bool {
        cell::settlement().number != self.acknowledged || cell::unplug_request().0 != self.answered
    }

    /// Lets slots of ranges be used again that nobody looks at any more. Returns how many.
    pub(super) fn reuse(&mut self) -> usize {
        let Some((_, slots)) = self.retired.take_if(|(retired, _)| is_over(*retired)) else { return 0 };
        // SAFETY: every core has passed its loop since these ranges left, and was in no allocator then.
        unsafe { pages().reuse(slots) };
        slots.count_ones() as usize
    }

    /// Sees what became of the last offer, and answers a request.
    pub(super) fn look(&mut self, can: Can, tsc_hz: u64) -> Gone {
        let mut gone = self.see();
        gone.slots = self.reuse();
        let (number, len_bytes) = cell::unplug_request();
        if number != cell::settlement().number && number != self.answered && self.offered.is_none() {
            self.answer(number, usize::try_from(len_bytes).unwrap_or(usize::MAX), can, tsc_hz);
        } else {
            self.compaction.end(pages());
        }
        gone
    }

    /// Whether pages are on their way elsewhere: then passes have to look again.
    pub(super) fn is_moving(&self) -> bool {
        !self.compaction.is_over()
    }

    /// Has pages stay that have not moved yet, as somebody needs what is held free for that. True where there were any.
    pub(super) fn stop_moving(&mut self) -> bool {
        let was_moving = self.is_moving();
        self.compaction.end(pages());
        was_moving
    }

    fn see(&mut self) -> Gone {
        let settlement = cell::settlement();
        let mut gone = Gone::default();
        if settlement.number == self.acknowledged {
            return gone;
        }
        if let Some((_, withdrawn)) = self.offered.take_if(|(number, _)| *number == settlement.number) {
            for (bit, (start, len)) in withdrawn.blocks().iter().enumerate() {
                if settlement.taken >> bit & 1 == 1 {
                    gone.len_bytes += *len as u64;
                } else {
                    stay(*start, *len);
                }
            }
            if withdrawn.slots() != 0 {
                let before = self.retired.map_or(0, |(_, slots)| slots);
                self.retired = Some((retire(), before | withdrawn.slots()));
            }
        }
        self.acknowledged = settlement.number;
        // One that was never answered is not answered any more.
        self.answered = settlement.number;
        cell::acknowledge(settlement.number);
        platform::ring();
        gone
    }

    /// Answers a request, or has pages on their way elsewhere for it.
    fn answer(&mut self, number: u32, len_bytes: usize, can: Can, tsc_hz: u64) {
        if can == Can::Spare && self.moves_on(number, tsc_hz) {
            return;
        }
        self.compaction.end(pages());
        if !is_past(self.squeezed_at, SQUEEZE_AGAIN_NS, tsc_hz) {
            // Of what other cores have given back since.
            heap::trim();
        }
        let withdrawn = match can {
            Can::Spare => pages().withdraw(len_bytes),
            Can::Not => Withdrawn::default(),
        };
        let (found, missing) = (withdrawn.len_bytes(), len_bytes.saturating_sub(withdrawn.len_bytes()));
        let has_compacted = self.compacted.0 == number;
        let rest = if missing == 0 {
            Rest::None
        } else if can == Can::Not {
            Rest::InUse
        } else if withdrawn.is_full() || (has_compacted && found > 0) {
            Rest::More
        } else if !has_compacted && is_past(self.squeezed_at, SQUEEZE_AGAIN_NS, tsc_hz) {
            self.squeezed_at = cycles().max(1);
            squeeze();
            Rest::Soon
        } else if !has_compacted && found > 0 {
            // What is missing then is made free.
            Rest::Soon
        } else if !has_compacted {
            self.compacted = (number, cycles());
            self.compaction.start(missing.min(pages().spare_bytes()) / GRANULE as usize);
            return self.answer(number, len_bytes, can, tsc_hz);
        } else if pages().spare_bytes() >= missing.min(4 * GRANULE as usize) {
            Rest::Scattered
        } else {
            Rest::InUse
        };
        let moved_bytes = if has_compacted { self.compaction.moved_bytes() } else { 0 };
        // SAFETY: the blocks are withdrawn from the page allocator, which had them free; `offered` holds them until they are
        // settled.
        unsafe { cell::offer(number, withdrawn.blocks(), moved_bytes as u64, rest) };
        self.answered = number;
        self.offered = Some((number, withdrawn));
        heap::publish();
        platform::ring();
    }

    /// Goes on with what is on its way elsewhere for a request. Whether there is more to do.
    fn moves_on(&mut self, number: u32, tsc_hz: u64) -> bool {
        let (compacted, began) = self.compacted;
        self.is_moving()
            && compacted == number
            && !is_past(began, MOVE_NS, tsc_hz)
            && self.compaction.step(pages(), &Migration) == Progress::GoesOn
    }
}

/// Whether so long has passed since the cycle counter was there; it has since 0.
fn is_past(since_cycles: u64, ns: u64, tsc_hz: u64) -> bool {
    let cycles = cycles().wrapping_sub(since_cycles);
    since_cycles == 0 || u128::from(cycles) * 1_000_000_000 > u128::from(tsc_hz) * u128::from(ns)
}

/// What was offered is not taken.
fn stay(start: usize, len: usize) {
    let Some(memory) = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(start)) else { return };
    // SAFETY: it was withdrawn, and the supervisor leaves it to the cell. Of a node that is its range's, where that stayed.
    let _ = unsafe { pages().bring_back(NodeId(0), memory, len, Contents::Unknown) };
}
