//! A stream of bytes over a channel, for protocols that run over TCP, too.

use crate::runtime::Rings;
use crate::{Channel, ChannelError};
use core::task::{Context, Poll};
use isola_iobuf::{Chain, IoBuf, IoBufMut};
use isola_link_rings::Broken;

/// A stream of bytes over a channel. Packets have no meaning but for empty ones, which the reader gets as they are.
#[derive(Debug)]
pub struct ChannelStream {
    channel: Channel,
    /// The longest packet that is written: half the ring, so that the peer reads one while the next is written.
    most_bytes: usize,
    has_waited: bool,
}

impl ChannelStream {
    /// Returns a stream over a channel that has carried no packets.
    pub fn new(channel: Channel) -> Self {
        let most_bytes = (channel.most_bytes() / 2).max(1);
        Self { channel, most_bytes, has_waited: false }
    }

    /// Writes bytes, and removes from `data` those that are in the ring. Ready when all are.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), ChannelError>> {
        while !data.is_empty() {
            let len = data.len().min(self.most_bytes);
            if self.channel.try_write(len, data)? {
                data.advance(len);
            } else if self.channel.poll_room(context, len)?.is_pending() {
                return Poll::Pending;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Writes an empty packet, if the ring has room.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub fn write_empty(&mut self) -> Result<(), ChannelError> {
        self.channel.try_write(0, &Chain::new()).map(|_| ())
    }

    /// Ready when the peer has read all packets.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), ChannelError>> {
        self.channel.poll_room(context, self.channel.most_bytes())
    }

    /// Reads the bytes of the next packet.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<IoBuf, ChannelError>> {
        self.channel.poll_next(context, &mut self.has_waited, &mut take)
    }
}

/// Takes the next packet out of the ring, into a buffer of its own.
fn take(rings: &mut Rings) -> Result<Option<IoBuf>, Broken> {
    let Some(packet) = rings.incoming()? else { return Ok(None) };
    let len = packet.len_bytes();
    let mut buffer = IoBufMut::with_room(0, len);
    rings.take(packet, buffer.append(len).unwrap_or_default());
    Ok(Some(buffer.freeze()))
}
