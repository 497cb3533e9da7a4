//! A unix socket: its state, names and connections.

use super::family::Shared;
use super::packet::Packet;
use super::services::{ListeningSocket, OpeningSocket, OwnService, RemoteService};
use crate::Errno;
use crate::address::{SocketAddress, UnixAddress};
use crate::message::{Destination, MessageFlags, PeerCredentials, ReceivedMessage, SentMessage};
use crate::settings::SocketSettings;
use crate::socket::{Shutdown, Socket, SocketCaller, SocketFacts, SocketKind, Waiting};
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_linux_abi::net::{AF_UNIX, SO_PASSCRED};
use isola_linux_abi::numbers::AT_FDCWD;
use isola_linux_files::{
    Access, Events, Inode, InodeKind, LastLink, Location, NewContent, OpenFile, Outcome, Pollee,
};
use isola_linux_memory::{BoxFuture, UserBuffer};
use spin::Mutex;

/// The permissions of the name of a socket, before the umask.
const NAME_PERMISSIONS: u32 = 0o777;
/// The number of messages in the queue of a datagram socket from which on senders wait to which it is not connected
/// (`net.unix.max_dgram_qlen`).
pub(super) const MOST_DATAGRAMS: usize = 10;

/// A unix socket.
pub struct UnixSocket {
    pub(super) this: Weak<Self>,
    pub(super) shared: Arc<Shared>,
    pub(super) kind: SocketKind,
    pub(super) settings: SocketSettings,
    /// The most bytes of a message to it, if it is the end of a channel to another cell.
    pub(super) channel_most_len: Option<usize>,
    /// The process that created it.
    pub(super) creator: PeerCredentials,
    pub(super) state: Mutex<State>,
    /// The bytes of own messages that were not received yet, with [`super::packet::OVERHEAD`].
    pub(super) charge: AtomicUsize,
    /// The listening socket in whose queue it waits; 0 if in none.
    listener: AtomicU64,
    pub(super) pollee: Pollee,
    /// Tasks that wait for a place in its queue of messages or connections.
    pub(super) space: Pollee,
}

#[derive(Default)]
pub(super) struct State {
    pub role: Role,
    pub address: UnixAddress,
    pub location: Option<Location>,
    pub peer: Option<Arc<UnixSocket>>,
    pub peer_credentials: Option<PeerCredentials>,
    pub error: Option<Errno>,
    pub queue: VecDeque<Packet>,
    /// The number of messages in the queue with open files.
    pub messages_with_rights: usize,
    /// Places in the queue for messages whose bytes are being copied.
    pub reserved: usize,
    pub receive_ended: bool,
    pub send_ended: bool,
    pub is_closed: bool,
    /// Connected datagram sockets that found the queue full.
    pub waiting_senders: Vec<Weak<UnixSocket>>,
}

#[derive(Default)]
pub(super) enum Role {
    #[default]
    Unconnected,
    /// A call is connecting it.
    Connecting,
    /// It waits for a channel to another cell.
    Opening,
    Connected,
    Listening {
        backlog: usize,
        pending: VecDeque<Arc<UnixSocket>>,
    },
}

/// The receiver that an address names.
enum Found {
    Socket(Arc<UnixSocket>),
    /// A service of another cell.
    Service(Arc<dyn Inode>),
}

impl State {
    pub fn is_full(&self) -> bool {
        self.queue.len() + self.reserved > MOST_DATAGRAMS
    }

    /// Returns the queue of connections if it has a place.
    fn place_for_connection(&mut self) -> Result<&mut VecDeque<Arc<UnixSocket>>, Errno> {
        match &mut self.role {
            Role::Listening { .. } if self.receive_ended => Err(Errno::ECONNREFUSED),
            Role::Listening { backlog, pending } if pending.len() > *backlog => Err(Errno::EAGAIN),
            Role::Listening { pending, .. } => Ok(pending),
            _ => Err(Errno::ECONNREFUSED),
        }
    }

