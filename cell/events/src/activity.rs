//! Whom work is charged to, and the cycle accounting at the boundary between events (Omni-kernel 3).
//!
//! Every cycle of a core belongs to exactly one of: an activity (an event of it ran), the loop, interrupts (a pass of
//! the loop in which some came, up to its event), idling. The boundary is one reading of the cycle counter, whose difference to the one before is
//! added to what ran until then; the counters stand in the cell's report, where the supervisor reads them
//! without asking. Each is written by its core alone: a load and a store, no locked instruction.

use alloc::string::String;
use alloc::vec::Vec;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::report::{ACTIVITY_NAME_LEN, CoreReport, MAX_ACTIVITIES};
use isola_ebbs::{CellEbb, Representative, current_core, cycles, platform};

use crate::event_loop::EVENTS;

/// What has no other activity: the application's start, and all that comes of it unmarked.
pub const APPLICATION: ActivityId = ActivityId(0);

/// What cannot be attributed yet, such as a packet whose connection is not known (Omni-kernel's substitute).
pub const INFRASTRUCTURE: ActivityId = ActivityId(1);

static REGISTRY: CellEbb<Registry> = CellEbb::new();

struct Registry {
    next: AtomicU64,
}

impl Representative for Registry {
    fn create() -> Self {
        name(APPLICATION, "application");
        name(INFRASTRUCTURE, "infrastructure");
        platform().report().activity_count.store(2, Ordering::Release);
        Self { next: AtomicU64::new(2) }
    }
}

fn name(activity: ActivityId, text: &str) {
    let slot = &platform().report().activity_names[activity.0 as usize];
    let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
    let end = text.floor_char_boundary(ACTIVITY_NAME_LEN);
    slot.iter().zip(text[..end].bytes()).for_each(|(place, byte)| place.store(byte, Ordering::Relaxed));
}

/// The name of an activity.
pub(crate) fn name_of(activity: ActivityId) -> String {
    let slot = &platform().report().activity_names[activity.0 as usize];
    let bytes = slot.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// A new activity of that name, cut to 24 bytes; `None` once the cell has [`MAX_ACTIVITIES`] of them.
pub fn register_activity(text: &str) -> Option<ActivityId> {
    let count = |next: u64| (next < MAX_ACTIVITIES as u64).then_some(next + 1);
    let number = REGISTRY.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).ok()?;
    let activity = ActivityId(u16::try_from(number).ok()?);
    name(activity, text);
    platform().report().activity_count.fetch_max(number as u32 + 1, Ordering::Release);
    Some(activity)
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
    let _ = REGISTRY.next.load(Ordering::Relaxed);
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
        let report = &platform().report().cores[current_core().0 as usize];
        let now = cycles();
        Self {
            report,
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
        let common = &self.report.activities[INFRASTRUCTURE.0 as usize].cycles;
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
        add(&self.report.activities[activity.0 as usize].cycles, until - since);
    }

    /// The counter of what is charged so.
    #[inline]
    fn counter_of(&self, charge: Charge) -> &'static AtomicU64 {
        match charge {
            Charge::Activity(activity) => {
                // For the heap, which knows no events.
                self.report.activity.store(activity.0.into(), Ordering::Relaxed);
                &self.report.activities[activity.0 as usize].cycles
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
        add(&self.report.activities[activity.0 as usize].events, 1);
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
