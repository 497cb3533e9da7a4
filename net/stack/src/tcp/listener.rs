//! Listening ports, and half-open handshakes: a bounded table of small entries.
//!
//! A SYN costs an entry here and no connection. If the table is full, further SYNs are answered without an entry: see
//! `cookies.rs`.

use super::connection::{EcnAgreement, Handshake};
use super::options::Options;
use super::segment::{Flags, Header, Segment};
use super::seq::Seq;
use super::timestamps::Stamps;
use super::{Ecn, ListenError, TcpConfig};
use crate::base::{Duration, Flow, Instant, ListenerId, Owner, Slab, Timers};
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A listening port.
#[derive(Debug)]
pub(crate) struct Listener {
    port: u16,
    /// Maximum number of connections that wait for the application to accept them.
    backlog: usize,
    /// Number of connections that wait.
    pending: usize,
    /// The owner of accepted connections.
    owner: Owner,
}

/// All listeners of a stack.
#[derive(Debug)]
pub(crate) struct Listeners {
    slots: Slab<Listener>,
    ports: BTreeMap<u16, ListenerId>,
}

impl Listeners {
    pub const fn new(capacity: usize) -> Self {
        Self { slots: Slab::new(capacity), ports: BTreeMap::new() }
    }

    /// Opens a port for listening. The backlog is at least 1.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn open(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        if port == 0 {
            return Err(ListenError::PortZero);
        }
        if self.ports.contains_key(&port) {
            return Err(ListenError::PortInUse(port));
        }
        let listener = Listener { port, backlog: backlog.max(1), pending: 0, owner: Owner::UNKNOWN };
        let key = self.slots.insert(listener).map_err(|_| ListenError::TooManyListeners)?;
        self.ports.insert(port, ListenerId(key));
        Ok(ListenerId(key))
    }

    /// Closes a listener and frees its port.
    pub fn close(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.remove(id.0) {
            self.ports.remove(&listener.port);
        }
    }

    /// Sets the owner of connections accepted from now on.
    pub fn set_owner(&mut self, id: ListenerId, owner: Owner) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.owner = owner;
        }
    }

    /// Returns the owner of a listener's connections.
    pub fn owner(&self, id: ListenerId) -> Owner {
        self.slots.get(id.0).map_or(Owner::UNKNOWN, |listener| listener.owner)
    }

    /// Returns the listener of a port.
    pub fn at_port(&self, port: u16) -> Option<ListenerId> {
        self.ports.get(&port).copied()
    }

    /// Returns whether the listener's backlog has room for one more connection; `None` if the listener is closed.
    pub fn has_room(&self, id: ListenerId) -> Option<Room> {
        let listener = self.slots.get(id.0)?;
        Some(if listener.pending < listener.backlog { Room::Left } else { Room::Full })
    }

    /// Counts one more connection that waits for the application.
    pub fn add_pending(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.pending += 1;
        }
    }

    /// Counts one waiting connection less: the application has accepted it, or it ended before.
    pub fn remove_pending(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}

/// Whether a backlog has room for one more connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Left,
    Full,
}

/// A handshake whose last segment is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub handshake: Handshake,
    /// The window field of our SYN-ACK.
    pub local_window: u16,
    /// The options of our SYN-ACK.
    pub local_options: Options,
    /// Number of retransmissions of our SYN-ACK by the timer.
    repeats: u8,
}

/// Our initial values for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalValues {
    pub initial: Seq,
    pub mss: u16,
    pub timestamp_offset: u32,
}

impl HalfOpen {
    /// Returns the entry for a received SYN.
    pub fn new(
        flow: Flow,
        listener: ListenerId,
        segment: &Segment,
        ours: LocalValues,
        now: Instant,
        config: &TcpConfig,
    ) -> Self {
        let stamps = Stamps::new(ours.timestamp_offset, now);
        let asks = segment.flags.has(Flags::ECE | Flags::CWR);
        Self {
            handshake: Handshake {
                flow,
                listener,
                local_initial: ours.initial,
                remote_initial: segment.seq,
                options: segment.options,
                window: segment.window,
                answered_at: Some(now),
                ecn: if asks && config.ecn != Ecn::Never { EcnAgreement::Yes } else { EcnAgreement::No },
                mss: ours.mss,
                timestamp_offset: ours.timestamp_offset,
                path: None,
            },
            local_window: config.receive_window.min(65_535) as u16,
            local_options: Options {
                mss: Some(ours.mss),
                window_scale: segment.options.window_scale.map(|_| config.window_scale()),
                sack: segment.options.sack,
                timestamps: segment.options.timestamps.map(|theirs| stamps.answer(now, theirs)),
            },
            repeats: 0,
        }
    }

