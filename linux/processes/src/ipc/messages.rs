//! Message queues (`msgget`).

use super::permissions::IpcCaller;
use super::table::{GetRequest, MOST_SETS, Table};
use crate::Errno;
use crate::wait_queue::WaitQueue;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::Mutex;

/// The most bytes of a message (`MSGMAX`).
pub const MOST_MESSAGE_BYTES: usize = 8192;
/// The most bytes of a queue (`MSGMNB`), and its most messages, as empty ones use memory, too.
pub const MOST_QUEUE_BYTES: u64 = 16_384;

/// All queues.
#[derive(Debug)]
pub struct Messages {
    /// The queues.
    pub table: Mutex<Table<MessageQueue>>,
}

/// A message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its type: positive.
    pub kind: i64,
    /// Its text.
    pub text: Vec<u8>,
}

/// The message that `msgrcv` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageSelector {
    /// The first.
    First,
    /// The first of a type.
    Of(i64),
    /// The first of another type (`MSG_EXCEPT`).
    Except(i64),
    /// The first of the lowest type up to this one.
    LowestUpTo(i64),
}

/// A queue.
#[derive(Debug)]
pub struct MessageQueue {
    messages: VecDeque<Message>,
    bytes: u64,
    /// The most bytes.
    pub most_bytes: u64,
    /// The time of the latest `msgsnd`, in seconds since 1970.
    pub sent: u64,
    /// That of the latest `msgrcv`.
    pub received: u64,
    /// That of the latest change by `msgctl`.
    pub changed: u64,
    /// The process that sent last.
    pub last_sender: u32,
    /// The process that received last.
    pub last_receiver: u32,
    /// Wakes the calls that wait for a change.
    pub changes: Arc<WaitQueue>,
}

impl MessageQueue {
    /// Creates an empty queue.
    pub fn new(now: u64) -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
            most_bytes: MOST_QUEUE_BYTES,
            sent: 0,
            received: 0,
            changed: now,
            last_sender: 0,
            last_receiver: 0,
            changes: Arc::default(),
        }
    }

    /// Returns the number of messages, and of their bytes.
    pub fn len(&self) -> (u64, u64) {
        (self.messages.len() as u64, self.bytes)
    }

    /// Adds a message. Returns it if there is no room yet.
    ///
    /// # Errors
    /// The message.
    pub fn send(&mut self, message: Message, pid: u32, now: u64) -> Result<(), Message> {
        let len = message.text.len() as u64;
        if self.bytes + len > self.most_bytes || self.messages.len() as u64 >= self.most_bytes {
            return Err(message);
        }
        self.messages.push_back(message);
        self.bytes += len;
        (self.last_sender, self.sent) = (pid, now);
        Ok(())
    }

    /// Removes a message of at most `most` bytes. A longer one is cut off if `cuts`. Returns `None` if there is none yet.
    ///
    /// # Errors
    /// [`Errno::E2BIG`] for a longer message, which stays.
    pub fn receive(
        &mut self,
        selector: MessageSelector,
        most: usize,
        cuts: bool,
        pid: u32,
        now: u64,
    ) -> Result<Option<Message>, Errno> {
        let mut messages = self.messages.iter().enumerate();
        let found = match selector {
            MessageSelector::First => messages.next(),
            MessageSelector::Of(kind) => messages.find(|(_, message)| message.kind == kind),
            MessageSelector::Except(kind) => messages.find(|(_, message)| message.kind != kind),
            MessageSelector::LowestUpTo(kind) => {
                messages.filter(|(_, message)| message.kind <= kind).min_by_key(|(_, message)| message.kind)
            }
        };
        let Some((index, message)) = found else { return Ok(None) };
        if message.text.len() > most && !cuts {
            return Err(Errno::E2BIG);
        }
        let removed = self.messages.remove(index);
        Ok(removed.map(|mut message| {
            self.bytes -= message.text.len() as u64;
            (self.last_receiver, self.received) = (pid, now);
            message.text.truncate(most);
            message
        }))
    }
}

impl Messages {
    /// Creates a table for a cell with this memory: full queues use at most a 32nd of it.
    pub fn new(memory_len: u64) -> Self {
        let most = (memory_len / 32 / MOST_QUEUE_BYTES).clamp(8, MOST_SETS as u64);
        Self { table: Mutex::new(Table::new(most as usize)) }
    }

    /// `msgget`.
    ///
    /// # Errors
    /// Those of msgget(2).
    pub fn get(&self, request: GetRequest, caller: &IpcCaller<'_>) -> Result<i32, Errno> {
        let make = || Ok(MessageQueue::new(caller.now));
        self.table.lock().get_or_create(request, caller, |_| Ok(()), make)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn message(kind: i64, len: usize) -> Message {
        Message { kind, text: vec![kind as u8; len] }
    }

    #[test]
    fn selectors_take_the_first_that_matches() {
        let mut queue = MessageQueue::new(0);
        for kind in [5, 3, 9, 3, 2] {
            queue.send(message(kind, 4), 1, 0).unwrap();
        }
        let mut take =
            |selector| queue.receive(selector, 10, false, 1, 0).unwrap().map(|message| message.kind);
        assert_eq!(take(MessageSelector::Of(9)), Some(9));
        assert_eq!(take(MessageSelector::Of(9)), None);
        assert_eq!(take(MessageSelector::LowestUpTo(1)), None);
        assert_eq!(take(MessageSelector::LowestUpTo(4)), Some(2));
        assert_eq!(take(MessageSelector::Except(5)), Some(3));
        assert_eq!(take(MessageSelector::First), Some(5));
        assert_eq!(queue.len(), (1, 4));
        assert_eq!(queue.receive(MessageSelector::First, 3, false, 1, 0), Err(Errno::E2BIG));
        let cut = queue.receive(MessageSelector::First, 3, true, 1, 0).unwrap().unwrap();
        assert_eq!((cut.text, queue.len()), (vec![3; 3], (0, 0)));
    }

    #[test]
    fn a_full_queue_takes_no_message() {
        let mut queue = MessageQueue::new(0);
        queue.send(message(1, 8192), 1, 0).unwrap();
        queue.send(message(1, 8191), 1, 0).unwrap();
        assert_eq!(queue.send(message(2, 2), 1, 0), Err(message(2, 2)));
        queue.send(message(2, 1), 1, 0).unwrap();
        let mut empty = MessageQueue::new(0);
        for _ in 0..MOST_QUEUE_BYTES {
            empty.send(message(1, 0), 1, 0).unwrap();
        }
        assert!(empty.send(message(1, 0), 1, 0).is_err());
    }
}
