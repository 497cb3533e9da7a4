//! The order in which a core runs its events: first in, first out, unless the application supplies another queue.
//!
//! The event manager of a core is an Ebb, [`EVENTS`](crate::EVENTS). An application replaces it with an event manager
//! that uses its own queue, before any event is created:
//!
//! ```ignore
//! EVENTS.replace(|| EventLoop::with_queue(ShortestFirst::default()))
//! ```

use crate::event::QueuedEvent;
use alloc::boxed::Box;
use alloc::collections::VecDeque;

/// A queue of the events of a core that wait to run.
///
/// It holds the only copy: an event that it does not return never runs. It must return events of one dependency label
/// ([`EventTag::dependency`](crate::EventTag)) in the order in which it received them.
pub trait EventQueue {
    /// Adds an event.
    fn push(&mut self, event: QueuedEvent);

    /// Removes and returns the event that runs next; `None` if the queue is empty.
    fn pop(&mut self) -> Option<QueuedEvent>;

    /// Returns the number of events.
    fn len(&self) -> usize;

    /// Returns whether the queue is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// First in, first out: the default queue.
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

/// The queue of a core. Dynamic dispatch for the default queue would copy each event twice more, which costs 25
/// instructions per event.
pub(crate) enum Queue {
    /// The default queue.
    Fifo(Fifo),
    /// The application's queue.
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

    /// Returns whether a new event may bypass the queue, which holds while the default queue is empty. An application's
    /// own queue sees every event.
    #[inline]
    pub fn lets_through(&self) -> bool {
        match self {
            Self::Fifo(queue) => queue.is_empty(),
            Self::Own(_) => false,
        }
    }
}
