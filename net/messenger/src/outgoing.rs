//! Frames on their way out: queued by any core, sent by the one that has the connection.

use crate::MAX_PAYLOAD;
use crate::backlog::Backlog;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_iobuf::Chain;
use spin::Mutex;

/// Bytes in a queue from which on who can wait does.
const FULL: usize = MAX_PAYLOAD;

/// Bytes in a queue at which its machine counts as one that does not read, and is left: of what cannot wait, such as
/// refusals of what it asks.
const TOO_FULL: usize = 8 * MAX_PAYLOAD;

/// The queue of a connection, and how much memory the connection takes of the [`Backlog`].
pub(crate) struct Outgoing {
    state: Mutex<State>,
    backlog: &'static Backlog,
}

#[derive(Debug, Default)]
struct State {
    queue: Chain,
    /// Bytes that were taken from the queue and are not sent.
    sending: usize,
    /// Bytes that have come and are no whole frame yet.
    come: usize,
    ended: bool,
    /// The task that sends.
    sender: Option<Waker>,
    /// Who waits for room.
    waiting: Vec<Waker>,
}

/// The connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended;

/// What the task that sends has to do.
pub(crate) enum Next {
    /// To send this, if it is not empty; when there is more it is woken.
    Send(Chain),
    /// To end the connection.
    End,
}

impl State {
    fn kept(&self) -> usize {
        self.queue.len() + self.sending + self.come
    }
}

impl Outgoing {
    /// An empty queue. Made by [`Backlog::open`].
    pub fn new(backlog: &'static Backlog) -> Self {
        Self { state: Mutex::default(), backlog }
    }

    /// Bytes of memory that the connection takes; `None` once it has ended.
    pub fn kept(&self) -> Option<usize> {
        let state = self.state.lock();
        (!state.ended).then(|| state.kept())
    }

    /// Says how many of the bytes that were taken are not sent.
    pub fn set_sending(&self, bytes: usize) {
        self.change(|state| state.sending = bytes);
    }

    /// Says how many bytes have come that are no whole frame yet.
    pub fn set_come(&self, bytes: usize) {
        self.change(|state| state.come = bytes);
    }

    /// Changes the state, and notes in the backlog by how much.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let (before, after, outcome) = {
            let mut state = self.state.lock();
            let before = state.kept();
            let outcome = change(&mut state);
            (before, state.kept(), outcome)
        };
        if before != after {
            self.backlog.note(before, after);
        }
        outcome
    }

    /// Queues a frame. A queue whose machine does not read ends its connection.
    pub fn push(&self, frame: Chain) -> Result<(), Ended> {
        let sender = self.change(|state| {
            if state.ended {
                return Err(Ended);
            }
            state.queue.append(frame);
            state.ended = state.queue.len() > TOO_FULL;
            Ok(state.sender.take())
        })?;
        sender.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Completes when there is room.
    pub async fn room(&self) -> Result<(), Ended> {
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.ended {
                return Poll::Ready(Err(Ended));
            }
            if state.queue.len() < FULL {
                return Poll::Ready(Ok(()));
            }
            state.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Ends the connection once the task that sends gets to it. The queue is dropped at once.
    pub fn end(&self) {
        let (sender, waiting) = self.change(|state| {
            state.ended = true;
            state.queue = Chain::new();
            (state.sender.take(), core::mem::take(&mut state.waiting))
        });
        sender.into_iter().chain(waiting).for_each(Waker::wake);
    }

    /// Whether the connection has to end, for the task that sends, which is woken when it has.
    pub fn has_ended(&self, sender: &Waker) -> bool {
        let mut state = self.state.lock();
        state.sender = Some(sender.clone());
        state.ended
    }

    /// All that is queued, for the task that sends.
    pub fn take(&self, sender: &Waker) -> Next {
        let (queue, waiting) = {
            let mut state = self.state.lock();
            if state.ended {
                return Next::End;
            }
            state.sender = Some(sender.clone());
            state.sending += state.queue.len();
            (core::mem::take(&mut state.queue), core::mem::take(&mut state.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        Next::Send(queue)
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.backlog.note(self.state.get_mut().kept(), 0);
    }
}
