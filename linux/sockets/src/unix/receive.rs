//! Receiving.

use super::socket::{MOST_DATAGRAMS, Role, State, UnixSocket};
use crate::Errno;
use crate::address::{SocketAddress, UnixAddress};
use crate::message::{MessageFlags, PeerCredentials, ReceivedMessage};
use crate::socket::SocketKind;
use alloc::sync::Arc;
use isola_linux_abi::net::SO_PASSCRED;
use isola_linux_memory::UserBuffer;
use spin::MutexGuard;

impl UnixSocket {
    pub(super) fn receive_message(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        if flags.has(MessageFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        match self.kind {
            SocketKind::Stream => self.receive_chunks(buffer, flags, message),
            _ => self.receive_whole(buffer, flags, message),
        }
    }

    /// Returns the result of a call that finds no message. A datagram socket has no end: [`SocketFile`](crate::SocketFile)
    /// ends calls that would wait.
    fn nothing(&self, mut state: MutexGuard<'_, State>) -> Result<usize, Errno> {
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if state.receive_ended && self.is_connection_based() { Ok(0) } else { Err(Errno::EAGAIN) }
    }

    fn check_connected(&self, state: &State) -> Result<(), Errno> {
        match (self.kind, &state.role) {
            (SocketKind::Datagram, _) | (_, Role::Connected) => Ok(()),
            (SocketKind::Stream, _) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOTCONN),
        }
    }

    /// Takes the open files of the message with this index, or references to them.
    fn pass_rights(state: &mut State, index: usize, flags: MessageFlags, message: &mut ReceivedMessage) {
        let Some(packet) = state.queue.get_mut(index).filter(|packet| !packet.rights.is_empty()) else {
            return;
        };
        if flags.has(MessageFlags::PEEK) {
            message.ancillary.rights = packet.rights.clone();
        } else {
            message.ancillary.rights = core::mem::take(&mut packet.rights);
            state.messages_with_rights -= 1;
        }
    }

    /// Receives bytes of a stream.
    fn receive_chunks(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        let peeks = flags.has(MessageFlags::PEEK);
        let passes_credentials = self.settings.is_on(SO_PASSCRED);
        let mut held = None;
        let mut state = self.state.lock();
        self.check_connected(&state)?;
        if state.messages_with_rights > 0 {
            // Calls that pass open files take this lock first.
            drop(state);
            held = Some(self.shared.flight.hold());
            state = self.state.lock();
        }
        if state.queue.is_empty() {
            return self.nothing(state);
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        let (mut total, mut charge, mut index) = (0, 0, 0);
        let mut credentials: Option<PeerCredentials> = None;
        let mut sender: Option<Arc<Self>> = None;
        let mut has_rights = false;
        while let Some(packet) = state.queue.get_mut(index) {
            if passes_credentials && credentials.is_some_and(|known| known != packet.credentials) {
                break;
            }
            credentials = Some(packet.credentials);
            let count = buffer.write(packet.rest());
            total += count;
            has_rights = !packet.rights.is_empty();
            let is_partial = count < packet.rest().len();
            if peeks || is_partial {
                sender.get_or_insert_with(|| packet.sender.clone());
            }
            if is_partial && !peeks {
                packet.start += count;
                packet.charge -= count;
                charge += count;
            }
            Self::pass_rights(&mut state, index, flags, message);
            if peeks {
                index += 1;
            } else if !is_partial && let Some(packet) = state.queue.pop_front() {
                charge += packet.charge;
                // All messages of a stream have the same sender.
                sender = Some(packet.sender);
            }
            if has_rights || buffer.is_empty() {
                break;
            }
        }
        drop(state);
        if let (Some(held), true, false) = (&mut held, has_rights, peeks) {
            self.shared.flight.received(held, &message.ancillary.rights);
        }
        drop(held);
        if passes_credentials {
            message.ancillary.credentials = credentials;
        }
        message.len = total;
        if let Some(sender) = sender {
            message.address = shown_address(&sender);
            sender.uncharge(charge);
        }
        Ok(total)
    }

    /// Receives a message.
    fn receive_whole(
        &self,
        buffer: &mut UserBuffer,
        flags: MessageFlags,
        message: &mut ReceivedMessage,
    ) -> Result<usize, Errno> {
        let peeks = flags.has(MessageFlags::PEEK);
        let mut held = None;
        let mut state = self.state.lock();
        self.check_connected(&state)?;
        if state.messages_with_rights > 0 {
            drop(state);
            held = Some(self.shared.flight.hold());
            state = self.state.lock();
        }
        // An error is reported before messages, that of a stream behind its bytes.
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let was_full = state.queue.len() + state.reserved > MOST_DATAGRAMS;
        Self::pass_rights(&mut state, 0, flags, message);
        let Some(packet) = state.queue.front() else { return self.nothing(state) };
        message.len = packet.bytes.len();
        let credentials = packet.credentials;
        let (count, sender, charge) = if peeks {
            let (count, sender) = (buffer.write(&packet.bytes), packet.sender.clone());
            // The sender may be this socket.
            drop(state);
            (count, sender, 0)
        } else {
            let Some(packet) = state.queue.pop_front() else { return self.nothing(state) };
            drop(state);
            (buffer.write(&packet.bytes), packet.sender, packet.charge)
        };
        if let (Some(held), false) = (&mut held, peeks) {
            self.shared.flight.received(held, &message.ancillary.rights);
        }
        drop(held);
        if count < message.len {
            message.flags.add(MessageFlags::TRUNC);
        }
        if self.settings.is_on(SO_PASSCRED) {
            message.ancillary.credentials = Some(credentials);
        }
        message.address = shown_address(&sender);
        sender.uncharge(charge);
        if was_full && !peeks {
            self.notify_senders();
        }
        Ok(count)
    }
}

/// Returns the address of a sender, if it has a name.
fn shown_address(sender: &UnixSocket) -> Option<SocketAddress> {
    match sender.address() {
        UnixAddress::Unnamed => None,
        address => Some(SocketAddress::Unix(address)),
    }
}
