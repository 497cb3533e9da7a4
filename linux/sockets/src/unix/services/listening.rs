//! Accepting channels of other cells.

use super::{ChannelEnd, FOREIGN, FirstResult, first_of};
use crate::Errno;
use crate::settings::SocketSettings;
use crate::socket::Socket;
use crate::unix::socket::{Role, State, UnixSocket};
use alloc::sync::Arc;
use isola_linux_files::Events;

/// A socket that listens for channels.
#[derive(Clone)]
pub struct ListeningSocket {
    socket: Arc<UnixSocket>,
}

impl ListeningSocket {
    pub(in super::super) fn new(socket: Arc<UnixSocket>) -> Self {
        Self { socket }
    }

    /// Waits until the queue of connections has a place, and then for `accepting`. Returns `None` if the socket was closed.
    pub async fn next<T>(&self, accepting: impl Future<Output = T>) -> Option<T> {
        self.wait_for_place().await.ok()?;
        // The end of a listening socket is announced as a place.
        let ended = self.socket.space.wait(Events::OUT, || self.state() & Events::HUP);
        match first_of(accepting, ended).await {
            FirstResult::One(value) => Some(value),
            FirstResult::Other(_) => None,
        }
    }

    /// Adds a connection to those that the program accepts, once there is a place. Returns its end, for the channel, whose
    /// packets have at most `most_len` bytes; `None` if the socket was closed.
    pub async fn connect(&self, most_len: usize) -> Option<ChannelEnd> {
        let (shared, kind) = (&self.socket.shared, self.socket.kind);
        let settings = SocketSettings::default();
        let end = UnixSocket::with_state(shared, kind, FOREIGN, State::default(), settings, Some(most_len));
        while self.wait_for_place().await.is_ok() {
            match end.connect_to(&self.socket, FOREIGN) {
                Ok(()) => return Some(ChannelEnd::new(end)),
                // A process of this cell was faster.
                Err(Errno::EAGAIN) => {}
                Err(_) => break,
            }
        }
        end.close();
        None
    }

    async fn wait_for_place(&self) -> Result<(), Errno> {
        let events = self.socket.space.wait(Events::OUT, || self.state()).await;
        if events.intersects(Events::HUP) { Err(Errno::EINVAL) } else { Ok(()) }
    }

    /// Returns [`Events::OUT`] if there is a place, [`Events::HUP`] if there is none any more.
    fn state(&self) -> Events {
        let state = self.socket.state.lock();
        match &state.role {
            _ if state.is_closed || state.receive_ended => Events::HUP,
            Role::Listening { backlog, pending } if pending.len() <= *backlog => Events::OUT,
            // `listen` has not returned yet, or the queue is full.
            _ => Events::NONE,
        }
    }
}
