//! Activities, and the cycle accounting at the boundary between events (Omni-kernel 3).
//!
//! Every cycle of a core is charged to exactly one of: an activity (an event of it ran), the loop, interrupts (a pass
//! in which interrupts arrived, up to its event), idling. At each boundary the loop reads the cycle counter once and
//! charges the difference to the previous reading. The counters are in the cell's report and
//! [ledger](isola_abi::ledger), where the supervisor reads them without the cell's help. Only the counter's own core
//! writes it, with a load and a store, without a locked instruction.

use alloc::string::String;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::ledger::{ACTIVITY_NAME_LEN, ActivityRecord, ActivityReport};
use isola_abi::report::CoreReport;
use isola_ebbs::{CellEbb, Representative, current_core, cycles, platform};

use crate::event_loop::EVENTS;

/// The default activity: the application's start, and all events that descend from it without another.
pub const APPLICATION: ActivityId = ActivityId(0);

pub use isola_resources::INFRASTRUCTURE;

static REGISTRY: CellEbb<Registry> = CellEbb::new();

/// The allocator of activity slots. It allocates free slots in cyclic order, so that a freed slot stays free for as
/// long as possible.
struct Registry {
    /// The slot at which the next search starts.
    next: AtomicUsize,
}

impl Representative for Registry {
    fn create() -> Self {
        for (slot, name) in ["application", "infrastructure"].into_iter().enumerate() {
            if let Some(record) = platform().ledger().records().get(slot).filter(|record| record.claim()) {
                assign(record, slot, name);
            }
        }
        Self { next: AtomicUsize::new(2) }
    }
}

/// Assigns a claimed slot to the activity of that name.
fn assign(record: &ActivityRecord, slot: usize, name: &str) {
    let name: String = name.chars().filter(|letter| !letter.is_control()).collect();
    let end = name.floor_char_boundary(ACTIVITY_NAME_LEN);
    let bytes = name[..end].bytes().chain(core::iter::repeat(0));
    record.name.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
    record.give_out();
    platform().report().activity_count.fetch_max(slot as u32 + 1, Ordering::Release);
}

/// Registers an activity of that name, without control characters and cut to 24 bytes. Returns `None` while all slots
/// of the cell's [ledger](isola_abi::ledger) are in use; their number follows from the cell's memory.
pub fn register_activity(text: &str) -> Option<ActivityId> {
    let records = platform().ledger().records();
    let mut turns = (0..records.len()).map(|_| REGISTRY.next.fetch_add(1, Ordering::Relaxed) % records.len());
    let slot = turns.find(|&slot| records[slot].claim())?;
    let (before, used) = (&records[slot].before, platform().ledger().sum(slot));
    before.cycles.store(used.cycles.into_inner(), Ordering::Relaxed);
    before.events.store(used.events.into_inner(), Ordering::Relaxed);
    before.memory_bytes.store(used.memory_bytes.into_inner(), Ordering::Relaxed);
    assign(&records[slot], slot, text);
    Some(ActivityId(slot as u16))
}

/// Ends an activity that [`register_activity`] has returned: another may get its slot. Returns whether it existed.
///
/// To be called when no event, task or connection works for the activity any more: later use is charged to the slot's
/// next activity. Its use so far counts as that of ended activities.
pub fn end_activity(activity: ActivityId) -> bool {
    let can_end = activity != APPLICATION && activity != INFRASTRUCTURE;
    let has_ended = platform().ledger().record(activity).is_some_and(|record| can_end && record.free());
    if has_ended {
        isola_resources::forget(activity);
    }
    has_ended
}

/// Returns the activity of the running event, which events that it creates inherit.
pub fn current_activity() -> ActivityId {
    EVENTS.current_tag().activity
}

/// Charges the rest of the running event to `activity`: for work whose owner is known from here on.
pub fn charge_to(activity: ActivityId) {
    EVENTS.retag(activity);
}

/// Charges the running event's cycles since its last change of activity, and the rest of it, to `activity`: for work
/// whose owner becomes known midway.
pub fn charge_all_to(activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.claim(activity);
}

