//! Frames on their way out: queued by any core, sent by the one that has the connection.

use crate::MAX_PAYLOAD;
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

/// The queue of a connection.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: Chain,
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

impl Outgoing {
    /// Queues a frame. A queue whose machine does not read ends its connection.
    pub fn push(&self, frame: Chain) -> Result<(), Ended> {
        let sender = {
            let mut state = self.state.lock();
            if state.ended {
                return Err(Ended);
            }
            state.queue.append(frame);
            state.ended = state.queue.len() > TOO_FULL;
            state.sender.take()
        };
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

    /// Ends the connection once the task that sends gets to it.
    pub fn end(&self) {
        let (sender, waiting) = {
            let mut state = self.state.lock();
            state.ended = true;
            (state.sender.take(), core::mem::take(&mut state.waiting))
        };
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
            (core::mem::take(&mut state.queue), core::mem::take(&mut state.waiting))
        };
        waiting.into_iter().for_each(Waker::wake);
        Next::Send(queue)
    }
}
