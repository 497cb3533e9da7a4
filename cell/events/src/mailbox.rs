//! Events from other cores.
//!
//! Each core has a mailbox: a queue to which all cores push and from which its own core pops, with a [`Room`] that
//! bounds the number of events, and a [`HaltFlag`] that says whether a sender has to wake the core. Wake-ups of tasks
//! need no room, as there is at most one per task. Notices (of core moves, of the cell's end) are no messages but
//! changes of a word that all cores check, so they arrive however full the mailboxes are.

use crate::event::SentEvent;
use crate::halt::{HaltFlag, MayHalt, MustWake};
use crate::overload::MAX_MAILBOX_EVENTS;
use crate::room::{HasRoom, Room};
use crate::task::TaskId;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_platform::CoreIndex;

static MAILBOXES: CellEbb<Mailboxes> = CellEbb::new();

/// A bit of the notice word, set when the cell ends; the exit code is below it. The bits above it count notices.
const ENDED: u64 = 1 << 32;

/// The increment of the notice count.
const NOTICE: u64 = ENDED << 1;

/// The word that every core checks in each pass. It changes whenever the cores' run loops (`vcore_runner`) have to act.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice(u64);

impl Notice {
    pub fn from_u64(word: u64) -> Self {
        Self(word)
    }

    pub fn to_u64(self) -> u64 {
        self.0
    }

    /// Returns the exit code if the cell has ended.
    pub fn exit_code(self) -> Option<i32> {
        (self.0 & ENDED != 0).then_some(self.0 as u32 as i32)
    }
}

/// A message to a core.
pub(crate) enum Message {
    /// A request to run an event.
    Event(SentEvent),
    /// A request to poll a task that was woken.
    Wake(TaskId),
    /// A request to call the handlers for changes of the present cores.
    CoresChanged,
}

/// The mailboxes of a cell.
pub(crate) struct Mailboxes {
    cores: Box<[CachePadded<Mailbox>]>,
    /// [`ENDED`] and the exit code, once the cell has ended; above them, the number of notices.
    notice: CachePadded<AtomicU64>,
}

/// The messages from other cores to a core.
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
        let cores = (0..platform().descriptor().core_slot_count).map(|_| empty()).collect();
        Self { cores, notice: CachePadded::new(AtomicU64::new(0)) }
    }
}

/// Returns the mailboxes of the calling core's cell.
pub(crate) fn all() -> &'static Mailboxes {
    &MAILBOXES
}

impl Mailboxes {
    /// Returns the mailbox of `core`.
    ///
    /// # Panics
    /// If the cell has no such core.
    pub fn of(&self, core: CoreIndex) -> &Mailbox {
        match self.cores.get(core.0 as usize) {
            Some(mailbox) => mailbox,
            None => panic!("core {} does not exist: the cell has {}", core.0, self.cores.len()),
        }
    }

    /// Requests a poll of a task on `core`, and wakes the core if it is halted.
    pub fn wake_task(&self, core: CoreIndex, task: TaskId) {
        self.of(core).messages.push(Message::Wake(task));
        self.wake(core);
    }

    /// Sends an event to `core`, and wakes the core if it is halted.
    ///
    /// # Errors
    /// Returns the event if the mailbox has no room.
    pub fn send(&self, core: CoreIndex, event: SentEvent) -> Result<(), SentEvent> {
        let mailbox = self.of(core);
        if mailbox.room.take() == HasRoom::No {
            return Err(event);
        }
        mailbox.messages.push(Message::Event(event));
        self.wake(core);
        Ok(())
    }

    /// Wakes `core` if it is halted.
    pub fn wake(&self, core: CoreIndex) {
        if self.of(core).halt.must_wake() == MustWake::Yes {
            platform().wake(core);
        }
    }

    /// Returns whether `core` is halted or about to halt: for statistics, as it may wake at any time.
    pub fn is_halted(&self, core: CoreIndex) -> bool {
        self.cores.get(core.0 as usize).is_none_or(|mailbox| mailbox.halt.is_set())
    }

    /// Informs `core` that the present cores have changed.
    pub fn notify_cores_changed(&self, core: CoreIndex) {
        self.of(core).messages.push(Message::CoresChanged);
        self.wake(core);
    }

    /// Ends the cell. The first exit code counts.
    pub fn end(&self, code: i32) {
        let ended = |word| (word & ENDED == 0).then_some(word | ENDED | u64::from(code as u32));
        let _ = self.notice.fetch_update(Ordering::AcqRel, Ordering::Relaxed, ended);
        (0..self.cores.len() as u32).map(CoreIndex).for_each(|core| self.wake(core));
    }

    /// Makes all running cores check for requests. Does not wake halted cores.
    pub fn give_notice(&self) {
        self.notice.fetch_add(NOTICE, Ordering::AcqRel);
    }

    /// Returns the current notice.
    #[inline]
    pub fn notice(&self) -> Notice {
        Notice(self.notice.load(Ordering::Acquire))
    }

    /// Marks `core` as about to halt. Returns whether it may: not if messages have arrived, or a notice after `seen`.
    pub fn prepare_halt(&self, core: CoreIndex, seen: Notice) -> MayHalt {
        self.prepare_halt_of(self.of(core), seen)
    }

    /// Does the same as [`Self::prepare_halt`], for the core with this mailbox.
    #[inline]
    pub fn prepare_halt_of(&self, mailbox: &Mailbox, seen: Notice) -> MayHalt {
        mailbox.halt.prepare(|| !mailbox.is_empty() || self.notice() != seen)
    }
}

impl Mailbox {
    /// Removes and returns the next message.
    pub fn receive(&self) -> Option<Message> {
        self.messages.pop()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Marks the core as running again.
    pub fn finish_halt(&self) {
        self.halt.finish();
    }
}
