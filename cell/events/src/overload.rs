//! Overload: bounds and back-pressure if events are created faster than they run (docs/decisions/0012-overload.md).
//!
//! A core never refuses its own events, and keeps them in its own memory: events for itself in its queue, events for a
//! core with a full mailbox in its outbox, until that mailbox has room. It bounds the input from elsewhere:
//!
//! | input | limit | excess |
//! |---|---|---|
//! | events from other cores in the mailbox | [`MAX_MAILBOX_EVENTS`] | stay with their senders |
//! | messages taken per pass | 64 | wait for the next pass |
//! | messages taken per pass while [`LONG_QUEUE`] events are queued | 1, in place of the event that ran | stay in the mailbox |
//! | wake-ups of a task | 1 | merge into the pending wake-up |
//! | frames taken from a device's queue per event | see `isola-net` | stay in the device, which drops frames beyond its queue |
//!
//! A sender can test for room: [`Event::try_spawn`] fails if the event would have to wait with its sender, and [`room`]
//! completes when it would not. The end of the cell is not an event and always gets through.

use crate::event::{Event, SentEvent};
use crate::event_loop::EVENTS;
use crate::mailbox;
use crate::room::HasRoom;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_ebbs::current_core;
use isola_platform::CoreIndex;

/// Most events from other cores that wait in a core's mailbox.
pub const MAX_MAILBOX_EVENTS: usize = 1024;

/// Queue length from which on a core takes only as many messages as it runs events.
pub const LONG_QUEUE: usize = 1024;

/// Messages that a core takes per pass.
pub(crate) const MESSAGES_A_PASS: usize = 64;

/// The error of [`Event::try_spawn`]: the core has as many waiting events as it accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Overloaded<W> {
    /// The overloaded core.
    pub core: CoreIndex,
    /// The work that was not accepted.
    pub work: W,
}

impl<W> fmt::Debug for Overloaded<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Overloaded").field("core", &self.core).finish_non_exhaustive()
    }
}

impl<W> fmt::Display for Overloaded<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {} has more events than it runs: wait for room, or do without the event", self.core.0)
    }
}

impl<W> core::error::Error for Overloaded<W> {}

/// Events for other cores whose mailboxes are full, and tasks that wait for room.
#[derive(Default)]
pub(crate) struct Outbox {
    events: RefCell<BTreeMap<CoreIndex, VecDeque<SentEvent>>>,
    waiting: RefCell<Vec<(CoreIndex, Waker)>>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.events.borrow().is_empty() && self.waiting.borrow().is_empty()
    }

    /// Sends an event to another core, behind earlier events for that core that wait here.
    pub fn send(&self, core: CoreIndex, event: SentEvent) {
        let refused = if self.events.borrow().contains_key(&core) {
            Err(event)
        } else {
            mailbox::all().send(core, event)
        };
        if let Err(event) = refused {
            self.events.borrow_mut().entry(core).or_default().push_back(event);
            EVENTS.mark_outbox_waits();
        }
    }

    /// Returns whether `core` would accept an event at once.
    pub fn check_room(&self, core: CoreIndex) -> HasRoom {
        if self.events.borrow().contains_key(&core) {
            return HasRoom::No;
        }
        mailbox::all().of(core).room.check()
    }

    /// Sends the events for which there is room now, and registers this core for a wake-up when there is room for the
    /// rest.
    pub fn flush(&self) {
        let mailboxes = mailbox::all();
        let here = 1_u64 << current_core().0;
        self.events.borrow_mut().retain(|core, events| {
            while let Some(event) = events.pop_front() {
                let Err(event) = mailboxes.send(*core, event) else { continue };
                events.push_front(event);
                if mailboxes.of(*core).room.request(here) == HasRoom::No {
                    return true;
                }
            }
            false
        });
        let ready = |core: CoreIndex| {
            if core == current_core() {
                return !EVENTS.is_long();
            }
            let no_others = !self.events.borrow().contains_key(&core);
            no_others && mailboxes.of(core).room.request(here) == HasRoom::Yes
        };
        let all = self.waiting.take();
        let (ready, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(|(core, _)| ready(*core));
        self.waiting.replace(waiting);
        ready.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Returns whether a waiting event could be sent or a waiting task woken now. To be called once this core counts as
    /// halted: later room wakes it, but a core that made room before may have seen it running, after its last check.
    pub fn is_due(&self) -> bool {
        let mailboxes = mailbox::all();
        let here = current_core();
        let has_room = |core: CoreIndex| mailboxes.of(core).room.request(1 << here.0) == HasRoom::Yes;
        self.events.borrow().keys().any(|core| has_room(*core))
            || self.waiting.borrow().iter().any(|(core, _)| *core == here || has_room(*core))
    }

    fn wait(&self, core: CoreIndex, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|(of, known)| *of == core && known.will_wake(waker)) {
            waiting.push((core, waker.clone()));
        }
        EVENTS.mark_outbox_waits();
    }
}

/// Completes when `core` has worked off enough events that [`Event::try_spawn`] succeeds. Another sender may have taken
/// the room by then.
///
/// # Panics
/// If the cell has no such core.
pub async fn room(core: CoreIndex) {
    poll_fn(|context| {
        if Event::room_at(core) == HasRoom::Yes {
            return Poll::Ready(());
        }
        EVENTS.outbox.wait(core, context.waker());
        Poll::Pending
    })
    .await;
}
