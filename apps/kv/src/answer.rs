//! An item in contiguous memory, stored as the text protocol's answer to a `get` of that item alone.
//!
//! ```text
//! VALUE <key> <flags> <length>\r\n<value>\r\nEND\r\n
//! ```
//!
//! Most requests of most servers are such reads. Their answers are views of the items' memory, so a read does not
//! allocate, format or copy. All other answers extract the key and the value. The format costs each item 17 bytes plus
//! the digits of its flags and length.

use isola_iobuf::{Chain, IoBuf, IoBufMut};

use crate::output::Writer;

const END: &[u8; 5] = b"END\r\n";
const LINE_END: &[u8; 2] = b"\r\n";

/// The line that precedes a value.
pub(crate) struct ValueLine<'a> {
    pub flags: &'a [u8],
    pub value_len: &'a [u8],
    /// The item's version, if the client requested it.
    pub cas: Option<&'a [u8]>,
}

impl ValueLine<'_> {
    const WORD: &'static [u8; 6] = b"VALUE ";

    /// Returns the length of the line, in bytes.
    pub fn len(&self, key_len: usize) -> usize {
        Self::WORD.len() + key_len + self.rest_len()
    }

    /// Returns the length of the part of the line that follows the key.
    fn rest_len(&self) -> usize {
        let cas_len = self.cas.map_or(0, |cas| 1 + cas.len());
        1 + self.flags.len() + 1 + self.value_len.len() + cas_len + LINE_END.len()
    }

    /// Writes the line.
    pub fn put(&self, key: &[u8], writer: &mut Writer<'_>) {
        writer.put_array(Self::WORD);
        writer.put(key);
        for word in [Some(self.flags), Some(self.value_len), self.cas].into_iter().flatten() {
            writer.put_array(b" ");
            writer.put_digits(word);
        }
        writer.put_array(LINE_END);
    }
}

/// The key, flags and value of an item, in memory of exactly their size.
#[derive(Clone, Debug)]
pub struct Answer {
    bytes: IoBuf,
    key_len: u8,
    /// The number of bytes between the key and the value: at most 10 digits of flags, 5 digits of the length (a
    /// contiguous value is below 64 KiB), and 4 separators.
    gap_len: u8,
}

impl Answer {
    /// The largest number of bytes besides the key and the value.
    pub(crate) const MOST_ADDED: usize = ValueLine::WORD.len() + 1 + 10 + 1 + 5 + 2 + 2 + END.len();

    /// Builds an answer by copying `pieces`, whose lengths add up to `value_len`.
    pub(crate) fn join<'a>(
        key: &[u8],
        flags: u32,
        value_len: usize,
        pieces: impl Iterator<Item = &'a [u8]>,
    ) -> Self {
        let mut digits = [itoa::Buffer::new(); 2];
        let [flags_digits, len_digits] = &mut digits;
        let line = ValueLine {
            flags: flags_digits.format(flags).as_bytes(),
            value_len: len_digits.format(value_len).as_bytes(),
            cas: None,
        };
        let len = line.len(key.len()) + value_len + LINE_END.len() + END.len();
        let mut bytes = IoBufMut::with_room(0, len);
        if let Some(room) = bytes.append(len) {
            let mut writer = Writer::new(room);
            line.put(key, &mut writer);
            pieces.for_each(|piece| writer.put(piece));
            writer.put_array(LINE_END);
            writer.put_array(END);
        }
        Self { bytes: bytes.freeze(), key_len: key.len() as u8, gap_len: line.rest_len() as u8 }
    }

    /// Returns the answer to a `get` of this item alone.
    #[inline]
    pub fn bytes(&self) -> &IoBuf {
        &self.bytes
    }

    /// Returns a copy in other memory.
    pub(crate) fn copied(&self) -> Self {
        Self { bytes: IoBuf::copy_from_slice(&self.bytes), ..*self }
    }

    /// Returns the answer without its end, for a `get` of several items.
    pub fn without_end(&self) -> IoBuf {
        let mut bytes = self.bytes.clone();
        bytes.truncate(bytes.len() - END.len());
        bytes
    }

    /// Returns the key.
    #[inline]
    pub fn key(&self) -> &[u8] {
        let start = ValueLine::WORD.len();
        self.bytes.get(start..start + usize::from(self.key_len)).unwrap_or(&[])
    }

    /// Returns the length of the value, in bytes.
    pub fn value_len(&self) -> usize {
        self.bytes.len() - self.value_start() - LINE_END.len() - END.len()
    }

    fn value_start(&self) -> usize {
        ValueLine::WORD.len() + usize::from(self.key_len) + usize::from(self.gap_len)
    }

    fn value_range(&self) -> core::ops::Range<usize> {
        self.value_start()..self.value_start() + self.value_len()
    }

    /// Returns the value.
    pub fn value(&self) -> &[u8] {
        self.bytes.get(self.value_range()).unwrap_or(&[])
    }

    /// Returns the value as a view of the item's memory.
    pub fn value_view(&self) -> Chain {
        self.bytes.slice(self.value_range()).map(Chain::from).unwrap_or_default()
    }

    /// Overwrites the value: in place unless a response shares the memory, otherwise in fresh memory of the same size.
    pub(crate) fn overwrite(&mut self, write: impl FnOnce(&mut [u8])) {
        let range = self.value_range();
        let bytes = core::mem::replace(&mut self.bytes, IoBuf::from_static(b""));
        let mut bytes = bytes.try_into_mut().unwrap_or_else(|shared| {
            let mut copy = IoBufMut::with_room(0, shared.len());
            // Cannot fail: the buffer has room for as many bytes.
            let _ = copy.append_slice(&shared);
            copy
        });
        if let Some(value) = bytes.data_mut().get_mut(range) {
            write(value);
        }
        self.bytes = bytes.freeze();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(flags: u32, value: &[u8]) -> Answer {
        Answer::join(b"key", flags, value.len(), value.chunks(2))
    }

    #[test]
    fn key_and_value_are_at_the_right_offsets_for_all_lengths() {
        for flags in [0, 7, u32::MAX] {
            for value in [&b""[..], b"v", &[b'x'; 65_000]] {
                let answer = join(flags, value);
                let head = alloc::format!("VALUE key {flags} {}\r\n", value.len());
                assert_eq!(answer.bytes()[..], [head.as_bytes(), value, b"\r\nEND\r\n"].concat());
                assert_eq!(answer.without_end()[..], [head.as_bytes(), value, b"\r\n"].concat());
                assert_eq!((answer.key(), answer.value()), (&b"key"[..], value));
                assert_eq!(answer.value_view().to_vec(), value);
                assert!(answer.bytes().len() <= 3 + value.len() + Answer::MOST_ADDED);
                assert_eq!(answer.bytes().storage_len(), answer.bytes().len());
            }
        }
    }

    #[test]
    fn a_shared_answer_does_not_change_when_the_item_is_overwritten() {
        let mut answer = join(1, b"12");
        let address = answer.bytes().as_ptr();
        answer.overwrite(|value| value.copy_from_slice(b"34"));
        assert_eq!((answer.value(), answer.bytes().as_ptr()), (&b"34"[..], address));
        let read = answer.clone();
        answer.overwrite(|value| value.copy_from_slice(b"56"));
        assert_eq!((read.value(), answer.value(), answer.key()), (&b"34"[..], &b"56"[..], &b"key"[..]));
    }
}
