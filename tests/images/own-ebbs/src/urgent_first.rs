//! Two queues of events, one of which has priority.

use isola::events::queue::{EventQueue, Fifo};
use isola::events::{QueuedEvent, ResourceId};

/// The resource of urgent events.
pub const URGENT: ResourceId = ResourceId(1);

/// A queue that returns the events of [`URGENT`] first, each kind in the order of creation.
#[derive(Default)]
pub struct UrgentFirst {
    urgent: Fifo,
    others: Fifo,
}

impl EventQueue for UrgentFirst {
    fn push(&mut self, event: QueuedEvent) {
        let is_urgent = event.tag().resource == URGENT;
        let queue = if is_urgent { &mut self.urgent } else { &mut self.others };
        queue.push(event);
    }

    fn pop(&mut self) -> Option<QueuedEvent> {
        self.urgent.pop().or_else(|| self.others.pop())
    }

    fn len(&self) -> usize {
        self.urgent.len() + self.others.len()
    }
}
