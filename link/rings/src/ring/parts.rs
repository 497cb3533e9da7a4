//! Packets of several parts, and packets received into memory of the caller: one copy each way.

use super::{Broken, MustNotify, Ring, SendError, fence_posts, header_of, lines_of};
use crate::half::Half;
use crate::sync::{AtomicU64, Ordering};
use crate::{LINE_BYTES, LINE_WORDS};
use core::ops::Deref;

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
    /// Returns the length in bytes: at most what the ring can hold.
    pub fn len_bytes(&self) -> usize {
        self.len as usize
    }
}

impl<O, P> Ring<O, P>
where
    O: Deref<Target = [AtomicU64]>,
    P: Deref<Target = [AtomicU64]>,
{
    /// Sends a packet that consists of `parts`, `len` bytes in all, and returns whether to notify the peer. A part at a
    /// multiple of 8 bytes is copied faster.
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
        let mut writer = Writer { half: &self.own, line: self.head, word: 0, held: 0, held_bytes: 0 };
        writer.put_word(header_of(self.head, len as u32));
        let mut left = len;
        for part in parts {
            let part = part.get(..left).unwrap_or(part);
            left -= part.len();
            writer.put(part);
        }
        writer.finish();
        self.head += lines;
        let posted = self.publish();
        fence_posts();
        Ok(self.must_notify(posted))
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
        let (first, rest) = bytes.split_at_mut(bytes.len().min(super::MESSAGE_BYTES));
        copy_words(self.peer.line(at).get(1..).unwrap_or_default(), first);
        let (whole, last) = rest.as_chunks_mut::<LINE_BYTES>();
        let mut index = at + 1;
        for to in whole {
            if let Some(line) = self.peer.line(index).first_chunk::<LINE_WORDS>() {
                for (to, word) in to.as_chunks_mut::<8>().0.iter_mut().zip(line) {
                    *to = word.load(Ordering::Relaxed).to_le_bytes();
                }
            }
            index += 1;
        }
        copy_words(self.peer.line(index), last);
        self.tail += lines;
    }
}

/// Copies words to bytes, of which there are not more.
#[inline]
fn copy_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let (whole, rest) = bytes.as_chunks_mut::<8>();
    let mut words = words.iter();
    for (to, word) in whole.iter_mut().zip(words.by_ref()) {
        *to = word.load(Ordering::Relaxed).to_le_bytes();
    }
    if !rest.is_empty()
        && let Some(word) = words.next()
    {
        let value = word.load(Ordering::Relaxed).to_le_bytes();
        rest.iter_mut().zip(value).for_each(|(to, from)| *to = from);
    }
}

/// Writes bytes to the words of consecutive lines.
struct Writer<'h, M> {
    half: &'h Half<M>,
    line: u64,
    /// The next word of the line.
    word: usize,
    /// Bytes for which the next word has room, in its lowest places.
    held: u64,
    held_bytes: u32,
}

impl<M: Deref<Target = [AtomicU64]>> Writer<'_, M> {
    #[inline]
    fn put_word(&mut self, value: u64) {
        if let Some(word) = self.half.line(self.line).get(self.word) {
            word.store(value, Ordering::Relaxed);
        }
        self.word += 1;
        if self.word == LINE_WORDS {
            (self.word, self.line) = (0, self.line + 1);
        }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        if self.held_bytes > 0 {
            return self.put_shifted(bytes);
        }
        while self.word != 0
            && let Some((word, rest)) = bytes.split_first_chunk()
        {
            self.put_word(u64::from_le_bytes(*word));
            bytes = rest;
        }
        if self.word == 0 {
            let (lines, rest) = bytes.as_chunks::<LINE_BYTES>();
            for from in lines {
                if let Some(line) = self.half.line(self.line).first_chunk::<LINE_WORDS>() {
                    for (word, from) in line.iter().zip(from.as_chunks::<8>().0) {
                        word.store(u64::from_le_bytes(*from), Ordering::Relaxed);
                    }
                }
                self.line += 1;
            }
            bytes = rest;
        }
        self.put_shifted(bytes);
    }

    /// Writes bytes that do not begin or end at a word.
    fn put_shifted(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        let shift = 8 * self.held_bytes;
        for word in words {
            let value = u64::from_le_bytes(*word);
            self.put_word(self.held | value << shift);
            self.held = if shift == 0 { 0 } else { value >> (64 - shift) };
        }
        for byte in rest {
            self.held |= u64::from(*byte) << (8 * self.held_bytes);
            self.held_bytes += 1;
            if self.held_bytes == 8 {
                self.put_word(self.held);
                (self.held, self.held_bytes) = (0, 0);
            }
        }
    }

    fn finish(&mut self) {
        if self.held_bytes > 0 {
            self.put_word(self.held);
        }
    }
}