    pub fn is_connected_to(&self, socket: &UnixSocket) -> bool {
        self.peer.as_ref().is_some_and(|peer| core::ptr::eq(&raw const **peer, socket))
    }
}

impl UnixSocket {
    pub(super) fn new(shared: &Arc<Shared>, kind: SocketKind, creator: PeerCredentials) -> Arc<Self> {
        Self::with_state(shared, kind, creator, State::default(), SocketSettings::default(), None)
    }

    pub(super) fn with_state(
        shared: &Arc<Shared>,
        kind: SocketKind,
        creator: PeerCredentials,
        state: State,
        settings: SocketSettings,
        channel_most_len: Option<usize>,
    ) -> Arc<Self> {
        let socket = Arc::new_cyclic(|this: &Weak<Self>| Self {
            this: this.clone(),
            shared: shared.clone(),
            kind,
            settings,
            channel_most_len,
            creator,
            state: Mutex::new(state),
            charge: AtomicUsize::new(0),
            listener: AtomicU64::new(0),
            pollee: Pollee::new(),
            space: Pollee::new(),
        });
        shared.names.add(socket.id(), &socket.this);
        socket
    }

    pub(super) fn pair(
        shared: &Arc<Shared>,
        kind: SocketKind,
        creator: PeerCredentials,
    ) -> (Arc<Self>, Arc<Self>) {
        let (one, other) = (Self::new(shared, kind, creator), Self::new(shared, kind, creator));
        for (socket, peer) in [(&one, &other), (&other, &one)] {
            let mut state = socket.state.lock();
            state.role = Role::Connected;
            state.peer = Some(peer.clone());
            state.peer_credentials = Some(creator);
        }
        (one, other)
    }

    /// Returns its number.
    pub(super) fn id(&self) -> u64 {
        self.settings.id()
    }

    /// Returns the number of the socket that leads to its queue: itself, or the listening socket that has not accepted it.
    pub(super) fn queue_owner(&self) -> u64 {
        match self.listener.load(Ordering::Relaxed) {
            0 => self.id(),
            listener => listener,
        }
    }

    /// Passes the open files in its queue.
    pub(super) fn each_right(&self, see: impl FnMut(&Arc<OpenFile>)) {
        self.state.lock().queue.iter().flat_map(|packet| &packet.rights).for_each(see);
    }

    /// Removes the open files from the messages in its queue.
    pub(super) fn take_rights(&self) -> Vec<Arc<OpenFile>> {
        let mut state = self.state.lock();
        state.messages_with_rights = 0;
        state.queue.iter_mut().flat_map(|packet| core::mem::take(&mut packet.rights)).collect()
    }

    pub(super) fn is_connection_based(&self) -> bool {
        self.kind != SocketKind::Datagram
    }

    pub(super) fn address(&self) -> UnixAddress {
        self.state.lock().address.clone()
    }

    /// Returns its line of `/proc/net/unix`.
    pub(super) fn line(&self) -> String {
        /// `SS_UNCONNECTED`, `SS_CONNECTING`, `SS_CONNECTED`, and `__SO_ACCEPTCON`.
        const UNCONNECTED: u32 = 1;
        const CONNECTING: u32 = 2;
        const CONNECTED: u32 = 3;
        const LISTENS: u32 = 0x1_0000;
        let state = self.state.lock();
        let (flags, number) = match state.role {
            Role::Listening { .. } => (LISTENS, UNCONNECTED),
            Role::Connecting | Role::Opening => (0, CONNECTING),
            Role::Connected => (0, CONNECTED),
            Role::Unconnected if state.peer.is_some() => (0, CONNECTED),
            Role::Unconnected => (0, UNCONNECTED),
        };
        let shown = state.address.shown();
        drop(state);
        let kind = self.kind.number();
        let mut line = alloc::format!(
            "0000000000000000: 00000002 00000000 {flags:08X} {kind:04} {number:02} {:5}",
            self.id()
        );
        if !shown.is_empty() {
            line.push(' ');
            line.push_str(&String::from_utf8_lossy(&shown));
        }
        line
    }

