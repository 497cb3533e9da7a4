//! Queries: what the host tool asks a running cell, and what the cell answers. The supervisor carries both, and reads
//! neither.
//!
//! ```text
//!   host tool            supervisor                               cell
//!   Ask ---------------> Questions::put, interrupt -------------> Questions::get
//!                                                                 Ring::begin, Ring::push, ...
//!   Answers from 0 ----> Ring::piece  <-------------------------- records, as long as there is room
//!   Answers from n ----> Ring::piece; what stood before n is room again
//! ```
//!
//! The question is in the descriptor's live words, which the cell cannot write; the answer is in the report. There are two
//! [`Line`]s, so that a capture goes on while somebody asks for something else. A question takes the place of the one before
//! on its line, and who asked that is told so. A cell answers when it comes to it, or never: the asker has patience, and
//! nobody else waits.
//!
//! An answer is a row of *records*: a word with the length in bytes, and the bytes, filled up to whole words. Where they are
//! read too slowly the cell leaves records out, and counts them.
//!
//! | file | what |
//! |---|---|
//! | this | questions, and the ring of answers |
//! | `facts` | what can be asked, and the records of the answers |
//! | `records` | records cut out of what the cell wrote, by who believes none of it |

mod facts;
mod records;

pub use facts::{
    CaptureSpec, Connection, CounterName, Direction, Fact, FrameFilter, FrameHead, PartialSum, Query,
};
pub use records::{RecordError, Records};

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use serde::{Deserialize, Serialize};

/// Most bytes of a question.
pub const MAX_QUESTION: usize = 128;

/// Bytes that the answers of [`Line::Facts`] have.
pub const FACTS_BYTES: usize = 32 * 1024;

/// Bytes that the answers of [`Line::Frames`] have: the longest frame fits in, whatever else is there, once it is read.
pub const FRAMES_BYTES: usize = 128 * 1024;

const WORD: usize = size_of::<u64>();

/// What questions and answers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Line {
    /// Questions that are answered at once, and once.
    Facts,
    /// Frames as they come and go, until nobody reads them any more.
    Frames,
}

impl Line {
    /// All lines.
    pub const ALL: [Self; 2] = [Self::Facts, Self::Frames];
}

/// What the cell is asked, on each line. In the descriptor's live words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Questions {
    facts: Question,
    frames: Question,
}

/// A question.
#[repr(C)]
#[derive(Debug)]
struct Question {
    /// Counted up with each question, and never 0 then; 0 while the bytes change.
    number: AtomicU32,
    len_bytes: AtomicU32,
    bytes: [AtomicU8; MAX_QUESTION],
}

impl Default for Question {
    fn default() -> Self {
        Self {
            number: AtomicU32::new(0),
            len_bytes: AtomicU32::new(0),
            bytes: [const { AtomicU8::new(0) }; MAX_QUESTION],
        }
    }
}

impl Questions {
    /// Puts a question in the place of the one before. One writer at a time. Returns its number; `None` where it is longer
    /// than [`MAX_QUESTION`].
    pub fn put(&self, line: Line, question: &[u8]) -> Option<u32> {
        let place = self.on(line);
        let bytes = place.bytes.get(..question.len())?;
        let number = place.number.swap(0, Ordering::Relaxed).wrapping_add(1).max(1);
        // Who reads the new bytes reads the 0, too.
        fence(Ordering::Release);
        bytes.iter().zip(question).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        place.len_bytes.store(question.len() as u32, Ordering::Relaxed);
        place.number.store(number, Ordering::Release);
        Some(number)
    }

    /// The number of the question of that line; 0: there was none yet, or it is just being put.
    pub fn number(&self, line: Line) -> u32 {
        self.on(line).number.load(Ordering::Acquire)
    }

    /// The question of that line, where there is one; it is read whole, or not at all.
    pub fn get(&self, line: Line) -> Option<(u32, Vec<u8>)> {
        let place = self.on(line);
        let number = self.number(line);
        let len = place.len_bytes.load(Ordering::Relaxed) as usize;
        let bytes =
            place.bytes.iter().take(len).map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<u8>>();
        fence(Ordering::Acquire);
        (number != 0 && place.number.load(Ordering::Relaxed) == number).then_some((number, bytes))
    }

    fn on(&self, line: Line) -> &Question {
        match line {
            Line::Facts => &self.facts,
            Line::Frames => &self.frames,
        }
    }
}

/// What the cell answers, on each line. In the report.
#[repr(C)]
pub struct Answers {
    facts: AnswerWords<{ FACTS_BYTES / WORD }>,
    frames: AnswerWords<{ FRAMES_BYTES / WORD }>,
}

#[repr(C)]
struct AnswerWords<const WORDS: usize> {
    head: Head,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> AnswerWords<WORDS> {
    const fn new() -> Self {
        Self { head: Head::new(), words: [const { AtomicU64::new(0) }; WORDS] }
    }
}

/// How far an answer is. Positions count all bytes ever written; byte `n` stands at `n` modulo the ring's length.
#[repr(C)]
struct Head {
    /// The question that is answered; stored (release) after `start` and `lost`.
    number: AtomicU32,
    reserved: AtomicU32,
    /// Where the answer begins.
    start: AtomicU64,
    /// How far it was written; stored (release) after the words.
    written: AtomicU64,
    /// How far it was read; stored (release) by the reader.
    read: AtomicU64,
    /// Records left out.
    lost: AtomicU64,
}

impl Head {
    const fn new() -> Self {
        Self {
            number: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            start: AtomicU64::new(0),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }
}

impl Default for Answers {
    fn default() -> Self {
        Self::new()
    }
}

impl Answers {
    /// Answers to nothing.
    pub const fn new() -> Self {
        Self { facts: AnswerWords::new(), frames: AnswerWords::new() }
    }

