//! TCP: who listens, who connects, and the stream that both get.

use crate::attribution::owner_of;
use crate::connection::Connection;
use crate::core_network::{NETWORK, stack_now};
use crate::handler::{ConnectionHandler, TcpConnection};
use crate::interface;
use alloc::boxed::Box;
use alloc::rc::Rc;
use alloc::sync::Arc;
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::SocketAddr;
use core::task::Poll;
use isola_abi::id::ActivityId;
use isola_events::{current_activity, spawn, spawn_task_for};
use isola_iobuf::Chain;
use isola_net_stack::{
    ConnId, ConnectError, ConnectionStats, EndCame, FailReason, KeepAlive, SendError, Stack,
};

/// Who listens at a port, on every core.
pub(crate) struct Listener {
    pub backlog: usize,
    /// Whom the connections are charged to.
    pub activity: ActivityId,
    /// What each core does with a connection that came to it.
    pub accept: Box<dyn Fn(Rc<Connection>) + Send + Sync>,
}

/// A port is taken: somebody in this cell listens there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInUse(pub u16);

impl fmt::Display for PortInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP port {} is taken in this cell: choose another", self.0)
    }
}

impl core::error::Error for PortInUse {}

/// Stops listening when it is dropped; connections that were made stay.
#[derive(Debug)]
#[must_use = "nobody listens any more once this is dropped"]
pub struct Listening {
    port: u16,
}

impl Listening {
    pub(crate) fn at(port: u16) -> Self {
        Self { port }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        interface::withdraw_listener(self.port);
    }
}

/// Has every connection to `port` served by a task of `serve`, on the core that the connection's flow belongs to, and
/// charged to the activity that listens. A core is woken by its first connection. At most `backlog` connections wait on a core to be taken.
///
/// # Errors
/// [`PortInUse`].
pub fn listen<F>(
    port: u16,
    backlog: usize,
    serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> Result<Listening, PortInUse>
where
    F: Future<Output = ()> + 'static,
{
    let activity = current_activity();
    let accept = Box::new(move |connection| {
        spawn_task_for(activity, serve(TcpStream::new(connection))).detach();
        // What it sends is worth waiting for.
        NETWORK.expect_calls();
    });
    interface::publish_listener(port, Arc::new(Listener { backlog, activity, accept }))
        .map_err(|()| PortInUse(port))?;
    Ok(Listening::at(port))
}

/// Connects to `remote`, from this core.
///
/// # Errors
/// [`StreamError`], where there is no way there, or nobody answers.
pub async fn connect(remote: SocketAddr) -> Result<TcpStream, StreamError> {
    let owner = owner_of(current_activity());
    let begin =
        |stack: &mut Stack| stack.connect(stack_now(), remote).inspect(|id| stack.set_owner(*id, owner));
    let begun = NETWORK.with(begin);
    let id = begun.ok_or(StreamError::NoNetwork)?.map_err(StreamError::Connect)?;
    let stream = TcpStream::new(NETWORK.add_connection(id));
    let connection = &stream.connection;
    poll_fn(|context| match connection.ended.get() {
        Some(reason) => Poll::Ready(Err(StreamError::from(reason))),
        None if connection.connected.get() => Poll::Ready(Ok(())),
        None => {
            connection.writer.set(Some(context.waker().clone()));
            Poll::Pending
        }
    })
    .await?;
    Ok(stream)
}

/// Why a stream is of no more use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The cell has no network.
    NoNetwork,
    /// The connection could not be begun.
    Connect(ConnectError),
    /// The connection ended before its time.
    Failed(FailReason),
    /// The connection is closed.
    Closed,
}

impl From<Option<FailReason>> for StreamError {
    fn from(reason: Option<FailReason>) -> Self {
        reason.map_or(Self::Closed, Self::Failed)
    }
}

impl fmt::Display for StreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNetwork => f.write_str("the cell has no network: run it with one"),
            Self::Connect(error) => error.fmt(f),
            Self::Failed(reason) => reason.fmt(f),
            Self::Closed => f.write_str("the connection is closed"),
        }
    }
}

impl core::error::Error for StreamError {}

/// A TCP connection, on the core that it belongs to.
///
/// Dropping it ends it: in good order, where all that came was read; by a reset, where data would be lost anyway.
pub struct TcpStream {
    connection: Rc<Connection>,
}

impl TcpStream {
    pub(crate) fn new(connection: Rc<Connection>) -> Self {
        Self { connection }
    }

    fn id(&self) -> ConnId {
        self.connection.id
    }

    /// All data that has come, once there is some, as views of the frames that it came in; `None` after the peer's
    /// last. What is not read is not acknowledged beyond the receive window: a slow reader slows its peer.
    ///
    /// # Errors
    /// [`StreamError::Failed`], where the connection ended before its time.
    pub async fn read(&mut self) -> Result<Option<Chain>, StreamError> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// As [`Self::read`], for use in hand-written futures.
    pub fn poll_read(
        &mut self,
        context: &mut core::task::Context<'_>,
    ) -> Poll<Result<Option<Chain>, StreamError>> {
        self.poll_incoming(context)
    }

