//! The migration of flow buckets between stacks.

use super::Tcp;
use crate::base::{ConnId, Counter, FailReason, Flow};
use crate::steering::Buckets;
use crate::tcp::connection::{Connection, HeldByApp, Membership, Signal};
use crate::tcp::flow_map::{FlowKey, Target};
use crate::tcp::in_use::is_in_use;
use crate::tcp::listener::HalfOpen;
use crate::tcp::stack_parts::StackParts;
use crate::tcp::time_wait::TimeWait;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;

/// TCP's state of the flows of some buckets.
pub(crate) struct MovedFlows {
    buckets: Buckets,
    /// Dropped by [`MovedFlows::drop`], so that a program without TCP does not contain the code that drops a connection.
    entries: ManuallyDrop<Entries>,
}

/// The moved entries of the tables.
#[derive(Default)]
struct Entries {
    connections: Vec<(ConnId, Box<Connection>)>,
    half_open: Vec<HalfOpen>,
    time_wait: Vec<TimeWait>,
    /// The tick of the latest sent cookie, which may belong to one of these flows.
    cookies_sent: Option<u64>,
}

impl MovedFlows {
    /// Returns the number of connections.
    pub fn connections(&self) -> usize {
        self.entries.connections.len()
    }

    /// Takes the entries.
    fn take(&mut self) -> Entries {
        core::mem::take(&mut *self.entries)
    }
}

impl Drop for MovedFlows {
    fn drop(&mut self) {
        if is_in_use() {
            drop(self.take());
        }
    }
}

impl Tcp {
    /// Returns the indices of the buckets' connections that have not ended.
    fn connections_of(&self, buckets: Buckets) -> Vec<u32> {
        let is_meant = |connection: &Connection| {
            connection.mapped == Membership::In
                && buckets.contains(self.core.steering.bucket_of(&connection.flow))
        };
        let indices = self.connections.indices();
        indices.filter(|index| self.connections.at(*index).is_some_and(|found| is_meant(found))).collect()
    }

    /// Returns the buckets' connections that the application has and has not closed.
    pub fn known_connections_of(&self, buckets: Buckets) -> Vec<ConnId> {
        if !is_in_use() {
            return Vec::new();
        }
        let is_known = |index: &u32| {
            let found = self.connections.at(*index);
            found.is_some_and(|found| {
                found.held_by_app == HeldByApp::Yes && !found.signals.has(Signal::Accepted)
            })
        };
        let known = self.connections_of(buckets).into_iter().filter(is_known);
        known.filter_map(|index| self.connections.key_at(index)).map(ConnId).collect()
    }

    /// Returns the number of further connections for which the table has room.
    pub fn room(&self) -> usize {
        self.connections.room()
    }

    /// Extracts the flows of buckets. The connections in `staying`, which is sorted, remain here, and their flows are
    /// recorded as left behind.
    pub fn extract(
        &mut self,
        buckets: Buckets,
        staying: &[ConnId],
        stack: &mut StackParts<'_>,
    ) -> MovedFlows {
        let entries =
            if is_in_use() { self.extract_entries(buckets, staying, stack) } else { Entries::default() };
        MovedFlows { buckets, entries: ManuallyDrop::new(entries) }
    }

    fn extract_entries(
        &mut self,
        buckets: Buckets,
        staying: &[ConnId],
        stack: &mut StackParts<'_>,
    ) -> Entries {
        let mut connections = Vec::new();
        for index in self.connections_of(buckets) {
            let Some(id) = self.connections.key_at(index).map(ConnId) else { continue };
            if staying.binary_search(&id).is_ok() {
                if let Some(flow) = self.flow(id) {
                    self.flows.keep(flow, &self.core);
                }
            } else if let Some(connection) = self.extract_connection(id, stack) {
                connections.push((id, connection));
            }
        }
        let steering = self.core.steering.clone();
        let is_meant = |flow: &Flow| buckets.contains(steering.bucket_of(flow));
        let mut half_open = Vec::new();
        for index in self.half_open.indices_of(|entry| is_meant(&entry.handshake.flow)) {
            half_open.extend(self.half_open.remove(index).inspect(|entry| {
                self.flows.remove(&entry.handshake.flow, Target::HalfOpen(index));
            }));
        }
        let mut time_wait = Vec::new();
        for index in self.time_wait.indices_of(|entry| is_meant(&entry.flow)) {
            time_wait.extend(self.time_wait.remove(index).inspect(|entry| {
                self.flows.remove(&entry.flow, Target::TimeWait(index));
            }));
        }
        time_wait.sort_by_key(|entry| entry.expires);
        Entries { connections, half_open, time_wait, cookies_sent: self.cookies.sent() }
    }

