//! The layout of a half.

use crate::sync::{AtomicU64, Ordering};
use core::fmt;
use core::ops::Deref;

/// The size of a line in words of 8 bytes.
pub const LINE_WORDS: usize = 8;

/// The size of a line in bytes: a cache line.
pub const LINE_BYTES: usize = 8 * LINE_WORDS;

/// The number of lines before the entries.
pub const HEADER_LINES: usize = 4;

/// The first word of a half: the layout of this crate, first version.
const MARK: u64 = 0x0031_6b6e_696c_6f73;

/// The value of an index that is never reached.
pub(crate) const NEVER: u64 = u64::MAX;

/// The words of the header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Word {
    Mark = 0,
    Head = LINE_WORDS as isize,
    Tail = 2 * LINE_WORDS as isize,
    WakeAt = 2 * LINE_WORDS as isize + 1,
    RoomAt = 3 * LINE_WORDS as isize,
}

/// Memory that is too small for a header and two lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooSmall;

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the memory is too small for a ring: give it at least 4 KiB")
    }
}

impl core::error::Error for TooSmall {}

/// One half: words in shared memory.
#[derive(Clone, Debug)]
pub struct Half<M> {
    words: M,
    /// The number of entries, minus 1.
    mask: u64,
}

impl<'m> Half<&'m [AtomicU64]> {
    /// Returns the word that changes with each packet of the half's writer.
    pub fn head_word(&self) -> Option<&'m AtomicU64> {
        self.words.get(Word::Head as usize)
    }
}

impl<M: Deref<Target = [AtomicU64]>> Half<M> {
    /// Returns the half in `words`: of this side, or of the peer.
    ///
    /// # Errors
    /// [`TooSmall`] for less than six lines.
    pub fn new(words: M) -> Result<Self, TooSmall> {
        let lines = (words.len() / LINE_WORDS).saturating_sub(HEADER_LINES);
        if lines < 2 {
            return Err(TooSmall);
        }
        Ok(Self { words, mask: (1 << lines.ilog2()) - 1 })
    }

    /// Initialises the half of this side, before the peer can see it.
    pub fn init(&self) {
        for word in [Word::Head, Word::Tail] {
            self.store(word, 0, Ordering::Relaxed);
        }
        self.store(Word::WakeAt, NEVER, Ordering::Relaxed);
        self.store(Word::RoomAt, NEVER, Ordering::Relaxed);
        self.store(Word::Mark, MARK, Ordering::Release);
    }

    /// Returns whether the half was initialised.
    pub fn is_marked(&self) -> bool {
        self.load(Word::Mark, Ordering::Acquire) == MARK
    }

    /// Returns the number of lines for entries: a power of two.
    pub fn capacity(&self) -> u64 {
        self.mask + 1
    }

    #[inline]
    pub(crate) fn load(&self, word: Word, order: Ordering) -> u64 {
        // `new` has checked that the header is there.
        self.words.get(word as usize).map_or(0, |word| word.load(order))
    }

    #[inline]
    pub(crate) fn store(&self, word: Word, value: u64, order: Ordering) {
        if let Some(word) = self.words.get(word as usize) {
            word.store(value, order);
        }
    }

    /// Returns the words of the line with that index.
    #[inline]
    pub(crate) fn line(&self, index: u64) -> &[AtomicU64] {
        let first = (HEADER_LINES + (index & self.mask) as usize) * LINE_WORDS;
        self.words.get(first..first + LINE_WORDS).unwrap_or_default()
    }

    /// Returns the entries, and the offset in them of the byte with that index, counted since the ring began.
    #[cfg(not(loom))]
    #[inline]
    pub(crate) fn entries_at(&self, index: u64) -> (&[AtomicU64], usize) {
        let first = HEADER_LINES * LINE_WORDS;
        let count = self.capacity() as usize * LINE_WORDS;
        let entries = self.words.get(first..first + count).unwrap_or_default();
        (entries, index as usize & (count * size_of::<u64>() - 1))
    }
}
