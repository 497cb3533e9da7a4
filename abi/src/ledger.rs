//! The ledger: resource usage of a cell's activities. It follows the [report](crate::report) in the memory that the
//! cell shares with the supervisor. The cell writes it; the supervisor reads it at any time and does not trust it.
//!
//! ```text
//! | report | records, one per activity slot:         | counters of core slot 0,   | of core slot 1 | ...
//! |        | name, generation, earlier usage         | one set per activity slot  |                |
//! ```
//!
//! An activity has an *activity slot* from its registration to its end. The number of slots follows from the cell's
//! memory ([`slots`]); the slot of an activity that has ended is free for another. Activities beyond that number, and
//! those that have a parent, have no slot: the cell charges them to the slot of an ancestor, and keeps their own counters
//! in its memory. Counters are never reset, because
//! only their own core writes them. Instead the record contains the counters' sums at the time of the slot's
//! assignment. An activity's usage is the difference, and the sum over all slots remains the total usage of the cores.

use crate::id::ActivityId;
use crate::report::{CoreReport, Report};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// The maximum length of an activity's name, in bytes of UTF-8.
pub const ACTIVITY_NAME_LEN: usize = 24;

/// The minimum number of activity slots of a cell.
pub const LEAST_SLOTS: usize = 32;

/// The ledger's size as a fraction of the cell's initial memory, unless the minimum number of slots needs more.
const MEMORY_PART: u64 = 4096;

/// The maximum size of a ledger, in bytes. The ledger is physically contiguous, and the supervisor adds up all its
/// counters in less than a million instructions.
const MOST_BYTES: u64 = 1 << 20;

/// Returns the number of activity slots of a cell with `memory_bytes` bytes of initial memory and `core_slots` core
/// slots.
pub const fn slots(memory_bytes: u64, core_slots: usize) -> usize {
    let slot_bytes = size_of::<ActivityRecord>() + core_slots * size_of::<ActivityReport>();
    let part = memory_bytes / MEMORY_PART;
    let part = if part < MOST_BYTES { part } else { MOST_BYTES };
    let affordable = part as usize / slot_bytes;
    if affordable > LEAST_SLOTS { affordable } else { LEAST_SLOTS }
}

/// Returns the size in bytes of a ledger with `slots` activity slots, of a cell with `core_slots` core slots.
pub const fn ledger_bytes(core_slots: usize, slots: usize) -> u64 {
    (slots * (size_of::<ActivityRecord>() + core_slots * size_of::<ActivityReport>())) as u64
}

/// The usage of an activity slot on one core slot, that of the slot's earlier activities included.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ActivityReport {
    /// Cycles of the activity's events.
    pub cycles: AtomicU64,
    /// Number of events that ran.
    pub events: AtomicU64,
    /// Bytes that the heap allocated during events of the activity, less those that it freed, and bytes of region pages
    /// that were filled during its events. The heap counts when it fills or empties a core's cache by a batch, and at each
    /// object that is too large for the cache; page faults count in steps of 64 KiB. Modulo 2^64: an activity that frees
    /// objects of others has a negative balance; region pages are given back by the activity that filled them. The sum
    /// over all cores and activities is the memory in use or in the cores' caches.
    pub memory_bytes: AtomicU64,
}

/// The record of an activity slot: the activity that has it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct ActivityRecord {
    /// The activity's name, padded with zero bytes.
    pub name: [AtomicU8; ACTIVITY_NAME_LEN],
    /// The generation of the slot.
    pub generation: SlotGeneration,
    reserved: AtomicU32,
    /// The slot's counters, added up over all cores, at the time of its assignment to the activity.
    pub before: ActivityReport,
}

/// The number of times that an activity slot was freed, and its present state. A reader that finds the same generation
/// before and after reading a slot has read the values of one activity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Generation(u32);

/// The lower two bits of a generation are the state of the slot: free, claimed or in use. Freeing a slot increments the
/// upper bits.
const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const IN_USE: u32 = 2;
const STATE: u32 = 3;

