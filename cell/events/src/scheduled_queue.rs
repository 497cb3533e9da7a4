//! A core's events in one queue per activity, in the order of a policy of the grid.
//!
//! While all waiting events are of one activity, they bypass the scheduler: without a competitor there is nothing to
//! decide. The core counts as idle whenever no event waits, and then all activities start over
//! ([`ActivityScheduler::idle`]). If a competitor arrives while an event runs that bypassed the scheduler, the event is
//! charged from its start to the activity that it works for at that time.
//!
//! The scheduler charges an event's cycles to the event's activity. If the event worked for others as well, the
//! scheduler charges those in addition, with the cycles that the [accounting](crate::accounting) records for them.

use crate::event::QueuedEvent;
use crate::event_loop::EVENTS;
use crate::timer::Alarm;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_activities::counters;
use isola_ebbs::{current_core, platform};
use isola_platform::{Clock, Instant};
use isola_resources::{
    ActivityScheduler, ClientStatistics, Configuration, Cost, Dispatch, Dispatched, Resource, Ticket,
};

/// The events of a core that wait to run, and the charges for the running one.
pub(crate) struct ScheduledQueue {
    scheduler: ActivityScheduler<QueuedEvent>,
    /// The waiting events while all are of one activity. The scheduler is empty while there are any.
    sole: VecDeque<QueuedEvent>,
    /// Whether an event may have to wait although no other waits.
    has_limits: bool,
    /// The running event's activity and charge, if the scheduler has dispatched it.
    running: Option<(ActivityId, Ticket)>,
    /// The activities that the running event works for besides its own, with their cycles before. Noted while the event
    /// is a scheduled one.
    others: Vec<(ActivityId, u64)>,
    /// Ends the throttling.
    alarm: Alarm,
    /// Whether all waiting events are of activities at their limits, until the alarm rings.
    is_throttled: bool,
    /// Whether the scheduler has served events since the core was last idle.
    is_busy: bool,
    clock: &'static Clock,
    core: usize,
}

impl ScheduledQueue {
    /// Creates an empty queue for this core. `alarm` has to call [`Self::end_throttling`].
    pub fn new(configuration: Configuration, alarm: Alarm) -> Self {
        Self {
            has_limits: configuration.has_limits(),
            scheduler: ActivityScheduler::new(configuration),
            sole: VecDeque::new(),
            running: None,
            others: Vec::new(),
            alarm,
            is_throttled: false,
            is_busy: false,
            clock: platform().clock(),
            core: current_core().0 as usize,
        }
    }

    /// Replaces the configuration while events wait. To be called between two events.
    pub fn configure(&mut self, configuration: Configuration, now_cycles: u64) {
        self.has_limits = configuration.has_limits();
        let now_ns = self.ns(now_cycles);
        self.scheduler.configure(configuration, now_ns);
        if self.has_limits {
            for event in core::mem::take(&mut self.sole) {
                self.scheduler.enqueue(event.tag.activity, event, Cost::Unknown, now_ns);
            }
        }
        self.end_throttling();
    }

    /// Returns all waiting events in the order of their arrival.
    pub fn into_events(self) -> impl Iterator<Item = QueuedEvent> {
        self.sole.into_iter().chain(self.scheduler.into_requests())
    }

    /// Adds an event.
    pub fn push(&mut self, event: QueuedEvent, now_cycles: u64) {
        let is_sole = |first: &QueuedEvent| first.tag.activity == event.tag.activity;
        if self.scheduler.is_empty() && !self.has_limits && self.sole.front().is_none_or(is_sole) {
            return self.sole.push_back(event);
        }
        self.schedule(event, now_cycles);
    }

    #[inline(never)]
    fn schedule(&mut self, event: QueuedEvent, now_cycles: u64) {
        let now_ns = self.ns(now_cycles);
        self.schedule_sole(now_ns);
        self.scheduler.enqueue(event.tag.activity, event, Cost::Unknown, now_ns);
        self.is_throttled = false;
    }

    /// Lets the scheduler order the running event and the waiting ones that bypass it.
    fn schedule_sole(&mut self, now_ns: u64) {
        if self.running.is_none() && EVENTS.accounting.runs_event() {
            let activity = EVENTS.current_tag().activity;
            self.running = self.scheduler.serve_unqueued(activity, now_ns).map(|ticket| (activity, ticket));
            EVENTS.accounting.set_has_more();
        }
        for earlier in core::mem::take(&mut self.sole) {
            self.scheduler.enqueue(earlier.tag.activity, earlier, Cost::Unknown, now_ns);
        }
    }

