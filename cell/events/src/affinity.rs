//! Affinity: the core that runs the events of a label (Kvalnes 2.2, 3.1).
//!
//! Events that use the same data run best on the core that has it in its caches. A label of an activity therefore keeps
//! its core, but only for a time: then it is placed again, and leaves a core that is busier than another one.
//!
//! ```text
//!            placed on core 1      placed again: core 1 is as idle as any    placed again: core 1 is busy
//!   ─────────────┬─────────────────────────────┬─────────────────────────────────┬───────────────────────▶
//!     core       │ 1                           │ 1                               │ 3
//! ```
//!
//! The table maps a hash of activity and label to a core, as a network device's indirection table does with flows:
//! labels with the same hash share a core. An entry is one word, so a look-up takes no lock, and writes only where a
//! label is placed or its events are counted.
//!
//! **Order.** Events of a dependency label run in the order of their creation. The entry counts those that wait; a label
//! is placed again only while none does. Without a dependency label, events of both cores may run at the same time.
//!
//! **Balance.** A core's load is the part of the time since the last sample in which it was not halted, and a part of a
//! core for each label placed there since. Decision 0078 has the reasons.

use crate::event::Label;
use crate::mailbox;
use crate::vcore_runner::present_cores;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use isola_abi::id::ActivityId;
use isola_ebbs::{CellEbb, Representative, cycles, platform};
use isola_platform::{CoreIndex, CoreSet, Instant};
use spin::Mutex;

static AFFINITY: CellEbb<AffinityTable> = CellEbb::new();

/// The number of entries, a power of two: 8 KiB in a cell that uses affinity labels.
const ENTRIES: usize = 1024;

/// The time for which a label keeps its core, unless [`set_expiry`] sets another one.
const DEFAULT_EXPIRY: Duration = Duration::from_millis(100);

/// The least cycles between two samples of the cores' load.
const SAMPLE_CYCLES: u64 = 1 << 20;

/// The load of a core that was never halted.
const FULL_LOAD: u32 = 256;

/// The load that a label is taken to add to its core, until the next sample.
const PLACED_LOAD: u32 = FULL_LOAD / 8;

/// The load by which a core has to exceed another one for a label to leave it.
const MOST_IMBALANCE: u32 = FULL_LOAD / 4;

/// How labels were placed, since the cell's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AffinityStatistics {
    /// Labels that got their first core.
    pub placed: u64,
    /// Labels that kept their core after their time.
    pub kept: u64,
    /// Labels that got another core.
    pub moved: u64,
}

/// Sets the time for which labels that are placed from now on keep their core: at most some hours. Zero places them for
/// each event.
pub fn set_expiry(expiry: Duration) {
    let clock = platform().clock();
    let cycles = clock.cycles(Instant::default() + expiry) - clock.cycles(Instant::default());
    let units = cycles.div_ceil(1 << EntryState::UNIT_BITS).min(EntryState::MOST_UNITS);
    AFFINITY.expiry.store(units, Ordering::Relaxed);
}

/// Returns how labels were placed.
pub fn statistics() -> AffinityStatistics {
    let [placed, kept, moved] = AFFINITY.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    AffinityStatistics { placed, kept, moved }
}

/// Returns the core for an event of a label.
pub(crate) fn core_for(activity: ActivityId, label: Label) -> CoreIndex {
    AFFINITY.look_up(entry_of(activity, label), Counting::No)
}

/// An event of a label that waits or runs, so that the label keeps its core. The caller ends it by [`Self::end`].
#[must_use = "the label would never leave its core"]
pub(crate) struct CountedEvent {
    entry: usize,
}

/// Returns the core for an event that depends on earlier ones of the label, and counts it.
pub(crate) fn core_for_dependent(activity: ActivityId, label: Label) -> (CoreIndex, CountedEvent) {
    let entry = entry_of(activity, label);
    (AFFINITY.look_up(entry, Counting::Yes), CountedEvent { entry })
}

impl CountedEvent {
    /// Ends the count, after the event.
    pub fn end(self) {
        // Release: the label's next event, on any core, sees what this one wrote.
        AFFINITY.entries[self.entry].fetch_sub(1 << EntryState::WAITING_SHIFT, Ordering::Release);
    }
}

/// Returns the entry of a label.
fn entry_of(activity: ActivityId, Label(label): Label) -> usize {
    // Fibonacci hashing: consecutive labels, such as counters, use different entries.
    let mixed = (label ^ u64::from(activity.0).rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - ENTRIES.ilog2())) as usize
}

/// Whether a look-up is for an event that the entry counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counting {
    Yes,
    No,
}

/// The affinity of a cell's labels.
struct AffinityTable {
    /// The [`EntryState`] of each entry.
    entries: Box<[AtomicU64]>,
    /// The time for which a label keeps its core, in units of an [`EntryState`].
    expiry: AtomicU64,
    loads: CoreLoads,
    /// The counts of [`AffinityStatistics`].
    counts: [AtomicU64; 3],
}

