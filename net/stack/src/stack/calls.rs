//! What the application asks of the stack.
//!
//! Calls on a connection or socket that has ended do nothing and say so where they return something: ids
//! outlive what they name, and never name its successor.

use super::{Stack, around};
use crate::address::Flow;
use crate::event::{ConnId, ListenerId, UdpId};
use crate::owner::Owner;
use crate::path_mtu::PathUser;
use crate::tcp::tables::{Around, ReadAll, Settled};
use crate::tcp::{ConnectError, ConnectionStats, ConnectionView, EndCame, KeepAlive, ListenError, SendError};
use crate::time::Instant;
use crate::udp::{self, BindError, Datagram, SendToError};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use isola_iobuf::{Chain, IoBuf};

impl Stack {
    /// Listens at a TCP port. At most `backlog` connections (at least one) wait to be taken by
    /// [`Event::Accepted`](crate::Event::Accepted); while so many do, no further handshake is completed.
    pub fn listen(&mut self, port: u16, backlog: usize) -> Result<ListenerId, ListenError> {
        self.tcp.listen(port, backlog)
    }

    /// Sets the owner of a listener's connections that come in from now on: see [`Self::owner`].
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

    /// Stops listening. Connections that the application has not taken yet are reset.
    pub fn unlisten(&mut self, now: Instant, listener: ListenerId) {
        self.at(now);
        self.tcp.unlisten(listener, &mut around!(self));
    }

    /// Begins a connection; [`Event::Connected`](crate::Event::Connected) or
    /// [`Event::Failed`](crate::Event::Failed) follows. Data may be sent at once: it follows the handshake.
    pub fn connect(&mut self, now: Instant, remote: SocketAddr) -> Result<ConnId, ConnectError> {
        self.at(now);
        self.tcp.connect(remote, &mut around!(self))
    }

    /// Queues data for sending, all of it or none: `data` is empty after success and as it was after failure.
    ///
    /// After [`SendError::NoSpace`], [`Event::SendSpace`](crate::Event::SendSpace) tells when `data` fits.
    /// The memory is kept, unchanged and uncopied, until the peer has acknowledged it.
    #[inline]
    pub fn send(&mut self, conn: ConnId, data: &mut Chain) -> Result<(), SendError> {
        let settled = self.tcp.send(conn, data)?;
        self.settle(conn, settled);
        Ok(())
    }

    /// Queues as much as fits off the front of `data`; returns how many bytes. Where some are left,
    /// [`Event::SendSpace`](crate::Event::SendSpace) tells when a good part of them fits.
    #[inline]
    pub fn send_some(&mut self, conn: ConnId, data: &mut Chain) -> Result<usize, SendError> {
        let (count, settled) = self.tcp.send_some(conn, data)?;
        self.settle(conn, settled);
        Ok(count)
    }

    /// Bytes that `send` takes now.
    pub fn send_space(&self, conn: ConnId) -> usize {
        self.tcp.send_space(conn)
    }

    /// Sets how many bytes the connection keeps for sending and sending again. Less than is queued is fine:
    /// nothing more is taken then until it drains.
    pub fn set_send_limit(&mut self, conn: ConnId, bytes: usize) {
        self.tcp.adjust(conn, &mut around!(self), |connection| connection.set_send_limit(bytes));
    }

    /// Takes the next piece of received data: a view of the frame that it came in. `None` where there is
    /// nothing now. What is taken opens the receive window again.
    #[inline]
    pub fn read(&mut self, conn: ConnId) -> Option<IoBuf> {
        let (piece, settled) = self.tcp.read(conn)?;
        self.settle(conn, settled);
        Some(piece)
    }

    /// Takes all of the received data, and says whether that was the last of it. As [`Self::read`] otherwise; `None` where
    /// there is no such connection.
    #[inline]
    pub fn read_all(&mut self, conn: ConnId) -> Option<(Chain, EndCame)> {
        let ReadAll { connection, end, settled } = self.tcp.before_read_all(conn)?;
        if settled == Settled::Yes {
            return Some((connection.take_all(), end));
        }
        let data = connection.take_all();
        self.settle(conn, settled);
        Some((data, end))
    }

    /// Sees to what a connection wants after a call.
    #[inline]
    fn settle(&mut self, conn: ConnId, settled: Settled) {
        if settled == Settled::No {
            self.tcp.settle_call(conn, &mut around!(self));
        }
    }