    /// Chooses an abstract name if the socket has none.
    pub(super) fn bind_chosen(&self) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.address == UnixAddress::Unnamed && !state.is_closed {
            state.address = UnixAddress::Abstract(self.shared.names.bind_chosen(self.kind, &self.this)?);
        }
        Ok(())
    }

    fn bind_abstract(&self, name: &Arc<[u8]>) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.address != UnixAddress::Unnamed {
            return Err(Errno::EINVAL);
        }
        self.shared.names.bind_abstract(self.kind, name, &self.this)?;
        state.address = UnixAddress::Abstract(name.clone());
        Ok(())
    }

    async fn bind_path(&self, path: &Arc<[u8]>, caller: &SocketCaller<'_>) -> Result<(), Errno> {
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
    async fn find(&self, address: &SocketAddress, caller: &SocketCaller<'_>) -> Result<Found, Errno> {
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
                    return if is_right { Ok(Found::Service(inode.clone())) } else { Err(Errno::EPROTOTYPE) };
                }
                self.shared.names.find_inode(inode)
            }
        };
        let found = found.ok_or(Errno::ECONNREFUSED)?;
        if found.kind == self.kind { Ok(Found::Socket(found)) } else { Err(Errno::EPROTOTYPE) }
    }

    /// Begins to open a channel to a service of another cell.
    fn open_service(&self, service: &Arc<dyn Inode>, address: &SocketAddress) -> Result<(), Errno> {
        let (Some(service), SocketAddress::Unix(name)) = (service.downcast::<RemoteService>(), address)
        else {
            return Err(Errno::ECONNREFUSED);
        };
        service.open(OpeningSocket::begin(self, name.clone())?);
        Err(Errno::EINPROGRESS)
    }

    /// Accepts channels of other cells, if the socket's name is that of a service, unless it listens already.
    async fn listen_for_channels(&self) -> Result<(), Errno> {
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
    fn begin_to_listen(&self, backlog: usize, caller: PeerCredentials) -> Result<(), Errno> {
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
    fn associate(&self, peer: Option<Arc<Self>>) -> Result<(), Errno> {
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

    /// Closes the socket. `error` is that of a connected peer whose messages were not received.
    fn close_with(&self, error: Errno) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.is_closed = true;
        (state.receive_ended, state.send_ended) = (true, true);
        let queue = core::mem::take(&mut state.queue);
        let peer = state.peer.take();
        let location = state.location.take();
        // Messages that were not received yet show it.
        let address = state.address.clone();
        let role = core::mem::take(&mut state.role);
        let senders = core::mem::take(&mut state.waiting_senders);
        drop(state);
        if let UnixAddress::Abstract(name) = &address {
            self.shared.names.unbind_abstract(self.kind, name, &self.this);
        }
        if let Some(location) = location {
            self.shared.names.unbind_inode(&location);
        }
        self.shared.names.remove(self.id());
        let was_queued = self.listener.load(Ordering::Relaxed) != 0;
        if let (true, Some(peer)) = (self.is_connection_based(), &peer) {
            let mut state = peer.state.lock();
            (state.receive_ended, state.send_ended) = (true, true);
            if !queue.is_empty() || was_queued {
                state.error = Some(error);
            }
            drop(state);
            peer.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP | Events::ERR);
        }
        if let Role::Listening { pending, .. } = role {
            pending.into_iter().for_each(|socket| socket.close_with(Errno::ECONNRESET));
        }
        self.discard(queue);
        self.space.notify(Events::OUT);
        self.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP);
        for sender in senders.iter().filter_map(Weak::upgrade) {
            sender.pollee.notify(Events::OUT);
        }
    }

    /// Drops messages: their senders have space again, and their open files are closed.
    pub(super) fn discard(&self, queue: VecDeque<Packet>) {
        let mut rights = Vec::new();
        for packet in queue {
            packet.sender.uncharge(packet.charge);
            rights.extend(packet.rights);
        }
        if !rights.is_empty() {
            let mut held = self.shared.flight.hold();
            self.shared.flight.received(&mut held, &rights);
            drop(held);
            self.shared.flight.close(rights);
        }
    }
}

