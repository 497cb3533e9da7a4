//! The order in which a core runs its events: first in, first out, unless an application has an order of its own.
//!
//! The event manager of a core is an Ebb, [`EVENTS`](crate::EVENTS). An application puts its own in its place by naming
//! the queue that it keeps events in, before any event is made:
//!
//! ```ignore
//! EVENTS.replace(|| EventLoop::with_queue(ShortestFirst::default()))
//! ```

use crate::event::QueuedEvent;
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
    fn push(&mut self, event: QueuedEvent) {
        self.0.push_back(event);
    }

    fn pop(&mut self) -> Option<QueuedEvent> {
        self.0.pop_front()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}
