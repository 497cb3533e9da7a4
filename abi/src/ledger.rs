//! The ledger: what each activity of a cell used. It lies behind the [report](crate::report) in the memory that the cell
//! shares with the supervisor; the cell writes it, the supervisor reads it at any time and believes none of it.
//!
//! ```text
//! report | a record a slot: name, generation, what earlier activities used | of each core slot: counters, one an activity slot
//! ```
//!
//! An activity has a *slot* from its registration to its end. A cell has as many as a small part of its memory holds
//! ([`slots`]); an activity that ends makes its slot free for another. The counters of a slot are never set back, as each is
//! written by its core alone. The record says what they came to when the slot was given out, so what an activity used is
//! the difference, and the sum over all slots stays what the cores have spent.

use crate::id::ActivityId;
use crate::report::{CoreReport, Report};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Longest name of an activity, in bytes of UTF-8.
pub const ACTIVITY_NAME_LEN: usize = 24;

/// Fewest slots of a cell.
pub const LEAST_SLOTS: usize = 32;

/// A cell's ledger takes this part of the memory that the cell is created with, where that holds more than the least slots.
const MEMORY_PART: u64 = 4096;

/// Most bytes of a ledger: it lies in one piece of memory, and the supervisor adds up all its counters in less than a million
/// instructions.
const MOST_BYTES: u64 = 1 << 20;

/// How many slots a cell of so much memory has, with so many core slots.
pub const fn slots(memory_bytes: u64, core_slots: usize) -> usize {
    let slot_bytes = size_of::<ActivityRecord>() + core_slots * size_of::<ActivityReport>();
    let part = memory_bytes / MEMORY_PART;
    let part = if part < MOST_BYTES { part } else { MOST_BYTES };
    let affordable = part as usize / slot_bytes;
    if affordable > LEAST_SLOTS { affordable } else { LEAST_SLOTS }
}

/// Bytes of a ledger of so many slots, of a cell with so many core slots.
pub const fn ledger_bytes(core_slots: usize, slots: usize) -> u64 {
    (slots * (size_of::<ActivityRecord>() + core_slots * size_of::<ActivityReport>())) as u64
}

/// What an activity used on a core, and those that had its slot before.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ActivityReport {
    /// Cycles of its events.
    pub cycles: AtomicU64,
    /// Events run.
    pub events: AtomicU64,
    /// Bytes that the heap handed out while events of the activity ran, less those that it took back: counted when a
    /// core's cache is filled or emptied by a batch, and for objects that are too large for it. Modulo 2^64: an activity
    /// that frees what others have made has less than none. The sum over all cores and activities is what is in use, or
    /// kept by cores.
    pub memory_bytes: AtomicU64,
}

/// Which activity has a slot.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ActivityRecord {
    /// Its name, filled up with zero bytes.
    pub name: [AtomicU8; ACTIVITY_NAME_LEN],
    /// A [`Generation`].
    generation: AtomicU32,
    reserved: AtomicU32,
    /// What the counters of the slot came to, over all cores, when the activity got it.
    pub before: ActivityReport,
}

/// How often a slot was given out, and whether it is in use. A reader that finds the same before and after it has read has
/// read one activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u32);

/// The lower two bits of a generation: a free slot, one that is about to be given out, one in use. A higher generation
/// follows.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const IN_USE: u32 = 2;
const STATE: u32 = 3;

impl Generation {
    /// Whether the slot is an activity's.
    pub const fn is_in_use(self) -> bool {
        self.0 & STATE == IN_USE
    }
}

impl ActivityRecord {
    /// Reads who has the slot.
    pub fn generation(&self) -> Generation {
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Claims the slot for a new activity, if it is free. Who has claimed it writes name and counters, and then calls
    /// [`Self::give_out`].
    pub fn claim(&self) -> bool {
        let is_free = |generation: u32| (generation & STATE == FREE).then_some(generation + CLAIMED);
        self.generation.fetch_update(Ordering::AcqRel, Ordering::Relaxed, is_free).is_ok()
    }

    /// Says that what the record says is true of the activity that has claimed the slot.
    pub fn give_out(&self) {
        self.generation.fetch_add(IN_USE - CLAIMED, Ordering::Release);
    }

    /// Makes the slot free. Returns whether it was in use.
    pub fn free(&self) -> bool {
        let is_in_use = |generation: u32| {
            (generation & STATE == IN_USE).then_some(generation.wrapping_add(STATE + 1 - IN_USE))
        };
        self.generation.fetch_update(Ordering::AcqRel, Ordering::Relaxed, is_in_use).is_ok()
    }
}

/// A cell's ledger.
#[derive(Clone, Copy, Debug)]
pub struct Ledger<'a> {
    records: &'a [ActivityRecord],
    counters: &'a [ActivityReport],
}

impl<'a> Ledger<'a> {
    /// A ledger of these records, and of as many counters for each core slot, those of the first core slot first.
    pub const fn new(records: &'a [ActivityRecord], counters: &'a [ActivityReport]) -> Self {
        Self { records, counters }
    }