    /// Returns whether the running event's activity would have to wait, for a waiting event or for its limit, if the
    /// event ended now after `spent_cycles`, and another one followed; before `granularity_cycles` only if that is
    /// urgent ([`ActivityScheduler::must_wait`]). To be called within an event.
    #[inline]
    pub fn must_wait(&mut self, spent_cycles: u64, granularity_cycles: u64, now_cycles: u64) -> bool {
        (self.len() > 0 || self.has_limits)
            && self.must_wait_for_others(spent_cycles, granularity_cycles, now_cycles)
    }

    #[inline(never)]
    fn must_wait_for_others(&mut self, spent_cycles: u64, granularity_cycles: u64, now_cycles: u64) -> bool {
        let now_ns = self.ns(now_cycles);
        if let Some(first) = self.sole.front() {
            let own = self.running.map_or_else(|| EVENTS.current_tag().activity, |(own, _)| own);
            if first.tag.activity == own {
                return spent_cycles >= granularity_cycles;
            }
            self.schedule_sole(now_ns);
        }
        // Without a ticket, the event began before the policy.
        let Some((_, ticket)) = self.running else { return true };
        self.scheduler.must_wait(ticket, spent_cycles, granularity_cycles, now_ns)
    }

    /// Removes and returns the event that runs next; `None` if none waits, or if none may run before the alarm rings.
    pub fn pop(&mut self, now_cycles: u64) -> Option<QueuedEvent> {
        if let Some(event) = self.sole.pop_front() {
            if self.is_busy {
                // Its end may end the busy period.
                EVENTS.accounting.set_has_more();
            }
            return Some(event);
        }
        self.dispatch(now_cycles)
    }

    #[inline(never)]
    fn dispatch(&mut self, now_cycles: u64) -> Option<QueuedEvent> {
        self.others.clear();
        if self.is_throttled {
            return None;
        }
        match self.scheduler.dispatch(self.ns(now_cycles)) {
            Dispatch::Request(Dispatched { message: event, ticket }) => {
                self.running = Some((event.tag.activity, ticket));
                EVENTS.accounting.set_has_more();
                Some(event)
            }
            Dispatch::NotBefore(ns) => {
                self.is_throttled = true;
                self.alarm.set(Some(Instant::from_ns(ns)));
                None
            }
            Dispatch::Empty => None,
        }
    }

    /// Lets the scheduler decide again.
    pub fn end_throttling(&mut self) {
        self.is_throttled = false;
    }

    /// Notes that the running event is about to work for `activity`.
    pub fn work_for(&mut self, activity: ActivityId) {
        let Some((own, _)) = self.running else { return };
        if activity != own && self.others.iter().all(|(noted, _)| *noted != activity) {
            self.others.push((activity, self.cycles_of(activity)));
        }
    }

    /// Charges the event that has ended after `spent_cycles`, at the reading `now_cycles` of the cycle counter.
    #[inline]
    pub fn event_ended(&mut self, spent_cycles: u64, now_cycles: u64) {
        if let Some((own, ticket)) = self.running.take() {
            self.scheduler.complete(ticket, spent_cycles);
            self.is_busy = true;
            if !self.others.is_empty() {
                self.charge_others(own, now_cycles);
            }
        }
        if self.is_busy && self.len() == 0 {
            self.is_busy = false;
            self.scheduler.idle();
        }
    }

    #[cold]
    #[inline(never)]
    fn charge_others(&mut self, own: ActivityId, now_cycles: u64) {
        let now_ns = self.ns(now_cycles);
        for (activity, before) in core::mem::take(&mut self.others) {
            let spent_cycles = self.cycles_of(activity).wrapping_sub(before);
            self.scheduler.transfer(own, activity, spent_cycles, now_ns);
        }
    }

    /// Returns the number of waiting events.
    pub fn len(&self) -> usize {
        self.scheduler.len() + self.sole.len()
    }

    /// Returns whether an event may bypass the queue: none waits, and there are no limits and no debts.
    pub fn lets_through(&self) -> bool {
        self.sole.is_empty() && self.scheduler.is_empty() && !self.has_limits && !self.is_busy
    }

    /// Returns whether an event may run now.
    pub fn has_runnable(&self) -> bool {
        !self.sole.is_empty() || (!self.scheduler.is_empty() && !self.is_throttled)
    }

    /// Returns the service of an activity in competition with others.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        self.scheduler.statistics(activity)
    }

    /// Returns the service of each activity on this core in competition with others.
    pub fn report(&self, core: u32) -> Vec<GridClient> {
        self.scheduler.report(Resource::Processor, core)
    }

    fn cycles_of(&self, activity: ActivityId) -> u64 {
        counters(activity, self.core).map_or(0, |used| used.cycles.load(Ordering::Relaxed))
    }

    #[inline]
    fn ns(&self, cycles: u64) -> u64 {
        self.clock.instant(cycles).as_ns()
    }
}
