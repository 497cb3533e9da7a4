//! The two rings of a link, from one side.

use crate::half::{Half, NEVER, Word};
use crate::sync::{AtomicU64, Ordering, fence};
use crate::{LINE_BYTES, LINE_WORDS};
use core::fmt;
use core::ops::Deref;

/// The most bytes of a packet that is one line.
pub const MESSAGE_BYTES: usize = LINE_BYTES - 8;

/// The peer has violated the protocol, or its half is gone. The ring is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the peer's ring has impossible contents: close the channel")
    }
}

impl core::error::Error for Broken {}

/// The reason why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The ring has no room at present: the peer has yet to read.
    Full,
    /// The packet is longer than the ring.
    TooLong {
        /// The longest packet, in bytes.
        most_bytes: usize,
    },
    /// See [`Broken`].
    Broken,
}

impl From<Broken> for SendError {
    fn from(_: Broken) -> Self {
        Self::Broken
    }
}

/// Whether the peer waits for a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum MustNotify {
    /// It has armed itself for this change.
    Yes,
    /// It polls, or was notified already.
    No,
}

/// A message that was [posted](Ring::post_message), for [`Ring::must_notify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Posted {
    /// The lines published before and after it.
    before: u64,
    after: u64,
}

/// Orders the messages posted so far before the question whether their receivers wait. One fence serves any number of rings.
#[inline]
pub fn fence_posts() {
    fence(Ordering::SeqCst);
}

/// The outcome of [`Ring::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Armed {
    /// The peer notifies this side of its next packet.
    Yes,
    /// There is a packet already.
    HasPacket,
}

/// A packet of one line: a doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Message {
    words: [u64; LINE_WORDS - 1],
    len: u32,
}

impl Message {
    /// Returns a message of these words.
    pub const fn new(words: [u64; LINE_WORDS - 1]) -> Self {
        Self { words, len: MESSAGE_BYTES as u32 }
    }

    /// Returns the words; those behind the packet's length are 0.
    pub const fn words(&self) -> &[u64; LINE_WORDS - 1] {
        &self.words
    }
}

/// The state of the peer, as far as its words allow to judge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trust {
    Plausible,
    Broken,
}

/// Both rings of a link, from one side: `own` is written here, `peer` only read.
#[derive(Debug)]
pub struct Ring<O, P> {
    own: Half<O>,
    peer: Half<P>,
    /// Lines written to `own`, and those of them that are published.
    head: u64,
    published: u64,
    /// Lines that the peer has read from `own`, as last seen.
    peer_tail: u64,
    /// Lines read from `peer`, and those of them that the peer knows of.
    tail: u64,
    released: u64,
    /// Lines that the peer has written to `peer`, as last seen.
    peer_head: u64,
    trust: Trust,
}