    /// As [`Self::poll_read`], for the one who reads.
    pub(crate) fn poll_incoming(
        &self,
        context: &mut core::task::Context<'_>,
    ) -> Poll<Result<Option<Chain>, StreamError>> {
        if let Some(reason) = self.connection.ended.get() {
            return Poll::Ready(reason.map_or(Ok(None), |reason| Err(StreamError::Failed(reason))));
        }
        if self.connection.unread.get() {
            let (data, at_end) = self.connection.take();
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
            if at_end == EndCame::Yes {
                return Poll::Ready(Ok(None));
            }
        }
        self.connection.reader.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Hands data over for sending, waiting for room as often as it takes. What is handed over is sent and sent
    /// again from the very memory given.
    ///
    /// # Errors
    /// [`StreamError`], where the connection has ended or was shut down.
    pub async fn write(&mut self, mut data: Chain) -> Result<(), StreamError> {
        poll_fn(|context| self.poll_write(context, &mut data)).await
    }

    /// As [`Self::write`]: completes when all of `data` is handed over, and takes from it what was.
    pub fn poll_write(
        &mut self,
        context: &mut core::task::Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), StreamError>> {
        self.poll_outgoing(context, data)
    }

    /// As [`Self::poll_write`], for the one who writes.
    pub(crate) fn poll_outgoing(
        &self,
        context: &mut core::task::Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), StreamError>> {
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        if let Some(reason) = self.connection.ended.get() {
            return Poll::Ready(Err(reason.into()));
        }
        match NETWORK.with(|stack| stack.send_some(self.id(), data)) {
            Some(Ok(_)) if data.is_empty() => Poll::Ready(Ok(())),
            Some(Ok(_) | Err(SendError::NoSpace { .. })) => {
                self.connection.writer.set(Some(context.waker().clone()));
                Poll::Pending
            }
            Some(Err(_)) => Poll::Ready(Err(StreamError::Closed)),
            None => Poll::Ready(Err(StreamError::NoNetwork)),
        }
    }

    /// Has a handler serve the connection from now on, for the running event's activity.
    pub fn serve_by(self, handler: impl ConnectionHandler) -> TcpConnection {
        let (connection, activity) = (self.connection.clone(), current_activity());
        NETWORK.with(|stack| stack.set_owner(connection.id, owner_of(activity)));
        connection.serve_by(Box::new(handler), activity);
        let served = connection.clone();
        spawn(move || served.resume());
        TcpConnection::new(connection)
    }

    /// Says that nothing more will be sent; what was handed over still is. The peer may go on sending.
    pub fn shutdown(&mut self) {
        self.end_outgoing();
    }

    /// As [`Self::shutdown`], for the one who writes.
    pub(crate) fn end_outgoing(&self) {
        let id = self.id();
        NETWORK.with(|stack| stack.shutdown(id));
    }

    /// Sets how many bytes the peer may send ahead of what is read here: at most what the network manager's settings say
    /// ([`TcpConfig::max_receive_window`](crate::TcpConfig)). What was offered before stays offered; zero makes the peer wait.
    pub fn set_receive_window(&mut self, bytes: u32) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_window(id, bytes));
    }

    /// Sets how many bytes are kept for sending and sending again: [`Self::write`] waits for room beyond that. Less than is
    /// kept now is fine.
    pub fn set_send_limit(&mut self, bytes: usize) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_send_limit(id, bytes));
    }

    /// Bytes that [`Self::write`] takes now without waiting.
    pub fn send_space(&self) -> usize {
        NETWORK.look(|stack| stack.send_space(self.id())).unwrap_or(0)
    }

    /// Sets whether the peer is probed when it is silent, and the connection ended where it does not answer. A peer that is
    /// gone without a word is found out by that alone, as long as nothing is to be sent.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_keep_alive(id, keep_alive));
    }

    /// Ends the connection at once, by a reset; what was not sent is lost.
    pub fn abort(self) {
        let id = self.id();
        NETWORK.with(|stack| stack.abort(stack_now(), id));
    }

    /// The peer's address; `None` once the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        NETWORK.look(|stack| stack.remote_addr(self.id())).flatten()
    }

    /// This side's address; `None` once the connection has ended.
    pub fn local(&self) -> Option<SocketAddr> {
        NETWORK.look(|stack| stack.local_addr(self.id())).flatten()
    }

    /// What the connection did so far; `None` once it has ended.
    pub fn statistics(&self) -> Option<ConnectionStats> {
        NETWORK.look(|stack| stack.connection_stats(self.id())).flatten()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        // What a handler serves goes on without the stream.
        if self.connection.is_released() {
            let id = self.id();
            NETWORK.remove_connection(id);
            NETWORK.with(|stack| stack.close(stack_now(), id));
        }
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TcpStream({:?})", self.id())
    }
}
