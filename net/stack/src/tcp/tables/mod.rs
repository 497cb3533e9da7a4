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
#[cfg(test)]
pub(crate) use transmit::packet;

use super::TcpConfig;
use super::connection::{Connection, Env, Expiry, HeldByApp, Membership, MssReduced, Signal, State};
use super::cookies::Cookies;
use super::flow_map::{FlowMap, Target};
use super::in_use::is_in_use;
use super::isn::NumberChooser;
use super::listener::{HalfOpenTable, Listeners, Overdue};
use super::options::Options;
use super::refusal::Resets;
use super::segment::{Flags, Header};
use super::stack_parts::StackParts;
use super::time_wait::TimeWaitTable;
use crate::base::{
    ConnId, Counter, Event, EventQueue, FailReason, Instant, Key, Limits, Order, RateLimit, Secret, Slab,
    Timers,
};
use crate::ip::{Interface, least_mtu};
use crate::steering::{Buckets, CoreShare};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;

/// Size of packets that pass nearly all paths, in bytes.
const BASE_MTU: usize = 1200;

/// Whether the tables are up to date after a connection has acted; if not, the caller must call [`Tcp::settle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TableUpdate {
    Done,
    Due,
}

impl TableUpdate {
    /// Returns the result for a connection after a call of the application. In the common case the connection has no
    /// events, is not over and waits for no neighbour: it only has to be queued for sending.
    #[inline]
    fn after_call(connection: &Connection) -> Self {
        let usual = !connection.is_over() && connection.signals.is_empty();
        if usual && connection.searching == Membership::Out { Self::Done } else { Self::Due }
    }
}

/// All connections, handshakes and listeners of a stack.
pub(crate) struct Tcp {
    config: TcpConfig,
    core: CoreShare,
    /// Dropped by [`Tcp::drop`], so that a program without TCP does not contain the code that drops a connection.
    connections: ManuallyDrop<Slab<Box<Connection>>>,
    flows: FlowMap,
    listeners: Listeners,
    half_open: HalfOpenTable,
    cookies: Cookies,
    time_wait: TimeWaitTable,
    chooser: NumberChooser,
    /// Buckets whose flows are being moved to this stack.
    expected: Buckets,
    /// The connections that may have something to send, each once, in round-robin order. A connection is added when it
    /// acts, and removed once it has nothing to send.
    ready: Order,
    /// The deadlines of connections. An entry may be too early, never too late.
    timers: Timers,
    challenges: RateLimit,
    pub resets: Resets,
}

impl Drop for Tcp {
    fn drop(&mut self) {
        if is_in_use() {
            drop(core::mem::replace(&mut *self.connections, Slab::new(0)));
        }
    }
}

impl Tcp {
    pub fn new(config: &TcpConfig, limits: &Limits, core: CoreShare, secret: &Secret, now: Instant) -> Self {
        Self {
            config: config.clone(),
            core,
            connections: ManuallyDrop::new(Slab::new(config.max_connections)),
            flows: FlowMap::new(secret),
            listeners: Listeners::new(config.max_listeners),
            half_open: HalfOpenTable::new(config.max_half_open),
            cookies: Cookies::new(secret),
            time_wait: TimeWaitTable::new(config.max_time_wait),
            chooser: NumberChooser::new(secret),
            expected: Buckets::default(),
            ready: Order::new(),
            timers: Timers::new(),
            challenges: RateLimit::new(limits.challenges_per_second, now),
            resets: Resets::new(limits.resets_per_second, now),
        }
    }

