//! Events from other cores.
//!
//! Each core has a mailbox: an unbounded queue that all cores push to and its own pops from, and a flag that
//! says that the core is halted, or about to. Who clears the flag wakes the core:
//!
//! ```text
//! sender                          receiver
//!   push message                    halted := true
//!   fence                           fence
//!   if swap(halted, false):         if a message is there: halted := false, go on
//!     wake the core                 else: halt (a wake-up that came before returns at once)
//! ```
//!
//! With the fences, either the sender sees the flag or the receiver sees the message. A running core is never
//! interrupted: it finds the message on its next pass.

use crate::event::{EventTag, QueuedEvent, Work};
use crate::task::TaskId;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, Ordering, fence};
use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;
use isola_ebbs::{CellEbb, Representative, platform};
use isola_platform::CoreIndex;

static MAILBOXES: CellEbb<Mailboxes> = CellEbb::new();

/// What a core is told by another.
pub(crate) enum Message {
    /// To run an event.
    Event { work: Box<dyn FnOnce() + Send>, tag: EventTag },
    /// To poll a task, which something that it waits for has happened to.
    Wake(TaskId),
    /// To leave the loop with this exit code.
    Exit(i32),
}

/// What comes of a message at its receiver.
pub(crate) enum Received {
    Event(QueuedEvent),
    Wake(TaskId),
    Exit(i32),
}

struct Mailboxes {
    cores: Box<[CachePadded<Mailbox>]>,
}

/// What other cores have for a core.
pub(crate) struct Mailbox {
    messages: SegQueue<Message>,
    halted: AtomicBool,
}

impl Representative for Mailboxes {
    fn create() -> Self {
        // A core that was never needed is halted since its cell started.
        let asleep =
            || CachePadded::new(Mailbox { messages: SegQueue::new(), halted: AtomicBool::new(true) });
        Self { cores: platform().descriptor().cores.iter().map(|_| asleep()).collect() }
    }
}

impl Mailbox {
    pub fn receive(&self) -> Option<Received> {
        Some(match self.messages.pop()? {
            Message::Event { work, tag } => Received::Event(QueuedEvent { work: Work::Call(work), tag }),
            Message::Wake(task) => Received::Wake(task),
            Message::Exit(code) => Received::Exit(code),
        })
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Says that the core is about to halt. Returns whether it may: not where messages have come.
    pub fn prepare_halt(&self) -> MayHalt {
        self.halted.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_empty() {
            return MayHalt::Yes;
        }
        self.halted.store(false, Ordering::Relaxed);
        MayHalt::No
    }

    /// Says that the core is up again.
    pub fn finish_halt(&self) {
        self.halted.store(false, Ordering::Relaxed);
    }
}

/// Whether a core may halt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MayHalt {
    Yes,
    No,
}

/// The mailbox of `core`.
///
/// # Panics
/// Where the cell has no such core.
pub(crate) fn of(core: CoreIndex) -> &'static Mailbox {
    let cores: &'static [CachePadded<Mailbox>] = &MAILBOXES.cores;
    match cores.get(core.0 as usize) {
        Some(mailbox) => mailbox,
        None => panic!("core {} does not exist: the cell has {}", core.0, cores.len()),
    }
}

/// Tells `core` something, and wakes it where it is halted.
pub(crate) fn send(core: CoreIndex, message: Message) {
    let mailbox = of(core);
    mailbox.messages.push(message);
    fence(Ordering::SeqCst);
    if mailbox.halted.load(Ordering::Relaxed) && mailbox.halted.swap(false, Ordering::Relaxed) {
        platform().wake(core);
    }
}