impl Representative for AffinityTable {
    fn create() -> Self {
        let clock = platform().clock();
        let cycles = clock.cycles(Instant::default() + DEFAULT_EXPIRY) - clock.cycles(Instant::default());
        Self {
            entries: (0..ENTRIES).map(|_| AtomicU64::new(EntryState::UNUSED)).collect(),
            expiry: AtomicU64::new(cycles.div_ceil(1 << EntryState::UNIT_BITS)),
            loads: CoreLoads::new(),
            counts: [const { AtomicU64::new(0) }; 3],
        }
    }
}

impl AffinityTable {
    fn look_up(&self, entry: usize, counting: Counting) -> CoreIndex {
        let word = &self.entries[entry];
        let (now, expiry) = (cycles(), self.expiry.load(Ordering::Relaxed));
        let mut state = EntryState(word.load(Ordering::Acquire));
        loop {
            let present = present_cores();
            let (core, is_placed) = match state.core() {
                Some(core) if state.keeps_core(now, expiry) && present.contains(core) => (core, false),
                // The vcore of a core that has left runs on another one, so its events still have an order.
                Some(core) if state.waiting() > 0 => (core, false),
                before => (self.loads.choose(present, before, entry), true),
            };
            let placed = if is_placed { EntryState::new(core, state.waiting(), now, expiry) } else { state };
            let new = if counting == Counting::Yes { placed.with_one_more() } else { placed };
            // An entry that stays the same is not written: other cores have it in their caches.
            if !is_placed && counting == Counting::No {
                return core;
            }
            match word.compare_exchange_weak(state.0, new.0, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) if is_placed => {
                    self.count_placed(state.core(), core);
                    return core;
                }
                Ok(_) => return core,
                Err(other) => state = EntryState(other),
            }
        }
    }

    fn count_placed(&self, before: Option<CoreIndex>, core: CoreIndex) {
        let count = match before {
            None => 0,
            Some(before) if before == core => 1,
            Some(_) => 2,
        };
        self.counts[count].fetch_add(1, Ordering::Relaxed);
        if before != Some(core) {
            self.loads.placed(core);
        }
    }
}

/// An entry of the table: the core and 1 in bits 0 to 7, the events that wait in bits 8 to 35, and the time at which
/// the label is placed again above them, in units of 2^20 cycles, which wraps around.
#[derive(Clone, Copy, PartialEq, Eq)]
struct EntryState(u64);

impl EntryState {
    const UNUSED: u64 = 0;
    const WAITING_SHIFT: u32 = 8;
    const EXPIRY_SHIFT: u32 = 36;
    /// 2^28 events that wait have more memory than a cell.
    const WAITING_MASK: u64 = (1 << (Self::EXPIRY_SHIFT - Self::WAITING_SHIFT)) - 1;
    const UNIT_BITS: u32 = 20;
    const TIME_MASK: u64 = u64::MAX >> Self::EXPIRY_SHIFT;
    /// Half of the range, so that a time that has passed is distinct from one to come.
    const MOST_UNITS: u64 = Self::TIME_MASK / 2;

    fn new(core: CoreIndex, waiting: u64, now: u64, expiry: u64) -> Self {
        let expires = ((now >> Self::UNIT_BITS) + expiry) & Self::TIME_MASK;
        Self(expires << Self::EXPIRY_SHIFT | waiting << Self::WAITING_SHIFT | (u64::from(core.0) + 1) & 0xff)
    }

    fn core(self) -> Option<CoreIndex> {
        (self.0 & 0xff).checked_sub(1).map(|core| CoreIndex(core as u32))
    }

    fn waiting(self) -> u64 {
        self.0 >> Self::WAITING_SHIFT & Self::WAITING_MASK
    }

    fn with_one_more(self) -> Self {
        Self(self.0 + (1 << Self::WAITING_SHIFT))
    }

    fn expires(self) -> u64 {
        self.0 >> Self::EXPIRY_SHIFT
    }

    /// Returns whether events wait, or the label's time has not passed.
    fn keeps_core(self, now: u64, expiry: u64) -> bool {
        let left = self.expires().wrapping_sub(now >> Self::UNIT_BITS) & Self::TIME_MASK;
        // More than a full time left: the time passed so long ago that the difference has wrapped around.
        self.waiting() > 0 || (left > 0 && left <= expiry)
    }
}

/// The load of the cell's cores.
struct CoreLoads {
    /// The load of each core slot at the latest sample.
    sampled: Box<[AtomicU32]>,
    /// The labels placed on each since.
    placed: Box<[AtomicU32]>,
    taken_at: AtomicU64,
    /// The idle cycles of each core slot at the latest sample.
    idle_cycles: Mutex<Box<[u64]>>,
}

