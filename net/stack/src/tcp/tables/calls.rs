//! TCP's part of the application's calls.

use super::{TableUpdate, Tcp};
use crate::base::{ConnId, Counter, FailReason, Flow, Instant, ListenerId, Owner};
use crate::tcp::connection::{Connection, Env, Membership, Release, Signal, StreamEnd};
use crate::tcp::flow_map::{FlowKey, Target};
use crate::tcp::in_use::is_in_use;
use crate::tcp::isn::InitialValues;
use crate::tcp::stack_parts::StackParts;
use crate::tcp::timestamps::Stamps;
use crate::tcp::{ConnectError, ConnectionStats, ConnectionView, ListenError, SendError};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};
use isola_iobuf::{Chain, IoBuf};

/// A connection whose received data is about to be taken completely.
pub(crate) struct ReadAll<'a> {
    pub connection: &'a mut Connection,
    pub end: StreamEnd,
    /// Whether the tables are up to date once the data is taken.
    pub settled: TableUpdate,
}

impl Tcp {
    /// See [`Stack::listen_again`](crate::Stack::listen_again).
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        if !is_in_use() {
            return Err(ListenError::NotInUse);
        }
        self.listeners.open(port, backlog)
    }

    /// See [`Stack::set_listener_owner`](crate::Stack::set_listener_owner).
    pub fn set_listener_owner(&mut self, id: ListenerId, owner: Owner) {
        if is_in_use() {
            self.listeners.set_owner(id, owner);
        }
    }

    /// See [`Stack::set_owner`](crate::Stack::set_owner).
    pub fn set_owner(&mut self, id: ConnId, owner: Owner) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            connection.owner = owner;
        }
    }

    /// See [`Stack::unlisten`](crate::Stack::unlisten).
    pub fn unlisten(&mut self, id: ListenerId, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            return;
        }
        self.listeners.close(id);
        let untaken = |connection: &Connection| {
            connection.listener == Some(id) && connection.signals.has(Signal::Accepted)
        };
        let indices: Vec<u32> = self
            .connections
            .indices()
            .filter(|&index| self.connections.at(index).is_some_and(|c| untaken(c)))
            .collect();
        indices.into_iter().for_each(|index| self.give_up(index, FailReason::Reset, stack));
    }

    /// See [`Stack::connect`](crate::Stack::connect).
    pub fn connect(
        &mut self,
        remote: SocketAddr,
        stack: &mut StackParts<'_>,
    ) -> Result<ConnId, ConnectError> {
        let local =
            stack.interface.source_for(remote.ip()).ok_or_else(|| match stack.interface.is_set_up() {
                true => ConnectError::NoRoute,
                false => ConnectError::NoAddress,
            })?;
        if !stack.interface.is_one_host(remote.ip())
            || remote.port() == 0
            || !stack.interface.has_route(remote.ip())
        {
            return Err(ConnectError::NoRoute);
        }
        if self.connections.is_full() {
            stack.counters.bump(Counter::DropTcpTableFull);
            return Err(ConnectError::TooManyConnections);
        }
        let flow = self.free_flow(local, remote).ok_or_else(|| {
            let has_share = self.core.steering.owners().contains(&self.core.index);
            if has_share { ConnectError::NoPorts } else { ConnectError::NoShare }
        })?;
        let InitialValues { sequence: initial, timestamp_offset } =
            self.chooser.initial_values(stack.now, &flow);
        let mss = self.local_mss(remote.ip(), stack);
        let stamps = Stamps::new(timestamp_offset, stack.now);
        let env = Env {
            now: stack.now,
            config: &self.config,
            counters: stack.counters,
            challenges: &mut self.challenges,
        };
        let mut connection = Box::new(Connection::connect(flow, initial, mss, stamps, &env));
        connection.mapped = Membership::In;
        connection.set_burst(stack.interface.burst(remote.ip()));
        let key = self.connections.insert(connection).map_err(|_| ConnectError::TooManyConnections)?;
        self.flows.insert(flow, Target::Connection(key.index));
        self.settle(key.index, stack);
        Ok(ConnId(key))
    }

    /// Returns a free flow to `remote` whose segments arrive at this core.
    fn free_flow(&mut self, local: IpAddr, remote: SocketAddr) -> Option<Flow> {
        self.chooser
            .ports(local, remote)
            .map(|port| Flow { local: SocketAddr::new(local, port), remote })
            .find(|candidate| {
                self.core.serves(candidate)
                    // Flows that are being moved to this stack are in no table yet.
                    && !self.expected.contains(self.core.steering.bucket_of(candidate))
                    && self.flows.get(&FlowKey::of(candidate)).is_none()
                    && self.listeners.at_port(candidate.local.port()).is_none()
            })
    }

    /// See [`Stack::send`](crate::Stack::send).
    #[inline]
    pub fn send(&mut self, id: ConnId, chain: &mut Chain) -> Result<TableUpdate, SendError> {
        let connection = self.connections.get_mut(id.0).ok_or(SendError::NoConnection)?.as_mut();
        connection.send(chain)?;
        let settled = TableUpdate::after_call(connection);
        Ok(self.settle_ready(id, settled))
    }

    /// Queues a connection for sending if nothing else is necessary.
    #[inline]
    fn settle_ready(&mut self, id: ConnId, settled: TableUpdate) -> TableUpdate {
        if settled == TableUpdate::Done {
            self.ready.push_new(id.0.index);
        }
        settled
    }

    /// See [`Stack::send_some`](crate::Stack::send_some).
    #[inline]
    pub fn send_some(&mut self, id: ConnId, chain: &mut Chain) -> Result<(usize, TableUpdate), SendError> {
        let connection = self.connections.get_mut(id.0).ok_or(SendError::NoConnection)?.as_mut();
        let count = connection.send_some(chain)?;
        let settled = TableUpdate::after_call(connection);
        Ok((count, self.settle_ready(id, settled)))
    }

    /// See [`Stack::send_space`](crate::Stack::send_space).
    pub fn send_space(&self, id: ConnId) -> usize {
        self.connections.get(id.0).map_or(0, |connection| connection.send_space())
    }

    /// See [`Stack::read_up_to`](crate::Stack::read_up_to).
    #[inline]
    pub fn read(&mut self, id: ConnId, most: usize) -> Option<(IoBuf, TableUpdate)> {
        let connection = self.connections.get_mut(id.0)?.as_mut();
        let piece = connection.read(most)?;
        if !connection.needs_care() {
            return Some((piece, TableUpdate::Done));
        }
        let settled = TableUpdate::after_call(connection);
        Some((piece, self.settle_ready(id, settled)))
    }

    /// Does everything for [`Stack::read_all`](crate::Stack::read_all) except taking the data.
    #[inline]
    pub fn before_read_all(&mut self, id: ConnId) -> Option<ReadAll<'_>> {
        let connection = self.connections.get_mut(id.0)?.as_mut();
        let end = connection.before_take_all();
        let mut settled = TableUpdate::Done;
        if connection.needs_care() {
            settled = TableUpdate::after_call(connection);
            if settled == TableUpdate::Done {
                self.ready.push_new(id.0.index);
            }
        }
        Some(ReadAll { connection, end, settled })
    }

    /// Calls [`Self::settle`] for a connection of the application.
    #[cold]
    pub fn settle_call(&mut self, id: ConnId, stack: &mut StackParts<'_>) {
        if is_in_use() {
            self.settle(id.0.index, stack);
        }
    }

    /// See [`Stack::is_at_end`](crate::Stack::is_at_end).
    pub fn is_at_end(&self, id: ConnId) -> bool {
        self.connections.get(id.0).is_none_or(|connection| connection.is_at_end())
    }

    /// Calls `act` with a connection of the application, and updates the tables.
    pub fn adjust(&mut self, id: ConnId, stack: &mut StackParts<'_>, act: impl FnOnce(&mut Connection)) {
        if let Some(connection) = self.connections.get_mut(id.0) {
            act(connection);
            self.settle(id.0.index, stack);
        }
    }

    /// See [`Stack::close`](crate::Stack::close).
    pub fn close(&mut self, id: ConnId, stack: &mut StackParts<'_>) {
        if !is_in_use() {
            return;
        }
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        let untaken = connection.signals.has(Signal::Accepted).then_some(connection.listener).flatten();
        let index = id.0.index;
        let released = self.with(index, stack, |connection, env| connection.release(env));
        if let Some(listener) = untaken {
            self.listeners.remove_pending(listener);
        }
        self.connections.rekey(id.0);
        stack.events.connections.remove(index);
        match released {
            Some(Release::Reset) => self.give_up(index, FailReason::Reset, stack),
            Some(Release::Done | Release::Finishing) => self.settle(index, stack),
            None => {}
        }
    }

    /// See [`Stack::abort`](crate::Stack::abort).
    pub fn abort(&mut self, id: ConnId, stack: &mut StackParts<'_>) {
        let Some(connection) = self.connections.get_mut(id.0) else { return };
        connection.held_by_app = crate::tcp::connection::HeldByApp::No;
        self.give_up(id.0.index, FailReason::Reset, stack);
        // A connection that had ended before is not settled by `give_up`.
        self.settle(id.0.index, stack);
    }

    /// Returns the addresses and ports of a connection.
    pub fn flow(&self, id: ConnId) -> Option<Flow> {
        self.connections.get(id.0).map(|connection| connection.flow)
    }

    /// Returns the statistics of a connection.
    pub fn stats(&self, id: ConnId) -> Option<ConnectionStats> {
        self.connections.get(id.0).map(|connection| connection.stats())
    }

    /// See [`Stack::connections`](crate::Stack::connections).
    pub fn views(&self, now: Instant) -> impl Iterator<Item = (Flow, impl FnOnce() -> ConnectionView)> {
        self.connections
            .indices()
            .filter_map(|index| if is_in_use() { self.connections.at(index) } else { None })
            .map(move |found| (found.flow, move || found.view(now)))
    }

    /// Returns the numbers of connections, half-open handshakes and TIME-WAIT entries.
    pub fn occupancy(&self) -> (usize, usize, usize) {
        (self.connections.len(), self.half_open.len(), self.time_wait.len())
    }
}
