//! Listening ports, and the handshakes that have not come to an end: a bounded table of small entries.
//!
//! A SYN costs an entry here and no connection. When the table is full, further SYNs are answered without one:
//! see `cookies.rs`.

use super::connection::{Agreed, Handshake};
use super::options::Options;
use super::segment::{Flags, Header, Segment};
use super::seq::Seq;
use super::timestamps::Stamps;
use super::{Ecn, ListenError, TcpConfig};
use crate::address::Flow;
use crate::event::ListenerId;
use crate::owner::Owner;
use crate::slab::Slab;
use crate::time::{Duration, Instant};
use crate::timers::Timers;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// A port that connections come in at.
#[derive(Debug)]
pub(crate) struct Listener {
    port: u16,
    /// Connections that may wait for the application to take them.
    backlog: usize,
    /// Connections that do.
    pending: usize,
    /// The owner of the connections.
    owner: Owner,
}

/// All listeners of one stack.
#[derive(Debug)]
pub(crate) struct Listeners {
    slots: Slab<Listener>,
    ports: BTreeMap<u16, ListenerId>,
}

impl Listeners {
    pub const fn new(capacity: usize) -> Self {
        Self { slots: Slab::new(capacity), ports: BTreeMap::new() }
    }

    /// Listens at a port.
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

    /// Stops listening.
    pub fn close(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.remove(id.0) {
            self.ports.remove(&listener.port);
        }
    }

    /// Sets the owner of the connections that come in from now on.
    pub fn set_owner(&mut self, id: ListenerId, owner: Owner) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.owner = owner;
        }
    }

    /// Returns the owner of a listener's connections.
    pub fn owner(&self, id: ListenerId) -> Owner {
        self.slots.get(id.0).map_or(Owner::UNKNOWN, |listener| listener.owner)
    }

    /// Who listens at a port.
    pub fn at_port(&self, port: u16) -> Option<ListenerId> {
        self.ports.get(&port).copied()
    }

    /// Whether the listener takes one more connection; `None` where it is gone.
    pub fn has_room(&self, id: ListenerId) -> Option<Room> {
        let listener = self.slots.get(id.0)?;
        Some(if listener.pending < listener.backlog { Room::Left } else { Room::Full })
    }

    /// One more connection waits for the application.
    pub fn add_pending(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.pending += 1;
        }
    }

    /// The application has taken a connection, or it ended before.
    pub fn remove_pending(&mut self, id: ListenerId) {
        if let Some(listener) = self.slots.get_mut(id.0) {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }
}

/// Whether a backlog takes one more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Left,
    Full,
}

/// A handshake whose last segment is missing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HalfOpen {
    pub handshake: Handshake,
    /// The window that our answer tells.
    pub local_window: u16,
    /// What our answer says.
    pub local_options: Options,
    /// Times that our answer was sent by the timer.
    repeats: u8,
}

/// What this side begins a connection with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours {
    pub initial: Seq,
    pub mss: u16,
    pub timestamp_offset: u32,
}

impl HalfOpen {
    /// What a SYN leaves behind.
    pub fn new(
        flow: Flow,
        listener: ListenerId,
        segment: &Segment,
        ours: Ours,
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
                ecn: if asks && config.ecn != Ecn::Never { Agreed::Yes } else { Agreed::No },
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

    /// How long the answer that was sent last is waited for.
    fn interval(&self, config: &TcpConfig) -> Duration {
        config.rto_initial.times(1 << self.repeats.min(16)).min(config.rto_max)
    }

    /// Our answer to the SYN.
    pub fn answer(&self) -> Header {
        let ecn = if self.handshake.ecn == Agreed::Yes { Flags::ECE } else { Flags::NONE };
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

/// All half-open handshakes of one stack.
#[derive(Debug)]
pub(crate) struct HalfOpenTable {
    entries: Slab<HalfOpen>,
    timers: Timers,
}

/// What became of an entry whose timer ran out.
pub(crate) enum Overdue {
    /// Its answer is to be sent again.
    Repeat(HalfOpen),
    /// It is gone.
    Dropped(u32, HalfOpen),
}

impl HalfOpenTable {
    pub fn new(capacity: usize) -> Self {
        Self { entries: Slab::new(capacity), timers: Timers::new() }
    }

    /// Whether no further entry fits.
    pub fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// Adds an entry, whose answer went out now, where there is room. Returns its place.
    pub fn insert(&mut self, entry: HalfOpen, now: Instant, config: &TcpConfig) -> Option<u32> {
        let index = self.entries.insert(entry).ok()?.index;
        self.timers.set(index, now + config.rto_initial);
        Some(index)
    }

    /// Adds an entry that another stack has kept until now. Its answer is sent again as if the last one had gone out now.
    pub fn insert_moved(&mut self, entry: HalfOpen, now: Instant, config: &TcpConfig) -> Option<u32> {
        let index = self.entries.insert(entry).ok()?.index;
        self.timers.set(index, now + entry.interval(config));
        Some(index)
    }

    /// The entries that `wanted` says yes to, by their places.
    pub fn places(&self, wanted: impl Fn(&HalfOpen) -> bool) -> Vec<u32> {
        let is_wanted = |index: &u32| self.entries.at(*index).is_some_and(&wanted);
        self.entries.indices().filter(is_wanted).collect()
    }

    pub fn get_mut(&mut self, index: u32) -> Option<&mut HalfOpen> {
        self.entries.at_mut(index)
    }

    pub fn remove(&mut self, index: u32) -> Option<HalfOpen> {
        let key = self.entries.key_at(index)?;
        self.timers.remove(index);
        self.entries.remove(key)
    }

    /// The next moment at which `overdue` gives something.
    pub fn deadline(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| at)
    }

    /// Takes the next entry whose timer has run out: sent again with doubled timeouts, or dropped.
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

    /// Takes every entry out.
    pub fn drain(&mut self) -> Option<(u32, HalfOpen)> {
        let index = self.entries.indices().next()?;
        self.remove(index).map(|entry| (index, entry))
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}