impl CoreLoads {
    fn new() -> Self {
        let zeroes = || platform().report().cores.iter().map(|_| AtomicU32::new(0)).collect();
        let idle = platform().report().cores.iter().map(|core| core.idle_cycles.load(Ordering::Relaxed));
        Self {
            sampled: zeroes(),
            placed: zeroes(),
            taken_at: AtomicU64::new(cycles()),
            idle_cycles: Mutex::new(idle.collect()),
        }
    }

    /// Returns the core of the least load, or `current` if that is present and hardly busier. Of equal cores, `start`
    /// decides.
    fn choose(&self, present: CoreSet, current: Option<CoreIndex>, start: usize) -> CoreIndex {
        self.sample();
        let count = present.len().max(1);
        let mut from_start = present.skip(start % count).chain(present.take(start % count));
        let first = from_start.next().unwrap_or(CoreIndex(0));
        let least = from_start.fold((self.of(first), first), |least, core| {
            let load = self.of(core);
            if load < least.0 { (load, core) } else { least }
        });
        match current {
            Some(core) if present.contains(core) && self.of(core) <= least.0 + MOST_IMBALANCE => core,
            _ => least.1,
        }
    }

    fn of(&self, core: CoreIndex) -> u32 {
        let at =
            |loads: &[AtomicU32]| loads.get(core.0 as usize).map_or(0, |load| load.load(Ordering::Relaxed));
        at(&self.sampled) + at(&self.placed).saturating_mul(PLACED_LOAD)
    }

    fn placed(&self, core: CoreIndex) {
        if let Some(placed) = self.placed.get(core.0 as usize) {
            placed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes a sample, if the latest is old and no other core takes one.
    fn sample(&self) {
        let elapsed = cycles().saturating_sub(self.taken_at.load(Ordering::Relaxed));
        if elapsed < SAMPLE_CYCLES {
            return;
        }
        let Some(mut idle_before) = self.idle_cycles.try_lock() else { return };
        let mailboxes = mailbox::all();
        for (index, core) in platform().report().cores.iter().enumerate() {
            let idle = core.idle_cycles.load(Ordering::Relaxed);
            let idled = idle.wrapping_sub(core::mem::replace(&mut idle_before[index], idle));
            // A halt counts at its end only.
            let busy = match mailboxes.is_halted(CoreIndex(index as u32)) {
                true => 0,
                false => elapsed.saturating_sub(idled),
            };
            let load = u128::from(busy) * u128::from(FULL_LOAD) / u128::from(elapsed);
            self.sampled[index].store(load as u32, Ordering::Relaxed);
            self.placed[index].store(0, Ordering::Relaxed);
        }
        self.taken_at.store(cycles(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const UNIT: u64 = 1 << EntryState::UNIT_BITS;

    #[test]
    fn a_label_keeps_its_core_until_its_time_has_passed() {
        for start in [0, 5, EntryState::TIME_MASK - 2, EntryState::TIME_MASK, 3 * EntryState::TIME_MASK] {
            let at = |unit: u64| start.wrapping_add(unit) * UNIT + 17;
            let state = EntryState::new(CoreIndex(63), 0, at(0), 10);
            assert_eq!((state.core(), state.waiting()), (Some(CoreIndex(63)), 0));
            assert!((0..10).all(|unit| state.keeps_core(at(unit), 10)), "from {start}");
            assert!((10..1_000).all(|unit| !state.keeps_core(at(unit), 10)), "from {start}");
            // The clock has wrapped around, or the expiry was shortened.
            assert!(!state.keeps_core(at(EntryState::TIME_MASK / 2 + 20), 10));
            assert!(!state.keeps_core(at(0), 5));
            assert!(!EntryState::new(CoreIndex(1), 0, at(0), 0).keeps_core(at(0), 0), "no time");
        }
    }

    #[test]
    fn a_label_with_waiting_events_keeps_its_core() {
        let state = EntryState::new(CoreIndex(0), 0, 0, 1).with_one_more().with_one_more();
        assert_eq!((state.core(), state.waiting(), state.expires()), (Some(CoreIndex(0)), 2, 1));
        assert!(state.keeps_core(100 * UNIT, 1));
        let moved = EntryState::new(CoreIndex(7), EntryState::WAITING_MASK, EntryState::TIME_MASK * UNIT, 3);
        assert_eq!((moved.core(), moved.waiting()), (Some(CoreIndex(7)), EntryState::WAITING_MASK));
        assert_eq!(moved.expires(), 2);
    }

    #[test]
    fn consecutive_labels_and_activities_use_different_entries() {
        let entries = |count: u64| {
            let mut used: Vec<_> = (0..count).map(|label| entry_of(ActivityId(4), Label(label))).collect();
            used.sort_unstable();
            used.dedup();
            used.len()
        };
        assert!(entries(64) == 64 && entries(512) > 500, "{} {}", entries(64), entries(512));
        assert_ne!(entry_of(ActivityId(4), Label(1)), entry_of(ActivityId(5), Label(1)));
    }
}
