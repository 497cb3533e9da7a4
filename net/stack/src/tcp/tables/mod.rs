//! All of one stack's TCP: the tables, and what moves entries between them.
//!
//! `receive.rs` finds what a segment belongs to, `calls.rs` is what the application asks for, `transmit.rs`
//! makes frames, `moving.rs` hands flows to another stack, and [`Tcp::settle`] here brings the tables in line with a connection after it acted.

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

/// The longest packets that get through nearly everywhere, in bytes.
const BASE_MTU: usize = 1200;

/// What lies around TCP within the stack.
pub(crate) struct Around<'a> {
    pub now: Instant,
    pub interface: &'a mut Interface,
    pub counters: &'a mut Counters,
    pub events: &'a mut EventQueue,
}

/// Whether all is seen to that a connection wants which acted: where not, [`Tcp::settle`] is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Yes,
    No,
}

impl Settled {
    /// After a call: usually the connection has nothing to tell, and waits for its turn to send and for nothing else.
    #[inline]
    fn after_call(connection: &Connection) -> Self {
        let usual = !connection.is_over() && connection.signals.is_empty();
        if usual && connection.searching == Place::Out { Self::Yes } else { Self::No }
    }
}

/// All connections, handshakes and listeners of one stack.
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
    /// Buckets whose flows are on their way to this stack.
    expected: Buckets,
    /// The connections that may have something to send, each once, in turns: those that acted since they last had nothing.
    ready: Order,
    /// The connections that wait for time to pass.
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

    /// Lets the connection at `index` act, with what it needs around it.
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

    /// Brings the tables in line with the connection at `index`, after it acted. What it has to send, and what it waits
    /// for then, is seen when the device asks for frames.
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

    /// Makes sure that the connection at `index` is looked at when the time comes for which it waits.
    fn arm(&mut self, index: u32, now: Instant) {
        if let Some(at) = self.connections.at_mut(index).and_then(|connection| connection.deadline(now)) {
            self.timers.no_later_than(index, at);
        }
    }

    /// The same for a connection that has ended: only its last events, and data not read, keep it.
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

    /// Takes an ended connection's flow away from it: for TIME-WAIT, or for good.
    fn unmap(&mut self, index: u32, around: &mut Around<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let flow = connection.flow;
        if connection.state != State::TimeWait {
            self.flows.remove(&flow, Target::Connection(index));
            return;
        }
        // Of ends that crossed, the peer's was acknowledged before.
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

    /// Forgets a connection that has ended, and that was settled.
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

    /// Ends a connection at once; the peer is told, where it knows of the connection.
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

    /// Takes the next event of a connection.
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

    /// The next moment before `limit` at which `on_timer` has something to do: exact, as every connection at the heap's
    /// top is asked whether it still waits.
    pub fn deadline_before(&mut self, limit: Instant, now: Instant) -> Option<Instant> {
        // Where somebody asks before all was sent.
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

    /// Acts on everything that is due.
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

    /// Long segments may vanish where a router says nothing (RFC 2923): after two timeouts in a row, shorter ones
    /// are tried, of the size that nearly every way takes (RFC 8899 5.1.2).
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

    /// Ends everything that lived on an address that is not the interface's any more.
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
