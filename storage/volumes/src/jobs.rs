//! The operations that wait for a volume's fiber.
//!
//! An activity's first waiting operation needs a *turn*. While the processor has a policy, an event of the activity takes
//! it, so that the policy decides which activity's operation the fiber executes next. The fiber executes it within that
//! event, or in a later one of the activity if it is in another operation, which waits for the device. Without a policy
//! the activities take turns. An activity has one turn at a time, so that its number of waiting operations does not delay
//! those of others.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_events::activity::charge_to;
use isola_events::processor::has_policy;
use isola_events::{current_activity, spawn};
use isola_fibers::Fiber;

/// The most operations that wait for a volume. Further ones wait for room.
const MOST_WAITING: usize = 1024;

/// An operation on a mounted file system.
pub(crate) type Work<M> = Box<dyn FnOnce(&mut M)>;

/// The operations that wait, one queue per activity.
pub(crate) struct Jobs<M>(Rc<RefCell<State<M>>>);

struct State<M> {
    /// The waiting operations. No queue is empty.
    queues: BTreeMap<ActivityId, VecDeque<Work<M>>>,
    /// The activities whose next operation may begin, in that order.
    turns: VecDeque<ActivityId>,
    /// The number of waiting operations.
    len: usize,
    /// Wakes the fiber.
    waker: Waker,
    /// `None` before it has started.
    fiber: Option<Rc<Fiber<()>>>,
    /// The activity of the fiber's events, if it was changed.
    activity: Option<ActivityId>,
    /// Whether the fiber waits for a turn.
    is_waiting: bool,
    /// The futures that wait for room.
    room: Vec<Waker>,
    is_closed: bool,
}

/// The result of an operation, on its way to the future that waits for it.
struct Reply<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// Returns a function that sends a result, and a future that completes with it.
pub(crate) fn reply<T>() -> (impl FnOnce(T), impl Future<Output = T>) {
    let reply = Rc::new(RefCell::new(Reply { value: None, waker: None }));
    let there = reply.clone();
    let send = move |value| {
        let mut reply = there.borrow_mut();
        reply.value = Some(value);
        if let Some(waker) = reply.waker.take() {
            waker.wake();
        }
    };
    let receive = poll_fn(move |context| {
        let mut reply = reply.borrow_mut();
        if let Some(value) = reply.value.take() {
            return Poll::Ready(value);
        }
        reply.waker = Some(context.waker().clone());
        Poll::Pending
    });
    (send, receive)
}

impl<M> Default for Jobs<M> {
    fn default() -> Self {
        let state = State {
            queues: BTreeMap::new(),
            turns: VecDeque::new(),
            len: 0,
            waker: Waker::noop().clone(),
            fiber: None,
            activity: None,
            is_waiting: false,
            room: Vec::new(),
            is_closed: false,
        };
        Self(Rc::new(RefCell::new(state)))
    }
}

impl<M> State<M> {
    /// Gives `activity`, whose event runs, a turn: the fiber executes its operation at once unless it is in another one.
    fn execute(this: &RefCell<Self>, activity: ActivityId) {
        let mut state = this.borrow_mut();
        state.turns.push_back(activity);
        if core::mem::take(&mut state.is_waiting)
            && let Some(fiber) = state.fiber.clone()
        {
            state.set_activity(activity);
            drop(state);
            fiber.resume_now();
        }
    }

    /// Makes the fiber's next events those of `activity`.
    fn set_activity(&mut self, activity: ActivityId) {
        if let Some(fiber) = &self.fiber {
            fiber.set_activity(activity);
            self.activity = Some(activity);
        }
    }
}

impl<M: 'static> Jobs<M> {
    /// Sets the fiber that executes the operations.
    pub fn set_fiber(&self, fiber: Fiber<()>) {
        self.0.borrow_mut().fiber = Some(Rc::new(fiber));
    }

    /// Adds an operation without waiting for room.
    pub fn add(&self, work: Work<M>) {
        let mut state = self.0.borrow_mut();
        state.len += 1;
        let queue = state.queues.entry(current_activity()).or_default();
        queue.push_back(work);
        let is_first = queue.len() == 1;
        drop(state);
        if is_first {
            self.wait_for_turn();
        }
    }

    /// Gives the current activity a turn, when the processor's policy permits.
    fn wait_for_turn(&self) {
        let activity = current_activity();
        if has_policy() {
            let state = self.0.clone();
            spawn(move || State::execute(&state, activity));
        } else {
            let mut state = self.0.borrow_mut();
            state.turns.push_back(activity);
            state.waker.wake_by_ref();
        }
    }

    /// Runs an operation on the volume's fiber, for the current activity. It runs even if this future is dropped
    /// meanwhile.
    pub async fn run<T: 'static>(&self, work: impl FnOnce(&mut M) -> T + 'static) -> T {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            if state.len < MOST_WAITING {
                return Poll::Ready(());
            }
            state.room.push(context.waker().clone());
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

    /// Returns the next operation with its activity, or `None` after [`Self::close`].
    pub async fn next(&self) -> Option<(ActivityId, Work<M>)> {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
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
            let queue = state.queues.get_mut(&activity);
            let (work, is_last) = queue.map_or((None, true), |queue| (queue.pop_front(), queue.is_empty()));
            state.len -= 1;
            state.room.drain(..).for_each(Waker::wake);
            if is_last {
                state.queues.remove(&activity);
            } else {
                drop(state);
                charge_to(activity);
                self.wait_for_turn();
            }
            // An activity with a turn has a waiting operation.
            Poll::Ready(work.map(|work| (activity, work)))
        })
        .await
    }
}
