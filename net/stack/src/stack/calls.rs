//! The application's calls.
//!
//! A call with the id of an ended connection or socket does nothing, and reports that in its result if it has one. Ids
//! are never reused for another connection or socket.

use super::{Stack, stack_parts};
use crate::base::{ConnId, Flow, Instant, ListenerId, Owner, UdpId};
use crate::ip::PathUser;
use crate::tcp::{
    ConnectError, ConnectionStats, ConnectionView, KeepAlive, ListenError, ReadAll, SendError, StackParts,
    StreamEnd, TableUpdate, use_tcp,
};
use crate::udp::{self, BindError, Datagram, SendToError};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use isola_iobuf::{Chain, IoBuf};

impl Stack {
    /// Listens on a TCP port. At most `backlog` connections (at least one) wait to be taken by
    /// [`Event::Accepted`](crate::Event::Accepted). While that many wait, no further handshake is completed.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        use_tcp();
        self.listen_again(port, backlog)
    }

    /// Listens like [`Self::listen`] if the program uses TCP already ([`use_tcp`]): for the other stacks of an interface.
    /// A program that contains only this call, and not the others, contains no TCP.
    ///
    /// # Errors
    ///
    /// See [`ListenError`].
    pub fn listen_again(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        self.tcp.listen(port, backlog)
    }

    /// Sets the owner of connections accepted by a listener from now on: see [`Self::owner`].
    pub fn set_listener_owner(&mut self, listener: ListenerId, owner: Owner) {
        self.tcp.set_listener_owner(listener, owner);
    }

    /// Sets the owner of a connection: see [`Self::owner`].
    pub fn set_owner(&mut self, conn: ConnId, owner: Owner) {
        self.tcp.set_owner(conn, owner);
    }

    /// Sets the owner of a UDP socket: see [`Self::owner`].
    pub fn udp_set_owner(&mut self, socket: UdpId, owner: Owner) {
        self.udp.set_owner(socket, owner);
    }

    /// Closes a listener. Connections that the application has not taken yet are reset.
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        self.at(now);
        self.tcp.unlisten(listener, &mut stack_parts!(self));
    }

    /// Opens a connection; [`Event::Connected`](crate::Event::Connected) or [`Event::Failed`](crate::Event::Failed)
    /// follows. Data may be sent at once: it is transmitted after the handshake.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<ConnId, ConnectError> {
        self.at(now);
        use_tcp();
        self.tcp.connect(remote, &mut stack_parts!(self))
    }

    /// Queues data for sending, all of it or none. `data` is empty after success, and unchanged after failure. The
    /// connection keeps views of the memory, which must not change, until the peer has acknowledged the data; nothing
    /// is copied.
    ///
    /// # Errors
    ///
    /// See [`SendError`]. After [`SendError::NoSpace`], [`Event::SendSpace`](crate::Event::SendSpace) reports when
    /// `data` fits.
    #[inline]
    pub fn send(&mut self, conn: ConnId, data: &mut Chain) -> Result<(), SendError> {
        let settled = self.tcp.send(conn, data)?;
        self.settle(conn, settled);
        Ok(())
    }

    /// Queues as much data from the front of `data` as fits, and returns its length. If some is left,
    /// [`Event::SendSpace`](crate::Event::SendSpace) reports when a good part of it fits.
    ///
    /// # Errors
    ///
    /// See [`SendError`].
    #[inline]
    pub fn send_some(&mut self, conn: ConnId, data: &mut Chain) -> Result<usize, SendError> {
        let (count, settled) = self.tcp.send_some(conn, data)?;
        self.settle(conn, settled);
        Ok(count)
    }

    /// Returns the number of bytes that `send` accepts now.
    pub fn send_space(&self, conn: ConnId) -> usize {
        self.tcp.send_space(conn)
    }

    /// Sets the limit of the connection's send queue, in bytes. It may be less than is queued: then no more data is
    /// accepted until the queue has drained.
    pub fn set_send_limit(&mut self, conn: ConnId, bytes: usize) {
        self.tcp.adjust(conn, &mut stack_parts!(self), |connection| connection.set_send_limit(bytes));
    }

    /// Returns the next piece of received data, a view of the frame of its arrival; `None` if there is none now.
    /// Reading opens the receive window again.
    #[inline]
    pub fn read(&mut self, conn: ConnId) -> Option<IoBuf> {
        self.read_up_to(conn, usize::MAX)
    }

    /// Returns the next piece of received data as [`Self::read`] does, or its first `most` bytes.
    #[inline]
    pub fn read_up_to(&mut self, conn: ConnId, most: usize) -> Option<IoBuf> {
        let (piece, settled) = self.tcp.read(conn, most)?;
        self.settle(conn, settled);
        Some(piece)
    }

    /// Returns all received data, and whether the peer's stream ended with it. Otherwise as [`Self::read`]; `None` if
    /// the connection does not exist.
    #[inline]
    pub fn read_all(&mut self, conn: ConnId) -> Option<(Chain, StreamEnd)> {
        let ReadAll { connection, end, settled } = self.tcp.before_read_all(conn)?;
        if settled == TableUpdate::Done {
            return Some((connection.take_all(), end));
        }
        let data = connection.take_all();
        self.settle(conn, settled);
        Some((data, end))
    }

    /// Updates TCP's tables after a call if that is still necessary.
    #[inline]
    fn settle(&mut self, conn: ConnId, settled: TableUpdate) {
        if settled == TableUpdate::Due {
            self.tcp.settle_call(conn, &mut stack_parts!(self));
        }
    }

    /// Returns whether the peer's stream has ended and all of it has been read.
    pub fn is_at_end(&self, conn: ConnId) -> bool {
        self.tcp.is_at_end(conn)
    }

    /// Sets the receive window: the data that the peer may send before the application reads, in bytes. The limit is
    /// `TcpConfig::max_receive_window`, and 65,535 for a peer without window scaling. A window that was announced is
    /// not shrunk. Zero stops the peer.
    pub fn set_window(&mut self, conn: ConnId, bytes: u32) {
        self.tcp.adjust(conn, &mut stack_parts!(self), |connection| connection.set_window(bytes));
    }

    /// Sets the keep-alive policy: the peer is probed when it is silent, and the connection ends if it does not answer.
    /// Initially as in `TcpConfig::keep_alive`.
    pub fn set_keep_alive(&mut self, conn: ConnId, keep_alive: Option<KeepAlive>) {
        self.tcp.adjust(conn, &mut stack_parts!(self), |connection| connection.set_keep_alive(keep_alive));
    }

    /// Closes the sending direction after the queued data. The peer may continue to send (half-close).
    pub fn shutdown(&mut self, conn: ConnId) {
        self.tcp.adjust(conn, &mut stack_parts!(self), |connection| connection.shut_down());
    }

    /// Closes a connection: the queued data is still sent, then the connection completes its close by itself. The id
    /// becomes invalid, and no event follows. If received data was not read, or more arrives, the connection is reset
    /// (RFC 9293 3.6.1).
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        self.at(now);
        self.tcp.close(conn, &mut stack_parts!(self));
    }

    /// Aborts a connection by a reset. The id becomes invalid, and no event follows.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        self.at(now);
        self.tcp.abort(conn, &mut stack_parts!(self));
    }

    /// Returns the local address and port; `None` if the connection does not exist.
    pub fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcp.flow(conn).map(|flow| flow.local)
    }

    /// Returns the peer's address and port; `None` if the connection does not exist.
    pub fn remote_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcp.flow(conn).map(|flow| flow.remote)
    }

    /// Returns the statistics of a connection; `None` if it does not exist.
    pub fn connection_stats(&self, conn: ConnId) -> Option<ConnectionStats> {
        self.tcp.stats(conn)
    }

    /// Returns all connections, including those that the application has closed and whose close is not complete. A view
    /// is computed only when its function is called.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = (Flow, impl FnOnce() -> ConnectionView)> {
        self.tcp.views(now)
    }

    /// Opens a UDP port. In a cell of several cores, each instance must open it, because datagrams are steered by their
    /// flow.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn udp_bind(&mut self, port: u16) -> Result<UdpId, BindError> {
        if port == 0 || (port == crate::configuration::DHCP_CLIENT_PORT && self.dhcp.is_some()) {
            return Err(BindError::PortInUse(port));
        }
        self.udp.bind(port)
    }

    /// Opens a free UDP port for datagrams to `remote`, chosen so that the answers are steered to this instance.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn udp_bind_for(&mut self, remote: SocketAddr) -> Result<UdpId, BindError> {
        let none = match remote {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let own = self.interface.source_for(remote.ip()).unwrap_or(none);
        self.udp.bind_for(own, remote)
    }

    /// Closes a UDP port and drops its queued datagrams.
    pub fn udp_close(&mut self, socket: UdpId) {
        self.udp.close(socket, &mut self.events);
    }

    /// Returns the port of a UDP socket.
    pub fn udp_port(&self, socket: UdpId) -> Option<u16> {
        self.udp.port(socket)
    }

    /// Sends a datagram. It may still be lost, for example if the neighbour cannot be resolved.
    ///
    /// # Errors
    ///
    /// See [`SendToError`].
    pub fn udp_send_to(
        &mut self,
        now: Instant,
        socket: UdpId,
        remote: SocketAddr,
        payload: impl Into<Chain>,
    ) -> Result<(), SendToError> {
        self.at(now);
        let own = self.interface.source_for(remote.ip());
        self.send_datagram(socket, own, remote, payload.into())
    }

    /// Sends a datagram as answer to `asked`, from the address to which that was sent if it is one of this interface,
    /// because its sender may accept answers only from there (RFC 1122 4.1.3.5). Otherwise as [`Self::udp_send_to`].
    ///
    /// # Errors
    ///
    /// See [`SendToError`].
    pub fn udp_answer(
        &mut self,
        now: Instant,
        socket: UdpId,
        asked: &Datagram,
        payload: impl Into<Chain>,
    ) -> Result<(), SendToError> {
        self.at(now);
        let (local, remote) = (asked.local, asked.remote);
        let own =
            if self.interface.is_own(local) { Some(local) } else { self.interface.source_for(remote.ip()) };
        self.send_datagram(socket, own, remote, payload.into())
    }

    fn send_datagram(
        &mut self,
        socket: UdpId,
        own: Option<IpAddr>,
        remote: SocketAddr,
        payload: Chain,
    ) -> Result<(), SendToError> {
        let port = self.udp.port(socket).ok_or(SendToError::NoSocket)?;
        let mtu = self.interface.mtu_to(self.now, remote.ip(), PathUser::Udp);
        let limit = udp::max_payload(mtu, remote.ip());
        if payload.len() > limit {
            return Err(SendToError::TooLong(limit));
        }
        let own = own.ok_or(SendToError::NoAddress)?;
        if remote.port() == 0 || !self.interface.has_route(remote.ip()) {
            return Err(SendToError::NoRoute);
        }
        if self.interface.is_congested() {
            return Err(SendToError::Congested);
        }
        let source = SocketAddr::new(own, port);
        let len = payload.len();
        self.interface.owner = self.udp.owner_of_port(port);
        let packet =
            udp::packet(&mut self.interface, source, remote, payload).ok_or(SendToError::TooLong(limit))?;
        let flow = Flow { local: source, remote };
        self.sent_datagrams.note(self.now, &flow, (udp::HEADER_LEN + len) as u16, mtu - limit + len);
        self.interface.send(self.now, packet, &mut self.counters);
        Ok(())
    }

    /// Returns the oldest datagram of a socket.
    pub fn udp_receive(&mut self, socket: UdpId) -> Option<Datagram> {
        self.udp.receive(socket)
    }

    /// Returns whether a UDP port is open.
    pub fn udp_is_bound(&self, port: u16) -> bool {
        self.udp.is_bound(port)
    }
}
