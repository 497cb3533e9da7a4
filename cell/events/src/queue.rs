//! The order in which a core runs its events: first in, first out, unless an application has an order of its own.
//!
//! The event manager of a core is an Ebb, [`EVENTS`](crate::EVENTS). An application puts its own in its place by naming
//! the queue that it keeps events in, before any event is made:
//!
//! ```ignore
//! EVENTS.replace(|| EventLoop::with_queue(ShortestFirst::default()))
//! ```

use crate::event::QueuedEvent;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// Keeps the events of a core that wait to be run.
///
/// Nothing else keeps them: an event that does not come out never runs. Events of one dependency label
/// ([`EventTag::dependency`](crate::EventTag)) have to come out in the order in which they came in.
pub trait EventQueue {
    /// Takes an event.
    fn push(&mut self, event: QueuedEvent);

    /// Gives out the event that is run next; `None` where there is none.
    fn pop(&mut self) -> Option<QueuedEvent>;

    /// How many there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out: what a core has unless it is told otherwise.
#[derive(Default)]
pub struct Fifo(VecDeque<QueuedEvent>);

impl EventQueue for Fifo {
    #[inline]
    fn push(&mut self, event: QueuedEvent) {
        self.0.push_back(event);
    }

    #[inline]
    fn pop(&mut self) -> Option<QueuedEvent> {
        self.0.pop_front()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// What a core has. Calls by a table would copy each event twice more, which costs those who do not ask for it 25
/// instructions an event.
pub(crate) enum Queue {
    /// Isola's.
    Fifo(Fifo),
    /// The application's.
    Own(Box<dyn EventQueue>),
}

impl Queue {
    #[inline]
    pub fn push(&mut self, event: QueuedEvent) {
        match self {
            Self::Fifo(queue) => queue.push(event),
            Self::Own(queue) => queue.push(event),
        }
    }

    #[inline]
    pub fn pop(&mut self) -> Option<QueuedEvent> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Own(queue) => queue.pop(),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Fifo(queue) => queue.len(),
            Self::Own(queue) => queue.len(),
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether an event that is made now may bypass the queue: while Isola's queue is empty. An application's own queue
    /// sees every event.
    #[inline]
    pub fn lets_through(&self) -> bool {
        match self {
            Self::Fifo(queue) => queue.is_empty(),
            Self::Own(_) => false,
        }
    }
}
