//! TCP: listening, connecting, and streams.

use crate::attribution::owner_of;
use crate::connection::{Connection, EarlyRead};
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
    ConnId, ConnectError, ConnectionStats, FailReason, KeepAlive, SendError, Stack, StreamEnd,
};

/// A listener of a port, on all cores.
pub(crate) struct Listener {
    pub backlog: usize,
    /// The activity that is charged for connections to which no rule assigns another.
    pub activity: ActivityId,
    /// The function that handles an accepted connection, on its core, for the connection's activity.
    pub accept: Box<dyn Fn(Rc<Connection>, ActivityId) + Send + Sync>,
}

/// Another listener in this cell has the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortInUse(pub u16);

impl fmt::Display for PortInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TCP port {} is taken in this cell: choose another", self.0)
    }
}

impl core::error::Error for PortInUse {}

/// A listening port. Dropping it stops listening; established connections stay.
#[derive(Debug)]
#[must_use = "dropping this stops listening"]
pub struct PortListener {
    port: u16,
}

impl PortListener {
    pub(crate) fn at(port: u16) -> Self {
        Self { port }
    }
}

impl Drop for PortListener {
    fn drop(&mut self) {
        interface::withdraw_listener(self.port);
    }
}

/// Serves every connection to `port` by a task of `serve`, on the core that owns the connection's flow, charged to the
/// calling activity, or to that of a [rule](crate::add_activity_rule). The first connection wakes an unused core. At most `backlog` connections wait on a core to be
/// accepted.
///
/// # Errors
/// [`PortInUse`].
pub fn listen<F>(
    port: u16,
    backlog: usize,
    serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> Result<PortListener, PortInUse>
where
    F: Future<Output = ()> + 'static,
{
    let activity = current_activity();
    let accept = Box::new(move |connection, activity| {
        spawn_task_for(activity, serve(TcpStream::new(connection))).detach();
        // The stack sends after this task has run.
        NETWORK.note_woken_task();
    });
    interface::publish_listener(port, Arc::new(Listener { backlog, activity, accept }))
        .map_err(|()| PortInUse(port))?;
    Ok(PortListener::at(port))
}

/// Connects to `remote`, from the calling core.
///
/// # Errors
/// [`StreamError`], if there is no route, or no answer.
pub async fn connect(remote: SocketAddr) -> Result<TcpStream, StreamError> {
    let owner = owner_of(current_activity());
    let begin =
        |stack: &mut Stack| stack.connect(stack_now(), remote).inspect(|id| stack.set_owner(*id, owner));
    let connecting = NETWORK.with(begin);
    let id = connecting.ok_or(StreamError::NoNetwork)?.map_err(StreamError::Connect)?;
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

/// The reason for which a stream is unusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamError {
    /// The cell has no network.
    NoNetwork,
    /// The connection could not be opened.
    Connect(ConnectError),
    /// The connection was aborted.
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

/// A TCP connection, on the core that owns it.
///
/// Dropping it ends the connection: in order if all received data was read, otherwise by a reset, as that data is lost.
pub struct TcpStream {
    connection: Rc<Connection>,
}

impl TcpStream {
    pub(crate) fn new(connection: Rc<Connection>) -> Self {
        Self { connection }
    }

    /// Returns the core's record of the connection.
    pub(crate) fn record(&self) -> &Connection {
        &self.connection
    }

    fn id(&self) -> ConnId {
        self.connection.id
    }

    /// Waits for data and returns all of it, as views of the frames in which it arrived; `None` after the end of the
    /// peer's stream. Unread data keeps the receive window closed: a slow reader slows its peer.
    ///
    /// # Errors
    /// [`StreamError::Failed`], if the connection was aborted.
    pub async fn read(&mut self) -> Result<Option<Chain>, StreamError> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// Reads like [`Self::read`], for hand-written futures.
    pub fn poll_read(
        &mut self,
        context: &mut core::task::Context<'_>,
    ) -> Poll<Result<Option<Chain>, StreamError>> {
        self.poll_incoming(context)
    }

    /// Sets a function that takes received data while a task waits in [`Self::read`], in the event in which the data
    /// arrived: a request that can be answered at once then costs no event and no poll of the task. The function must
    /// not block. It keeps what it does not process, and says whether the task is to be woken for that; the task looks
    /// there before it reads. At the end of the peer's stream, and for data that arrives while no task waits, the task
    /// reads as usual. A task that stops waiting for another reason [removes](Self::remove_early_reader) the function
    /// before it does anything else.
    pub fn set_early_reader(
        &mut self,
        early_reader: impl FnMut(&TcpConnection, Chain) -> EarlyRead + 'static,
    ) {
        self.connection.set_early_reader(Some(Box::new(early_reader)));
    }

    /// Removes the function of [`Self::set_early_reader`].
    pub fn remove_early_reader(&mut self) {
        self.connection.set_early_reader(None);
    }

    /// Reads like [`Self::poll_read`], for the reading half.
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
            if at_end == StreamEnd::Yes {
                return Poll::Ready(Ok(None));
            }
        }
        self.connection.reader.set(Some(context.waker().clone()));
        Poll::Pending
    }

    /// Queues data for sending, waiting for room as often as necessary. The stack sends and retransmits it from the
    /// given memory.
    ///
    /// # Errors
    /// [`StreamError`], if the connection has ended or was shut down.
    pub async fn write(&mut self, mut data: Chain) -> Result<(), StreamError> {
        poll_fn(|context| self.poll_write(context, &mut data)).await
    }

    /// Writes like [`Self::write`]: completes when all of `data` is queued, and removes the queued part from it.
    pub fn poll_write(
        &mut self,
        context: &mut core::task::Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), StreamError>> {
        self.poll_outgoing(context, data)
    }

    /// Writes like [`Self::poll_write`], for the writing half.
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

    /// Sets a handler that serves the connection from now on, for the running event's activity.
    pub fn serve_by(self, handler: impl ConnectionHandler) -> TcpConnection {
        let (connection, activity) = (self.connection.clone(), current_activity());
        NETWORK.with(|stack| stack.set_owner(connection.id, owner_of(activity)));
        connection.serve_by(Box::new(handler), activity);
        let served = connection.clone();
        spawn(move || served.resume());
        TcpConnection::new(connection)
    }

    /// Ends the sending direction after queued data. The peer may continue to send.
    pub fn shutdown(&mut self) {
        self.end_outgoing();
    }

    /// Ends the sending direction like [`Self::shutdown`], for the writing half.
    pub(crate) fn end_outgoing(&self) {
        let id = self.id();
        NETWORK.with(|stack| stack.shutdown(id));
    }

    /// Sets the receive window: the bytes that the peer may send ahead of the reader, at most the network manager's
    /// limit ([`TcpConfig::max_receive_window`](crate::TcpConfig)). An offered window is not withdrawn; zero makes the
    /// peer wait.
    pub fn set_receive_window(&mut self, bytes: u32) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_window(id, bytes));
    }

    /// Sets the most bytes that are stored for sending and retransmission; beyond that [`Self::write`] waits for room.
    /// The limit can be less than the bytes stored now.
    pub fn set_send_limit(&mut self, bytes: usize) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_send_limit(id, bytes));
    }

    /// Returns the number of bytes that [`Self::write`] queues now without waiting.
    pub fn send_space(&self) -> usize {
        NETWORK.inspect(|stack| stack.send_space(self.id())).unwrap_or(0)
    }

    /// Sets whether a silent peer is probed, and the connection ended if it does not answer. While nothing is to be
    /// sent, this alone detects a peer that is gone without notice.
    pub fn set_keep_alive(&mut self, keep_alive: Option<KeepAlive>) {
        let id = self.id();
        NETWORK.with(|stack| stack.set_keep_alive(id, keep_alive));
    }

    /// Resets the connection; unsent data is lost.
    pub fn abort(self) {
        let id = self.id();
        NETWORK.with(|stack| stack.abort(stack_now(), id));
    }

    /// Returns the peer's address; `None` once the connection has ended.
    pub fn peer(&self) -> Option<SocketAddr> {
        NETWORK.inspect(|stack| stack.remote_addr(self.id())).flatten()
    }

    /// Returns the local address; `None` once the connection has ended.
    pub fn local(&self) -> Option<SocketAddr> {
        NETWORK.inspect(|stack| stack.local_addr(self.id())).flatten()
    }

    /// Returns the connection's statistics; `None` once it has ended.
    pub fn statistics(&self) -> Option<ConnectionStats> {
        NETWORK.inspect(|stack| stack.connection_stats(self.id())).flatten()
    }
}

impl Drop for TcpStream {
    fn drop(&mut self) {
        // A connection with a handler continues without the stream.
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
