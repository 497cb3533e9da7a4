//! The send queue of a connection: any core adds frames, the connection's core sends them.

use crate::MAX_PAYLOAD;
use crate::backlog::Backlog;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_iobuf::Chain;
use spin::Mutex;

/// The length of a queue, in bytes, from which on senders that can wait do so.
const FULL: usize = MAX_PAYLOAD;

/// The length of a queue, in bytes, beyond which its connection ends: the peer does not read. Only messages that cannot
/// wait, such as refusals of its calls, get there.
const MAX_QUEUED: usize = 8 * MAX_PAYLOAD;

/// The send queue of a connection, and the connection's share of the [`Backlog`].
pub(crate) struct SendQueue {
    state: Mutex<State>,
    backlog: &'static Backlog,
}

#[derive(Debug, Default)]
struct State {
    queue: Chain,
    /// Bytes taken from the queue that are not sent yet.
    sending: usize,
    /// Received bytes that are not a whole frame yet.
    partial: usize,
    ended: bool,
    /// The task that sends.
    sender: Option<Waker>,
    /// The tasks that wait for room.
    waiting: Vec<Waker>,
}

/// The error of a connection that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionEnded;

/// The next action of the sending task.
pub(crate) enum SendAction {
    /// Send this. If it is empty, the task is woken when there is more.
    Send(Chain),
    /// End the connection.
    End,
}

impl State {
    fn used_bytes(&self) -> usize {
        self.queue.len() + self.sending + self.partial
    }
}

impl SendQueue {
    /// Returns an empty queue. For [`Backlog::open`].
    pub fn new(backlog: &'static Backlog) -> Self {
        Self { state: Mutex::default(), backlog }
    }

    /// Returns the memory that the connection uses, in bytes; `None` once it has ended.
    pub fn used_bytes(&self) -> Option<usize> {
        let state = self.state.lock();
        (!state.ended).then(|| state.used_bytes())
    }

    /// Sets the number of taken bytes that are not sent yet.
    pub fn set_sending(&self, bytes: usize) {
        self.change(|state| state.sending = bytes);
    }

    /// Sets the number of received bytes that are not a whole frame yet.
    pub fn set_partial(&self, bytes: usize) {
        self.change(|state| state.partial = bytes);
    }

    /// Changes the state, and records the difference in memory in the backlog.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (before, after, outcome) = {
            let mut state = self.state.lock();
            let before = state.used_bytes();
            let outcome = change(&mut state);
            (before, state.used_bytes(), outcome)
        };
        if before != after {
            self.backlog.update(before, after);
        }
        outcome
    }

    /// Queues a frame. If the queue becomes too long, its connection ends.
    pub fn push(&self, frame: Chain) -> Result<(), ConnectionEnded> {
        let sender = self.change(|state| {
            if state.ended {
                return Err(ConnectionEnded);
            }
            state.queue.append(frame);
            state.ended = state.queue.len() > MAX_QUEUED;
            Ok(state.sender.take())
        })?;
        sender.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Completes when there is room.
    pub async fn room(&self) -> Result<(), ConnectionEnded> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.ended {
                return Poll::Ready(Err(ConnectionEnded));
            }
            if state.queue.len() < FULL {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the connection: drops the queue at once, and wakes the sending task to close the connection.
    pub fn end(&self) {
        let (sender, waiting) = self.change(|state| {
            state.ended = true;
            state.queue = Chain::new();
            (state.sender.take(), core::mem::take(&mut state.waiting))
        });
        sender.into_iter().chain(waiting).for_each(Waker::wake);
    }

    /// Returns whether the connection has to end. Registers the sending task to be woken when it has.
    pub fn has_ended(&self, sender: &Waker) -> bool {
        let mut state = self.state.lock();
        state.sender = Some(sender.clone());
        state.ended
    }

    /// Takes all queued data, for the sending task.
    pub fn take(&self, sender: &Waker) -> SendAction {
        let (queue, waiting) = {
            let mut state = self.state.lock();
            if state.ended {
                return SendAction::End;
            }
            state.sender = Some(sender.clone());
            state.sending += state.queue.len();
            (core::mem::take(&mut state.queue), core::mem::take(&mut state.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        SendAction::Send(queue)
    }
}

impl Drop for SendQueue {
    fn drop(&mut self) {
        self.backlog.update(self.state.get_mut().used_bytes(), 0);
    }
}
