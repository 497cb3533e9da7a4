//! The order in which a core runs its events: first in, first out, unless the application chooses a policy for
//! activities ([`processor`](crate::processor)) or supplies its own queue.
//!
//! The event manager of a core is an Ebb, [`EVENTS`](crate::EVENTS). An application replaces it with an event manager
//! that uses its own queue, before any event is created:
//!
//! ```ignore
//! EVENTS.replace(|| EventLoop::with_queue(ShortestFirst::default()))
//! ```

use crate::event::QueuedEvent;
use crate::scheduled_queue::ScheduledQueue;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use isola_resources::Configuration;

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
    /// By a policy for activities.
    Scheduled(Box<ScheduledQueue>),
    /// The application's queue.
    Own(Box<dyn EventQueue>),
}

impl Queue {
    /// Adds an event, at the reading `now` of the cycle counter.
    #[inline]
    pub fn push(&mut self, event: QueuedEvent, now: u64) {
        match self {
            Self::Fifo(queue) => queue.push(event),
            other => other.push_to_other(event, now),
        }
    }

    /// Out of line, so that the compiler copies no event for the default queue.
    #[cold]
    #[inline(never)]
    fn push_to_other(&mut self, event: QueuedEvent, now: u64) {
        match self {
            Self::Fifo(queue) => queue.push(event),
            Self::Scheduled(queue) => queue.push(event, now),
            Self::Own(queue) => queue.push(event),
        }
    }

    /// Removes and returns the event that runs next, at the reading `now` of the cycle counter; `None` if no event may
    /// run now.
    #[inline]
    pub fn pop(&mut self, now: u64) -> Option<QueuedEvent> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            other => other.pop_from_other(now),
        }
    }

    #[cold]
    #[inline(never)]
    fn pop_from_other(&mut self, now: u64) -> Option<QueuedEvent> {
        match self {
            Self::Fifo(queue) => queue.pop(),
            Self::Scheduled(queue) => queue.pop(now),
            Self::Own(queue) => queue.pop(),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Self::Fifo(queue) => queue.len(),
            Self::Scheduled(queue) => queue.len(),
            Self::Own(queue) => queue.len(),
        }
    }

    /// Returns whether an event may run now.
    #[inline]
    pub fn has_runnable(&self) -> bool {
        match self {
            Self::Fifo(queue) => !queue.is_empty(),
            Self::Scheduled(queue) => queue.has_runnable(),
            Self::Own(queue) => !queue.is_empty(),
        }
    }

    /// Returns whether the running event's activity would have to wait if the event ended now after `spent` cycles, at
    /// the reading `now` of the cycle counter, and another one followed. Without a policy it does if an event waits and
    /// the running one has taken `granularity` cycles, before which a policy counts only what is urgent.
    #[inline]
    pub fn must_wait(&mut self, spent: u64, granularity: u64, now: u64) -> bool {
        match self {
            Self::Fifo(queue) => spent >= granularity && !queue.is_empty(),
            Self::Scheduled(queue) => queue.must_wait(spent, granularity, now),
            Self::Own(queue) => spent >= granularity && !queue.is_empty(),
        }
    }

    /// Returns whether a new event may bypass the queue, which holds while it is empty. An application's queue sees every
    /// event.
    #[inline]
    pub fn lets_through(&self) -> bool {
        match self {
            Self::Fifo(queue) => queue.is_empty(),
            Self::Scheduled(queue) => queue.lets_through(),
            Self::Own(_) => false,
        }
    }

    /// Returns the queue of a policy.
    pub fn scheduled(&mut self) -> Option<&mut ScheduledQueue> {
        match self {
            Self::Scheduled(queue) => Some(queue),
            Self::Fifo(_) | Self::Own(_) => None,
        }
    }

    /// Orders the events by this configuration, or in the order of their creation, from `now` on. `create` makes an
    /// empty queue for a policy. An application's own queue stays.
    pub fn configure(
        &mut self,
        configuration: Option<Configuration>,
        now: u64,
        create: impl FnOnce(Configuration) -> ScheduledQueue,
    ) {
        match (&mut *self, configuration) {
            (Self::Fifo(waiting), Some(configuration)) => {
                let mut queue = Box::new(create(configuration));
                while let Some(event) = waiting.pop() {
                    queue.push(event, now);
                }
                *self = Self::Scheduled(queue);
            }
            (Self::Scheduled(queue), Some(configuration)) => queue.configure(configuration, now),
            (Self::Scheduled(_), None) => {
                let Self::Scheduled(queue) = core::mem::replace(self, Self::Fifo(Fifo::default())) else {
                    return;
                };
                queue.into_events().for_each(|event| self.push(event, now));
            }
            (Self::Fifo(_), None) | (Self::Own(_), _) => {}
        }
    }
}