    /// Calls `act` with the connection at `index` and its environment.
    fn with<R>(
        &mut self,
        index: u32,
        stack: &mut StackParts<'_>,
        act: impl FnOnce(&mut Connection, &mut Env<'_>) -> R,
    ) -> Option<R> {
        let connection = self.connections.at_mut(index)?;
        let mut env = Env {
            now: stack.now,
            config: &self.config,
            counters: stack.counters,
            challenges: &mut self.challenges,
        };
        Some(act(connection, &mut env))
    }

    /// Updates the tables after the connection at `index` has acted. Its output, and the deadline after it, are
    /// determined when the device requests frames.
    #[inline]
    fn settle(&mut self, index: u32, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.is_over() {
            self.settle_ended(index, stack);
            return;
        }
        if connection.held_by_app == HeldByApp::Yes && !connection.signals.is_empty() {
            stack.events.connections.push_new(index);
        }
        if connection.searching == Membership::In {
            self.arm(index, stack.now);
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
    fn settle_ended(&mut self, index: u32, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.mapped == Membership::In {
            connection.mapped = Membership::Out;
            self.unmap(index, stack);
        }
        self.timers.remove(index);
        self.ready.remove(index);
        let Some(connection) = self.connections.at_mut(index) else { return };
        if connection.searching == Membership::In {
            connection.searching = Membership::Out;
            stack.interface.neighbours.forget_connection(index);
        }
        let unknown = connection.signals.has(Signal::Accepted) && connection.signals.has(Signal::Failed);
        if connection.held_by_app == HeldByApp::No || unknown {
            self.forget(index, stack.events);
        } else if !connection.signals.is_empty() {
            stack.events.connections.push_new(index);
        }
    }

    /// Removes an ended connection from the flow map, and adds a TIME-WAIT entry if it is in that state.
    fn unmap(&mut self, index: u32, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let flow = connection.flow;
        if connection.state != State::TimeWait {
            self.flows.remove(&flow, Target::Connection(index));
            return;
        }
        // In a simultaneous close, the peer's FIN has been acknowledged before.
        let owed = connection.owes_ack();
        stack.interface.owner = connection.owner;
        let ack = connection.last_ack(stack.now);
        if owed {
            self.send_last(index, ack, stack);
        }
        let expires = stack.now + self.config.time_wait;
        let Some((entry, dropped)) = self.time_wait.insert(flow, ack, expires) else { return };
        if let Some((old_index, old)) = dropped {
            stack.counters.bump(Counter::DropTcpTimeWait);
            self.flows.remove(&old.flow, Target::TimeWait(old_index));
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
    fn give_up(&mut self, index: u32, reason: FailReason, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let (flow, (seq, ack)) = (connection.flow, connection.positions());
        let is_known_to_peer = connection.is_synchronized();
        stack.interface.owner = connection.owner;
        connection.fail(reason);
        if is_known_to_peer {
            stack.counters.bump(Counter::TcpResetsOut);
            let header = Header {
                source_port: flow.local.port(),
                destination_port: flow.remote.port(),
                seq,
                ack,
                flags: Flags::RST | Flags::ACK,
                window: 0,
                options: Options::default(),
            };
            self.send_bare(&flow, header, stack);
        }
        self.settle(index, stack);
    }

    /// Takes the next event of any connection.
    #[inline]
    pub fn take_event(&mut self, interface: &mut Interface, events: &mut EventQueue) -> Option<Event> {
        while let Some(index) = events.connections.first()
            && is_in_use()
        {
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
        listener: Option<crate::base::ListenerId>,
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
        while let Some(index) = ready
            && is_in_use()
        {
            self.arm(index, now);
            ready = self.ready.after(index);
        }
        let mut first = limit;
        while let Some((at, index)) = self.timers.first()
            && at < limit
            && is_in_use()
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
    pub fn on_timer(&mut self, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            return;
        }
        while let Some((at, index)) = self.timers.first() {
            if at > stack.now {
                break;
            }
            self.timers.remove(index);
            match self.with(index, stack, |connection, env| connection.on_timer(env)) {
                Some(Expiry::GiveUp(reason)) => {
                    stack.counters.bump(Counter::TcpTimedOut);
                    self.give_up(index, reason, stack);
                }
                Some(Expiry::GoOn) => {
                    self.suspect_path(index, stack);
                    self.settle(index, stack);
                }
                None => {}
            }
        }
        while let Some(overdue) = self.half_open.overdue(stack.now, &self.config) {
            match overdue {
                Overdue::Repeat(entry) => {
                    stack.interface.owner = self.listeners.owner(entry.handshake.listener);
                    self.send_bare(&entry.handshake.flow, entry.answer(), stack);
                }
                Overdue::Dropped(index, entry) => {
                    stack.counters.bump(Counter::DropTcpHalfOpen);
                    self.flows.remove(&entry.handshake.flow, Target::HalfOpen(index));
                }
            }
        }
        while let Some((index, entry)) = self.time_wait.expired(stack.now) {
            self.flows.remove(&entry.flow, Target::TimeWait(index));
        }
    }

    /// Reduces the segment size after two consecutive timeouts of data, to one that passes nearly all paths (RFC 8899
    /// 5.1.2): the path may drop long packets without an ICMP error (RFC 2923).
    fn suspect_path(&mut self, index: u32, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.at_mut(index) else { return };
        let remote = connection.flow.remote.ip();
        if connection.timeouts_of_data() != 2 {
            return;
        }
        let mss = receive::mss_within(BASE_MTU.max(least_mtu(remote)), remote);
        if connection.shrink_mss(mss.into()) == MssReduced::Yes {
            stack.counters.bump(Counter::PathMtuGuessed);
        }
    }

    /// Ends all connections, handshakes and TIME-WAIT entries of an address that the interface no longer has.
    pub fn on_address_change(&mut self, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            return;
        }
        let indices: Vec<u32> = self.connections.indices().collect();
        for index in indices {
            let lost = self
                .connections
                .at(index)
                .is_some_and(|connection| !stack.interface.is_own(connection.flow.local.ip()));
            if lost {
                if let Some(connection) = self.connections.at_mut(index) {
                    connection.fail(FailReason::AddressLost);
                }
                self.settle(index, stack);
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
