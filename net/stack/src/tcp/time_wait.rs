//! TIME-WAIT (RFC 9293 3.6): the remaining state of a connection that this side closed first. It repeats the last
//! acknowledgement and keeps old segments from reaching a later connection of the same flow.
//!
//! All entries last equally long, so they expire in the order of insertion. A full table evicts its oldest entry, which
//! is harmless for peers that choose new ports and random sequence numbers.

use super::options::Options;
use super::segment::{Flags, Header, Segment};
use super::seq::Seq;
use crate::base::{Duration, Flow, Instant, Order, Slab};
use alloc::vec::Vec;

/// The remaining state of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeWait {
    pub flow: Flow,
    /// The last acknowledgement, as it is repeated.
    pub ack: Header,
    pub expires: Instant,
}

/// The required reaction to a segment for an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// No reaction.
    Ignore,
    /// Repeat the last acknowledgement and restart TIME-WAIT.
    Repeat,
    /// Send an acknowledgement, because the segment's sequence number is unexpected.
    Challenge,
    /// Open a new connection, whose initial sequence number must be beyond this one, the old connection's last.
    Reuse(Seq),
}

impl TimeWait {
    /// Returns the reaction to a segment. Resets are ignored (RFC 1337).
    pub fn judge(&self, segment: &Segment) -> Answer {
        let end = self.ack.ack;
        if segment.flags.has(Flags::RST) {
            return Answer::Ignore;
        }
        if segment.flags.has(Flags::SYN) {
            // If both sides use timestamps, the peer's timestamp distinguishes a new connection from an old segment
            // (RFC 6191 2).
            let ahead = match (self.ack.options.timestamps, segment.options.timestamps) {
                (Some(last), Some(new)) if new.value != last.echo => {
                    (new.value.wrapping_sub(last.echo) as i32) > 0
                }
                _ => segment.seq.after(end),
            };
            let newer = !segment.flags.has(Flags::ACK) && ahead;
            return if newer { Answer::Reuse(self.ack.seq) } else { Answer::Challenge };
        }
        if segment.flags.has(Flags::FIN) && segment.end() == end {
            return Answer::Repeat;
        }
        if segment.len() > 0 { Answer::Challenge } else { Answer::Ignore }
    }
}

/// All TIME-WAIT entries of a stack.
#[derive(Debug)]
pub(crate) struct TimeWaitTable {
    entries: Slab<TimeWait>,
    order: Order,
}

impl TimeWaitTable {
    pub fn new(capacity: usize) -> Self {
        Self { entries: Slab::new(capacity.max(1)), order: Order::new() }
    }

    /// Adds an entry. Returns its index and, if the table was full, the evicted entry with its index.
    pub fn insert(
        &mut self,
        flow: Flow,
        ack: Header,
        expires: Instant,
    ) -> Option<(u32, Option<(u32, TimeWait)>)> {
        let mut dropped = None;
        if self.entries.is_full()
            && let Some(oldest) = self.order.first()
        {
            dropped = self.remove(oldest).map(|entry| (oldest, entry));
        }
        let options = Options::with_timestamps(ack.options.timestamps);
        let ack = Header { flags: Flags::ACK, options, ..ack };
        let index = self.entries.insert(TimeWait { flow, ack, expires }).ok()?.index;
        self.order.push(index);
        Some((index, dropped))
    }

    /// Returns the indices of the entries for which `wanted` returns true.
    pub fn indices_of(&self, wanted: impl Fn(&TimeWait) -> bool) -> Vec<u32> {
        let is_wanted = |index: &u32| self.entries.at(*index).is_some_and(&wanted);
        self.entries.indices().filter(is_wanted).collect()
    }

    pub fn get(&self, index: u32) -> Option<&TimeWait> {
        self.entries.at(index)
    }

    pub fn remove(&mut self, index: u32) -> Option<TimeWait> {
        let key = self.entries.key_at(index)?;
        self.order.remove(index);
        self.entries.remove(key)
    }

    /// Restarts TIME-WAIT of an entry.
    pub fn restart(&mut self, index: u32, now: Instant, lasting: Duration) {
        if let Some(entry) = self.entries.at_mut(index) {
            entry.expires = now + lasting;
            self.order.push(index);
        }
    }

    /// Returns the time at which the next entry expires.
    pub fn deadline(&self) -> Option<Instant> {
        self.entries.at(self.order.first()?).map(|entry| entry.expires)
    }

    /// Removes an expired entry and returns it with its index.
    pub fn expired(&mut self, now: Instant) -> Option<(u32, TimeWait)> {
        let index = self.order.first()?;
        let over = self.entries.at(index).is_some_and(|entry| now >= entry.expires);
        if over { self.remove(index).map(|entry| (index, entry)) } else { None }
    }

    /// Removes the oldest entry and returns it with its index; `None` if the table is empty.
    pub fn drain(&mut self) -> Option<(u32, TimeWait)> {
        let index = self.order.first()?;
        self.remove(index).map(|entry| (index, entry))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
