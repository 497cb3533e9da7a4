//! The cycle accounting at the boundary between events (omni-kernel 3).
//!
//! Every cycle of a core is charged to exactly one of: an activity (an event of it ran), the loop, interrupts (a pass
//! in which interrupts arrived, up to its event), idling. At each boundary the loop reads the cycle counter once and
//! charges the difference to the previous reading. The counters are in the cell's report and
//! [ledger](isola_abi::ledger), where the supervisor reads them without the cell's help. Only the counter's own core
//! writes it, with a load and a store, without a locked instruction.
//!
//! A [private activity](isola_activities) is charged in the slot of an ancestor. Its own counter is charged in addition
//! when its event ends or changes its activity. During a [trace](crate::trace), events of other activities take the same
//! branches as those of private ones, so that the trace learns of these changes at no cost without a trace.

use crate::event_loop::EVENTS;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use isola_abi::id::ActivityId;
use isola_abi::ledger::ActivityReport;
use isola_abi::query::SampleAccount;
use isola_abi::report::CoreReport;
use isola_activities::{INFRASTRUCTURE, Private, private};
use isola_ebbs::{current_core, cycles, platform};

/// The account to which cycles are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Charge {
    Activity(ActivityId),
    Loop,
    Interrupt,
    Idle,
}

/// The private activities whose counters a core finds without the registry.
const RECENT: usize = 8;

/// The cycles of a change of activity from which on a trace shows it as a part of its own: an interruption by the
/// hypervisor, as the change itself takes some hundred.
const LONG_CHANGE_CYCLES: u64 = 1024;

/// A core's accounting.
pub(crate) struct Accounting {
    core: usize,
    report: &'static CoreReport,
    /// The use of each activity of the ledger on this core.
    activities: &'static [ActivityReport],
    /// The counter to which the cycles from `since` on are charged.
    counter: Cell<&'static AtomicU64>,
    since: Cell<u64>,
    /// The reading at the core's last check for arrivals before the current event or interrupt.
    checked: Cell<u64>,
    /// The private activity that runs.
    private: Cell<Option<RunningPrivate>>,
    /// The private activities of recent events, by their ids.
    recent: [Cell<Option<(ActivityId, Private)>>; RECENT],
    /// Whether a scheduler orders events.
    has_scheduler: Cell<bool>,
    /// Whether the end of the running event concerns more than the ledger: a scheduler, or a private activity.
    has_more: Cell<bool>,
    /// Whether the core is traced: then `has_more` and `private` are set throughout each event.
    is_traced: Cell<bool>,
}

