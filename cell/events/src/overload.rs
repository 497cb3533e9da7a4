//! What happens where more events are made than run (docs/decisions/0012-overload.md).
//!
//! A core never refuses what it makes itself, and holds it in its own memory: events for itself in its queue, events
//! for a core whose mailbox is full in its outbox, until there is room. It bounds what comes from elsewhere:
//!
//! | what | limit | beyond it |
//! |---|---|---|
//! | events that other cores have sent and the core has not taken | [`MAX_MAILBOX_EVENTS`] | stay with their senders |
//! | messages taken in a pass | 64 | wait for the next pass |
//! | the same while [`LONG_QUEUE`] events are queued | 1: what one event made room for | stay in the mailbox |
//! | wake-ups of a task | 1 | are the same wake-up |
//! | frames that a device's queue is asked for in an event | see `isola-net` | stay in the device, which drops what it has no room for |
//!
//! Who makes events for others can ask: [`Event::try_spawn`] is refused where the event would have to wait with its
//! sender, and [`room`] completes when it would not. The end of the cell is no event, and always gets through.

use crate::event::Event;
use crate::event_loop::EVENTS;
use crate::mailbox::{self, SentEvent};
use crate::room::HasRoom;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::fmt;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use isola_ebbs::current_core;
use isola_platform::CoreIndex;

/// Events that wait in the mailbox of a core at most.
pub const MAX_MAILBOX_EVENTS: usize = 1024;

/// The length from which on a core's queue takes no more from other cores than it works off.
pub const LONG_QUEUE: usize = 1024;

/// Messages that a core takes in a pass.
pub(crate) const MESSAGES_A_PASS: usize = 64;

/// A core has as many events waiting as it takes from elsewhere.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Overloaded<W> {
    /// The core.
    pub core: CoreIndex,
    /// What it would have run.
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

/// What a core has for others that have no room.
#[derive(Default)]
pub(crate) struct Outbox {
    events: RefCell<BTreeMap<CoreIndex, VecDeque<SentEvent>>>,
    waiting: RefCell<Vec<(CoreIndex, Waker)>>,
}

impl Outbox {
    pub fn is_empty(&self) -> bool {
        self.events.borrow().is_empty() && self.waiting.borrow().is_empty()
    }

    /// Sends an event to another core, behind those for it that wait here.
    pub fn send(&self, core: CoreIndex, event: SentEvent) {
        let refused = if self.events.borrow().contains_key(&core) {
            Err(event)
        } else {
            mailbox::all().send(core, event)
        };
        if let Err(event) = refused {
            self.events.borrow_mut().entry(core).or_default().push_back(event);
            EVENTS.has_chores();
        }
    }

    /// Whether an event for `core` would be with it at once.
    pub fn look(&self, core: CoreIndex) -> HasRoom {
        if self.events.borrow().contains_key(&core) {
            return HasRoom::No;
        }
        mailbox::all().of(core).room.look()
    }

    /// Sends what there is room for now, and has this core woken when there is room for the rest.
    pub fn flush(&self) {
        let mailboxes = mailbox::all();
        let here = 1_u64 << current_core().0;
        self.events.borrow_mut().retain(|core, events| {
            while let Some(event) = events.pop_front() {
                let Err(event) = mailboxes.send(*core, event) else { continue };
                events.push_front(event);
                if mailboxes.of(*core).room.want(here) == HasRoom::No {
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
            no_others && mailboxes.of(core).room.want(here) == HasRoom::Yes
        };
        let all = self.waiting.take();
        let (told, waiting): (Vec<_>, Vec<_>) = all.into_iter().partition(|(core, _)| ready(*core));
        self.waiting.replace(waiting);
        told.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Whether some of it can be done now. To be asked once this core counts as halted: from there on it is woken when
    /// there is room, while what made room before may have found it running, past its last look.
    pub fn is_due(&self) -> bool {
        let mailboxes = mailbox::all();
        let here = current_core();
        let has_room = |core: CoreIndex| mailboxes.of(core).room.want(1 << here.0) == HasRoom::Yes;
        self.events.borrow().keys().any(|core| has_room(*core))
            || self.waiting.borrow().iter().any(|(core, _)| *core == here || has_room(*core))
    }

    fn wait(&self, core: CoreIndex, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|(of, known)| *of == core && known.will_wake(waker)) {
            waiting.push((core, waker.clone()));
        }
        EVENTS.has_chores();
    }
}

/// Completes when [`Event::try_spawn`] on `core` is not refused: when it has worked off what it was sent. Another may
/// have taken the room again by then.
///
/// # Panics
/// Where the cell has no such core.
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
