//! All TCP state of a stack: the tables, and the functions that move entries between them.
//!
//! `receive.rs` finds the entry of a segment, `calls.rs` serves calls of the application, `transmit.rs` builds frames,
//! and `moving.rs` moves flows to another stack. [`Tcp::settle`] here updates the tables after a connection has acted.

mod calls;
mod moving;
mod receive;
mod transmit;

pub(crate) use calls::ReadAll;
pub(crate) use moving::MovedFlows;
pub(crate) use receive::SearchOutcome;
pub(crate) use transmit::Way;

use super::TcpConfig;
use super::connection::{Connection, Env, Expiry, Held, Place, Shrunk, Signal, State};
use super::cookies::Cookies;
use super::flow_map::{FlowMap, Target};
use super::isn::Chooser;
use super::listener::{HalfOpenTable, Listeners, Overdue};
use super::options::Options;
use super::segment::{Flags, Header};
use super::time_wait::TimeWaitTable;
use crate::config::{Config, CoreShare};
use crate::counters::{Counter, Counters};
use crate::event::{ConnId, Event, EventQueue, FailReason};
use crate::interface::Interface;
use crate::limit::RateLimit;
use crate::order::Order;
use crate::path_mtu;
use crate::slab::{Key, Slab};
use crate::steering::Buckets;
use crate::time::Instant;
use crate::timers::Timers;
use alloc::boxed::Box;
use alloc::vec::Vec;

/// Size of packets that pass nearly all paths, in bytes.
const BASE_MTU: usize = 1200;

/// The parts of the stack that TCP uses.
pub(crate) struct Around<'a> {
    pub now: Instant,
    pub interface: &'a mut Interface,
    pub counters: &'a mut Counters,
    pub events: &'a mut EventQueue,
}

/// Whether the tables are up to date after a connection has acted; if not, the caller must call [`Tcp::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Yes,
    No,
}

impl Settled {
    /// Returns the result for a connection after a call of the application. In the common case the connection has no
    /// events, is not over and waits for no neighbour: it only has to be queued for sending.
    #[inline]
    fn after_call(connection: &Connection) -> Self {
        let usual = !connection.is_over() && connection.signals.is_empty();
        if usual && connection.searching == Place::Out { Self::Yes } else { Self::No }
    }
}

/// All connections, handshakes and listeners of a stack.
pub(crate) struct Tcp {
    config: TcpConfig,
    core: CoreShare,
    connections: Slab<Box<Connection>>,
    flows: FlowMap,
    listeners: Listeners,
    half_open: HalfOpenTable,
    cookies: Cookies,
    time_wait: TimeWaitTable,
    chooser: Chooser,
    /// Buckets whose flows are being moved to this stack.
    expected: Buckets,
    /// The connections that may have something to send, each once, in round-robin order. A connection is added when it
    /// acts, and removed once it has nothing to send.
    ready: Order,
    /// The deadlines of connections. An entry may be too early, never too late.
    timers: Timers,
    challenges: RateLimit,
    resets: RateLimit,
}

impl Tcp {
    pub fn new(config: &Config, now: Instant) -> Self {
        let tcp = &config.tcp;
        Self {
            config: tcp.clone(),
            core: config.core.clone(),
            connections: Slab::new(tcp.max_connections),
            flows: FlowMap::new(&config.secret),
            listeners: Listeners::new(tcp.max_listeners),
            half_open: HalfOpenTable::new(tcp.max_half_open),
            cookies: Cookies::new(&config.secret),
            time_wait: TimeWaitTable::new(tcp.max_time_wait),
            chooser: Chooser::new(&config.secret),
            expected: Buckets::default(),
            ready: Order::new(),
            timers: Timers::new(),
            challenges: RateLimit::new(config.limits.challenges_per_second, now),
            resets: RateLimit::new(config.limits.resets_per_second, now),
        }
    }