    /// The answers of a line.
    pub fn on(&self, line: Line) -> Ring<'_> {
        match line {
            Line::Facts => Ring { head: &self.facts.head, words: &self.facts.words },
            Line::Frames => Ring { head: &self.frames.head, words: &self.frames.words },
        }
    }
}

/// The answers of a line. One writer, in the cell, and one reader at a time.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    head: &'a Head,
    words: &'a [AtomicU64],
}

/// A record was left out: nobody has read what came before, or it is longer than the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut;

/// How a question fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Standing {
    /// The cell has not begun to answer.
    Open,
    /// The cell answers, or has answered.
    Answered,
    /// Somebody has asked something else meanwhile.
    Replaced,
}

/// A piece of what a cell answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPiece {
    /// How the question fares; there are bytes of an answered one alone.
    pub standing: Standing,
    /// Position of the first byte: larger than what was asked for at the beginning.
    pub from: u64,
    /// Whole words.
    pub bytes: Vec<u8>,
    /// How far the cell has written.
    pub end: u64,
    /// Records that the cell has left out since the question.
    pub lost: u64,
}

impl Ring<'_> {
    /// Begins the answer to the question of that number.
    pub fn begin(&self, number: u32) {
        self.head.start.store(self.head.written.load(Ordering::Relaxed), Ordering::Relaxed);
        self.head.lost.store(0, Ordering::Relaxed);
        self.head.number.store(number, Ordering::Release);
    }

    /// Writes a record.
    ///
    /// # Errors
    /// [`LeftOut`], which is counted.
    pub fn push(&self, record: &[u8]) -> Result<(), LeftOut> {
        self.push_pieces(record.len(), core::iter::once(record))
    }

    /// Writes a record of `len` bytes, which are those of `pieces`.
    ///
    /// # Errors
    /// [`LeftOut`], which is counted.
    pub fn push_pieces<'b>(&self, len: usize, pieces: impl Iterator<Item = &'b [u8]>) -> Result<(), LeftOut> {
        let needed = (WORD + len.next_multiple_of(WORD)) as u64;
        let written = self.head.written.load(Ordering::Relaxed);
        if needed > self.room() {
            self.head.lost.fetch_add(1, Ordering::Relaxed);
            return Err(LeftOut);
        }
        let mut at = written / WORD as u64;
        let mut put = |word: u64| {
            if let Some(place) = self.words.get((at % self.words.len() as u64) as usize) {
                place.store(word, Ordering::Relaxed);
            }
            at += 1;
        };
        put(len as u64);
        // Bytes that do not make a word yet, from the lowest on.
        let (mut rest, mut rest_bits) = (0_u64, 0_u32);
        for piece in pieces {
            let (words, tail) = piece.as_chunks::<WORD>();
            for word in words {
                let word = u64::from_le_bytes(*word);
                put(rest | word << rest_bits);
                rest = if rest_bits == 0 { 0 } else { word >> (u64::BITS - rest_bits) };
            }
            for byte in tail {
                rest |= u64::from(*byte) << rest_bits;
                rest_bits += u8::BITS;
                if rest_bits == u64::BITS {
                    put(rest);
                    (rest, rest_bits) = (0, 0);
                }
            }
        }
        if rest_bits > 0 {
            put(rest);
        }
        self.head.written.store(written + needed, Ordering::Release);
        Ok(())
    }

    /// How far the answer was read, as far as the writer is concerned.
    pub fn read(&self) -> u64 {
        self.head.read.load(Ordering::Acquire).max(self.head.start.load(Ordering::Relaxed))
    }

    /// How many bytes there are for records now, the word in front of each included.
    pub fn room(&self) -> u64 {
        self.capacity().saturating_sub(self.head.written.load(Ordering::Relaxed).saturating_sub(self.read()))
    }

    fn capacity(&self) -> u64 {
        (self.words.len() * WORD) as u64
    }

    /// At most `max_bytes` of the answer to `question`, from position `from` on, for a reader that has got all before. Takes
    /// whatever the writer has written for what it is: any numbers, any bytes.
    pub fn piece(&self, asked: u32, question: u32, from: u64, max_bytes: usize) -> AnswerPiece {
        let standing = match self.head.number.load(Ordering::Acquire) {
            _ if asked != question => Standing::Replaced,
            answered if answered == asked => Standing::Answered,
            _ => Standing::Open,
        };
        let mut piece = AnswerPiece { standing, from, bytes: Vec::new(), end: from, lost: 0 };
        if standing != Standing::Answered {
            return piece;
        }
        let whole = |position: u64| position / WORD as u64 * WORD as u64;
        piece.end = whole(self.head.written.load(Ordering::Acquire));
        piece.lost = self.head.lost.load(Ordering::Relaxed);
        piece.from = whole(from.max(self.head.start.load(Ordering::Relaxed)));
        self.head.read.store(piece.from, Ordering::Release);
        let len = piece.end.saturating_sub(piece.from).min(self.capacity()).min(max_bytes as u64);
        let first = piece.from / WORD as u64;
        piece.bytes.reserve_exact(len as usize);
        for index in 0..len / WORD as u64 {
            let place = self.words.get((first.wrapping_add(index) % self.words.len() as u64) as usize);
            let word = place.map_or(0, |place| place.load(Ordering::Relaxed));
            piece.bytes.extend_from_slice(&word.to_le_bytes());
        }
        piece
    }
}

#[cfg(test)]
mod tests;
