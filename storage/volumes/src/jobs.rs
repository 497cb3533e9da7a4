//! The operations that wait for a volume's fiber.
//!
//! ```text
//!             policy of `files`, if any            policy of `processor`, if any
//!   add --> RequestQueue --(one at a time)--> queue --(turns)--> fiber
//! ```
//!
//! **Order of the file system.** While `files` has a policy, operations wait in its order, and the next one is admitted
//! when the fiber has executed the one before. The cost of an operation is the time for which it occupied the volume,
//! which includes its waits for the device. Without a policy all operations are admitted at once.
//!
//! **Order of the processor.** An activity's first admitted operation needs a *turn*. While the processor has a policy, an
//! event of the activity takes it, so that the policy decides which activity's operation the fiber executes next. The
//! fiber executes it within that event, or in a later one of the activity if it is in another operation, which waits for
//! the device. Without a policy the activities take turns. An activity has one turn at a time, so that its number of
//! waiting operations does not delay those of others.

use crate::reply::reply;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_events::activity::charge_to;
use isola_events::processor::has_policy;
use isola_events::{Alarm, Instant, current_activity, now, spawn};
use isola_fibers::Fiber;
use isola_resources::{ClientStatistics, Cost, FILES, NextRequest, RequestQueue, Resource, ServiceTicket};

/// The most operations of an activity that wait for a volume. Further ones wait for room, until half of these have gone:
/// then all that wait for room are woken, as those that are dropped meanwhile cannot be told from others.
const MOST_WAITING: usize = 1024;

/// An operation on a mounted file system.
pub(crate) type Work<M> = Box<dyn FnOnce(&mut M)>;

/// The operations that wait, one queue per activity.
pub(crate) struct Jobs<M>(Rc<RefCell<State<M>>>);

struct State<M> {
    /// The operations that the policy of `files` has not admitted yet; none without a policy.
    requests: RequestQueue<Work<M>>,
    /// The admitted operations by activity. No queue is empty.
    queues: BTreeMap<ActivityId, Queue<M>>,
    /// The activities whose next operation may begin, in that order. Those without an operation are skipped.
    turns: VecDeque<ActivityId>,
    /// The activities of which an event is to take a turn.
    turn_events: BTreeSet<ActivityId>,
    /// The number of waiting operations.
    len: usize,
    /// The operation that the fiber executes, if a policy has chosen it, with the time of its start.
    running: Option<(ServiceTicket, Instant)>,
    /// Rings when an activity at its limit may be admitted again.
    throttle: Option<Alarm>,
    /// Wakes the fiber.
    waker: Waker,
    /// `None` before it has started.
    fiber: Option<Rc<Fiber<()>>>,
    /// The activity of the fiber's events, if it was changed.
    activity: Option<ActivityId>,
    /// Whether the fiber waits for a turn.
    is_waiting: bool,
    /// Whether the fiber executes an operation.
    is_busy: bool,
    /// The futures that wait for room, by activity.
    room: BTreeMap<ActivityId, Vec<Waker>>,
    is_closed: bool,
}

/// The admitted operations of an activity.
struct Queue<M> {
    operations: VecDeque<(Work<M>, ServiceTicket)>,
    has_turn: bool,
}

impl<M> Default for Queue<M> {
    fn default() -> Self {
        Self { operations: VecDeque::new(), has_turn: false }
    }
}

/// Calls `call` while the running event is charged to `activity`.
fn for_activity<T>(activity: ActivityId, call: impl FnOnce() -> T) -> T {
    let before = current_activity();
    if before == activity {
        return call();
    }
    charge_to(activity);
    let result = call();
    charge_to(before);
    result
}

/// Completes in a later event, behind those that wait now.
async fn yield_fiber() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if core::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

impl<M: 'static> Default for Jobs<M> {
    fn default() -> Self {
        let state = State {
            requests: RequestQueue::new(Some(FILES)),
            queues: BTreeMap::new(),
            turns: VecDeque::new(),
            turn_events: BTreeSet::new(),
            len: 0,
            running: None,
            throttle: None,
            waker: Waker::noop().clone(),
            fiber: None,
            activity: None,
            is_waiting: false,
            is_busy: false,
            room: BTreeMap::new(),
            is_closed: false,
        };
        let jobs = Self(Rc::new(RefCell::new(state)));
        let weak: Weak<RefCell<State<M>>> = Rc::downgrade(&jobs.0);
        jobs.0.borrow_mut().throttle = Some(Alarm::new(move || {
            if let Some(state) = weak.upgrade() {
                state.borrow().waker.wake_by_ref();
            }
        }));
        jobs
    }
}