    /// Calls `act` with the connection at `index` and its environment.
    fn with<R>(
        &mut self,
        index: u32,
        around: &mut Around<'_>,
        act: impl FnOnce(&mut Connection, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connections.at_mut(index)?;
        let mut env = Env {
            now: around.now,
            config: &self.config,
            counters: around.counters,
            challenges: &mut self.challenges,
        };
        Some(act(connection, &mut env))
    }

    /// Updates the tables after the connection at `index` has acted. Its output, and the deadline after it, are
    /// determined when the device requests frames.
    #[inline]
    fn settle(&mut self, index: u32, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.is_over() {
            self.settle_ended(index, around);
            return;
        }
        if connection.held == Held::Yes && !connection.signals.is_empty() {
            around.events.connections.push_new(index);
        }
        if connection.searching == Place::In {
            self.arm(index, around.now);
        } else {
            self.ready.push_new(index);
        }
    }

    /// Sets the timer of the connection at `index` no later than its deadline.
    fn arm(&mut self, index: u32, now: Instant) {
        if let Some(at) = self.connections.at_mut(index).and_then(|connection| connection.deadline(now)) {
            self.timers.no_later_than(index, at);
        }
    }

    /// Updates the tables for a connection that has ended. The entry remains only for events and unread data that the
    /// application has not taken.
    #[cold]
    fn settle_ended(&mut self, index: u32, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.mapped == Place::In {
            connection.mapped = Place::Out;
            self.unmap(index, around);
        }
        self.timers.remove(index);
        self.ready.remove(index);
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.searching == Place::In {
            connection.searching = Place::Out;
            around.interface.neighbours.forget_connection(index);
        }
        let unknown = connection.signals.has(Signal::Accepted) && connection.signals.has(Signal::Failed);
        if connection.held == Held::No || unknown {
            self.forget(index, around.events);
        } else if !connection.signals.is_empty() {
            around.events.connections.push_new(index);
        }
    }

    /// Removes an ended connection from the flow map, and adds a TIME-WAIT entry if it is in that state.
    fn unmap(&mut self, index: u32, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let flow = connection.flow;
        if connection.state != State::TimeWait {
            self.flows.remove(&flow, Target::Connection(index));
            return;
        }
        // In a simultaneous close, the peer's FIN has been acknowledged before.
        let owed = connection.owes_ack();
        around.interface.owner = connection.owner;
        let ack = connection.last_ack(around.now);
        if owed {
            self.send_last(index, ack, around);
        }
        let expires = around.now + self.config.time_wait;
        let Some((entry, dropped)) = self.time_wait.insert(flow, ack, expires) else { return };
        if let Some((place, old)) = dropped {
            around.counters.bump(Counter::DropTcpTimeWait);
            self.flows.remove(&old.flow, Target::TimeWait(place));
        }
        self.flows.insert(flow, Target::TimeWait(entry));
    }

    /// Removes the entry of an ended and settled connection.
    fn forget(&mut self, index: u32, events: &mut EventQueue) {
        events.connections.remove(index);
        let Some(key) = self.connections.key_at(index) else { return };
        if let Some(connection) = self.connections.remove(key)
            && connection.signals.has(Signal::Accepted)
            && let Some(listener) = connection.listener
        {
            self.listeners.remove_pending(listener);
        }
    }

    /// Aborts a connection. Sends a reset if the peer knows of the connection.
    fn give_up(&mut self, index: u32, reason: FailReason, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let (flow, (seq, ack)) = (connection.flow, connection.positions());
        let told = connection.is_synchronized();
        around.interface.owner = connection.owner;
        connection.fail(reason);
        if told {
            around.counters.bump(Counter::TcpResetsOut);
            let header = Header {
                source_port: flow.local.port(),
                destination_port: flow.remote.port(),
                seq,
                ack,
                flags: Flags::RST | Flags::ACK,
                window: 0,
                options: Options::default(),
            };
            self.send_bare(&flow, header, around);
        }
        self.settle(index, around);
    }

    /// Takes the next event of any connection.
    #[inline]
    pub fn take_event(&mut self, interface: &mut Interface, events: &mut EventQueue) -> Option<Event> {
        while let Some(index) = events.connections.first() {
            let Some((key, connection)) = self.connections.with_key_at(index) else {
                events.connections.remove(index);
                continue;
            };
            interface.owner = connection.owner;
            let signal = connection.signals.take();
            if connection.signals.is_empty() {
                events.connections.remove(index);
            }
            match signal {
                None => {}
                Some(Signal::Readable) => return Some(Event::Readable(ConnId(key))),
                Some(signal) => {
                    let (reason, listener) = (connection.fail, connection.listener);
                    if let Some(event) = self.event(key, signal, reason, listener, events) {
                        return Some(event);
                    }
                }
            }
        }
        None
    }

    fn event(
        &mut self,
        key: Key,
        signal: Signal,
        reason: FailReason,
        listener: Option<crate::event::ListenerId>,
        events: &mut EventQueue,
    ) -> Option<Event> {
        let conn = ConnId(key);
        Some(match signal {
            Signal::Accepted => {
                let listener = listener?;
                self.listeners.remove_pending(listener);
                Event::Accepted { listener, conn }
            }
            Signal::Connected => Event::Connected(conn),
            Signal::Readable => Event::Readable(conn),
            Signal::SendSpace => Event::SendSpace(conn),
            Signal::PeerClosed => Event::PeerClosed(conn),
            Signal::Closed => {
                self.forget(key.index, events);
                Event::Closed(conn)
            }
            Signal::Failed => {
                self.forget(key.index, events);
                Event::Failed(conn, reason)
            }
        })
    }

    /// Returns the earliest time before `limit` at which `on_timer` has work. It is exact: the heap's first entries are
    /// checked against their connections' deadlines.
    pub fn deadline_before(&mut self, limit: Instant, now: Instant) -> Option<Instant> {
        // For callers that query before all frames are sent.
        let mut ready = self.ready.first();
        while let Some(index) = ready {
            self.arm(index, now);
            ready = self.ready.after(index);
        }
        let mut first = limit;
        while let Some((at, index)) = self.timers.first()
            && at < limit
        {
            let truth = self.connections.at_mut(index).and_then(|c| c.deadline(now));
            match truth {
                None => self.timers.remove(index),
                Some(truth) if truth > at => {
                    self.timers.set(index, truth);
                    if self.timers.first() == Some((truth, index)) {
                        first = first.min(truth);
                        break;
                    }
                }
                Some(_) => {
                    first = at;
                    break;
                }
            }
        }
        if let Some(at) = self.half_open.deadline() {
            first = first.min(at);
        }
        if let Some(at) = self.time_wait.deadline() {
            first = first.min(at);
        }
        (first < limit).then_some(first)
    }

    /// Acts on all expired deadlines.
    pub fn on_timer(&mut self, around: &mut Around<'_>) {
        while let Some((at, index)) = self.timers.first() {
            if at > around.now {
                break;
            }
            self.timers.remove(index);
            match self.with(index, around, |connection, env| connection.on_timer(env)) {
                Some(Expiry::GiveUp(reason)) => {
                    around.counters.bump(Counter::TcpTimedOut);
                    self.give_up(index, reason, around);
                }
                Some(Expiry::GoOn) => {
                    self.suspect_path(index, around);
                    self.settle(index, around);
                }
                None => {}
            }
        }
        while let Some(overdue) = self.half_open.overdue(around.now, &self.config) {
            match overdue {
                Overdue::Repeat(entry) => {
                    around.interface.owner = self.listeners.owner(entry.handshake.listener);
                    self.send_bare(&entry.handshake.flow, entry.answer(), around);
                }
                Overdue::Dropped(index, entry) => {
                    around.counters.bump(Counter::DropTcpHalfOpen);
                    self.flows.remove(&entry.handshake.flow, Target::HalfOpen(index));
                }
            }
        }
        while let Some((index, entry)) = self.time_wait.expired(around.now) {
            self.flows.remove(&entry.flow, Target::TimeWait(index));
        }
    }

    /// Reduces the segment size after two consecutive timeouts of data, to one that passes nearly all paths (RFC 8899
    /// 5.1.2): the path may drop long packets without an ICMP error (RFC 2923).
    fn suspect_path(&mut self, index: u32, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let remote = connection.flow.remote.ip();
        if connection.timeouts_of_data() != 2 {
            return;
        }
        let mss = receive::mss_within(BASE_MTU.max(path_mtu::least_mtu(remote)), remote);
        if connection.shrink_mss(mss.into()) == Shrunk::Yes {
            around.counters.bump(Counter::PathMtuGuessed);
        }
    }

    /// Ends all connections, handshakes and TIME-WAIT entries of an address that the interface no longer has.
    pub fn on_address_change(&mut self, around: &mut Around<'_>) {
        let indices: Vec<u32> = self.connections.indices().collect();
        for index in indices {
            let lost = self
                .connections
                .at(index)
                .is_some_and(|connection| !around.interface.is_own(connection.flow.local.ip()));
            if lost {
                if let Some(connection) = self.connections.at_mut(index) {
                    connection.fail(FailReason::AddressLost);
                }
                self.settle(index, around);
            }
        }
        while let Some((index, entry)) = self.half_open.drain() {
            self.flows.remove(&entry.handshake.flow, Target::HalfOpen(index));
        }
        while let Some((index, entry)) = self.time_wait.drain() {
            self.flows.remove(&entry.flow, Target::TimeWait(index));
        }
    }
}
