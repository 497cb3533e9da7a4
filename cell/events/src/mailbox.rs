//! Events from other cores.
//!
//! Each core has a mailbox: a queue that all cores push to and its own pops from, with [`Room`] for a bounded number
//! of events, and a [`HaltFlag`] that says whether the core has to be woken. Wake-ups of tasks need no room: there is
//! one a task at most. What concerns who runs the cores, and the end of the cell, is not a message but a word that all
//! cores look at, so that it gets through however full the mailboxes are.

use crate::event::{EventTag, QueuedEvent, Work};
use crate::halt::{HaltFlag, MayHalt, MustWake};
use crate::overload::MAX_MAILBOX_EVENTS;
use crate::room::{HasRoom, Room};
use crate::task::TaskId;
use alloc::boxed::Box;
use core::panic::Location;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_platform::CoreIndex;

static MAILBOXES: CellEbb<Mailboxes> = CellEbb::new();

/// Set in the word that all cores look at when the cell ends, beside the exit code. What is above counts notices.
const ENDED: u64 = 1 << 32;

/// A notice more.
const NOTICE: u64 = ENDED << 1;

/// What all cores look at in each pass: it is another whenever there is something that whoever runs them has to see to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice(u64);

impl Notice {
    pub fn from_u64(word: u64) -> Self {
        Self(word)
    }

    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// How the cell ends, once it does.
    pub fn exit_code(self) -> Option<i32> {
        (self.0 & ENDED != 0).then_some(self.0 as u32 as i32)
    }
}

/// What a core is told by another.
pub(crate) enum Message {
    /// To run an event.
    Event(SentEvent),
    /// To poll a task, which something that it waits for has happened to.
    Wake(TaskId),
    /// To tell who wants to know that other cores are present now.
    CoresChanged,
}

/// An event on its way to another core.
pub(crate) struct SentEvent {
    pub work: Box<dyn FnOnce() + Send>,
    pub tag: EventTag,
    pub made_at: &'static Location<'static>,
}

impl SentEvent {
    pub fn queued(self) -> QueuedEvent {
        QueuedEvent { work: Work::Call(self.work), tag: self.tag, made_at: self.made_at }
    }
}

/// The mailboxes of a cell.
pub(crate) struct Mailboxes {
    cores: Box<[CachePadded<Mailbox>]>,
    /// [`ENDED`] and the exit code, once the cell ends; above that, how many notices there were.
    notice: CachePadded<AtomicU64>,
}

/// What other cores have for a core.
pub(crate) struct Mailbox {
    messages: SegQueue<Message>,
    pub room: Room,
    halt: HaltFlag,
}

impl Representative for Mailboxes {
    fn create() -> Self {
        let empty = || {
            let (messages, room, halt) = (SegQueue::new(), Room::new(MAX_MAILBOX_EVENTS), HaltFlag::asleep());
            CachePadded::new(Mailbox { messages, room, halt })
        };
        let cores = (0..platform().descriptor().core_places).map(|_| empty()).collect();
        Self { cores, notice: CachePadded::new(AtomicU64::new(0)) }
    }
}

/// The mailboxes of the calling core's cell.
pub(crate) fn all() -> &'static Mailboxes {
    &MAILBOXES
}

impl Mailboxes {
    /// The mailbox of `core`.
    ///
    /// # Panics
    /// Where the cell has no such core.
    pub fn of(&self, core: CoreIndex) -> &Mailbox {
        match self.cores.get(core.0 as usize) {
            Some(mailbox) => mailbox,
            None => panic!("core {} does not exist: the cell has {}", core.0, self.cores.len()),
        }
    }

    /// Tells `core` to poll a task, and wakes it where it is halted.
    pub fn wake_task(&self, core: CoreIndex, task: TaskId) {
        self.of(core).messages.push(Message::Wake(task));
        self.wake(core);
    }

    /// Sends an event to `core` and wakes it where it is halted.
    ///
    /// # Errors
    /// Gives the event back where there is no room.
    pub fn send(&self, core: CoreIndex, event: SentEvent) -> Result<(), SentEvent> {
        let mailbox = self.of(core);
        if mailbox.room.take() == HasRoom::No {
            return Err(event);
        }
        mailbox.messages.push(Message::Event(event));
        self.wake(core);
        Ok(())
    }

    /// Wakes `core` where it is halted.
    pub fn wake(&self, core: CoreIndex) {
        if self.of(core).halt.must_wake() == MustWake::Yes {
            platform().wake(core);
        }
    }

    /// Tells `core` that other cores are present now.
    pub fn tell_of_cores(&self, core: CoreIndex) {
        self.of(core).messages.push(Message::CoresChanged);
        self.wake(core);
    }

    /// Ends the cell. The first exit code counts.
    pub fn end(&self, code: i32) {
        let ended = |word| (word & ENDED == 0).then_some(word | ENDED | u64::from(code as u32));
        let _ = self.notice.fetch_update(Ordering::AcqRel, Ordering::Relaxed, ended);
        (0..self.cores.len() as u32).map(CoreIndex).for_each(|core| self.wake(core));
    }

    /// Has whoever runs the cores look whether anything is asked of it. Those that are halted are not woken.
    pub fn give_notice(&self) {
        self.notice.fetch_add(NOTICE, Ordering::AcqRel);
    }

    /// What all cores look at.
    #[inline]
    pub fn notice(&self) -> Notice {
        Notice(self.notice.load(Ordering::Acquire))
    }

    /// Says that `core` is about to halt. Returns whether it may: not where messages have come, or a notice after `seen`.
    pub fn prepare_halt(&self, core: CoreIndex, seen: Notice) -> MayHalt {
        self.prepare_halt_of(self.of(core), seen)
    }

    /// As [`Self::prepare_halt`], for the core with this mailbox.
    #[inline]
    pub fn prepare_halt_of(&self, mailbox: &Mailbox, seen: Notice) -> MayHalt {
        mailbox.halt.prepare(|| !mailbox.is_empty() || self.notice() != seen)
    }
}

impl Mailbox {
    /// The next message.
    pub fn receive(&self) -> Option<Message> {
        self.messages.pop()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Says that the core is up again.
    pub fn finish_halt(&self) {
        self.halt.finish();
    }
}
