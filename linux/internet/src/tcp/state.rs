//! The state of a TCP socket.

use super::socket::TcpSocket;
use crate::bytes::ByteQueue;
use crate::ports::Binding;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::net::SocketAddr;
use isola_iobuf::Chain;
use isola_linux_files::Events;
use isola_linux_sockets::Errno;
use isola_net::ConnectionId;

/// The state of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is new.
    #[default]
    Idle,
    /// It accepts connections.
    Listening,
    /// The handshake is not complete.
    Connecting,
    /// It has a connection.
    Connected,
    /// The connection has ended, or could not be opened.
    Ended,
}

/// How bytes reach the peer.
#[derive(Clone, Debug, Default)]
pub(super) enum Link {
    /// There is no connection.
    #[default]
    None,
    /// By a connection of the stack.
    Native(ConnectionId),
    /// By a connection of the stack that is moving to another core.
    Moving,
    /// The peer is a socket of this cell.
    Peer(Weak<TcpSocket>),
}

/// The state of a TCP socket.
#[derive(Default)]
pub(super) struct State {
    pub phase: Phase,
    pub link: Link,
    pub binding: Option<Binding<TcpSocket>>,
    /// The address of `bind`.
    pub bound: Option<SocketAddr>,
    pub local: Option<SocketAddr>,
    pub remote: Option<SocketAddr>,
    /// The pending error.
    pub error: Option<Errno>,
    /// Whether a further `connect` has to report that a connection is established.
    pub connect_reports: bool,
    pub incoming: ByteQueue,
    /// Whether the peer's stream ends behind the received bytes.
    pub has_end: bool,
    /// Whether the connection delivers no bytes until the socket's queue is shorter.
    pub is_paused: bool,
    /// Bytes that the stack has not accepted.
    pub outgoing: Chain,
    /// Whether an event on the connection's core will send them.
    pub pump_queued: bool,
    /// Whether a task will send the bytes that `TCP_CORK` or `MSG_MORE` holds back.
    pub cork_timer: bool,
    /// Whether `shutdown` ended the sending direction.
    pub is_shut: bool,
    /// Whether the stack knows the end of the sending direction.
    pub end_sent: bool,
    /// Whether `shutdown` ended the receiving direction.
    pub is_receive_shut: bool,
    /// Whether all descriptors are closed.
    pub is_closed: bool,
    /// Established connections that wait to be accepted.
    pub queue: VecDeque<Arc<TcpSocket>>,
    pub backlog: usize,
    pub native: Option<super::listening::NativeListener>,
}

impl State {
    /// Returns the events that depend on this end alone.
    pub fn events(&self) -> Events {
        let mut events = Events::NONE;
        if self.error.is_some() {
            events = events | Events::ERR | Events::IN | Events::OUT;
        }
        match self.phase {
            Phase::Idle => return events | Events::OUT | Events::HUP,
            Phase::Connecting => return events,
            Phase::Listening if self.queue.is_empty() => return events,
            Phase::Listening => return events | Events::IN,
            Phase::Ended => return events | Events::IN | Events::OUT | Events::RDHUP | Events::HUP,
            Phase::Connected => {}
        }
        let is_at_end = self.has_end || self.is_receive_shut;
        if is_at_end || !self.incoming.is_empty() {
            events = events | Events::IN;
        }
        if is_at_end {
            events = events | Events::RDHUP;
        }
        if self.is_shut {
            events = events | Events::OUT;
        }
        if is_at_end && self.is_shut {
            events = events | Events::HUP;
        }
        events
    }

    /// Checks that bytes can be sent.
    ///
    /// # Errors
    /// The pending error, [`Errno::EPIPE`], [`Errno::EAGAIN`].
    pub fn check_sending(&mut self) -> Result<(), Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.phase {
            Phase::Connected if !self.is_shut => Ok(()),
            Phase::Connecting => Err(Errno::EAGAIN),
            _ => Err(Errno::EPIPE),
        }
    }

    /// Returns the result of a read without bytes.
    pub fn end_of_bytes(&mut self) -> Result<usize, Errno> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.phase {
            Phase::Idle | Phase::Listening => Err(Errno::ENOTCONN),
            Phase::Ended => Ok(0),
            Phase::Connecting => Err(Errno::EAGAIN),
            Phase::Connected if self.has_end || self.is_receive_shut => Ok(0),
            Phase::Connected => Err(Errno::EAGAIN),
        }
    }

    /// Records the end of the connection. Returns bytes that will not be sent, to be dropped without the lock.
    pub fn end(&mut self, error: Option<Errno>) -> Chain {
        if error.is_some() {
            self.error = error;
        }
        self.phase = Phase::Ended;
        self.link = Link::None;
        self.has_end = true;
        core::mem::take(&mut self.outgoing)
    }
}