impl Generation {
    /// Returns whether an activity has the slot.
    pub const fn is_in_use(self) -> bool {
        self.0 & STATE == IN_USE
    }
}

/// The [`Generation`] of a slot that activities get and release.
#[repr(transparent)]
#[derive(Debug, Default)]
pub struct SlotGeneration(AtomicU32);

impl SlotGeneration {
    /// Returns the present generation.
    pub fn get(&self) -> Generation {
        Generation(self.0.load(Ordering::Acquire))
    }

    /// Claims the slot for a new activity and returns true, or returns false if the slot is not free. The claimant then
    /// writes what the slot says of the activity, and calls [`Self::give_out`].
    pub fn claim(&self) -> bool {
        let is_free = |generation: u32| (generation & STATE == FREE).then_some(generation + CLAIMED);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, is_free).is_ok()
    }

    /// Publishes the slot: the activity that claimed it has it from now on.
    pub fn give_out(&self) {
        self.0.fetch_add(IN_USE - CLAIMED, Ordering::Release);
    }

    /// Frees the slot. Returns whether it was in use.
    pub fn free(&self) -> bool {
        let is_in_use = |generation: u32| {
            (generation & STATE == IN_USE).then_some(generation.wrapping_add(STATE + 1 - IN_USE))
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, is_in_use).is_ok()
    }
}

/// A view of a cell's ledger.
#[derive(Clone, Copy, Debug)]
pub struct Ledger<'a> {
    records: &'a [ActivityRecord],
    counters: &'a [ActivityReport],
}

impl<'a> Ledger<'a> {
    /// Returns a ledger of these records and counters. `counters` has one entry per record for each core slot, in the
    /// order of core slots.
    pub const fn new(records: &'a [ActivityRecord], counters: &'a [ActivityReport]) -> Self {
        Self { records, counters }
    }

    /// Returns the addresses of the records and the counters of the ledger behind the report at `report`, for a cell
    /// with `core_slots` core slots and `slots` activity slots.
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

    /// Returns the records, by [`ActivityId`].
    pub fn records(&self) -> &'a [ActivityRecord] {
        self.records
    }

    /// Returns the counters of all core slots, in the order of core slots.
    pub fn counters(&self) -> &'a [ActivityReport] {
        self.counters
    }

    /// Returns the record of an activity's slot.
    pub fn record(&self, activity: ActivityId) -> Option<&'a ActivityRecord> {
        self.records.get(activity.index())
    }

    /// Returns the counters of a core slot, by [`ActivityId`]; an empty slice if the cell has no such core slot.
    pub fn core(&self, index: usize) -> &'a [ActivityReport] {
        let start = index.saturating_mul(self.records.len());
        let end = start.saturating_add(self.records.len());
        self.counters.get(start..end).unwrap_or_default()
    }

    /// Returns the sums of a slot's counters over all core slots, modulo 2^64.
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

/// The size in bytes of the report in front of the ledger.
pub(crate) const fn report_len(core_slots: usize) -> usize {
    size_of::<Report<[CoreReport; 0]>>() + core_slots * size_of::<CoreReport>()
}

const _: () = assert!(align_of::<ActivityRecord>() <= align_of::<Report<[CoreReport; 0]>>());
const _: () = assert!(size_of::<CoreReport>().is_multiple_of(align_of::<ActivityRecord>()));

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_number_of_slots_follows_from_memory() {
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
    fn a_slot_is_claimed_once_at_a_time_and_can_be_reused() {
        let slot = SlotGeneration::default();
        for _ in 0..3 {
            assert!(!slot.get().is_in_use() && !slot.free());
            assert!(slot.claim() && !slot.claim() && !slot.get().is_in_use());
            assert!(!slot.free(), "a claimed slot is not in use yet");
            slot.give_out();
            let generation = slot.get();
            assert!(generation.is_in_use() && !slot.claim());
            assert!(slot.free() && generation != slot.get());
        }
    }

    #[test]
    fn generations_wrap_around() {
        let slot = SlotGeneration(AtomicU32::new(u32::MAX - 3));
        assert!(slot.claim());
        slot.give_out();
        assert!(slot.free() && slot.claim());
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