    /// Whether everything was read that the peer will ever send.
    pub fn is_at_end(&self, conn: ConnId) -> bool {
        self.tcp.is_at_end(conn)
    }

    /// Sets how many bytes the peer may send ahead of the application's reading: at most
    /// `TcpConfig::max_receive_window`, and 65,535 towards a peer without window scaling. What was offered
    /// before stays offered. Zero makes the peer wait.
    pub fn set_window(&mut self, conn: ConnId, bytes: u32) {
        self.tcp.adjust(conn, &mut around!(self), |connection| connection.set_window(bytes));
    }

    /// Sets whether the peer is probed when it is silent, and the connection given up where it does not answer: at first as
    /// `TcpConfig::keep_alive` says.
    pub fn set_keep_alive(&mut self, conn: ConnId, keep_alive: Option<KeepAlive>) {
        self.tcp.adjust(conn, &mut around!(self), |connection| connection.set_keep_alive(keep_alive));
    }

    /// Ends this side's direction after what is queued; the peer may go on sending (half-close).
    pub fn shutdown(&mut self, conn: ConnId) {
        self.tcp.adjust(conn, &mut around!(self), |connection| connection.shut_down());
    }

    /// Lets go of a connection: what is queued is still sent, then it ends in good order by itself. The id is
    /// void from now on, no event follows. Where received data was not read, or more comes in, the peer is
    /// told by a reset (RFC 9293 3.6.1).
    pub fn close(&mut self, now: Instant, conn: ConnId) {
        self.at(now);
        self.tcp.close(conn, &mut around!(self));
    }

    /// Ends a connection at once by a reset. The id is void from now on, no event follows.
    pub fn abort(&mut self, now: Instant, conn: ConnId) {
        self.at(now);
        self.tcp.abort(conn, &mut around!(self));
    }

    /// This side's address and port; `None` once the connection is gone.
    pub fn local_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcp.flow(conn).map(|flow| flow.local)
    }

    /// The peer's address and port; `None` once the connection is gone.
    pub fn remote_addr(&self, conn: ConnId) -> Option<SocketAddr> {
        self.tcp.flow(conn).map(|flow| flow.remote)
    }

    /// Figures of a connection; `None` once it is gone.
    pub fn connection_stats(&self, conn: ConnId) -> Option<ConnectionStats> {
        self.tcp.stats(conn)
    }

    /// All connections, those included that the application has let go of and that end by themselves.
    /// What is shown of one is put together only where it is called for.
    pub fn connections(&self, now: Instant) -> impl Iterator<Item = (Flow, impl FnOnce() -> ConnectionView)> {
        self.tcp.views(now)
    }

    /// Opens a UDP port. In a cell of several cores, in every instance: datagrams go by their flow.
    pub fn udp_bind(&mut self, port: u16) -> Result<UdpId, BindError> {
        if port == 0 || (port == crate::dhcp::CLIENT_PORT && self.dhcp.is_some()) {
            return Err(BindError::PortInUse(port));
        }
        self.udp.bind(port)
    }

    /// Opens a free UDP port for talking to `remote`, whose answers come to this instance.
    pub fn udp_bind_for(&mut self, remote: SocketAddr) -> Result<UdpId, BindError> {
        let none = match remote {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let own = self.interface.source_for(remote.ip()).unwrap_or(none);
        self.udp.bind_for(own, remote)
    }

    /// Closes a UDP port; what it has queued is dropped.
    pub fn udp_close(&mut self, socket: UdpId) {
        self.udp.close(socket, &mut self.events);
    }

    /// The port of a UDP socket.
    pub fn udp_port(&self, socket: UdpId) -> Option<u16> {
        self.udp.port(socket)
    }

    /// Sends a datagram. It may still be lost, as datagrams are: for one, where the neighbour search fails.
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

    /// Answers a datagram: from the address that it was sent to, where that is this interface's own, since its sender may
    /// take no other's word (RFC 1122 4.1.3.5). Otherwise as [`Self::udp_send_to`].
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

    /// Takes the oldest datagram of a socket.
    pub fn udp_receive(&mut self, socket: UdpId) -> Option<Datagram> {
        self.udp.receive(socket)
    }

    /// Whether a UDP port is open.
    pub fn udp_is_bound(&self, port: u16) -> bool {
        self.udp.is_bound(port)
    }
}
