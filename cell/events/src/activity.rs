//! Whom work is charged to, and the cycle accounting at the boundary between events (Omni-kernel 3).
//!
//! Every cycle of a core belongs to exactly one of: an activity (an event of it ran), the loop, interrupts (a pass of
//! the loop in which some came, up to its event), idling. The boundary is one reading of the cycle counter, whose
//! difference to the one before is added to what ran until then; the counters are in the cell's report and
//! [ledger](isola_abi::ledger), where the supervisor reads them without asking. Each is written by its core alone: a load
//! and a store, no locked instruction.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::ledger::{ACTIVITY_NAME_LEN, ActivityRecord, ActivityReport};
use isola_abi::report::CoreReport;
use isola_ebbs::{CellEbb, Representative, current_core, cycles, platform};

use crate::event_loop::EVENTS;

/// What has no other activity: the application's start, and all that comes of it unmarked.
pub const APPLICATION: ActivityId = ActivityId(0);

/// What cannot be attributed yet, such as a packet whose connection is not known (Omni-kernel's substitute).
pub const INFRASTRUCTURE: ActivityId = ActivityId(1);

static REGISTRY: CellEbb<Registry> = CellEbb::new();

/// Slots that no activity has are given out in turn, so that one that has become free stays so for as long as possible.
struct Registry {
    /// The slot to look at next.
    next: AtomicUsize,
}

impl Representative for Registry {
    fn create() -> Self {
        for (slot, name) in ["application", "infrastructure"].into_iter().enumerate() {
            if let Some(record) = platform().ledger().records().get(slot).filter(|record| record.claim()) {
                give_out(record, slot, name);
            }
        }
        Self { next: AtomicUsize::new(2) }
    }
}

/// Gives a slot that was claimed to the activity of that name.
fn give_out(record: &ActivityRecord, slot: usize, name: &str) {
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    let end = name.floor_char_boundary(ACTIVITY_NAME_LEN);
    let bytes = name[..end].bytes().chain(core::iter::repeat(0));
    record.name.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
    record.give_out();
    platform().report().activity_count.fetch_max(slot as u32 + 1, Ordering::Release);
}

/// The name of an activity.
pub(crate) fn name_of(activity: ActivityId) -> String {
    let name = platform().ledger().record(activity).map_or(&[][..], |record| &record.name);
    let bytes = name.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// Registers an activity of that name, cut to 24 bytes. Returns `None` while all slots of the cell's
/// [ledger](isola_abi::ledger), of which it has as many as its memory allows, are in use.
pub fn register_activity(text: &str) -> Option<ActivityId> {
    let records = platform().ledger().records();
    let mut turns = (0..records.len()).map(|_| REGISTRY.next.fetch_add(1, Ordering::Relaxed) % records.len());
    let slot = turns.find(|&slot| records[slot].claim())?;
    let (before, used) = (&records[slot].before, platform().ledger().sum(slot));
    before.cycles.store(used.cycles.into_inner(), Ordering::Relaxed);
    before.events.store(used.events.into_inner(), Ordering::Relaxed);
    before.memory_bytes.store(used.memory_bytes.into_inner(), Ordering::Relaxed);
    give_out(&records[slot], slot, text);
    Some(ActivityId(slot as u16))
}

/// Ends an activity that [`register_activity`] has returned: another one may get its slot. Returns whether there was one.
///
/// To be called when nothing works for the activity any more: what events, tasks or connections of it still use is charged
/// to whoever has the slot then. What it used is counted as that of activities that have ended.
pub fn end_activity(activity: ActivityId) -> bool {
    let can_end = activity != APPLICATION && activity != INFRASTRUCTURE;
    platform().ledger().record(activity).is_some_and(|record| can_end && record.free())
}

/// Whom the running event is charged to: what events that it makes inherit.
pub fn current_activity() -> ActivityId {
    EVENTS.current_tag().activity
}

/// Has the rest of the running event charged to `activity`: once the owner of what it does is known.
pub fn charge_to(activity: ActivityId) {
    EVENTS.retag(activity);
}

/// Charges all that the running event has done since its last change of activity, and the rest of it, to `activity`: for
/// work whose owner is found out when some of it is done.
pub fn charge_all_to(activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.claim(activity);
}

/// Charges a piece of the running event's work to `activity`, and what follows: from `since`, a reading of the cycle counter,
/// on. The change itself, from the reading `until` on, is charged to [`INFRASTRUCTURE`].
#[inline]
pub fn charge_piece(since: u64, until: u64, activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.charge_piece(since, until, activity);
}

/// Charges what the running event has done from its last change of activity up to `until`, a reading of the cycle counter,
/// to `activity`. What follows is charged as before.
pub fn charge_until(until: u64, activity: ActivityId) {
    EVENTS.accounting.charge_until(until, activity);
}

/// Makes sure that the activities that every cell has are named.
pub(crate) fn start() {
    let _ = &*REGISTRY;
}

/// What cycles are charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    Activity(ActivityId),
    Loop,
    Interrupt,
    Idle,
}

