//! Names and connections of unix sockets: bind, listen, connect, and the association of datagram sockets.

use super::services::{ListeningSocket, OpeningSocket, OwnService, RemoteService};
use super::socket::{Role, State, UnixSocket};
use crate::Errno;
use crate::address::{SocketAddress, UnixAddress};
use crate::message::PeerCredentials;
use crate::settings::SocketSettings;
use crate::socket::SocketCaller;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use isola_linux_abi::net::SO_PASSCRED;
use isola_linux_abi::numbers::AT_FDCWD;
use isola_linux_files::{Access, Events, Inode, InodeKind, LastLink, NewContent};

/// The permissions of the name of a socket, before the umask.
const NAME_PERMISSIONS: u32 = 0o777;

/// The receiver that an address names.
pub(super) enum Receiver {
    Socket(Arc<UnixSocket>),
    /// A service of another cell.
    Service(Arc<dyn Inode>),
}

impl UnixSocket {
    /// Chooses an abstract name if the socket has none.
    pub(super) fn bind_chosen(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.address == UnixAddress::Unnamed && !state.is_closed {
            state.address = UnixAddress::Abstract(self.shared.names.bind_chosen(self.kind, &self.this)?);
        }
        Ok(())
    }

    pub(super) fn bind_abstract(&self, name: &Arc<[u8]>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.address != UnixAddress::Unnamed {
            return Err(Errno::EINVAL);
        }
        self.shared.names.bind_abstract(self.kind, name, &self.this)?;
        state.address = UnixAddress::Abstract(name.clone());
        Ok(())
    }

    pub(super) async fn bind_path(&self, path: &Arc<[u8]>, caller: &SocketCaller<'_>) -> Result<(), Errno> {
        if self.address() != UnixAddress::Unnamed {
            return Err(Errno::EINVAL);
        }
        let created = caller.files.create_at(AT_FDCWD, path, NewContent::Socket, NAME_PERMISSIONS).await;
        let location =
            created.map_err(|error| if error == Errno::EEXIST { Errno::EADDRINUSE } else { error })?;
        let mut state = self.state.lock();
        // Another thread may have bound it meanwhile: the name stays, without a socket.
        if state.address != UnixAddress::Unnamed || state.is_closed {
            drop(state);
            return Err(Errno::EINVAL);
        }
        self.shared.names.bind_inode(&location, &self.this);
        state.address = UnixAddress::Path(path.clone());
        state.location = Some(location);
        Ok(())
    }

    /// Finds the socket of an address, or the service of another cell.
    pub(super) async fn find(
        &self,
        address: &SocketAddress,
        caller: &SocketCaller<'_>,
    ) -> Result<Receiver, Errno> {
        let SocketAddress::Unix(address) = address else { return Err(Errno::EINVAL) };
        let found = match address {
            UnixAddress::Unnamed => return Err(Errno::EINVAL),
            UnixAddress::Abstract(name) => self.shared.names.find_abstract(self.kind, name),
            UnixAddress::Path(path) => {
                let location = caller.files.locate(AT_FDCWD, path, LastLink::Follow).await?;
                let inode = location.inode();
                caller.files.credentials.check(&inode.ownership(), inode.kind(), Access::WRITE)?;
                if inode.kind() != InodeKind::Socket {
                    return Err(Errno::ECONNREFUSED);
                }
                if inode.downcast::<RemoteService>().is_some() {
                    let is_right = self.is_connection_based();
                    return if is_right {
                        Ok(Receiver::Service(inode.clone()))
                    } else {
                        Err(Errno::EPROTOTYPE)
                    };
                }
                self.shared.names.find_inode(inode)
            }
        };
        let found = found.ok_or(Errno::ECONNREFUSED)?;
        if found.kind == self.kind { Ok(Receiver::Socket(found)) } else { Err(Errno::EPROTOTYPE) }
    }

    /// Begins to open a channel to a service of another cell.
    pub(super) fn open_service(
        &self,
        service: &Arc<dyn Inode>,
        address: &SocketAddress,
    ) -> Result<(), Errno> {
        let (Some(service), SocketAddress::Unix(name)) = (service.downcast::<RemoteService>(), address)
        else {
            return Err(Errno::ECONNREFUSED);
        };
        service.open(OpeningSocket::begin(self, name.clone())?);
        Err(Errno::EINPROGRESS)
    }

    /// Accepts channels of other cells, if the socket's name is that of a service, unless it listens already.
    pub(super) async fn listen_for_channels(&self) -> Result<(), Errno> {
        let location = match &*self.state.lock() {
            State { role: Role::Unconnected, location, .. } => location.clone(),
            _ => None,
        };
        let Some(service) = location.as_ref().and_then(|at| at.inode().downcast::<OwnService>()) else {
            return Ok(());
        };
        let this = self.this.upgrade().ok_or(Errno::EBADF)?;
        service.listen(ListeningSocket::new(this)).await
    }

