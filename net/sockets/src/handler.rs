//! Connection handlers: called with received data, in the event in which it arrived (EbbRT 3.4.1's `Receive`). This is
//! the shortest path through the network; futures ([`crate::tcp`]) are more convenient.
//!
//! ```ignore
//! struct Echo;
//!
//! impl ConnectionHandler for Echo {
//!     fn received(&mut self, connection: &TcpConnection, mut data: Chain) {
//!         let _ = connection.send(&mut data);
//!     }
//! }
//!
//! let _listening = listen_with(7, 128, |_| Echo)?;
//! ```

use crate::attribution::owner_of;
use crate::connection::Connection;
use crate::core_network::{NETWORK, stack_now};
use crate::interface;
use crate::tcp::{Listener, PortInUse, PortListener, StreamError};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::fmt;
use core::net::SocketAddr;
use isola_ebbs::current_core;
use isola_events::current_activity;
use isola_iobuf::Chain;
use isola_net_stack::{ConnId, ConnectionStats, FailReason, KeepAlive, SendError, Stack};
use isola_platform::CoreIndex;

/// The handler of a connection. Its calls happen in events of the connection's core, one at a time, and must not block.
pub trait ConnectionHandler: 'static {
    /// Reports that a connection of [`connect_with`] is established.
    fn connected(&mut self, _connection: &TcpConnection) {}

    /// Delivers all received data, as views of the frames in which it arrived. Taken data opens the receive window; a
    /// handler that cannot keep up [pauses](TcpConnection::pause).
    fn received(&mut self, connection: &TcpConnection, data: Chain);

    /// Reports room for data that [`TcpConnection::send`] rejected.
    fn send_space(&mut self, _connection: &TcpConnection) {}

    /// Reports the end of the peer's stream, directly after the last data, also to a paused handler. A handler that has
    /// more to send must remember the end. By default this closes the connection after queued data is sent.
    fn peer_closed(&mut self, connection: &TcpConnection) {
        connection.close();
    }

    /// Makes the call that [`TcpConnection::call_again`] requested.
    fn called_again(&mut self, _connection: &TcpConnection) {}

    /// Prepares the move of the connection to another core ([`rebalance`](crate::rebalance)). Returns the handler that
    /// continues on the new core; this handler is not called any more. With `None` the handler stays, and so does the
    /// connection.
    ///
    /// The handler drops all [`TcpConnection`]s that it has stored. While others exist, the connection stays as well,
    /// and the returned handler continues on this core. A handler without per-core state can return itself:
    /// `Some(Box::new(core::mem::take(self)))`.
    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        None
    }

    /// Reports to the handler that [`Self::moving`] returned that it continues on this core, and passes the
    /// connection's new handle.
    fn arrived(&mut self, _connection: &TcpConnection) {}

    /// Reports the end of the connection, in order or for a reason. This is the last call.
    fn ended(&mut self, _reason: Option<FailReason>) {}
}

/// A handle of a connection with a handler. Clones refer to the same connection. Dropping all handles does not affect
/// it: it ends by [`Self::close`], by [`Self::abort`], or by the peer. After its end, calls do nothing.
#[derive(Clone)]
pub struct TcpConnection(Rc<Connection>);

impl TcpConnection {
    pub(crate) fn new(connection: Rc<Connection>) -> Self {
        Self(connection)
    }

    /// Returns the core's record of the connection.
    pub(crate) fn record(&self) -> &Connection {
        &self.0
    }

