//! Events in two queues, of which one goes before the other.

use isola::events::queue::{EventQueue, Fifo};
use isola::events::{QueuedEvent, ResourceId};

/// What is urgent.
pub const URGENT: ResourceId = ResourceId(1);

/// Events at [`URGENT`] first, each kind in the order in which they were made.
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
