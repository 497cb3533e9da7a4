//! The operations that wait for a volume's fiber.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_events::current_activity;

/// The most operations that wait for a volume. Further ones wait for room.
const MOST_WAITING: usize = 1024;

/// An operation on a mounted file system.
pub(crate) type Work<M> = Box<dyn FnOnce(&mut M)>;

/// The operations that wait, one queue per activity. The activities take turns.
pub(crate) struct Jobs<M>(RefCell<State<M>>);

struct State<M> {
    /// The activities with waiting operations, in the order of their turns.
    turns: VecDeque<(ActivityId, VecDeque<Work<M>>)>,
    len: usize,
    /// Wakes the fiber.
    fiber: Waker,
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
        Self(RefCell::new(State {
            turns: VecDeque::new(),
            len: 0,
            fiber: Waker::noop().clone(),
            room: Vec::new(),
            is_closed: false,
        }))
    }
}

impl<M: 'static> Jobs<M> {
    /// Adds an operation without waiting for room.
    pub fn add(&self, work: Work<M>) {
        let mut state = self.0.borrow_mut();
        let activity = current_activity();
        match state.turns.iter_mut().find(|(of, _)| *of == activity) {
            Some((_, queue)) => queue.push_back(work),
            None => state.turns.push_back((activity, VecDeque::from([work]))),
        }
        state.len += 1;
        state.fiber.wake_by_ref();
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
        state.fiber.wake_by_ref();
    }

    /// Returns the next operation with its activity, or `None` after [`Self::close`].
    pub async fn next(&self) -> Option<(ActivityId, Work<M>)> {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            let Some((activity, mut queue)) = state.turns.pop_front() else {
                state.fiber = context.waker().clone();
                return if state.is_closed { Poll::Ready(None) } else { Poll::Pending };
            };
            let work = queue.pop_front();
            if !queue.is_empty() {
                state.turns.push_back((activity, queue));
            }
            state.len -= 1;
            state.room.drain(..).for_each(Waker::wake);
            // No queue without an operation is kept.
            Poll::Ready(work.map(|work| (activity, work)))
        })
        .await
    }
}