    /// Queues data for sending, all of it or none: `data` is empty after success and unchanged after failure. The stack
    /// sends it from the given memory at the end of the event. After [`SendError::NoSpace`],
    /// [`ConnectionHandler::send_space`] reports when there is room.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(&self, data: &mut Chain) -> Result<(), SendError> {
        let sent = NETWORK.with(|stack| stack.send(self.0.id, data));
        sent.unwrap_or(Err(SendError::NoConnection))
    }

    /// Queues like [`Self::send`], but takes as much from the front of `data` as there is room for; returns the number
    /// of bytes.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_some(&self, data: &mut Chain) -> Result<usize, SendError> {
        let sent = NETWORK.with(|stack| stack.send_some(self.0.id, data));
        sent.unwrap_or(Err(SendError::NoConnection))
    }

    /// Returns the number of bytes for which [`Self::send`] has room now.
    pub fn space(&self) -> usize {
        NETWORK.inspect(|stack| stack.send_space(self.0.id)).unwrap_or(0)
    }

    /// Sets the most bytes that are stored for sending and retransmission.
    pub fn set_send_limit(&self, bytes: usize) {
        NETWORK.with(|stack| stack.set_send_limit(self.0.id, bytes));
    }

    /// Sets the receive window: the bytes that the peer may send ahead of the handler.
    pub fn set_receive_window(&self, bytes: u32) {
        NETWORK.with(|stack| stack.set_window(self.0.id, bytes));
    }

    /// Stops delivery of data until [`Self::resume`]: received data waits, and a full receive window stops the peer.
    pub fn pause(&self) {
        self.0.paused.set(true);
    }

    /// Resumes delivery of data, in a separate event, beginning with the waiting data.
    pub fn resume(&self) {
        if self.0.paused.replace(false) && self.0.unread.get() {
            self.0.resume_later();
        }
    }

    /// Requests a call of [`ConnectionHandler::called_again`] in a separate event, behind those that wait now: for a
    /// handler that waits for something other than its peer. If the connection moves to another core first,
    /// [`ConnectionHandler::arrived`] replaces that call.
    pub fn call_again(&self) {
        self.0.call_later(Connection::called_again);
    }

    /// Sets whether a silent peer is probed.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        NETWORK.with(|stack| stack.set_keep_alive(self.0.id, keep_alive));
    }

    /// Ends the sending direction after queued data. The peer may continue to send.
    pub fn shutdown(&self) {
        NETWORK.with(|stack| stack.shutdown(self.0.id));
    }

    /// Releases the connection, which closes in order by itself after queued data is sent. The handler is not called
    /// any more.
    pub fn close(&self) {
        self.detach();
        NETWORK.with(|stack| stack.close(stack_now(), self.0.id));
    }

    /// Resets the connection; unsent data is lost. The handler is not called any more.
    pub fn abort(&self) {
        self.detach();
        NETWORK.with(|stack| stack.abort(stack_now(), self.0.id));
    }

    /// Returns the connection's identity, with which other cores name it.
    pub fn id(&self) -> ConnectionId {
        ConnectionId { core: current_core(), id: self.0.id }
    }

    fn detach(&self) {
        NETWORK.remove_connection(self.0.id);
        self.0.release();
    }

    /// Returns the peer's address; `None` once the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        NETWORK.inspect(|stack| stack.remote_addr(self.0.id)).flatten()
    }

    /// Returns the local address; `None` once the connection has ended.
    pub fn local(&self) -> Option<SocketAddr> {
        NETWORK.inspect(|stack| stack.local_addr(self.0.id)).flatten()
    }

    /// Returns the connection's statistics; `None` once it has ended.
    pub fn statistics(&self) -> Option<ConnectionStats> {
        NETWORK.inspect(|stack| stack.connection_stats(self.0.id)).flatten()
    }
}

impl fmt::Debug for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpConnection({:?})", self.0.id)
    }
}

/// The identity of a connection with a handler, which all cores can store. It is invalid after the connection has ended or
/// has [moved](ConnectionHandler::moving) to another core, where it has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionId {
    core: CoreIndex,
    id: ConnId,
}

impl ConnectionId {
    /// Returns the core of the connection.
    pub fn core(self) -> CoreIndex {
        self.core
    }

    /// Returns the connection if the calling core has it; `None` on other cores, and if the id is invalid.
    #[inline]
    pub fn here(self) -> Option<TcpConnection> {
        if self.core != current_core() {
            return None;
        }
        NETWORK.connection(self.id).map(TcpConnection)
    }
}

/// Connects to `remote` from the calling core, for the calling activity. `handler` serves the connection;
/// [`ConnectionHandler::connected`] or [`ConnectionHandler::ended`] follows.
///
/// # Errors
/// [`StreamError`], if there is no network, or the stack cannot open the connection.
pub fn connect_with(
    remote: SocketAddr,
    handler: impl ConnectionHandler,
) -> Result<TcpConnection, StreamError> {
    let activity = current_activity();
    let owner = owner_of(activity);
    let begin =
        |stack: &mut Stack| stack.connect(stack_now(), remote).inspect(|id| stack.set_owner(*id, owner));
    let connecting = NETWORK.with(begin);
    let id = connecting.ok_or(StreamError::NoNetwork)?.map_err(StreamError::Connect)?;
    let connection = NETWORK.add_connection(id);
    connection.serve_by(Box::new(handler), activity);
    Ok(TcpConnection::new(connection))
}

/// Serves every connection to `port` by a handler that `accept` creates, on the core that owns the connection's flow,
/// charged to the calling activity. At most `backlog` connections wait on a core to be accepted.
///
/// # Errors
/// [`PortInUse`].
pub fn listen_with<H: ConnectionHandler>(
    port: u16,
    backlog: usize,
    accept: impl Fn(&TcpConnection) -> H + Send + Sync + 'static,
) -> Result<PortListener, PortInUse> {
    let activity = current_activity();
    let accept = Box::new(move |connection: Rc<Connection>, activity| {
        let handler = accept(&TcpConnection::new(connection.clone()));
        connection.serve_by(Box::new(handler), activity);
    });
    interface::publish_listener(port, Arc::new(Listener { backlog, activity, accept }))
        .map_err(|()| PortInUse(port))?;
    Ok(PortListener::at(port))
}
