//! Connections served by handlers: called at once with what came, in the event in which it came (EbbRT 3.4.1's
//! `Receive`). The shortest way through the network; futures ([`crate::tcp`]) are the more comfortable one.
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

use crate::connection::Connection;
use crate::core_network::{NETWORK, stack_now};
use crate::interface;
use crate::tcp::{Listener, Listening, PortInUse};
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::fmt;
use core::net::SocketAddr;
use isola_events::current_activity;
use isola_iobuf::Chain;
use isola_net_stack::{ConnectionStats, FailReason, KeepAlive, SendError};

/// What is told of a connection. Calls come in events of the connection's core, one at a time, and must not wait.
pub trait ConnectionHandler: 'static {
    /// Data came: all of it, as views of the frames that it came in. What is taken opens the receive window; a handler that
    /// cannot keep up [pauses](TcpConnection::pause).
    fn received(&mut self, connection: &TcpConnection, data: Chain);

    /// What [`TcpConnection::send`] refused fits now.
    fn send_space(&mut self, _connection: &TcpConnection) {}

    /// The peer has sent all it will: told right behind the last data, also to a handler that has paused. One that still has
    /// something to send has to remember it. Unless the handler says otherwise, that ends this side too, after what was sent.
    fn peer_closed(&mut self, connection: &TcpConnection) {
        connection.close();
    }

    /// What [`TcpConnection::call_again`] asked for.
    fn called_again(&mut self, _connection: &TcpConnection) {}

    /// The connection is to go to another core ([`rebalance`](crate::rebalance)): what goes on there in the place of this
    /// handler, which is told nothing more. `None`: the handler stays, and the connection with it.
    ///
    /// The handler lets go of all [`TcpConnection`]s that it has kept. While somebody else has one, the connection stays as
    /// well, and what was returned goes on here. A handler without anything of its core's own is as good there:
    /// `Some(Box::new(core::mem::take(self)))`.
    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        None
    }

    /// What [`Self::moving`] returned goes on here, with the connection under this name.
    fn arrived(&mut self, _connection: &TcpConnection) {}

    /// The connection is over, in good order or for a reason. The last call.
    fn ended(&mut self, _reason: Option<FailReason>) {}
}

/// A connection that a handler serves. Clones name the same one; the last of them gone leaves it as it is: it ends by
/// [`Self::close`], [`Self::abort`], or by the peer. Once it has, calls do nothing.
#[derive(Clone)]
pub struct TcpConnection(Rc<Connection>);

impl TcpConnection {
    pub(crate) fn new(connection: Rc<Connection>) -> Self {
        Self(connection)
    }

    /// What the core knows of the connection.
    pub(crate) fn record(&self) -> &Connection {
        &self.0
    }

    /// Queues data for sending, all of it or none: `data` is empty after success and as it was after failure. It is sent
    /// from the very memory given, when the event is over. After [`SendError::NoSpace`],
    /// [`ConnectionHandler::send_space`] tells when it fits.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(&self, data: &mut Chain) -> Result<(), SendError> {
        let sent = NETWORK.with(|stack| stack.send(self.0.id, data));
        sent.unwrap_or(Err(SendError::NoConnection))
    }

    /// As [`Self::send`], but takes as much as fits off the front of `data`; returns how many bytes.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_some(&self, data: &mut Chain) -> Result<usize, SendError> {
        let sent = NETWORK.with(|stack| stack.send_some(self.0.id, data));
        sent.unwrap_or(Err(SendError::NoConnection))
    }

    /// Bytes that [`Self::send`] takes now.
    pub fn space(&self) -> usize {
        NETWORK.look(|stack| stack.send_space(self.0.id)).unwrap_or(0)
    }

    /// Sets how many bytes are kept for sending and sending again.
    pub fn set_send_limit(&self, bytes: usize) {
        NETWORK.with(|stack| stack.set_send_limit(self.0.id, bytes));
    }

    /// Sets how many bytes the peer may send ahead of the handler.
    pub fn set_receive_window(&self, bytes: u32) {
        NETWORK.with(|stack| stack.set_window(self.0.id, bytes));
    }

    /// Has no data handed over until [`Self::resume`]: what comes waits, and once the receive window is full the peer
    /// waits.
    pub fn pause(&self) {
        self.0.paused.set(true);
    }

    /// Has data handed over again, first what came meanwhile: in an event of its own.
    pub fn resume(&self) {
        if self.0.paused.replace(false) && self.0.unread.get() {
            self.0.resume_later();
        }
    }

    /// Has [`ConnectionHandler::called_again`] called in an event of its own, behind those that wait now: for a handler that
    /// waits for something else than its peer. Where the connection goes to another core first,
    /// [`ConnectionHandler::arrived`] takes its place.
    pub fn call_again(&self) {
        self.0.call_later(Connection::called_again);
    }

    /// Sets whether the peer is probed when it is silent.
    pub fn set_keep_alive(&self, keep_alive: Option<KeepAlive>) {
        NETWORK.with(|stack| stack.set_keep_alive(self.0.id, keep_alive));
    }

    /// Says that nothing more will be sent; what was handed over still is. The peer may go on sending.
    pub fn shutdown(&self) {
        NETWORK.with(|stack| stack.shutdown(self.0.id));
    }

    /// Lets go of the connection, which ends in good order by itself, after what was sent. The handler is told nothing
    /// more.
    pub fn close(&self) {
        self.let_go();
        NETWORK.with(|stack| stack.close(stack_now(), self.0.id));
    }

    /// Ends the connection at once, by a reset; what was not sent is lost. The handler is told nothing more.
    pub fn abort(&self) {
        self.let_go();
        NETWORK.with(|stack| stack.abort(stack_now(), self.0.id));
    }

    fn let_go(&self) {
        NETWORK.remove_connection(self.0.id);
        self.0.release();
    }

    /// The peer's address; `None` once the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        NETWORK.look(|stack| stack.remote_addr(self.0.id)).flatten()
    }

    /// What the connection did so far; `None` once it has ended.
    pub fn statistics(&self) -> Option<ConnectionStats> {
        NETWORK.look(|stack| stack.connection_stats(self.0.id)).flatten()
    }
}

impl fmt::Debug for TcpConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpConnection({:?})", self.0.id)
    }
}

/// Has every connection to `port` served by a handler that `accept` makes, on the core that the connection's flow belongs
/// to, and charged to the activity that listens. At most `backlog` connections wait on a core to be taken.
///
/// # Errors
/// [`PortInUse`].
pub fn listen_with<H: ConnectionHandler>(
    port: u16,
    backlog: usize,
    accept: impl Fn(&TcpConnection) -> H + Send + Sync + 'static,
) -> Result<Listening, PortInUse> {
    let activity = current_activity();
    let accept = Box::new(move |connection: Rc<Connection>| {
        let handler = accept(&TcpConnection::new(connection.clone()));
        connection.serve_by(Box::new(handler), activity);
    });
    interface::publish_listener(port, Arc::new(Listener { backlog, activity, accept }))
        .map_err(|()| PortInUse(port))?;
    Ok(Listening::at(port))
}
