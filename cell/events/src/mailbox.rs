//! Events from other cores.
//!
//! Each core has a mailbox: a queue that all cores push to and its own pops from, with [`Room`] for a bounded number
//! of events, and a [`HaltFlag`] that says whether the core has to be woken. Wake-ups of tasks need no room: there is
//! one a task at most. The end of the cell is not a message but a word that all cores look at, so that it gets through
//! however full the mailboxes are.

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

/// Set in the word that says how the cell ends, beside the exit code.
const ENDED: u64 = 1 << 32;

/// What a core is told by another.
pub(crate) enum Message {
    /// To run an event.
    Event(SentEvent),
    /// To poll a task, which something that it waits for has happened to.
    Wake(TaskId),
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
    /// [`ENDED`] and the exit code, once the cell ends.
    end: CachePadded<AtomicU64>,
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
        let cores = platform().descriptor().cores.iter().map(|_| empty()).collect();
        Self { cores, end: CachePadded::new(AtomicU64::new(0)) }
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

    /// Ends the cell. The first exit code counts.
    pub fn end(&self, code: i32) {
        let word = ENDED | u64::from(code as u32);
        let _ = self.end.compare_exchange(0, word, Ordering::Release, Ordering::Relaxed);
        (0..self.cores.len() as u32).map(CoreIndex).for_each(|core| self.wake(core));
    }

    /// How the cell ends, once it does.
    #[inline]
    pub fn exit_code(&self) -> Option<i32> {
        let word = self.end.load(Ordering::Acquire);
        (word != 0).then_some(word as u32 as i32)
    }

    /// Says that `core` is about to halt. Returns whether it may: not where messages have come, or the end.
    pub fn prepare_halt(&self, core: CoreIndex) -> MayHalt {
        let mailbox = self.of(core);
        mailbox.halt.prepare(|| !mailbox.is_empty() || self.exit_code().is_some())
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
