//! Bytes of connections, and the end of connections.

use super::socket::TcpSocket;
use super::state::{Link, Phase};
use crate::bytes::{copy_in, copy_out};
use core::time::Duration;
use isola_events::{sleep, spawn_on, spawn_task};
use isola_iobuf::Chain;
use isola_linux_files::Events;
use isola_linux_memory::UserBuffer;
use isola_linux_sockets::{Errno, MessageFlags, Shutdown};
use isola_net::{ConnectionId, SendError, TcpConnection};

/// The most bytes of one attempt to send.
const MAX_SEND: usize = 256 << 10;
/// The most bytes that `TCP_CORK` and `MSG_MORE` hold back, and for how long, as on Linux.
const MAX_CORKED: usize = 16 << 10;
const MAX_CORK_TIME: Duration = Duration::from_millis(200);

impl TcpSocket {
    /// Returns whether a socket that sends to this one, whose queue has `len` bytes, is writable.
    pub(super) fn takes_more(&self, len: usize) -> bool {
        len * 2 < self.settings.receive_buffer()
    }

    /// Returns whether the socket is writable with `len` bytes that the stack has not accepted.
    pub(super) fn holds_few(&self, len: usize) -> bool {
        len * 2 < self.settings.send_buffer()
    }

    /// Attempts to send bytes of a program.
    pub(super) fn send_bytes(&self, buffer: &mut UserBuffer, flags: MessageFlags) -> Result<usize, Errno> {
        if flags.has(MessageFlags::OOB) || flags.has(MessageFlags::FASTOPEN) {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state();
        state.check_sending()?;
        let queued = state.outgoing.len();
        let holds = flags.has(MessageFlags::MORE) || self.options.is_corked();
        let is_direct = queued == 0 && !state.pump_queued && !holds;
        let here = match &state.link {
            Link::Peer(peer) => {
                let peer = peer.upgrade();
                drop(state);
                return peer.map_or(Err(Errno::EPIPE), |peer| peer.append(buffer));
            }
            Link::Native(id) => id.here(),
            Link::None | Link::Moving => None,
        };
        drop(state);
        let space = self.settings.send_buffer().saturating_sub(queued);
        if buffer.is_empty() {
            return Ok(0);
        }
        if space == 0 {
            return Err(Errno::EAGAIN);
        }
        let mut chain = copy_in(buffer, space.min(MAX_SEND));
        let count = chain.len();
        if is_direct && let Some(connection) = &here {
            let is_lost = matches!(
                connection.send_some(&mut chain),
                Err(SendError::NoConnection | SendError::ShutDown)
            );
            if is_lost {
                return Err(self.state().error.take().unwrap_or(Errno::EPIPE));
            }
            if chain.is_empty() {
                return Ok(count);
            }
            // The stack reports space.
            self.state().outgoing.append(chain);
            return Ok(count);
        }
        let mut state = self.state();
        state.check_sending()?;
        state.outgoing.append(chain);
        if holds && state.outgoing.len() < MAX_CORKED {
            if !core::mem::replace(&mut state.cork_timer, true) {
                drop(state);
                self.send_after_cork_time();
            }
            return Ok(count);
        }
        drop(state);
        self.push();
        Ok(count)
    }

    /// Appends bytes that the peer, a socket of this cell, sends.
    fn append(&self, buffer: &mut UserBuffer) -> Result<usize, Errno> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let limit = self.settings.receive_buffer();
        let state = self.state();
        let (is_closed, len) = (state.is_closed || state.phase != Phase::Connected, state.incoming.len());
        drop(state);
        if is_closed {
            return Err(Errno::EPIPE);
        }
        if len >= limit {
            return Err(Errno::EAGAIN);
        }
        let chain = copy_in(buffer, (limit - len).min(MAX_SEND));
        let count = chain.len();
        let mut state = self.state();
        if state.is_closed {
            return Err(Errno::EPIPE);
        }
        if !state.is_receive_shut {
            state.incoming.push(chain);
        }
        drop(state);
        self.pollee.notify(Events::IN);
        Ok(count)
    }

    fn send_after_cork_time(&self) {
        let this = self.this.clone();
        spawn_task(async move {
            sleep(MAX_CORK_TIME).await;
            if let Some(socket) = this.upgrade() {
                socket.state().cork_timer = false;
                socket.push();
            }
        })
        .detach();
    }

    /// Passes queued bytes, or the end of the stream, to the stack: here, or by an event on the connection's core.
    pub(super) fn push(&self) {
        let mut state = self.state();
        let Link::Native(id) = state.link else { return };
        if let Some(connection) = id.here() {
            drop(state);
            return self.pump(&connection);
        }
        if !core::mem::replace(&mut state.pump_queued, true) {
            drop(state);
            self.pump_on(id);
        }
    }

    fn pump_on(&self, id: ConnectionId) {
        let this = self.this.clone();
        spawn_on(id.core(), move || {
            let Some(socket) = this.upgrade() else { return };
            socket.state().pump_queued = false;
            match id.here() {
                Some(connection) => socket.pump(&connection),
                None if socket.has_moved(id) => socket.push(),
                // It has ended, or is moving: `arrived` sends the bytes.
                None => {}
            }
        });
    }