impl<M> State<M> {
    /// Gives `activity`, whose event runs, a turn: the fiber executes its operation at once unless it is in another one.
    fn execute(this: &RefCell<Self>, activity: ActivityId) {
        let mut state = this.borrow_mut();
        state.turn_events.remove(&activity);
        // A policy of `files` that began meanwhile has taken the operations back.
        if !state.give_turn(activity) {
            return;
        }
        if core::mem::take(&mut state.is_waiting)
            && let Some(fiber) = state.fiber.clone()
        {
            state.set_activity(activity);
            drop(state);
            fiber.resume_now();
        }
    }

    /// Gives an activity a turn, unless it has one or no operation. Returns whether it does.
    fn give_turn(&mut self, activity: ActivityId) -> bool {
        match self.queues.get_mut(&activity) {
            Some(queue) if !queue.has_turn => queue.has_turn = true,
            _ => return false,
        }
        self.turns.push_back(activity);
        true
    }

    /// Makes the fiber's next events those of `activity`.
    fn set_activity(&mut self, activity: ActivityId) {
        if let Some(fiber) = &self.fiber {
            fiber.set_activity(activity);
            self.activity = Some(activity);
        }
    }

    /// Follows changes of the settings of `files`. An operation that the fiber has not begun is ordered by the new
    /// policy. Returns the activities that need a turn.
    fn follow_policy(&mut self) -> Vec<ActivityId> {
        let had_policy = self.requests.has_policy();
        if !self.requests.follow(|| now().as_ns()) {
            return Vec::new();
        }
        let now_ns = now().as_ns();
        match (had_policy, self.requests.has_policy()) {
            (false, true) => {
                self.turns.clear();
                for (activity, queue) in core::mem::take(&mut self.queues) {
                    for (work, _) in queue.operations {
                        self.requests.add(activity, work, Cost::Unknown, now_ns);
                    }
                }
                Vec::new()
            }
            (true, false) => {
                let mut activities = Vec::new();
                while let NextRequest::Request(activity, work, ticket) = self.requests.take_next(now_ns) {
                    if self.enqueue(activity, work, ticket) {
                        activities.push(activity);
                    }
                }
                activities
            }
            _ => Vec::new(),
        }
    }

    /// Adds an admitted operation. Returns whether it is the activity's only one, which then needs a turn.
    fn enqueue(&mut self, activity: ActivityId, work: Work<M>, ticket: ServiceTicket) -> bool {
        let queue = self.queues.entry(activity).or_default();
        queue.operations.push_back((work, ticket));
        queue.operations.len() == 1
    }

    /// Returns the number of an activity's waiting operations.
    fn len_for(&self, activity: ActivityId) -> usize {
        let admitted = self.queues.get(&activity).map_or(0, |queue| queue.operations.len());
        // Without a policy all operations are admitted.
        if self.requests.has_policy() { self.requests.len_for(activity) + admitted } else { admitted }
    }

    /// Reports the cost of the operation that the fiber has executed. Returns whether a policy had chosen it.
    fn complete(&mut self) -> bool {
        let Some((ticket, begun)) = self.running.take() else { return false };
        self.requests.complete(ticket, now().as_ns().saturating_sub(begun.as_ns()));
        true
    }
}