/// A core's accounting.
pub(crate) struct Accounting {
    report: &'static CoreReport,
    /// What each activity used on this core.
    activities: &'static [ActivityReport],
    /// What the cycles from `since` on are charged to.
    counter: Cell<&'static AtomicU64>,
    since: Cell<u64>,
    /// When the core last looked at what has come, before what it does now.
    looked: Cell<u64>,
}

/// Adds to a counter that this core alone writes.
#[inline]
pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

impl Accounting {
    pub fn new() -> Self {
        let core = current_core().0 as usize;
        let report = &platform().report().cores[core];
        let now = cycles();
        Self {
            report,
            activities: platform().ledger().core(core),
            counter: Cell::new(&report.loop_cycles),
            since: Cell::new(now),
            looked: Cell::new(now),
        }
    }

    /// The core's part of the report.
    pub fn report(&self) -> &'static CoreReport {
        self.report
    }

    /// The boundary: charges the cycles since the last one, and says what those from here on are charged to.
    /// Returns the reading of the cycle counter.
    #[inline]
    pub fn switch(&self, to: Charge) -> u64 {
        let now = cycles();
        let spent = now.wrapping_sub(self.since.replace(now));
        add(self.counter.replace(self.counter_of(to)), spent);
        now
    }

    /// Charges the cycles since the last boundary, and those that follow, to `activity`.
    pub fn claim(&self, activity: ActivityId) {
        self.counter.set(self.counter_of(Charge::Activity(activity)));
    }

    /// Charges the cycles from the reading `since` (or the last boundary, where that is later) to the reading `until` to
    /// `activity`, those up to the end of this change to [`INFRASTRUCTURE`], and those that follow to `activity` again.
    #[inline]
    pub fn charge_piece(&self, since: u64, until: u64, activity: ActivityId) {
        let last = self.since.get();
        let since = since.max(last);
        let counter = self.counter_of(Charge::Activity(activity));
        add(self.counter.replace(counter), since - last);
        add(counter, until.saturating_sub(since));
        let common = &self.activities[INFRASTRUCTURE.0 as usize].cycles;
        let now = cycles();
        self.since.set(now);
        add(common, now.wrapping_sub(since.max(until)));
    }

    /// Charges the cycles from the last boundary to the reading `until` to `activity`, and none where that boundary is
    /// later. What follows is charged as before.
    pub fn charge_until(&self, until: u64, activity: ActivityId) {
        let since = self.since.get();
        let until = until.max(since);
        self.since.set(until);
        add(&self.activities[activity.0 as usize].cycles, until - since);
    }

    /// The counter of what is charged so.
    #[inline]
    fn counter_of(&self, charge: Charge) -> &'static AtomicU64 {
        match charge {
            Charge::Activity(activity) => {
                // For the heap, which knows no events.
                self.report.activity.store(activity.0.into(), Ordering::Relaxed);
                &self.activities[activity.0 as usize].cycles
            }
            Charge::Loop => &self.report.loop_cycles,
            Charge::Interrupt => &self.report.interrupt_cycles,
            Charge::Idle => &self.report.idle_cycles,
        }
    }

    /// The boundary at the start of an event, right behind a look at what has come. Returns the reading of the cycle
    /// counter, and that at the look before.
    #[inline]
    pub fn begin_event(&self, activity: ActivityId) -> (u64, u64) {
        let now = self.switch(Charge::Activity(activity));
        add(&self.activities[activity.0 as usize].events, 1);
        (now, self.looked.replace(now))
    }

    /// The boundary at the end of a time in which nothing ran, and in which what came would have been noticed.
    pub fn end_idling(&self, to: Charge) {
        self.looked.set(self.switch(to));
    }

    /// The core has rested up to the last boundary: what came before that would have woken it.
    pub fn has_rested(&self) {
        self.looked.set(self.looked.get().max(self.since.get()));
    }

    /// The reading of the cycle counter before which what comes in now cannot have come: when the core last looked.
    #[inline]
    pub fn looked(&self) -> u64 {
        self.looked.get()
    }

    /// Goes on for the loop from `boundary` on, a reading of the cycle counter: what passed before was another's time.
    pub fn resume(&self, boundary: u64) {
        self.since.set(boundary);
        self.counter.set(&self.report.loop_cycles);
    }

    /// The reading of the cycle counter at the last boundary.
    #[inline]
    pub fn last_boundary(&self) -> u64 {
        self.since.get()
    }
}
