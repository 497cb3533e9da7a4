//! Sending.

use super::flight::MOST_RIGHTS;
use super::packet::{CHUNK_LEN, OVERHEAD, Packet};
use super::socket::{Role, UnixSocket};
use crate::Errno;
use crate::message::{MessageFlags, SentMessage};
use crate::socket::SocketKind;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::net::SO_PASSCRED;
use isola_linux_files::Events;
use isola_linux_memory::UserBuffer;

/// The part of the send buffer that a message cannot use, as on Linux.
const BUFFER_RESERVE: usize = 32;

impl UnixSocket {
    pub(super) fn send_message(
        &self,
        buffer: &mut UserBuffer,
        message: &mut SentMessage,
    ) -> Result<usize, Errno> {
        if message.flags.has(MessageFlags::OOB) {
            return Err(Errno::EOPNOTSUPP);
        }
        if message.ancillary.rights.len() > MOST_RIGHTS {
            return Err(Errno::EINVAL);
        }
        let receiver = self.receiver(message)?;
        if let Some(most_len) = receiver.channel_most_len {
            // Open files do not leave the cell.
            if !message.ancillary.rights.is_empty() {
                return Err(Errno::EOPNOTSUPP);
            }
            if self.kind != SocketKind::Stream && buffer.len() > most_len {
                return Err(Errno::EMSGSIZE);
            }
        }
        match self.kind {
            SocketKind::Stream => self.send_chunk(&receiver, buffer, message),
            _ => self.send_whole(&receiver, buffer, message),
        }
    }

    /// Finds the receiver of a message.
    fn receiver(&self, message: &SentMessage) -> Result<Arc<Self>, Errno> {
        let mut state = self.state.lock();
        if self.is_connection_based() {
            let is_connected = matches!(state.role, Role::Connected);
            if message.address.is_some() && self.kind == SocketKind::Stream {
                return Err(if is_connected { Errno::EISCONN } else { Errno::EOPNOTSUPP });
            }
            let has_priority = !state.send_ended || self.kind == SocketKind::SeqPacket;
            if let Some(error) = if has_priority { state.error.take() } else { None } {
                return Err(error);
            }
            let peer = if is_connected { state.peer.clone() } else { None };
            let peer = peer.ok_or(Errno::ENOTCONN)?;
            return if state.send_ended { Err(Errno::EPIPE) } else { Ok(peer) };
        }
        let peer = state.peer.clone();
        drop(state);
        if self.settings.is_on(SO_PASSCRED) {
            self.bind_chosen()?;
        }
        // The own state is looked at before the receiver, as on Linux.
        let mut state = self.state.lock();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        if state.send_ended {
            return Err(Errno::EPIPE);
        }
        drop(state);
        let to = message.destination.as_ref().and_then(|to| to.clone().downcast::<Self>().ok());
        let peer = peer.filter(|_| message.address.is_none());
        to.or(peer).ok_or(Errno::ENOTCONN)
    }

    /// Counts bytes of a message. `false` if the send buffer is full.
    fn reserve(&self, len: usize) -> bool {
        let limit = self.settings.send_buffer();
        let count = |used: usize| (used < limit).then_some(used + len);
        self.charge.fetch_update(Ordering::AcqRel, Ordering::Acquire, count).is_ok()
    }

    /// Takes back the charge of bytes that were received.
    pub(super) fn uncharge(&self, len: usize) {
        let before = self.charge.fetch_sub(len, Ordering::AcqRel);
        let after = before - len;
        let limit = self.settings.send_buffer();
        // A blocked sender continues when it has space at all; `poll` waits for three quarters of the buffer.
        if before >= limit && after < limit || before * 4 > limit && after * 4 <= limit {
            self.pollee.notify(Events::OUT);
        }
    }