impl<O, P> Ring<O, P>
where
    O: Deref<Target = [AtomicU64]>,
    P: Deref<Target = [AtomicU64]>,
{
    /// Returns the rings of two halves. `own` must be as [`Half::init`] left it.
    pub fn new(own: Half<O>, peer: Half<P>) -> Self {
        Self {
            own,
            peer,
            head: 0,
            published: 0,
            peer_tail: 0,
            tail: 0,
            released: 0,
            peer_head: 0,
            trust: Trust::Plausible,
        }
    }

    /// Returns the longest packet that can be sent, in bytes.
    pub fn most_bytes(&self) -> usize {
        self.own.capacity() as usize * LINE_BYTES - 8
    }

    /// Returns whether the peer has violated the protocol.
    pub fn is_broken(&self) -> bool {
        self.trust == Trust::Broken
    }

    /// Sends a packet of one line, and returns whether to notify the peer.
    ///
    /// # Errors
    /// A [`SendError`]; nothing was sent.
    #[inline]
    pub fn send_message(&mut self, message: &Message) -> Result<MustNotify, SendError> {
        let posted = self.post_message(message)?;
        fence_posts();
        Ok(self.must_notify(posted))
    }

    /// Publishes a packet of one line. [`fence_posts`] and [`Self::must_notify`] have to follow; between them the same can
    /// be done for other rings.
    ///
    /// # Errors
    /// A [`SendError`]; nothing was sent.
    #[inline]
    pub fn post_message(&mut self, message: &Message) -> Result<Posted, SendError> {
        self.reserve(1)?;
        if let [header, words @ ..] = self.own.line(self.head) {
            for (word, value) in words.iter().zip(message.words) {
                word.store(value, Ordering::Relaxed);
            }
            header.store(header_of(self.head, message.len), Ordering::Relaxed);
        }
        self.head += 1;
        Ok(self.publish())
    }

    /// Returns whether to notify the peer of a message, after [`fence_posts`].
    #[inline]
    pub fn must_notify(&self, posted: Posted) -> MustNotify {
        let wake_at = self.peer.load(Word::WakeAt, Ordering::Relaxed);
        if posted.before <= wake_at && wake_at < posted.after { MustNotify::Yes } else { MustNotify::No }
    }

    /// Receives the next packet, if it is one line.
    ///
    /// # Errors
    /// [`Broken`], also if the packet is longer.
    #[inline]
    pub fn receive_message(&mut self) -> Result<Option<Message>, Broken> {
        let Some((len, count)) = self.next_packet()? else { return Ok(None) };
        if count > 1 {
            return self.fail();
        }
        let mut words = [0; LINE_WORDS - 1];
        for (word, from) in words.iter_mut().zip(self.peer.line(self.tail).iter().skip(1)) {
            *word = from.load(Ordering::Relaxed);
        }
        self.tail += 1;
        Ok(Some(Message { words, len }))
    }

    /// Gives the peer the room of the packets received so far, and returns whether to notify it. To be called before
    /// this side waits, and now and then before.
    #[inline]
    pub fn release(&mut self) -> MustNotify {
        if self.released == self.tail {
            return MustNotify::No;
        }
        let before = self.released;
        self.released = self.tail;
        self.own.store(Word::Tail, self.tail, Ordering::Release);
        fence(Ordering::SeqCst);
        let room_at = self.peer.load(Word::RoomAt, Ordering::Relaxed);
        if before < room_at && room_at <= self.tail { MustNotify::Yes } else { MustNotify::No }
    }

    /// Returns whether the peer has written a packet that was not received.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn has_packet(&mut self) -> Result<bool, Broken> {
        if self.trust == Trust::Broken {
            return Err(Broken);
        }
        if self.peer_head == self.tail {
            let head = self.peer.load(Word::Head, Ordering::Acquire);
            if head < self.peer_head || head.wrapping_sub(self.tail) > self.peer.capacity() {
                return self.fail();
            }
            self.peer_head = head;
        }
        Ok(self.peer_head != self.tail)
    }

    /// Returns the value of the peer's [head word](Half::head_word) when this side read it last.
    #[inline]
    pub fn seen_head(&self) -> u64 {
        self.peer_head
    }

    /// Makes the peer notify this side of its next packet, unless there is one.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn arm(&mut self) -> Result<Armed, Broken> {
        self.own.store(Word::WakeAt, self.tail, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Ok(if self.has_packet()? { Armed::HasPacket } else { Armed::Yes })
    }

    /// Ends [`Self::arm`]: this side polls.
    pub fn disarm(&mut self) {
        self.own.store(Word::WakeAt, NEVER, Ordering::Relaxed);
    }

    /// Makes the peer notify this side when the ring has room for a packet of `len_bytes`, at most
    /// [`Self::most_bytes`], unless it has. Returns whether it has.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn await_room(&mut self, len_bytes: usize) -> Result<bool, Broken> {
        let count = lines_of(len_bytes);
        let room_at = (self.head + count).saturating_sub(self.own.capacity());
        self.own.store(Word::RoomAt, room_at, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        match self.reserve(count) {
            Ok(()) => {
                self.own.store(Word::RoomAt, NEVER, Ordering::Relaxed);
                Ok(true)
            }
            Err(SendError::Broken) => Err(Broken),
            Err(SendError::Full | SendError::TooLong { .. }) => Ok(false),
        }
    }

    /// Checks that `count` lines are free.
    #[inline]
    fn reserve(&mut self, count: u64) -> Result<(), SendError> {
        if self.trust == Trust::Broken {
            return Err(SendError::Broken);
        }
        if self.head + count - self.peer_tail > self.own.capacity() {
            let tail = self.peer.load(Word::Tail, Ordering::Acquire);
            if tail < self.peer_tail || tail > self.published {
                self.trust = Trust::Broken;
                return Err(SendError::Broken);
            }
            self.peer_tail = tail;
            if self.head + count - tail > self.own.capacity() {
                return Err(SendError::Full);
            }
        }
        Ok(())
    }

    /// Publishes the lines written so far.
    #[inline]
    fn publish(&mut self) -> Posted {
        let before = self.published;
        self.published = self.head;
        self.own.store(Word::Head, self.head, Ordering::Release);
        Posted { before, after: self.head }
    }

    /// Returns the length of the next packet in bytes, and in lines.
    #[inline]
    fn next_packet(&mut self) -> Result<Option<(u32, u64)>, Broken> {
        if !self.has_packet()? {
            return Ok(None);
        }
        let header = self.peer.line(self.tail).first().map_or(0, |word| word.load(Ordering::Relaxed));
        let (sequence, len) = ((header >> 32) as u32, header as u32);
        let count = lines_of(len as usize);
        // The lines of a packet are published together: fewer than it needs are not the beginning of one.
        if sequence != self.tail as u32 || count > self.peer_head - self.tail {
            return self.fail();
        }
        Ok(Some((len, count)))
    }

    #[cold]
    fn fail<T>(&mut self) -> Result<T, Broken> {
        self.trust = Trust::Broken;
        Err(Broken)
    }
}

/// Returns the lines of a packet of `len` bytes.
#[inline]
const fn lines_of(len: usize) -> u64 {
    1 + len.saturating_sub(MESSAGE_BYTES).div_ceil(LINE_BYTES) as u64
}

const fn header_of(index: u64, len: u32) -> u64 {
    index << 32 | len as u64
}

#[cfg(not(loom))]
mod parts;

#[cfg(not(loom))]
pub use parts::IncomingPacket;

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models;