    fn extract_connection(&mut self, id: ConnId, stack: &mut StackParts<'_>) -> Option<Box<Connection>> {
        let index = id.0.index;
        self.ready.remove(index);
        self.timers.remove(index);
        stack.events.connections.remove(index);
        let mut connection = self.connections.remove(id.0)?;
        self.flows.remove(&connection.flow, Target::Connection(index));
        // The path belongs to this stack's neighbour cache.
        connection.path = None;
        if core::mem::take(&mut connection.searching) == Membership::In {
            stack.interface.neighbours.forget_connection(index);
        }
        if connection.signals.has(Signal::Accepted)
            && let Some(listener) = connection.listener
        {
            self.listeners.remove_pending(listener);
        }
        Some(connection)
    }

    /// Excludes the flows of these buckets from new connections until the flows are inserted.
    pub fn expect(&mut self, buckets: Buckets) {
        self.expected = self.expected.and(buckets);
    }

    /// Ends the exclusion by [`Self::expect`].
    pub fn expect_no_longer(&mut self, buckets: Buckets) {
        self.expected = self.expected.without(buckets);
    }

    /// Inserts flows from another stack. Returns their connections' ids there, each with its id here.
    pub fn insert(&mut self, mut moved: MovedFlows, stack: &mut StackParts<'_>) -> Vec<(ConnId, ConnId)> {
        self.expect_no_longer(moved.buckets);
        if !is_in_use() {
            return Vec::new();
        }
        let moved = moved.take();
        self.cookies.expect(moved.cookies_sent);
        for entry in moved.time_wait {
            self.insert_time_wait(entry, stack);
        }
        for entry in moved.half_open {
            self.continue_half_open(entry, stack);
        }
        let connections = moved.connections.into_iter();
        connections
            .filter_map(|(before, connection)| Some((before, self.insert_connection(connection, stack)?)))
            .collect()
    }

    fn insert_time_wait(&mut self, entry: TimeWait, stack: &mut StackParts<'_>) {
        let is_taken = self.flows.get(&FlowKey::of(&entry.flow)).is_some();
        if is_taken || !stack.interface.is_own(entry.flow.local.ip()) {
            return;
        }
        // Entries expire in the order of insertion; a longer TIME-WAIT is harmless.
        let expires = stack.now + self.config.time_wait;
        let Some((index, dropped)) = self.time_wait.insert(entry.flow, entry.ack, expires) else {
            return;
        };
        if let Some((old_index, old)) = dropped {
            stack.counters.bump(Counter::DropTcpTimeWait);
            self.flows.remove(&old.flow, Target::TimeWait(old_index));
        }
        self.flows.insert(entry.flow, Target::TimeWait(index));
    }

    fn continue_half_open(&mut self, mut entry: HalfOpen, stack: &mut StackParts<'_>) {
        let flow = entry.handshake.flow;
        if !stack.interface.is_own(flow.local.ip()) {
            return;
        }
        let listener = self.listeners.at_port(flow.local.port());
        let index = listener.and_then(|listener| {
            entry.handshake.listener = listener;
            // The path belongs to the other stack's neighbour cache.
            entry.handshake.path = None;
            self.half_open.insert_moved(entry, stack.now, &self.config)
        });
        match index {
            Some(index) => self.flows.insert(flow, Target::HalfOpen(index)),
            // The client retransmits, or is refused because there is no listener.
            None => stack.counters.bump(Counter::DropTcpHalfOpen),
        }
    }

    fn insert_connection(
        &mut self,
        mut connection: Box<Connection>,
        stack: &mut StackParts<'_>,
    ) -> Option<ConnId> {
        let flow = connection.flow;
        connection.set_burst(stack.interface.burst(flow.remote.ip()));
        let untaken = connection.signals.has(Signal::Accepted);
        if untaken {
            connection.listener = self.listeners.at_port(flow.local.port());
        }
        let listener = connection.listener;
        let Ok(key) = self.connections.insert(connection) else {
            stack.counters.bump(Counter::DropTcpTableFull);
            return None;
        };
        self.flows.insert(flow, Target::Connection(key.index));
        match listener.filter(|_| untaken) {
            Some(listener) => self.listeners.add_pending(listener),
            None if untaken => {
                self.give_up(key.index, FailReason::Reset, stack);
                return None;
            }
            None => {}
        }
        if !stack.interface.is_own(flow.local.ip())
            && let Some(connection) = self.connections.at_mut(key.index)
        {
            connection.fail(FailReason::AddressLost);
        }
        self.settle(key.index, stack);
        Some(ConnId(key))
    }
}