    /// Returns where records and counters are, of the ledger of so many slots behind the report at `report`, of a cell
    /// with so many core slots.
    pub const fn parts(
        report: *const u8,
        core_slots: usize,
        slots: usize,
    ) -> (*const [ActivityRecord], *const [ActivityReport]) {
        let records = report.wrapping_add(report_len(core_slots));
        let counters = records.wrapping_add(slots * size_of::<ActivityRecord>());
        (
            core::ptr::slice_from_raw_parts(records.cast(), slots),
            core::ptr::slice_from_raw_parts(counters.cast(), slots * core_slots),
        )
    }

    /// The slots, by [`ActivityId`].
    pub fn records(&self) -> &'a [ActivityRecord] {
        self.records
    }

    /// The counters of all core slots, those of the first core slot first.
    pub fn counters(&self) -> &'a [ActivityReport] {
        self.counters
    }

    /// The slot of that activity.
    pub fn record(&self, activity: ActivityId) -> Option<&'a ActivityRecord> {
        self.records.get(usize::from(activity.0))
    }

    /// The counters of a core slot, by [`ActivityId`]; none where the cell has no such core slot.
    pub fn core(&self, index: usize) -> &'a [ActivityReport] {
        let start = index.saturating_mul(self.records.len());
        let end = start.saturating_add(self.records.len());
        self.counters.get(start..end).unwrap_or_default()
    }

    /// What the counters of a slot come to on all core slots, modulo 2^64.
    pub fn sum(&self, slot: usize) -> ActivityReport {
        let of = |counter: fn(&ActivityReport) -> &AtomicU64| {
            let counters = self.counters.iter().skip(slot).step_by(self.records.len().max(1));
            AtomicU64::new(
                counters
                    .fold(0, |sum: u64, of_core| sum.wrapping_add(counter(of_core).load(Ordering::Relaxed))),
            )
        };
        ActivityReport {
            cycles: of(|used| &used.cycles),
            events: of(|used| &used.events),
            memory_bytes: of(|used| &used.memory_bytes),
        }
    }
}

/// Bytes of the report, which the ledger follows.
pub(crate) const fn report_len(core_slots: usize) -> usize {
    size_of::<Report<[CoreReport; 0]>>() + core_slots * size_of::<CoreReport>()
}

// An `ActivityId` is a number below `u16::MAX`, which stands for none elsewhere.
const _: () = assert!(slots(u64::MAX, 0) < u16::MAX as usize);
const _: () = assert!(align_of::<ActivityRecord>() <= align_of::<Report<[CoreReport; 0]>>());
const _: () = assert!(size_of::<CoreReport>().is_multiple_of(align_of::<ActivityRecord>()));

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_says_how_many_activities_a_cell_can_have() {
        assert_eq!(slots(2 * MIB, 4), LEAST_SLOTS);
        for (memory_bytes, core_slots) in [(256 * MIB, 1), (256 * MIB, 4), (1 << 34, 16), (1 << 30, 3)] {
            let slots = slots(memory_bytes, core_slots);
            let (used, part) =
                (ledger_bytes(core_slots, slots), (memory_bytes / MEMORY_PART).min(MOST_BYTES));
            assert!(
                slots > LEAST_SLOTS && used <= part && ledger_bytes(core_slots, slots + 1) > part,
                "{slots}"
            );
        }
    }

    #[test]
    fn a_slot_has_one_activity_at_a_time_and_none_for_good() {
        let record = ActivityRecord::default();
        for _ in 0..3 {
            assert!(!record.generation().is_in_use() && !record.free());
            assert!(record.claim() && !record.claim() && !record.generation().is_in_use());
            assert!(!record.free(), "one that is being given out is nobody's yet");
            record.give_out();
            let generation = record.generation();
            assert!(generation.is_in_use() && !record.claim());
            assert!(record.free() && generation != record.generation());
        }
    }

    #[test]
    fn generations_begin_again_after_the_last() {
        let record = ActivityRecord { generation: AtomicU32::new(u32::MAX - 3), ..Default::default() };
        assert!(record.claim());
        record.give_out();
        assert!(record.free() && record.claim());
    }

    #[test]
    fn counters_are_found_by_core_and_slot() {
        let records: Vec<ActivityRecord> = (0..3).map(|_| ActivityRecord::default()).collect();
        let counters: Vec<ActivityReport> = (0..6_u64)
            .map(|number| ActivityReport { cycles: AtomicU64::new(1 << number), ..Default::default() })
            .collect();
        let ledger = Ledger::new(&records, &counters);
        let cycles = |used: &ActivityReport| used.cycles.load(Ordering::Relaxed);
        assert_eq!(ledger.core(1).iter().map(cycles).collect::<Vec<_>>(), [8, 16, 32]);
        assert!(ledger.core(2).is_empty() && ledger.core(usize::MAX).is_empty());
        assert_eq!([0, 1, 2].map(|slot| cycles(&ledger.sum(slot))), [9, 18, 36]);
        assert!(ledger.record(ActivityId(3)).is_none());
    }
}