    /// Accepts connections from now on.
    pub(super) fn begin_to_listen(&self, backlog: usize, caller: PeerCredentials) -> Result<(), Errno> {
        let mut state = self.state.lock();
        match &mut state.role {
            Role::Unconnected => state.role = Role::Listening { backlog, pending: VecDeque::new() },
            Role::Listening { backlog: former, .. } => *former = backlog,
            Role::Connecting | Role::Opening | Role::Connected => return Err(Errno::EINVAL),
        }
        state.peer_credentials = Some(caller);
        drop(state);
        self.space.notify(Events::OUT);
        Ok(())
    }

    /// Attempts to connect to a listening socket. [`Errno::EAGAIN`] if its queue of connections is full.
    pub(super) fn connect_to(&self, listener: &Arc<Self>, caller: PeerCredentials) -> Result<(), Errno> {
        // The other's state is looked at before the own, as on Linux.
        listener.state.lock().place_for_connection()?;
        {
            let mut state = self.state.lock();
            match state.role {
                Role::Unconnected if !state.is_closed => state.role = Role::Connecting,
                Role::Connected => return Err(Errno::EISCONN),
                _ => return Err(Errno::EINVAL),
            }
        }
        let result = self.queue_connection(listener, caller);
        let mut state = self.state.lock();
        match result {
            Ok((peer, credentials)) if !state.is_closed => {
                state.role = Role::Connected;
                state.peer = Some(peer);
                state.peer_credentials = Some(credentials);
                drop(state);
                listener.pollee.notify(Events::IN);
                self.pollee.notify(Events::OUT);
                Ok(())
            }
            Ok((peer, _)) => {
                drop(state);
                peer.close_with(Errno::ECONNRESET);
                Err(Errno::ECONNRESET)
            }
            Err(error) => {
                state.role = Role::Unconnected;
                Err(error)
            }
        }
    }

    /// Adds a new socket, connected to this one, to the queue of a listening socket.
    fn queue_connection(
        &self,
        listener: &Arc<Self>,
        caller: PeerCredentials,
    ) -> Result<(Arc<Self>, PeerCredentials), Errno> {
        let this = self.this.upgrade().ok_or(Errno::EBADF)?;
        let mut state = listener.state.lock();
        let (address, credentials) = (state.address.clone(), state.peer_credentials);
        let pending = state.place_for_connection()?;
        let new = State {
            role: Role::Connected,
            address,
            peer: Some(this),
            peer_credentials: Some(caller),
            ..State::default()
        };
        let settings = SocketSettings::default();
        settings.switch(SO_PASSCRED, listener.settings.is_on(SO_PASSCRED));
        let socket = Self::with_state(&self.shared, self.kind, listener.creator, new, settings, None);
        socket.listener.store(listener.id(), Ordering::Relaxed);
        pending.push_back(socket.clone());
        Ok((socket, credentials.unwrap_or(listener.creator)))
    }

    /// Connects a datagram socket, or ends its association.
    pub(super) fn associate(&self, peer: Option<Arc<Self>>) -> Result<(), Errno> {
        if let Some(peer) = &peer
            && !peer.accepts_from(self)
        {
            return Err(Errno::EPERM);
        }
        let mut state = self.state.lock();
        let former = core::mem::replace(&mut state.peer, peer.clone());
        let is_same = former.as_ref().map(Arc::as_ptr) == peer.as_ref().map(Arc::as_ptr);
        // Messages of the former peer are lost.
        let lost = match &former {
            Some(_) if !is_same => {
                state.messages_with_rights = 0;
                core::mem::take(&mut state.queue)
            }
            _ => VecDeque::new(),
        };
        drop(state);
        if let Some(former) = former.filter(|_| !lost.is_empty()) {
            let mut state = former.state.lock();
            let is_connected = state.is_connected_to(self);
            if is_connected {
                state.error = Some(Errno::ECONNRESET);
            }
            drop(state);
            if is_connected {
                former.pollee.notify(Events::ERR);
            }
        }
        self.discard(lost);
        self.pollee.notify(Events::OUT);
        Ok(())
    }

    /// Returns whether a datagram socket accepts messages of another: it is connected to that one, or to none.
    pub(super) fn accepts_from(&self, sender: &Self) -> bool {
        let state = self.state.lock();
        state.peer.is_none() || state.is_connected_to(sender)
    }
}