    /// Passes queued bytes to the stack, then the end of the stream. Runs on the connection's core.
    pub(super) fn pump(&self, connection: &TcpConnection) {
        let queued = self.state().outgoing.len();
        loop {
            let mut chain = core::mem::take(&mut self.state().outgoing);
            if !chain.is_empty() {
                // A connection that has ended reports that to the handler.
                let _ = connection.send_some(&mut chain);
            }
            let mut state = self.state();
            if !chain.is_empty() {
                chain.append(core::mem::take(&mut state.outgoing));
                state.outgoing = chain;
                break;
            }
            if !state.outgoing.is_empty() {
                continue;
            }
            if (state.is_shut || state.is_closed) && !state.end_sent {
                state.end_sent = true;
                let is_closed = state.is_closed;
                drop(state);
                if is_closed { connection.close() } else { connection.shutdown() }
            } else if state.is_closed {
                drop(state);
                connection.close();
            }
            break;
        }
        let len = self.state().outgoing.len();
        if queued > len && self.holds_few(len) {
            self.pollee.notify(Events::OUT);
        }
    }

    /// Attempts to receive bytes for a program.
    pub(super) fn receive_bytes(&self, buffer: &mut UserBuffer, flags: MessageFlags) -> Result<usize, Errno> {
        if flags.has(MessageFlags::OOB) {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state();
        if state.incoming.is_empty() {
            return state.end_of_bytes();
        }
        if flags.has(MessageFlags::PEEK) {
            let chain = state.incoming.peek(buffer.len());
            drop(state);
            return Ok(copy_out(&chain, buffer));
        }
        let before = state.incoming.len();
        let chain = state.incoming.take(buffer.len());
        let after = state.incoming.len();
        let resumes = state.is_paused && state.incoming.storage() * 2 < self.settings.receive_buffer();
        if resumes {
            state.is_paused = false;
        }
        let peer = match &state.link {
            Link::Peer(peer) if !self.takes_more(before) && self.takes_more(after) => peer.upgrade(),
            _ => None,
        };
        drop(state);
        if resumes {
            self.on_connection(TcpConnection::resume);
        }
        if let Some(peer) = peer {
            peer.pollee.notify(Events::OUT);
        }
        Ok(copy_out(&chain, buffer))
    }

    /// Calls `work` with the connection, on its core. A connection that is moving to another core is adjusted when it
    /// arrives.
    pub(super) fn on_connection<F: FnOnce(&TcpConnection) + Send + 'static>(&self, work: F) {
        let Link::Native(id) = self.state().link else { return };
        if let Some(connection) = id.here() {
            return work(&connection);
        }
        let this = self.this.clone();
        spawn_on(id.core(), move || match id.here() {
            Some(connection) => work(&connection),
            // It has ended, or moved on.
            None => {
                let socket = this.upgrade().filter(|socket| socket.has_moved(id));
                if let Some(socket) = socket {
                    socket.on_connection(work);
                }
            }
        });
    }

    fn has_moved(&self, from: ConnectionId) -> bool {
        matches!(self.state().link, Link::Native(id) if id != from)
    }

    /// Ends directions of the connection (`shutdown`).
    pub(super) fn end_directions(&self, how: Shutdown) -> Result<(), Errno> {
        let mut state = self.state();
        match state.phase {
            Phase::Listening if how.receive => {
                drop(state);
                self.stop_listening();
                self.pollee.notify(Events::IN | Events::HUP);
                return Ok(());
            }
            Phase::Listening => return Ok(()),
            Phase::Connected => {}
            Phase::Idle | Phase::Connecting | Phase::Ended => return Err(Errno::ENOTCONN),
        }
        state.is_receive_shut |= how.receive;
        let ends = how.send && !state.is_shut;
        state.is_shut |= how.send;
        let peer = match &state.link {
            Link::Peer(peer) => peer.upgrade(),
            _ => None,
        };
        drop(state);
        self.pollee.notify(Events::IN | Events::OUT | Events::RDHUP | Events::HUP);
        if ends {
            match peer {
                Some(peer) => peer.peer_ended(),
                None => self.push(),
            }
        }
        Ok(())
    }

    /// Records that the peer, a socket of this cell, sends no more.
    fn peer_ended(&self) {
        self.state().has_end = true;
        self.pollee.notify(Events::IN | Events::RDHUP | Events::HUP);
    }

    /// Ends the connection: in order if all received bytes were read and `SO_LINGER` does not demand a reset, otherwise by a
    /// reset. Further bytes are still sent.
    pub(super) fn end_socket(&self) {
        let is_reset = self.settings.linger_s() == Some(0);
        self.end_connection(is_reset);
    }

    /// Ends the connection of a socket that no program accepted by a reset.
    pub(super) fn reset(&self) {
        self.end_connection(true);
    }

    fn end_connection(&self, is_reset: bool) {
        let mut state = self.state();
        state.is_closed = true;
        let phase = state.phase;
        let is_reset = is_reset || !state.incoming.is_empty() || phase == Phase::Connecting;
        let (binding, unread) = (state.binding.take(), state.incoming.clear());
        let link = state.link.clone();
        drop(state);
        if phase == Phase::Listening {
            self.stop_listening();
        }
        drop((binding, unread));
        match link {
            Link::Native(_) if is_reset => self.on_connection(|connection| connection.abort()),
            Link::Native(_) => self.push(),
            Link::Peer(peer) => {
                if let Some(peer) = peer.upgrade() {
                    peer.peer_closed(is_reset);
                }
                drop(self.state().end(None));
            }
            // A connection that moves is closed when it arrives.
            Link::Moving | Link::None => {}
        }
    }

    /// Records that the peer, a socket of this cell, is closed.
    pub(super) fn peer_closed(&self, is_reset: bool) {
        let mut state = self.state();
        let unsent: Chain = if is_reset {
            let error = if state.has_end { Errno::EPIPE } else { Errno::ECONNRESET };
            state.end(Some(error))
        } else {
            state.has_end = true;
            Chain::new()
        };
        drop(state);
        drop(unsent);
        self.pollee.notify(Events::IN | Events::OUT | Events::RDHUP | Events::HUP | Events::ERR);
    }
}
