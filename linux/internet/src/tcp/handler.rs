//! The handler of a socket's connection, on the connection's core.

use super::socket::TcpSocket;
use super::state::{Link, Phase};
use alloc::boxed::Box;
use alloc::sync::Arc;
use isola_iobuf::Chain;
use isola_linux_files::Events;
use isola_linux_sockets::Errno;
use isola_net::{ConnectionHandler, FailReason, TcpConnection};

/// The handler of a socket's connection. Without a socket, the connection was refused.
pub(super) struct Handler(pub Option<Arc<TcpSocket>>);

impl ConnectionHandler for Handler {
    fn connected(&mut self, connection: &TcpConnection) {
        let Some(socket) = &self.0 else { return };
        let mut state = socket.state();
        state.phase = Phase::Connected;
        state.connect_reports = true;
        state.local = connection.local().or(state.local);
        let is_closed = state.is_closed;
        drop(state);
        if is_closed {
            return connection.abort();
        }
        socket.apply_keep_alive();
        socket.pollee.notify(Events::OUT);
    }

    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        let Some(socket) = &self.0 else { return };
        let limit = socket.settings.receive_buffer();
        let mut state = socket.state();
        if state.is_closed {
            drop(state);
            // No call reads these bytes: a reset informs the peer (RFC 9293 3.6.1).
            return connection.abort();
        }
        if state.is_receive_shut {
            return;
        }
        state.incoming.push(data);
        if state.incoming.storage() >= limit {
            state.is_paused = true;
            connection.pause();
        }
        drop(state);
        socket.pollee.notify(Events::IN);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        if let Some(socket) = &self.0 {
            socket.pump(connection);
        }
    }

    fn peer_closed(&mut self, _connection: &TcpConnection) {
        let Some(socket) = &self.0 else { return };
        socket.state().has_end = true;
        socket.pollee.notify(Events::IN | Events::RDHUP | Events::HUP);
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        if let Some(socket) = &self.0 {
            socket.state().link = Link::Moving;
        }
        Some(Box::new(Self(self.0.clone())))
    }

    fn arrived(&mut self, connection: &TcpConnection) {
        let Some(socket) = &self.0 else { return };
        let mut state = socket.state();
        state.link = Link::Native(connection.id());
        let (is_paused, is_closed) = (state.is_paused, state.is_closed);
        drop(state);
        if is_closed && socket.settings.linger_s() == Some(0) {
            return connection.abort();
        }
        if !is_paused {
            connection.resume();
        }
        socket.apply_keep_alive();
        socket.pump(connection);
    }

    fn ended(&mut self, reason: Option<FailReason>) {
        let Some(socket) = &self.0 else { return };
        let mut state = socket.state();
        let error = reason.map(|reason| match reason {
            FailReason::Reset if state.has_end => Errno::EPIPE,
            FailReason::Reset => Errno::ECONNRESET,
            FailReason::Refused => Errno::ECONNREFUSED,
            FailReason::TimedOut => Errno::ETIMEDOUT,
            FailReason::Unreachable => Errno::EHOSTUNREACH,
            FailReason::AddressLost => Errno::ENETDOWN,
        });
        let unsent = state.end(error);
        drop(state);
        drop(unsent);
        socket.pollee.notify(Events::IN | Events::OUT | Events::RDHUP | Events::HUP | Events::ERR);
    }
}
