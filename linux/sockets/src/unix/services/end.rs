//! The messages of a channel.

use super::{ChannelEnded, PacketChannel};
use crate::Errno;
use crate::message::SentMessage;
use crate::socket::{Shutdown, Socket};
use crate::unix::socket::UnixSocket;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::Cell;
use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use isola_linux_files::Events;

/// The peer of a program's socket, for the task that moves messages between it and a channel.
pub struct ChannelEnd {
    socket: Arc<UnixSocket>,
}

impl ChannelEnd {
    pub(super) fn new(socket: Arc<UnixSocket>) -> Self {
        Self { socket }
    }

    /// Moves messages until the channel has ended, both sides have ended their directions, or the program has closed its
    /// socket and the other cell has read its messages. Then closes the channel.
    pub async fn carry<C: PacketChannel>(self, channel: C) {
        let has_end = Cell::new(false);
        {
            let mut sending = pin!(self.send_all(&channel));
            let mut receiving = pin!(self.receive_all(&channel, &has_end));
            let mut closing = pin!(self.socket.pollee.wait(Events::HUP, || self.program_has_closed()));
            let mut linger = pin!(channel.linger());
            let (mut has_sent, mut has_closed) = (false, false);
            poll_fn(|context| {
                if !has_sent {
                    match sending.as_mut().poll(context) {
                        Poll::Ready(Ok(())) => has_sent = true,
                        Poll::Ready(Err(ChannelEnded)) => return Poll::Ready(()),
                        Poll::Pending => {}
                    }
                }
                if receiving.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                has_closed = has_closed || closing.as_mut().poll(context).is_ready();
                if has_sent && (has_closed || has_end.get()) {
                    return Poll::Ready(());
                }
                if has_closed { linger.as_mut().poll(context) } else { Poll::Pending }
            })
            .await;
        }
        if !has_end.get() {
            self.socket.fail_peer(Errno::ECONNRESET);
        }
        self.socket.close();
    }

    /// Returns [`Events::HUP`] if the program neither sends nor receives any more.
    fn program_has_closed(&self) -> Events {
        let state = self.socket.state.lock();
        if state.receive_ended && state.send_ended { Events::HUP } else { Events::NONE }
    }

    /// Sends the program's messages and the end of its direction, until the other cell has read them.
    async fn send_all<C: PacketChannel>(&self, channel: &C) -> Result<(), ChannelEnded> {
        loop {
            // Messages from before the end of the direction are in the queue then.
            let has_ended = self.socket.state.lock().receive_ended;
            match self.socket.take_message(channel.most_bytes()) {
                // An empty packet would end the direction.
                Some(message) if message.is_empty() => {}
                Some(message) => channel.write(&message).await?,
                None if has_ended => break,
                None => {
                    let ready = || {
                        let state = self.socket.state.lock();
                        if state.queue.is_empty() && !state.receive_ended { Events::NONE } else { Events::IN }
                    };
                    self.socket.pollee.wait(Events::IN, ready).await;
                }
            }
        }
        // A program that closes its socket without having received all resets the connection, as between processes.
        let is_reset = self.socket.state.lock().error.is_some();
        if !is_reset {
            channel.write(&[]).await?;
        }
        channel.flush().await
    }

    /// Passes the other cell's packets to the program, until the channel has ended. Packets behind the end of a direction,
    /// and those that the program does not receive any more, are discarded.
    async fn receive_all<C: PacketChannel>(&self, channel: &C, has_end: &Cell<bool>) {
        let mut packet = Vec::new();
        let mut discards = false;
        while channel.read(&mut packet).await.is_ok() {
            if discards {
                continue;
            }
            if packet.is_empty() {
                has_end.set(true);
                discards = true;
                // The socket is connected.
                let _ = self.socket.shutdown(Shutdown { receive: false, send: true });
                continue;
            }
            while let Err(error) = self.socket.put_message(&packet) {
                if error == Errno::EAGAIN {
                    self.socket.wait_for_space(&SentMessage::default()).await;
                } else {
                    discards = true;
                    break;
                }
            }
        }
    }
}

impl UnixSocket {
    /// Takes the next message out of the queue of a connected socket; of a stream, at most `most_len` bytes.
    fn take_message(&self, most_len: usize) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let packet = state.queue.front_mut()?;
        if packet.rest().len() <= most_len {
            let mut packet = state.queue.pop_front()?;
            drop(state);
            packet.sender.uncharge(packet.charge);
            packet.bytes.drain(..packet.start);
            return Some(packet.bytes);
        }
        // Longer messages are parts of streams: those of other sockets were refused.
        let message = packet.rest().get(..most_len)?.to_vec();
        packet.start += most_len;
        packet.charge -= most_len;
        let sender = packet.sender.clone();
        drop(state);
        sender.uncharge(most_len);
        Some(message)
    }

    /// Sends a message to the connected socket. [`Errno::EAGAIN`] if the send buffer is full.
    fn put_message(&self, bytes: &[u8]) -> Result<(), Errno> {
        let peer = self.state.lock().peer.clone().ok_or(Errno::EPIPE)?;
        self.send_bytes(&peer, bytes)
    }

    /// Makes `error` the next result of the connected socket, unless it is closed.
    fn fail_peer(&self, error: Errno) {
        let peer = self.state.lock().peer.clone();
        if let Some(peer) = peer {
            peer.state.lock().error = Some(error);
        }
    }
}