impl Socket for UnixSocket {
    fn facts(&self) -> SocketFacts {
        SocketFacts { domain: AF_UNIX, kind: self.kind, protocol: 0 }
    }

    fn settings(&self) -> &SocketSettings {
        &self.settings
    }

    fn settings_changed(&self) {
        // A longer send buffer may have space.
        self.pollee.notify(Events::OUT);
    }

    fn bind<'a>(&'a self, address: &'a SocketAddress, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        match address {
            SocketAddress::Unix(UnixAddress::Unnamed) => self.bind_chosen().into(),
            SocketAddress::Unix(UnixAddress::Abstract(name)) => self.bind_abstract(name).into(),
            SocketAddress::Unix(UnixAddress::Path(path)) => Outcome::of(self.bind_path(path, caller)),
            _ => Outcome::error(Errno::EINVAL),
        }
    }

    fn listen<'a>(&'a self, backlog: usize, caller: &'a SocketCaller<'a>) -> Outcome<'a, ()> {
        if !self.is_connection_based() {
            return Outcome::error(Errno::EOPNOTSUPP);
        }
        let state = self.state.lock();
        if state.address == UnixAddress::Unnamed {
            return Outcome::error(Errno::EINVAL);
        }
        let has_service =
            state.location.as_ref().is_some_and(|at| at.inode().downcast::<OwnService>().is_some());
        drop(state);
        let credentials = caller.credentials;
        if !has_service {
            return self.begin_to_listen(backlog, credentials).into();
        }
        Outcome::of(async move {
            self.listen_for_channels().await?;
            self.begin_to_listen(backlog, credentials)
        })
    }

    fn accept(&self) -> Result<Arc<dyn Socket>, Errno> {
        if !self.is_connection_based() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let ended = state.receive_ended;
        let Role::Listening { pending, .. } = &mut state.role else { return Err(Errno::EINVAL) };
        let Some(socket) = pending.pop_front() else {
            return Err(if ended { Errno::EINVAL } else { Errno::EAGAIN });
        };
        socket.listener.store(0, Ordering::Relaxed);
        drop(state);
        self.space.notify(Events::OUT);
        Ok(socket)
    }

    fn connect<'a>(
        &'a self,
        address: &'a SocketAddress,
        waiting: Waiting,
        caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, ()> {
        if !self.is_connection_based() && *address == SocketAddress::Unspecified {
            return self.associate(None).into();
        }
        Outcome::of(async move {
            if self.settings.is_on(SO_PASSCRED) {
                self.bind_chosen()?;
            }
            loop {
                let found = match self.find(address, caller).await? {
                    Found::Socket(found) => found,
                    Found::Service(service) => return self.open_service(&service, address),
                };
                if !self.is_connection_based() {
                    return self.associate(Some(found));
                }
                match self.connect_to(&found, caller.credentials) {
                    Err(Errno::EAGAIN) if waiting == Waiting::Permitted => {
                        let ready = || {
                            let state = found.state.lock();
                            match &state.role {
                                Role::Listening { backlog, pending } if pending.len() > *backlog => {
                                    Events::NONE
                                }
                                _ => Events::OUT,
                            }
                        };
                        found.space.wait(Events::OUT, ready).await;
                    }
                    result => return result,
                }
            }
        })
    }

    fn destination<'a>(
        &'a self,
        address: &'a SocketAddress,
        caller: &'a SocketCaller<'a>,
    ) -> Outcome<'a, Option<Destination>> {
        let fails = {
            let state = self.state.lock();
            state.send_ended || state.error.is_some()
        };
        if self.is_connection_based() || fails {
            // An address of a connection is an error or is ignored, and the own state is an error before it.
            return Outcome::ok(None);
        }
        Outcome::of(async move {
            match self.find(address, caller).await? {
                Found::Socket(found) => {
                    let found: Destination = found;
                    Ok(Some(found))
                }
                Found::Service(_) => Err(Errno::EPROTOTYPE),
            }
        })
    }

    fn send(&self, buffer: &mut UserBuffer, message: &mut SentMessage) -> Result<usize, Errno> {
        self.send_message(buffer, message)
    }

    fn wait_to_send<'a>(&'a self, message: &'a SentMessage) -> BoxFuture<'a, ()> {
        alloc::boxed::Box::pin(self.wait_for_space(message))
    }

    fn receive(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        self.receive_message(buffer, flags, message)
    }

    fn shutdown(&self, how: Shutdown) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.receive_ended |= how.receive;
        state.send_ended |= how.send;
        let peer = state.peer.clone().filter(|_| self.is_connection_based());
        drop(state);
        if let Some(peer) = peer {
            let mut state = peer.state.lock();
            state.receive_ended |= how.send;
            state.send_ended |= how.receive;
            drop(state);
            peer.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP);
        }
        self.space.notify(Events::OUT);
        self.pollee.notify(Events::IN | Events::OUT | Events::HUP | Events::RDHUP);
        Ok(())
    }

    fn local_address(&self) -> Result<SocketAddress, Errno> {
        Ok(SocketAddress::Unix(self.address()))
    }

    fn peer_address(&self) -> Result<SocketAddress, Errno> {
        let peer = self.state.lock().peer.clone().ok_or(Errno::ENOTCONN)?;
        Ok(SocketAddress::Unix(peer.address()))
    }

    fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    fn is_listening(&self) -> bool {
        matches!(self.state.lock().role, Role::Listening { .. })
    }

    fn peer_credentials(&self) -> PeerCredentials {
        let unknown = PeerCredentials { process: 0, user: u32::MAX, group: u32::MAX };
        self.state.lock().peer_credentials.unwrap_or(unknown)
    }

    fn option(&self, level: u32, _name: u32) -> Result<Vec<u8>, Errno> {
        Err(if level == isola_linux_abi::net::SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn set_option(&self, level: u32, _: u32, _: &[u8], _: &SocketCaller<'_>) -> Result<(), Errno> {
        Err(if level == isola_linux_abi::net::SOL_SOCKET { Errno::ENOPROTOOPT } else { Errno::EOPNOTSUPP })
    }

    fn readable_len(&self) -> Result<usize, Errno> {
        let state = self.state.lock();
        if matches!(state.role, Role::Listening { .. }) {
            return Err(Errno::EINVAL);
        }
        let mut lens = state.queue.iter().map(|packet| packet.rest().len());
        Ok(if self.is_connection_based() { lens.sum() } else { lens.next().unwrap_or(0) })
    }

    fn unsent_len(&self) -> Result<usize, Errno> {
        if self.is_listening() { Err(Errno::EINVAL) } else { Ok(self.charge.load(Ordering::Relaxed)) }
    }

    fn ready(&self) -> Events {
        let state = self.state.lock();
        if matches!(state.role, Role::Opening) {
            return Events::NONE;
        }
        let mut events = Events::NONE;
        if state.error.is_some() {
            events = events | Events::ERR;
        }
        if state.receive_ended {
            events = events | Events::RDHUP | Events::IN;
            if state.send_ended {
                events = events | Events::HUP;
            }
        }
        let has_input = match &state.role {
            Role::Listening { pending, .. } => !pending.is_empty(),
            _ => !state.queue.is_empty(),
        };
        if has_input {
            events = events | Events::IN;
        }
        let is_listening = matches!(state.role, Role::Listening { .. });
        if self.is_connection_based() && matches!(state.role, Role::Unconnected | Role::Connecting) {
            events = events | Events::HUP;
        }
        let peer = if self.is_connection_based() { None } else { state.peer.clone() };
        drop(state);
        let is_quarter_used = self.charge.load(Ordering::Relaxed) * 4 > self.settings.send_buffer();
        if !is_listening && !is_quarter_used && peer.is_none_or(|peer| self.may_send_to(&peer)) {
            events = events | Events::OUT;
        }
        events
    }

    fn pollee(&self) -> &Pollee {
        &self.pollee
    }

    fn close(&self) {
        self.close_with(Errno::ECONNRESET);
    }
}