/// A private activity that runs, or the substitute for one during a trace.
#[derive(Clone, Copy)]
struct RunningPrivate {
    /// The activity and its counter; `None` for the substitute.
    charged: Option<(ActivityId, &'static AtomicU64)>,
    /// The reading of the cycle counter up to which it is charged.
    since: u64,
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
            core,
            report,
            activities: platform().ledger().core(core),
            counter: Cell::new(&report.loop_cycles),
            since: Cell::new(now),
            checked: Cell::new(now),
            private: Cell::new(None),
            recent: [const { Cell::new(None) }; RECENT],
            has_scheduler: Cell::new(false),
            has_more: Cell::new(false),
            is_traced: Cell::new(false),
        }
    }

    /// Sets whether a scheduler orders events.
    pub fn set_has_scheduler(&self, has_scheduler: bool) {
        self.has_scheduler.set(has_scheduler);
    }

    /// Returns whether a scheduler orders events.
    #[inline]
    pub fn has_scheduler(&self) -> bool {
        self.has_scheduler.get()
    }

    /// Makes the end of the running event, or of the next one, concern more than the ledger.
    pub fn set_has_more(&self) {
        self.has_more.set(true);
    }

    /// Begins or ends the reports of each change of activity to the core's [`Tracing`](crate::trace::Tracing).
    pub fn set_traced(&self, is_traced: bool) {
        self.is_traced.set(is_traced);
        self.begin_substitute(self.since.get());
    }

    /// Returns whether the core is traced.
    pub fn is_traced(&self) -> bool {
        self.is_traced.get()
    }

    /// Lets a substitute run from the reading `since` on, if the core is traced and no private activity runs.
    fn begin_substitute(&self, since: u64) {
        if self.is_traced.get() {
            self.has_more.set(true);
            if self.private.get().is_none() {
                self.private.set(Some(RunningPrivate { charged: None, since }));
            }
        }
    }

    /// Returns the activity to which the running event is charged, or was last.
    pub fn charged_activity(&self) -> ActivityId {
        let private = self.private.get().and_then(|private| private.charged);
        private
            .map_or_else(|| ActivityId(self.report.activity.load(Ordering::Relaxed)), |(private, _)| private)
    }

    /// Charges the cycles since the last boundary, and those that follow, to the present account. Returns the reading of
    /// the cycle counter.
    pub fn charge_so_far(&self) -> u64 {
        let now = cycles();
        add(self.counter.get(), now.wrapping_sub(self.since.replace(now)));
        now
    }

    /// Returns the account to which the present cycles are charged.
    pub fn account(&self) -> SampleAccount {
        let CoreReport { loop_cycles, interrupt_cycles, idle_cycles, .. } = self.report;
        match self.counter.get() {
            counter if core::ptr::eq(counter, idle_cycles) => SampleAccount::Idle,
            counter if core::ptr::eq(counter, loop_cycles) => SampleAccount::Loop,
            counter if core::ptr::eq(counter, interrupt_cycles) => SampleAccount::Interrupts,
            _ => SampleAccount::Activity(ActivityId(self.report.activity.load(Ordering::Relaxed))),
        }
    }

    /// Returns whether an event runs.
    pub fn runs_event(&self) -> bool {
        matches!(self.account(), SampleAccount::Activity(_))
    }

    /// Returns whether [`Self::end_event`] has to be called at the boundary after the event.
    #[inline]
    pub fn has_more(&self) -> bool {
        self.has_more.get()
    }

    /// Charges the private activity of the event that ended at the last boundary.
    pub fn end_event(&self) {
        self.has_more.set(false);
        self.end_private(self.since.get());
    }

    /// Returns the core's part of the report.
    pub fn report(&self) -> &'static CoreReport {
        self.report
    }

    /// Marks a boundary in the running event: charges the cycles since the last one, and selects the activity for those
    /// that follow.
    pub fn switch_activity(&self, to: ActivityId) {
        let now = cycles();
        self.end_private(now);
        let spent = now.wrapping_sub(self.since.replace(now));
        add(self.counter.replace(self.counter_of(Charge::Activity(to))), spent);
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
    #[inline]
    pub fn claim(&self, activity: ActivityId) {
        match self.activities.get(activity.index()) {
            Some(used) if !self.has_more.get() => self.counter.set(self.counter_in_ledger(activity, used)),
            _ => self.claim_with_private(activity),
        }
    }

    /// Does the same if a private activity runs or follows.
    #[cold]
    #[inline(never)]
    fn claim_with_private(&self, activity: ActivityId) {
        self.end_private(self.since.get());
        self.counter.set(self.counter_of(Charge::Activity(activity)));
    }

    /// Charges the cycles from the reading `since` (or the last boundary, if that is later) to the reading `until` to
    /// `activity`, those up to the end of this change to [`INFRASTRUCTURE`], and those that follow to `activity` again.
    #[inline(always)]
    pub fn charge_piece(&self, since: u64, until: u64, activity: ActivityId) {
        match self.activities.get(activity.index()) {
            Some(used) if !self.has_more.get() => {
                let last = self.since.get();
                let since = since.max(last);
                let counter = self.counter_in_ledger(activity, used);
                add(self.counter.replace(counter), since - last);
                add(counter, until.saturating_sub(since));
                let common = &self.activities[INFRASTRUCTURE.index()].cycles;
                // As few instructions as possible follow this reading: they are charged to the activity.
                let now = cycles();
                self.since.set(now);
                add(common, now.wrapping_sub(since.max(until)));
            }
            _ => self.charge_piece_with_private(since, until, activity),
        }
    }

    /// Does the same if a private activity runs or follows.
    #[cold]
    #[inline(never)]
    fn charge_piece_with_private(&self, since: u64, until: u64, activity: ActivityId) {
        let last = self.since.get();
        let since = since.max(last);
        let until = until.max(since);
        self.end_private(since);
        let counter = self.counter_of_activity(activity, since);
        add(self.counter.replace(counter), since - last);
        add(counter, until - since);
        let now = cycles();
        self.since.set(now);
        add(&self.activities[INFRASTRUCTURE.index()].cycles, now.wrapping_sub(until));
        let is_long = now.wrapping_sub(until) >= LONG_CHANGE_CYCLES;
        self.skip_private(until, now, is_long.then_some(INFRASTRUCTURE));
    }

    /// Charges the cycles from the last boundary to the reading `until` to `activity`, and none if that boundary is
    /// later. Later cycles are charged as before.
    pub fn charge_until(&self, until: u64, activity: ActivityId) {
        let since = self.since.get();
        let until = until.max(since);
        self.since.set(until);
        match self.activities.get(activity.index()) {
            Some(used) if !self.has_more.get() => add(&used.cycles, until - since),
            _ => self.charge_until_with_private(since, until, activity),
        }
    }

    /// Does the last part of the same if a private activity runs, or is charged.
    #[cold]
    #[inline(never)]
    fn charge_until_with_private(&self, since: u64, until: u64, activity: ActivityId) {
        self.skip_private(since, until, Some(activity));
        match self.activities.get(activity.index()) {
            Some(used) => add(&used.cycles, until - since),
            None => self.charge_private(activity, until - since),
        }
    }

    /// Ends the work of handlers between two events, which may have worked for a private activity.
    #[inline]
    pub fn end_handlers(&self) {
        if self.private.get().is_some() {
            self.end_private(cycles());
        }
    }

    /// Returns the counter of an account, to which the cycles from the last boundary on are charged.
    #[inline]
    fn counter_of(&self, charge: Charge) -> &'static AtomicU64 {
        match charge {
            Charge::Activity(activity) => self.counter_of_activity(activity, self.since.get()),
            Charge::Loop => &self.report.loop_cycles,
            Charge::Interrupt => &self.report.interrupt_cycles,
            Charge::Idle => &self.report.idle_cycles,
        }
    }

    /// Returns the counter of an activity, to which the cycles from the reading `since` on are charged.
    #[inline]
    fn counter_of_activity(&self, activity: ActivityId, since: u64) -> &'static AtomicU64 {
        match self.activities.get(activity.index()) {
            Some(used) => self.counter_in_ledger(activity, used),
            None => self.begin_private(activity, since),
        }
    }

    #[inline]
    fn counter_in_ledger(&self, activity: ActivityId, used: &'static ActivityReport) -> &'static AtomicU64 {
        // The heap reads this, as it has no access to events.
        self.report.activity.store(activity.0, Ordering::Relaxed);
        &used.cycles
    }

    /// Returns where the usage of a private activity is counted.
    fn private_of(&self, activity: ActivityId) -> Option<Private> {
        let recent = &self.recent[activity.0 as usize % RECENT];
        if let Some((known, found)) = recent.get()
            && known == activity
        {
            return Some(found);
        }
        let found = private(activity, self.core)?;
        // The counters of an id stay where they are.
        if found.counters.is_some() {
            recent.set(Some((activity, found)));
        }
        Some(found)
    }

    /// Begins to charge a private activity from the reading `since` on. Returns the counter of its slot.
    #[cold]
    #[inline(never)]
    fn begin_private(&self, activity: ActivityId, since: u64) -> &'static AtomicU64 {
        let (slot, counters) =
            self.private_of(activity).map_or((activity, None), |found| (found.slot(), found.counters));
        let running =
            |used: &'static ActivityReport| RunningPrivate { charged: Some((activity, &used.cycles)), since };
        self.private.set(counters.map(running));
        self.has_more.set(true);
        self.begin_substitute(since);
        self.counter_in_ledger(slot, &self.activities[slot.index()])
    }

    /// Charges the private activity that runs, if one does, up to the reading `until`. It runs no longer.
    #[inline]
    fn end_private(&self, until: u64) {
        if self.private.get().is_some() {
            self.take_private(until);
        }
    }

    #[cold]
    #[inline(never)]
    fn take_private(&self, until: u64) {
        if self.is_traced.get() {
            self.trace_part(until, self.charged_activity());
        }
        if let Some(RunningPrivate { charged: Some((_, counter)), since }) = self.private.take() {
            add(counter, until.saturating_sub(since));
        }
        self.begin_substitute(until);
    }

    /// Leaves the cycles from the reading `from` to the reading `to`, the present one, out of the charge for the private
    /// activity that runs, if one does. They are charged to `other`; a trace ignores them for `None`.
    #[inline]
    fn skip_private(&self, from: u64, to: u64, other: Option<ActivityId>) {
        if let Some(running) = self.private.get() {
            self.skip_running(running, from, to, other);
        }
    }

    #[cold]
    #[inline(never)]
    fn skip_running(&self, running: RunningPrivate, from: u64, to: u64, other: Option<ActivityId>) {
        let RunningPrivate { charged, since } = running;
        if let Some((_, counter)) = charged {
            add(counter, from.saturating_sub(since));
        }
        self.private.set(Some(RunningPrivate { charged, since: to }));
        if self.is_traced.get()
            && let Some(other) = other
        {
            self.trace_part(from, self.charged_activity());
            self.trace_part(to, other);
        }
    }

    /// Reports that the running event has worked for `activity` from the last such report on, until the reading `until`.
    fn trace_part(&self, until: u64, activity: ActivityId) {
        if self.runs_event() {
            // The last check was at the start of the event.
            EVENTS.tracing.part_ended(self.checked.get(), until, activity);
        }
    }

    /// Charges cycles to a private activity and its slot.
    #[cold]
    #[inline(never)]
    fn charge_private(&self, activity: ActivityId, spent: u64) {
        let Some(found) = self.private_of(activity) else { return };
        add(&self.activities[found.slot().index()].cycles, spent);
        if let Some(used) = found.counters {
            add(&used.cycles, spent);
        }
    }

    /// Marks the boundary at the start of an event, directly after a check for arrivals. Returns the reading of the
    /// cycle counter, and that of the previous check.
    #[inline]
    pub fn begin_event(&self, activity: ActivityId) -> (u64, u64) {
        let now = self.switch(Charge::Activity(activity));
        match self.activities.get(activity.index()) {
            Some(used) => add(&used.events, 1),
            None => self.count_private_event(activity),
        }
        (now, self.checked.replace(now))
    }

    #[cold]
    #[inline(never)]
    fn count_private_event(&self, activity: ActivityId) {
        let Some(found) = self.private_of(activity) else { return };
        add(&self.activities[found.slot().index()].events, 1);
        if let Some(used) = found.counters {
            add(&used.events, 1);
        }
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
        self.private.set(None);
        self.since.set(boundary);
        self.counter.set(&self.report.loop_cycles);
        self.begin_substitute(boundary);
    }

    /// Returns the reading of the cycle counter at the last boundary.
    #[inline]
    pub fn last_boundary(&self) -> u64 {
        self.since.get()
    }
}