    /// Returns the timeout of the latest SYN-ACK.
    fn interval(&self, config: &TcpConfig) -> Duration {
        config.rto_initial.times(1 << self.repeats.min(16)).min(config.rto_max)
    }

    /// Returns the header of our SYN-ACK.
    pub fn answer(&self) -> Header {
        let ecn = if self.handshake.ecn == EcnAgreement::Yes { Flags::ECE } else { Flags::NONE };
        Header {
            source_port: self.handshake.flow.local.port(),
            destination_port: self.handshake.flow.remote.port(),
            seq: self.handshake.local_initial,
            ack: self.handshake.remote_initial + 1,
            flags: Flags::SYN | Flags::ACK | ecn,
            window: self.local_window,
            options: self.local_options,
        }
    }
}

/// All half-open handshakes of a stack.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    entries: Slab<HalfOpen>,
    timers: Timers,
}

/// An entry whose timer has expired.
pub(crate) enum Overdue {
    /// Its SYN-ACK must be retransmitted.
    Repeat(HalfOpen),
    /// It had its last retransmission and is removed; the number is its former index.
    Dropped(u32, HalfOpen),
}

impl HalfOpenTable {
    pub fn new(capacity: usize) -> Self {
        Self { entries: Slab::new(capacity), timers: Timers::new() }
    }

    /// Returns whether the table is full.
    pub fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Adds an entry whose SYN-ACK is sent now. Returns its index, or `None` if the table is full.
    pub fn insert(&mut self, entry: HalfOpen, now: Instant, config: &TcpConfig) -> Option<u32> {
        let index = self.entries.insert(entry).ok()?.index;
        self.timers.set(index, now + config.rto_initial);
        Some(index)
    }

    /// Adds an entry from another stack. Its retransmission timer starts as if its latest SYN-ACK had been sent now.
    /// Returns its index, or `None` if the table is full.
    pub fn insert_moved(&mut self, entry: HalfOpen, now: Instant, config: &TcpConfig) -> Option<u32> {
        let index = self.entries.insert(entry).ok()?.index;
        self.timers.set(index, now + entry.interval(config));
        Some(index)
    }

    /// Returns the indices of the entries for which `wanted` returns true.
    pub fn indices_of(&self, wanted: impl Fn(&HalfOpen) -> bool) -> Vec<u32> {
        let is_wanted = |index: &u32| self.entries.at(*index).is_some_and(&wanted);
        self.entries.indices().filter(is_wanted).collect()
    }

    pub fn get(&self, index: u32) -> Option<&HalfOpen> {
        self.entries.at(index)
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpen> {
        self.entries.at_mut(index)
    }

    pub fn remove(&mut self, index: u32) -> Option<HalfOpen> {
        let key = self.entries.key_at(index)?;
        self.timers.remove(index);
        self.entries.remove(key)
    }

    /// Returns the earliest time at which `overdue` returns an entry.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| at)
    }

    /// Returns the next entry whose timer has expired: either its SYN-ACK must be sent again, with a doubled timeout,
    /// or the entry has been removed.
    pub fn overdue(&mut self, now: Instant, config: &TcpConfig) -> Option<Overdue> {
        let (at, index) = self.timers.first().filter(|&(at, _)| now >= at)?;
        let entry = self.entries.at_mut(index)?;
        if entry.repeats >= config.max_syn_retransmits {
            return self.remove(index).map(|entry| Overdue::Dropped(index, entry));
        }
        entry.repeats += 1;
        entry.handshake.answered_at = None;
        let entry = *entry;
        self.timers.set(index, at + entry.interval(config));
        Some(Overdue::Repeat(entry))
    }

    /// Removes one entry and returns it with its index; `None` if the table is empty.
    pub fn drain(&mut self) -> Option<(u32, HalfOpen)> {
        let index = self.entries.indices().next()?;
        self.remove(index).map(|entry| (index, entry))
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