impl<M: 'static> Jobs<M> {
    /// Sets the fiber that executes the operations.
    pub fn set_fiber(&self, fiber: Fiber<()>) {
        self.0.borrow_mut().fiber = Some(Rc::new(fiber));
    }

    /// Returns a handle that does not keep the volume.
    pub fn downgrade(&self) -> WeakJobs<M> {
        WeakJobs(Rc::downgrade(&self.0))
    }

    /// Adds an operation of the current activity without waiting for room.
    pub fn add(&self, work: Work<M>) {
        let activity = current_activity();
        let mut state = self.0.borrow_mut();
        let need_turns = state.follow_policy();
        state.len += 1;
        if state.requests.has_policy() {
            state.requests.add(activity, work, Cost::Unknown, now().as_ns());
            drop(state);
            return self.admit();
        }
        let is_first = state.enqueue(activity, work, ServiceTicket::default());
        drop(state);
        self.request_turns(need_turns);
        if is_first {
            self.request_turn(activity);
        }
    }

    /// Admits the next operation if the fiber has no other, in the order of the policy of `files`.
    fn admit(&self) {
        let mut state = self.0.borrow_mut();
        let need_turns = state.follow_policy();
        let mut admitted = None;
        if state.requests.has_policy() && !state.is_busy && state.queues.is_empty() {
            match state.requests.take_next(now().as_ns()) {
                NextRequest::Request(activity, work, ticket) => {
                    state.enqueue(activity, work, ticket);
                    admitted = Some(activity);
                }
                NextRequest::NotBefore(ns) => {
                    if let Some(alarm) = &state.throttle {
                        alarm.set(Some(Instant::from_ns(ns)));
                    }
                }
                NextRequest::Empty => state.requests.idle(),
            }
        }
        drop(state);
        self.request_turns(need_turns.into_iter().chain(admitted));
    }

    fn request_turns(&self, activities: impl IntoIterator<Item = ActivityId>) {
        for activity in activities {
            for_activity(activity, || self.request_turn(activity));
        }
    }

    /// Gives the current activity a turn, when the processor's policy permits.
    fn request_turn(&self, activity: ActivityId) {
        let mut state = self.0.borrow_mut();
        if !has_policy() {
            state.give_turn(activity);
            return state.waker.wake_by_ref();
        }
        if state.turn_events.insert(activity) {
            drop(state);
            let state = self.0.clone();
            spawn(move || State::execute(&state, activity));
        }
    }

    /// Runs an operation on the volume's fiber, for the current activity. It runs even if this future is dropped
    /// meanwhile.
    pub async fn run<T: 'static>(&self, work: impl FnOnce(&mut M) -> T + 'static) -> T {
        let activity = current_activity();
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.len_for(activity) < MOST_WAITING {
                return Poll::Ready(());
            }
            state.room.entry(activity).or_default().push(context.waker().clone());
            Poll::Pending
        })
        .await;
        let (send, receive) = reply();
        self.add(Box::new(move |mounted| send(work(mounted))));
        receive.await
    }

    /// Ends the fiber after all waiting operations.
    pub fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.is_closed = true;
        state.waker.wake_by_ref();
    }

    /// Ends the operation that was returned before. Returns the next one with its activity, or `None` after
    /// [`Self::close`].
    pub async fn next(&self) -> Option<(ActivityId, Work<M>)> {
        let was_chosen = self.0.borrow_mut().complete();
        if was_chosen {
            // Its caller may have another operation, which has to be among those of which the policy chooses the next.
            yield_fiber().await;
        }
        self.0.borrow_mut().is_busy = false;
        poll_fn(|context| {
            self.admit();
            let mut state = self.0.borrow_mut();
            while state.turns.front().is_some_and(|activity| !state.queues.contains_key(activity)) {
                state.turns.pop_front();
            }
            let Some(activity) = state.turns.front().copied() else {
                state.waker = context.waker().clone();
                state.is_waiting = true;
                let is_done = state.is_closed && state.len == 0;
                return if is_done { Poll::Ready(None) } else { Poll::Pending };
            };
            state.is_waiting = false;
            if has_policy() && state.activity != Some(activity) {
                state.set_activity(activity);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            state.turns.pop_front();
            let Some(queue) = state.queues.get_mut(&activity) else { return Poll::Pending };
            queue.has_turn = false;
            let next = queue.operations.pop_front();
            let is_last = queue.operations.is_empty();
            state.len -= 1;
            state.is_busy = true;
            let ticket = next.as_ref().map(|(_, ticket)| *ticket).unwrap_or_default();
            state.running = ticket.is_charged().then(|| (ticket, now()));
            if is_last {
                state.queues.remove(&activity);
            }
            if !state.room.is_empty() && state.len_for(activity) <= MOST_WAITING / 2 {
                state.room.remove(&activity).into_iter().flatten().for_each(Waker::wake);
            }
            if !is_last {
                drop(state);
                charge_to(activity);
                self.request_turn(activity);
            }
            // A queue has an operation.
            Poll::Ready(next.map(|(work, _)| (activity, work)))
        })
        .await
    }

    /// Returns the service that an activity has received; the default without a policy.
    pub fn statistics(&self, activity: ActivityId) -> ClientStatistics {
        self.0.borrow().requests.statistics(activity)
    }
}

/// A handle of the operations that wait for a volume, for reports and changes of the settings.
pub(crate) struct WeakJobs<M>(Weak<RefCell<State<M>>>);

impl<M: 'static> WeakJobs<M> {
    /// Returns whether the volume exists.
    pub fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Follows a change of the settings, also if no operation comes or ends.
    pub fn follow(&self) {
        if let Some(state) = self.0.upgrade() {
            Jobs(state).admit();
        }
    }

    /// Returns the service of each activity by the policy; empty without one.
    pub fn report(&self, core: u32) -> Vec<GridClient> {
        self.0
            .upgrade()
            .map(|state| state.borrow().requests.report(Resource::Files, core))
            .unwrap_or_default()
    }
}
