//! Opening connections.

use super::handler::Handler;
use super::socket::TcpSocket;
use super::state::{Link, Phase, State};
use crate::address::is_local;
use alloc::sync::Arc;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use isola_ebbs::current_core;
use isola_events::spawn_on;
use isola_linux_files::Events;
use isola_linux_sockets::{Errno, SocketAddress};
use isola_net::{ConnectError, StreamError, TcpConnection, connect_with};
use isola_platform::CoreIndex;

impl TcpSocket {
    /// Connects: at once to a socket of this cell; otherwise the connection is in progress.
    pub(super) fn begin_to_connect(&self, address: &SocketAddress) -> Result<(), Errno> {
        if *address == SocketAddress::Unspecified {
            return self.disconnect();
        }
        let mut remote = self.domain.parse(address)?;
        let mut state = self.state();
        let phase = state.phase;
        match phase {
            Phase::Idle => {}
            Phase::Connecting => return Err(Errno::EALREADY),
            Phase::Connected if core::mem::take(&mut state.connect_reports) => return Ok(()),
            Phase::Connected | Phase::Listening => return Err(Errno::EISCONN),
            Phase::Ended => match state.error.take() {
                Some(error) => return Err(error),
                // Another attempt.
                None => {
                    *state = State { binding: state.binding.take(), bound: state.bound, ..State::default() };
                }
            },
        }
        let bound = state.bound;
        drop(state);
        if remote.ip().is_unspecified() {
            // As on Linux: the host itself.
            remote.set_ip(match remote {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        if remote.ip().is_multicast() || remote.ip() == IpAddr::V4(Ipv4Addr::BROADCAST) {
            return Err(Errno::ENETUNREACH);
        }
        if is_local(remote.ip()) {
            return self.connect_here(remote, bound);
        }
        if remote.port() == 0 {
            return Err(Errno::ECONNREFUSED);
        }
        self.connect_natively(remote)
    }

    /// Connects to a listening socket of this cell.
    fn connect_here(&self, remote: SocketAddr, bound: Option<SocketAddr>) -> Result<(), Errno> {
        // Before the search, so that it is no listener's.
        let own = bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified()).unwrap_or(remote.ip());
        let port = self.bind_if_unbound(SocketAddr::new(own, 0))?;
        let local = SocketAddr::new(own, port);
        let listener = self.internet.tcp.find_listener(remote.ip(), remote.port(), usize::from(port));
        let listener = listener.ok_or(Errno::ECONNREFUSED)?;
        let server = listener.new_connection(State {
            phase: Phase::Connected,
            link: Link::Peer(self.this.clone()),
            local: Some(remote),
            remote: Some(local),
            ..State::default()
        });
        let mut state = self.state();
        state.phase = Phase::Connected;
        state.link = Link::Peer(Arc::downgrade(&server));
        (state.local, state.remote) = (Some(local), Some(remote));
        drop(state);
        if listener.offer(server).is_err() {
            let mut state = self.state();
            (state.phase, state.link, state.local, state.remote) = (Phase::Idle, Link::None, None, None);
            return Err(Errno::ECONNREFUSED);
        }
        self.pollee.notify(Events::OUT);
        Ok(())
    }

    /// Begins to connect by the stack.
    fn connect_natively(&self, remote: SocketAddr) -> Result<(), Errno> {
        let Some(this) = self.this.upgrade() else { return Err(Errno::EBADF) };
        let mut state = self.state();
        state.phase = Phase::Connecting;
        state.remote = Some(remote);
        drop(state);
        match connect_with(remote, Handler(Some(this.clone()))) {
            Ok(connection) => self.note_connection(&connection),
            // Another core has flows.
            Err(StreamError::Connect(ConnectError::NoShare)) if current_core() != CoreIndex(0) => {
                spawn_on(CoreIndex(0), move || match connect_with(remote, Handler(Some(this.clone()))) {
                    Ok(connection) => this.note_connection(&connection),
                    Err(error) => {
                        drop(this.state().end(Some(error_of(error))));
                        this.pollee.notify(Events::OUT | Events::ERR | Events::HUP);
                    }
                });
            }
            Err(error) => {
                self.state().phase = Phase::Idle;
                return Err(error_of(error));
            }
        }
        Err(Errno::EINPROGRESS)
    }

    fn note_connection(&self, connection: &TcpConnection) {
        let mut state = self.state();
        state.link = Link::Native(connection.id());
        state.local = connection.local();
        let is_closed = state.is_closed;
        drop(state);
        if is_closed {
            connection.abort();
        }
    }

    /// Ends the connection, so that the socket can connect again (`connect` with `AF_UNSPEC`).
    fn disconnect(&self) -> Result<(), Errno> {
        let mut state = self.state();
        if state.phase == Phase::Listening {
            return Err(Errno::EINVAL);
        }
        let link = state.link.clone();
        let former = core::mem::take(&mut *state);
        state.binding = former.binding;
        drop(state);
        drop((former.incoming, former.outgoing));
        match link {
            Link::Native(id) => match id.here() {
                Some(connection) => connection.abort(),
                None => spawn_on(id.core(), move || id.here().iter().for_each(TcpConnection::abort)),
            },
            Link::Peer(peer) => peer.upgrade().iter().for_each(|peer| peer.peer_closed(true)),
            Link::None | Link::Moving => {}
        }
        Ok(())
    }
}

fn error_of(error: StreamError) -> Errno {
    match error {
        StreamError::Connect(ConnectError::TooManyConnections) => Errno::ENOBUFS,
        StreamError::Connect(ConnectError::NoPorts | ConnectError::NoShare) => Errno::EADDRNOTAVAIL,
        _ => Errno::ENETUNREACH,
    }
}