/// Charges a piece of the running event, from the reading `since` of the cycle counter on, and the rest of the event to
/// `activity`. The cost of the change itself, from the reading `until` on, is charged to [`INFRASTRUCTURE`].
#[inline]
pub fn charge_piece(since: u64, until: u64, activity: ActivityId) {
    EVENTS.set_activity(activity);
    EVENTS.accounting.charge_piece(since, until, activity);
}

/// Charges the running event's cycles from its last change of activity to the reading `until` of the cycle counter to
/// `activity`. Later cycles are charged as before.
pub fn charge_until(until: u64, activity: ActivityId) {
    EVENTS.accounting.charge_until(until, activity);
}

/// Ensures that the predefined activities have their names.
pub(crate) fn start() {
    let _ = &*REGISTRY;
}

/// The account to which cycles are charged.
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
    /// The use of each activity on this core.
    activities: &'static [ActivityReport],
    /// The counter to which the cycles from `since` on are charged.
    counter: Cell<&'static AtomicU64>,
    since: Cell<u64>,
    /// The reading at the core's last check for arrivals before the current event or interrupt.
    checked: Cell<u64>,
}

/// Adds to a counter that only this core writes.
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
            checked: Cell::new(now),
        }
    }

    /// Returns the use of each activity on this core.
    pub fn activities(&self) -> &'static [ActivityReport] {
        self.activities
    }

    /// Returns the core's part of the report.
    pub fn report(&self) -> &'static CoreReport {
        self.report
    }

    /// Marks a boundary: charges the cycles since the last one, and selects the account for those that follow. Returns
    /// the reading of the cycle counter.
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

    /// Charges the cycles from the reading `since` (or the last boundary, if that is later) to the reading `until` to
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

    /// Charges the cycles from the last boundary to the reading `until` to `activity`, and none if that boundary is
    /// later. Later cycles are charged as before.
    pub fn charge_until(&self, until: u64, activity: ActivityId) {
        let since = self.since.get();
        let until = until.max(since);
        self.since.set(until);
        add(&self.activities[activity.0 as usize].cycles, until - since);
    }

    /// Returns the counter of an account.
    #[inline]
    fn counter_of(&self, charge: Charge) -> &'static AtomicU64 {
        match charge {
            Charge::Activity(activity) => {
                // The heap reads this, as it has no access to events.
                self.report.activity.store(activity.0.into(), Ordering::Relaxed);
                &self.activities[activity.0 as usize].cycles
            }
            Charge::Loop => &self.report.loop_cycles,
            Charge::Interrupt => &self.report.interrupt_cycles,
            Charge::Idle => &self.report.idle_cycles,
        }
    }

    /// Marks the boundary at the start of an event, directly after a check for arrivals. Returns the reading of the
    /// cycle counter, and that of the previous check.
    #[inline]
    pub fn begin_event(&self, activity: ActivityId) -> (u64, u64) {
        let now = self.switch(Charge::Activity(activity));
        add(&self.activities[activity.0 as usize].events, 1);
        (now, self.checked.replace(now))
    }

    /// Marks the boundary at the end of idling, during which the core would have noticed any arrival.
    pub fn end_idling(&self, to: Charge) {
        self.checked.set(self.switch(to));
    }

    /// Records that the core rested up to the last boundary: earlier arrivals would have woken it.
    pub fn mark_idled(&self) {
        self.checked.set(self.checked.get().max(self.since.get()));
    }

    /// Returns the reading at the core's last check for arrivals. Input that the core notices only now arrived after
    /// it.
    #[inline]
    pub fn last_check(&self) -> u64 {
        self.checked.get()
    }

    /// Charges the loop from the reading `boundary` of the cycle counter on; earlier cycles belong to another vcore or
    /// context.
    pub fn resume(&self, boundary: u64) {
        self.since.set(boundary);
        self.counter.set(&self.report.loop_cycles);
    }

    /// Returns the reading of the cycle counter at the last boundary.
    #[inline]
    pub fn last_boundary(&self) -> u64 {
        self.since.get()
    }
}
