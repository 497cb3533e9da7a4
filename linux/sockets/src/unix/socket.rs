//! A unix socket: its state and its end.

use super::family::Shared;
use super::packet::Packet;
use crate::Errno;
use crate::address::UnixAddress;
use crate::message::PeerCredentials;
use crate::settings::SocketSettings;
use crate::socket::SocketKind;
use alloc::collections::VecDeque;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use isola_linux_files::{Events, Location, OpenFile, Pollee};
use spin::Mutex;

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
    pub(super) listener: AtomicU64,
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

impl State {
    pub fn is_full(&self) -> bool {
        self.queue.len() + self.reserved > MOST_DATAGRAMS
    }

    /// Returns the queue of connections if it has a place.
    pub(super) fn place_for_connection(&mut self) -> Result<&mut VecDeque<Arc<UnixSocket>>, Errno> {
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

    /// Closes the socket. `error` is that of a connected peer whose messages were not received.
    pub(super) fn close_with(&self, error: Errno) {
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