    /// Copies a message out of the program.
    fn copy(buffer: &mut UserBuffer, len: usize) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| Errno::ENOBUFS)?;
        bytes.resize(len, 0);
        let count = buffer.read(&mut bytes);
        bytes.truncate(count);
        Ok(bytes)
    }

    fn packet(&self, bytes: Vec<u8>, charge: usize, message: &mut SentMessage) -> Result<Packet, Errno> {
        let sender = self.this.upgrade().ok_or(Errno::EPIPE)?;
        let credentials = message.ancillary.credentials.or(message.sender).unwrap_or(self.creator);
        let rights = core::mem::take(&mut message.ancillary.rights);
        Ok(Packet { bytes, start: 0, rights, credentials, sender, charge })
    }

    /// Sends a part of a stream.
    fn send_chunk(
        &self,
        receiver: &Arc<Self>,
        buffer: &mut UserBuffer,
        message: &mut SentMessage,
    ) -> Result<usize, Errno> {
        {
            let state = receiver.state.lock();
            if state.receive_ended || state.is_closed {
                return Err(Errno::EPIPE);
            }
        }
        // Bytes carry the open files of a stream.
        if buffer.is_empty() {
            return Ok(0);
        }
        let len = buffer.len().min(CHUNK_LEN);
        if !message.ancillary.rights.is_empty() {
            self.shared.flight.check(&self.shared.names, message.ancillary.rights.len())?;
        }
        let charge = len + OVERHEAD;
        if !self.reserve(charge) {
            return Err(Errno::EAGAIN);
        }
        let packet = Self::copy(buffer, len).and_then(|bytes| self.packet(bytes, charge, message));
        self.deliver(receiver, packet, charge).map(|()| len)
    }

    /// Sends a message whole.
    fn send_whole(
        &self,
        receiver: &Arc<Self>,
        buffer: &mut UserBuffer,
        message: &mut SentMessage,
    ) -> Result<usize, Errno> {
        let len = buffer.len();
        if len > self.settings.send_buffer().saturating_sub(BUFFER_RESERVE) {
            return Err(Errno::EMSGSIZE);
        }
        if !message.ancillary.rights.is_empty() {
            self.shared.flight.check(&self.shared.names, message.ancillary.rights.len())?;
        }
        let charge = len + OVERHEAD;
        {
            let mut state = receiver.state.lock();
            if state.is_closed {
                drop(state);
                return Err(self.receiver_is_gone(receiver));
            }
            let is_own_peer = state.is_connected_to(self);
            if state.peer.is_some() && !is_own_peer {
                return Err(Errno::EPERM);
            }
            if state.receive_ended {
                return Err(Errno::EPIPE);
            }
            let is_self = core::ptr::eq(&raw const **receiver, self);
            if !is_own_peer && !is_self && state.is_full() {
                return Err(Errno::EAGAIN);
            }
            if !self.reserve(charge) {
                return Err(Errno::EAGAIN);
            }
            state.reserved += 1;
        }
        let packet = Self::copy(buffer, len).and_then(|bytes| self.packet(bytes, charge, message));
        let result = self.deliver(receiver, packet, charge);
        receiver.state.lock().reserved -= 1;
        if result.is_err() {
            receiver.notify_senders();
        }
        result.map(|()| len)
    }

    /// Returns the error of a message to a closed socket, and ends the association with it: received messages are lost.
    fn receiver_is_gone(&self, receiver: &Arc<Self>) -> Errno {
        if self.is_connection_based() {
            return Errno::EPIPE;
        }
        let mut state = self.state.lock();
        if state.is_connected_to(receiver) {
            let former = state.peer.take();
            state.messages_with_rights = 0;
            let lost = core::mem::take(&mut state.queue);
            drop(state);
            drop(former);
            self.discard(lost);
        }
        Errno::ECONNREFUSED
    }

    /// Sends bytes of the kernel, as one message, to a connected socket. [`Errno::EAGAIN`] if the send buffer is full.
    pub(super) fn send_bytes(&self, receiver: &Arc<Self>, bytes: &[u8]) -> Result<(), Errno> {
        let charge = bytes.len() + OVERHEAD;
        if !self.reserve(charge) {
            return Err(Errno::EAGAIN);
        }
        let packet = self.packet(bytes.to_vec(), charge, &mut SentMessage::default());
        self.deliver(receiver, packet, charge)
    }

    /// Adds a message to the queue of its receiver.
    fn deliver(
        &self,
        receiver: &Arc<Self>,
        packet: Result<Packet, Errno>,
        charge: usize,
    ) -> Result<(), Errno> {
        let packet = packet.inspect_err(|_| self.uncharge(charge))?;
        let has_rights = !packet.rights.is_empty();
        let mut held = has_rights.then(|| self.shared.flight.hold());
        let mut state = receiver.state.lock();
        if state.is_closed || state.receive_ended {
            let is_refused = state.is_closed && !self.is_connection_based();
            let error = if is_refused { Errno::ECONNREFUSED } else { Errno::EPIPE };
            drop(state);
            drop(held);
            self.uncharge(charge);
            self.shared.flight.close(packet.rights);
            return Err(error);
        }
        if let Some(held) = &mut held {
            self.shared.flight.sent(held, &packet.rights);
            state.messages_with_rights += 1;
        }
        let last = state.queue.back_mut().filter(|_| self.kind == SocketKind::Stream && !has_rights);
        let merged = match last {
            Some(last) if last.takes(packet.bytes.len(), packet.credentials) => {
                last.bytes.extend_from_slice(&packet.bytes);
                last.charge += packet.bytes.len();
                true
            }
            _ => false,
        };
        if merged {
            drop(state);
            drop(packet);
            self.uncharge(OVERHEAD);
        } else {
            state.queue.push_back(packet);
            drop(state);
        }
        drop(held);
        receiver.pollee.notify(Events::IN);
        Ok(())
    }

    /// Returns whether the queue of a peer has a place. If not, the peer notifies this socket when it has.
    pub(super) fn may_send_to(&self, peer: &Self) -> bool {
        if core::ptr::eq(peer, self) {
            return true;
        }
        let mut state = peer.state.lock();
        if state.is_closed || state.is_connected_to(self) || !state.is_full() {
            return true;
        }
        if !state.waiting_senders.iter().any(|sender| sender.ptr_eq(&self.this)) {
            state.waiting_senders.push(self.this.clone());
        }
        false
    }

    /// Waits until a message may be accepted.
    pub(super) async fn wait_for_space(&self, message: &SentMessage) {
        let to = message.destination.as_ref().and_then(|to| to.clone().downcast::<Self>().ok());
        let to = to.or_else(|| self.state.lock().peer.clone());
        let own = || {
            let state = self.state.lock();
            let has_ended = state.send_ended || state.error.is_some();
            drop(state);
            let has_space = self.charge.load(Ordering::Acquire) < self.settings.send_buffer();
            if has_space || has_ended { Events::OUT } else { Events::NONE }
        };
        let Some(to) = to.filter(|_| !self.is_connection_based()) else {
            self.pollee.wait(Events::OUT, own).await;
            return;
        };
        let place = || {
            if core::ptr::eq(&raw const *to, self) {
                return Events::OUT;
            }
            let state = to.state.lock();
            let is_closed = state.is_closed || state.receive_ended;
            if is_closed || state.is_connected_to(self) || !state.is_full() {
                Events::OUT
            } else {
                Events::NONE
            }
        };
        loop {
            self.pollee.wait(Events::OUT, own).await;
            to.space.wait(Events::OUT, place).await;
            if own().intersects(Events::OUT) {
                return;
            }
        }
    }

    /// Notifies senders after messages were taken out of a queue that was full.
    pub(super) fn notify_senders(&self) {
        self.space.notify(Events::OUT);
        let senders = core::mem::take(&mut self.state.lock().waiting_senders);
        for sender in senders.iter().filter_map(alloc::sync::Weak::upgrade) {
            sender.pollee.notify(Events::OUT);
        }
    }
}
