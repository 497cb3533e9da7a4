//! Connecting to a service of another cell.

use super::{ChannelEnd, FOREIGN, FirstResult, PacketChannel, first_of};
use crate::Errno;
use crate::address::UnixAddress;
use crate::settings::SocketSettings;
use crate::unix::socket::{Role, State, UnixSocket};
use alloc::sync::Arc;
use isola_linux_files::Events;

/// A socket that waits for a channel.
pub struct OpeningSocket {
    socket: Arc<UnixSocket>,
    /// The name of the service, which is that of the peer.
    name: UnixAddress,
}

impl OpeningSocket {
    /// Begins to connect a socket.
    pub(in super::super) fn begin(socket: &UnixSocket, name: UnixAddress) -> Result<Self, Errno> {
        let this = socket.this.upgrade().ok_or(Errno::EBADF)?;
        let mut state = socket.state.lock();
        match state.role {
            Role::Unconnected if !state.is_closed => state.role = Role::Opening,
            Role::Connected => return Err(Errno::EISCONN),
            Role::Opening => return Err(Errno::EALREADY),
            _ => return Err(Errno::EINVAL),
        }
        drop(state);
        Ok(Self { socket: this, name })
    }

    /// Waits for `opening`, and moves the messages of the channel until it ends. A socket that is closed before does not
    /// wait for the channel.
    pub async fn run<C: PacketChannel>(self, opening: impl Future<Output = Result<C, Errno>>) {
        let closed = self.socket.pollee.wait(Events::HUP, || {
            if self.socket.state.lock().is_closed { Events::HUP } else { Events::NONE }
        });
        match first_of(opening, closed).await {
            FirstResult::One(Ok(channel)) => {
                let end = self.opened(channel.most_bytes());
                drop(self);
                if let Some(end) = end {
                    end.carry(channel).await;
                }
            }
            FirstResult::One(Err(error)) => self.failed(error),
            FirstResult::Other(_) => {}
        }
    }

    /// Connects the socket to a new one. Returns that, unless the program has closed its own.
    fn opened(&self, most_len: usize) -> Option<ChannelEnd> {
        let socket = &self.socket;
        let mut state = socket.state.lock();
        if state.is_closed {
            return None;
        }
        let peer = State {
            role: Role::Connected,
            address: self.name.clone(),
            peer: Some(socket.clone()),
            peer_credentials: Some(socket.creator),
            // The program may have called `shutdown` already.
            receive_ended: state.send_ended,
            send_ended: state.receive_ended,
            ..State::default()
        };
        let settings = SocketSettings::default();
        let peer =
            UnixSocket::with_state(&socket.shared, socket.kind, FOREIGN, peer, settings, Some(most_len));
        state.role = Role::Connected;
        state.peer = Some(peer.clone());
        state.peer_credentials = Some(FOREIGN);
        drop(state);
        socket.pollee.notify(Events::OUT);
        Some(ChannelEnd::new(peer))
    }

    fn failed(&self, error: Errno) {
        let mut state = self.socket.state.lock();
        if state.is_closed {
            return;
        }
        state.role = Role::Unconnected;
        state.error = Some(error);
        drop(state);
        self.socket.pollee.notify(Events::OUT | Events::ERR | Events::HUP);
    }
}
