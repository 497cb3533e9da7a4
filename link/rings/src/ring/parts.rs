//! Packets of any length: one copy each way. Not in the models, which check messages: loom's words are not memory.

use super::{Broken, MustNotify, Ring, SendError, fence_posts, header_of, lines_of};
use crate::LINE_BYTES;
use crate::bytes::{load_bytes, store_bytes};
use crate::sync::{AtomicU64, Ordering};
use alloc::vec::Vec;
use core::iter;
use core::ops::Deref;

/// The bytes of a packet's header.
const HEADER_BYTES: u64 = 8;

/// The next packet of the peer, whose bytes were not taken yet.
#[derive(Debug)]
#[must_use]
pub struct IncomingPacket {
    len: u32,
    lines: u64,
    /// The index of its first line.
    at: u64,
}

impl IncomingPacket {
    /// Returns the length in bytes: at most the capacity of the ring.
    pub fn len_bytes(&self) -> usize {
        self.len as usize
    }
}

impl<O, P> Ring<O, P>
where
    O: Deref<Target = [AtomicU64]>,
    P: Deref<Target = [AtomicU64]>,
{
    /// Sends a packet, and returns whether to notify the peer.
    ///
    /// # Errors
    /// A [`SendError`]; nothing was sent.
    pub fn send(&mut self, packet: &[u8]) -> Result<MustNotify, SendError> {
        self.send_parts(packet.len(), iter::once(packet))
    }

    /// Sends a packet that consists of `parts`, `len` bytes in all, and returns whether to notify the peer.
    ///
    /// # Errors
    /// A [`SendError`]; nothing was sent.
    pub fn send_parts<'p>(
        &mut self,
        len: usize,
        parts: impl Iterator<Item = &'p [u8]>,
    ) -> Result<MustNotify, SendError> {
        let most_bytes = self.most_bytes();
        if len > most_bytes {
            return Err(SendError::TooLong { most_bytes });
        }
        let lines = lines_of(len);
        self.reserve(lines)?;
        if let [header, words @ ..] = self.own.line(self.head) {
            header.store(header_of(self.head, len as u32), Ordering::Relaxed);
            // The receiver of a message reads whole words.
            if let Some(last) = words.get(len / 8) {
                last.store(0, Ordering::Relaxed);
            }
        }
        let (entries, mut offset) = self.own.entries_at(first_byte(self.head));
        let mut left = len;
        parts.for_each(|part| {
            let part = part.get(..left).unwrap_or(part);
            left -= part.len();
            let before_end = part.len().min(size_of_val(entries) - offset);
            let (first, rest) = part.split_at(before_end);
            store_bytes(entries, offset, first);
            offset += before_end;
            if !rest.is_empty() {
                store_bytes(entries, 0, rest);
                offset = rest.len();
            }
        });
        self.head += lines;
        let posted = self.publish();
        fence_posts();
        Ok(self.must_notify(posted))
    }

    /// Receives the next packet into `packet`, replacing its contents. Returns whether there was one.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn receive(&mut self, packet: &mut Vec<u8>) -> Result<bool, Broken> {
        let Some(incoming) = self.incoming().inspect_err(|_| packet.clear())? else {
            packet.clear();
            return Ok(false);
        };
        let len = incoming.len_bytes();
        packet.reserve_exact(len.saturating_sub(packet.len()));
        packet.resize(len, 0);
        self.take(incoming, packet);
        Ok(true)
    }

    /// Returns the next packet of the peer. To be [taken](Self::take) before the next call.
    ///
    /// # Errors
    /// [`Broken`].
    #[inline]
    pub fn incoming(&mut self) -> Result<Option<IncomingPacket>, Broken> {
        let at = self.tail;
        Ok(self.next_packet()?.map(|(len, lines)| IncomingPacket { len, lines, at }))
    }

    /// Copies the first bytes of the packet to `bytes`, and removes the packet from the ring.
    pub fn take(&mut self, packet: IncomingPacket, bytes: &mut [u8]) {
        let IncomingPacket { len, lines, at } = packet;
        if at != self.tail {
            return;
        }
        let len = bytes.len().min(len as usize);
        let bytes = bytes.get_mut(..len).unwrap_or_default();
        let (entries, offset) = self.peer.entries_at(first_byte(at));
        let (first, rest) = bytes.split_at_mut(len.min(size_of_val(entries) - offset));
        load_bytes(entries, offset, first);
        load_bytes(entries, 0, rest);
        self.tail += lines;
    }
}

/// Returns the index of the first byte behind the header in the line with that index.
#[inline]
const fn first_byte(line: u64) -> u64 {
    (line * LINE_BYTES as u64).wrapping_add(HEADER_BYTES)
}
