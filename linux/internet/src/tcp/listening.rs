//! Listening sockets.

use super::handler::Handler;
use super::socket::TcpSocket;
use super::state::{Link, Phase, State};
use crate::families::Internet;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use core::net::SocketAddr;
use isola_linux_files::Events;
use isola_linux_sockets::{Errno, Socket};
use isola_net::{PortListener, TcpConnection, listen_with};
use spin::Mutex;

/// The connections of a core that have completed their handshakes and for which the handler was not created yet.
const NATIVE_BACKLOG: usize = 128;

/// The ports at which the stack listens for sockets.
#[derive(Default)]
pub(crate) struct NativeListeners(Mutex<BTreeMap<u16, (PortListener, usize)>>);

/// The use of a port at which the stack listens.
pub(super) struct NativeListener {
    internet: Arc<Internet>,
    port: u16,
}

impl NativeListener {
    /// Makes the stack listen at a port, if it does not yet.
    ///
    /// # Errors
    /// [`Errno::EADDRINUSE`] if a component of the cell itself has the port.
    fn new(internet: &Arc<Internet>, port: u16) -> Result<Self, Errno> {
        let mut listeners = internet.listeners.0.lock();
        if let Some((_, users)) = listeners.get_mut(&port) {
            *users += 1;
        } else {
            let weak = Arc::downgrade(internet);
            let listener = listen_with(port, NATIVE_BACKLOG, move |connection| {
                let socket = weak.upgrade().and_then(|internet| accept(&internet, connection));
                if socket.is_none() {
                    connection.abort();
                }
                Handler(socket)
            });
            listeners.insert(port, (listener.map_err(|_| Errno::EADDRINUSE)?, 1));
        }
        drop(listeners);
        Ok(Self { internet: internet.clone(), port })
    }
}

impl Drop for NativeListener {
    fn drop(&mut self) {
        let mut listeners = self.internet.listeners.0.lock();
        if let Some((_, users)) = listeners.get_mut(&self.port) {
            *users -= 1;
            if *users == 0 {
                let last = listeners.remove(&self.port);
                drop(listeners);
                drop(last);
            }
        }
    }
}

/// Returns the socket of a new connection, which waits to be accepted; `None` if no socket listens at its address, or too
/// many connections wait.
fn accept(internet: &Internet, connection: &TcpConnection) -> Option<Arc<TcpSocket>> {
    let (local, remote) = (connection.local()?, connection.peer()?);
    let listener = internet.tcp.find_listener(local.ip(), local.port(), usize::from(remote.port()))?;
    let socket = listener.new_connection(State {
        phase: Phase::Connected,
        link: Link::Native(connection.id()),
        local: Some(local),
        remote: Some(remote),
        ..State::default()
    });
    listener.offer(socket.clone()).ok()?;
    socket.apply_keep_alive();
    Some(socket)
}

impl TcpSocket {
    /// Listens, or changes the number of connections that may wait.
    pub(super) fn begin_to_listen(&self, backlog: usize) -> Result<(), Errno> {
        let mut state = self.state();
        match state.phase {
            Phase::Idle => {}
            Phase::Listening => {
                state.backlog = backlog;
                return Ok(());
            }
            Phase::Connecting | Phase::Connected | Phase::Ended => return Err(Errno::EINVAL),
        }
        drop(state);
        let port = self.bind_if_unbound(self.domain.unspecified())?;
        let state = self.state();
        let Some(binding) = &state.binding else { return Err(Errno::EINVAL) };
        let scope = binding.scope();
        binding.listen()?;
        drop(state);
        let native =
            if scope.is_reachable() { Some(NativeListener::new(&self.internet, port)?) } else { None };
        let mut state = self.state();
        state.phase = Phase::Listening;
        state.backlog = backlog;
        let former = core::mem::replace(&mut state.native, native);
        drop(state);
        drop(former);
        Ok(())
    }

    /// Creates the socket of a connection to this listening socket.
    pub(super) fn new_connection(&self, state: State) -> Arc<Self> {
        let (settings, options) = (self.settings.inherited(), self.options.inherited());
        Self::create(self.internet.clone(), self.domain, settings, options, state)
    }

    /// Adds a connection to those that wait to be accepted.
    ///
    /// # Errors
    /// The connection, if too many wait.
    pub(super) fn offer(&self, socket: Arc<Self>) -> Result<(), Arc<Self>> {
        let mut state = self.state();
        // As on Linux: one more than the number of `listen`.
        if state.phase != Phase::Listening || state.queue.len() > state.backlog {
            return Err(socket);
        }
        state.queue.push_back(socket);
        drop(state);
        self.pollee.notify(Events::IN);
        Ok(())
    }

    /// Takes a connection that waits.
    pub(super) fn take_connection(&self) -> Result<Arc<dyn Socket>, Errno> {
        let mut state = self.state();
        if state.phase != Phase::Listening {
            return Err(Errno::EINVAL);
        }
        let socket = state.queue.pop_front().ok_or(Errno::EAGAIN)?;
        drop(state);
        Ok(socket)
    }

    /// Stops listening. Connections that wait are reset.
    pub(super) fn stop_listening(&self) {
        let mut state = self.state();
        state.phase = Phase::Idle;
        let (queue, native, binding) =
            (core::mem::take(&mut state.queue), state.native.take(), state.binding.take());
        let bound: Option<SocketAddr> = state.bound.take();
        drop(state);
        drop((native, binding, bound));
        for socket in queue {
            socket.reset();
        }
    }
}
