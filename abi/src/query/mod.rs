//! Queries of the host tool to a running cell, and the cell's answers. The supervisor forwards both unparsed.
//!
//! ```text
//!   host tool              supervisor                              cell
//!   Ask -----------------> Queries::put, interrupt ------------> Queries::get
//!                                                                  Ring::begin, Ring::push, ...
//!   Answers from 0 ------> Ring::piece  <------------------------- records, while the ring has room
//!   Answers from n ------> Ring::piece; the bytes before n are free again
//! ```
//!
//! The query is in the descriptor's live words, which the cell cannot write; the answer is in the report. There are two
//! [`Line`]s, so that a capture, a trace or a profile continues during another query. A new query replaces the previous one on its line, and
//! the sender of the previous one gets an error. A cell may answer late or never; only the host tool waits for the
//! answer, with a timeout.
//!
//! An answer is a sequence of *records*: a word with the length in bytes, then the bytes, padded to whole words. If the
//! reader is too slow, the cell drops records and counts them.
//!
//! | file | contents |
//! |---|---|
//! | this | queries, and the ring of answers |
//! | `facts` | the kinds of queries, and the records of their answers |
//! | `memory` | the records about memory |
//! | `processes` | the records about processes |
//! | `trace` | the records of a trace |
//! | `profile` | the records of a profile |
//! | `records` | extraction of records from a cell's untrusted bytes |

mod facts;
mod memory;
mod processes;
mod profile;
mod records;
mod trace;

pub use facts::{
    ActivityMemory, ActivityTraffic, ActivityUsage, AnswerRecord, CaptureSpec, ConnectedMachine, Connection,
    CounterName, Direction, FrameFilter, FrameHead, GridClient, GridEntitlement, GridSettings, MemoryUse,
    PartialSum, Query,
};
pub use memory::{MemoryKind, MemoryPart};
pub use processes::{MAX_COMMAND, ProcessState, ProcessUsage};
pub use profile::{MAX_SAMPLE_DEPTH, ProfileRecord, ProfileSpec, SampleAccount, SampleBatch, StackSample};
pub use records::{RecordError, Records};
pub use trace::{
    Period, PeriodBatch, PeriodKind, TraceActivity, TraceBegin, TraceRecord, TraceSite, TraceSpec,
};

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use serde::{Deserialize, Serialize};

/// The maximum length of an encoded query, in bytes.
pub const MAX_QUERY: usize = 128;

/// The size of the answer ring of [`Line::Facts`], in bytes.
pub const FACTS_BYTES: usize = 32 * 1024;

/// The size of the answer ring of [`Line::Frames`], in bytes. The longest frame fits once the reader has read all
/// records before it.
pub const FRAMES_BYTES: usize = 128 * 1024;

const WORD: usize = size_of::<u64>();

/// An independent channel for queries and their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Line {
    /// Queries with one immediate answer.
    Facts,
    /// Captured frames, the periods of a trace, or the samples of a profile: a stream that ends when it is no longer read.
    Frames,
}

impl Line {
    /// All lines.
    pub const ALL: [Self; 2] = [Self::Facts, Self::Frames];
}

/// The present query on each line, in the descriptor's live words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Queries {
    facts: QueryWords,
    frames: QueryWords,
}

/// A query.
#[repr(C)]
#[derive(Debug)]
struct QueryWords {
    /// The query's number, incremented with each query, and never 0 then; 0 before the first query and while the bytes
    /// change.
    number: AtomicU32,
    len_bytes: AtomicU32,
    bytes: [AtomicU8; MAX_QUERY],
}

impl Default for QueryWords {
    fn default() -> Self {
        Self {
            number: AtomicU32::new(0),
            len_bytes: AtomicU32::new(0),
            bytes: [const { AtomicU8::new(0) }; MAX_QUERY],
        }
    }
}

impl Queries {
    /// Replaces the query on a line. For one writer at a time. Returns the query's number, or `None` if it is longer
    /// than [`MAX_QUERY`].
    pub fn put(&self, line: Line, query: &[u8]) -> Option<u32> {
        let words = self.on(line);
        let bytes = words.bytes.get(..query.len())?;
        let number = words.number.swap(0, Ordering::Relaxed).wrapping_add(1).max(1);
        // A reader of the new bytes also reads the 0.
        fence(Ordering::Release);
        bytes.iter().zip(query).for_each(|(place, byte)| place.store(*byte, Ordering::Relaxed));
        words.len_bytes.store(query.len() as u32, Ordering::Relaxed);
        words.number.store(number, Ordering::Release);
        Some(number)
    }

    /// Returns the number of a line's query; 0 before the first query and while the bytes change.
    pub fn number(&self, line: Line) -> u32 {
        self.on(line).number.load(Ordering::Acquire)
    }

    /// Returns a line's query and its number. A query that changes during the read yields `None`.
    pub fn get(&self, line: Line) -> Option<(u32, Vec<u8>)> {
        let words = self.on(line);
        let number = self.number(line);
        let len = words.len_bytes.load(Ordering::Relaxed) as usize;
        let bytes =
            words.bytes.iter().take(len).map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<u8>>();
        fence(Ordering::Acquire);
        (number != 0 && words.number.load(Ordering::Relaxed) == number).then_some((number, bytes))
    }

    fn on(&self, line: Line) -> &QueryWords {
        match line {
            Line::Facts => &self.facts,
            Line::Frames => &self.frames,
        }
    }
}

/// The answers on each line, in the report.
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

/// The state of an answer. Positions count all bytes ever written; byte `n` is at `n` modulo the ring's length.
#[repr(C)]
struct Head {
    /// The number of the answered query; stored (release) after `start` and `lost`.
    number: AtomicU32,
    reserved: AtomicU32,
    /// The position of the answer's first byte.
    start: AtomicU64,
    /// The position up to which the cell has written; stored (release) after the words.
    written: AtomicU64,
    /// The position up to which the reader has read; stored (release) by the reader.
    read: AtomicU64,
    /// The number of dropped records.
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
    /// Returns empty answers.
    pub const fn new() -> Self {
        Self { facts: AnswerWords::new(), frames: AnswerWords::new() }
    }

    /// Returns the ring of a line.
    pub fn on(&self, line: Line) -> Ring<'_> {
        match line {
            Line::Facts => Ring { head: &self.facts.head, words: &self.facts.words },
            Line::Frames => Ring { head: &self.frames.head, words: &self.frames.words },
        }
    }
}

/// The ring of a line's answers, for one writer, in the cell, and one reader at a time.
#[derive(Clone, Copy)]
pub struct Ring<'a> {
    head: &'a Head,
    words: &'a [AtomicU64],
}

/// The error for a dropped record: the unread records leave too little room, or it is longer than the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordDropped;

/// The state of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum QueryState {
    /// The cell has not begun to answer.
    Open,
    /// The cell has begun to answer, and may have finished.
    Answered,
    /// Another query has replaced this one.
    Replaced,
}

/// A part of a cell's answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPiece {
    /// The query's state. `bytes` is empty unless the state is [`QueryState::Answered`].
    pub state: QueryState,
    /// The position of the first byte. In the first part it is higher than the requested position.
    pub from: u64,
    /// The bytes, in whole words.
    pub bytes: Vec<u8>,
    /// The position up to which the cell has written.
    pub end: u64,
    /// The number of records that the cell has dropped since the query.
    pub lost: u64,
}

impl Ring<'_> {
    /// Begins the answer to the query `number`.
    pub fn begin(&self, number: u32) {
        self.head.start.store(self.head.written.load(Ordering::Relaxed), Ordering::Relaxed);
        self.head.lost.store(0, Ordering::Relaxed);
        self.head.number.store(number, Ordering::Release);
    }

    /// Writes a record.
    ///
    /// # Errors
    /// [`RecordDropped`]; the record is counted as dropped.
    pub fn push(&self, record: &[u8]) -> Result<(), RecordDropped> {
        self.push_pieces(record.len(), core::iter::once(record))
    }

    /// Writes a record of `len` bytes, the concatenation of `pieces`.
    ///
    /// # Errors
    /// [`RecordDropped`]; the record is counted as dropped.
    pub fn push_pieces<'b>(
        &self,
        len: usize,
        pieces: impl Iterator<Item = &'b [u8]>,
    ) -> Result<(), RecordDropped> {
        let needed = (WORD + len.next_multiple_of(WORD)) as u64;
        let written = self.head.written.load(Ordering::Relaxed);
        if needed > self.room() {
            self.head.lost.fetch_add(1, Ordering::Relaxed);
            return Err(RecordDropped);
        }
        let mut at = written / WORD as u64;
        let mut put = |word: u64| {
            if let Some(place) = self.words.get((at % self.words.len() as u64) as usize) {
                place.store(word, Ordering::Relaxed);
            }
            at += 1;
        };
        put(len as u64);
        // The bytes of an incomplete word, from the lowest on, and their number of bits.
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

    /// Returns the position up to which the answer was read, or its start if that is higher.
    pub fn read(&self) -> u64 {
        self.head.read.load(Ordering::Acquire).max(self.head.start.load(Ordering::Relaxed))
    }

    /// Returns the free space for records in bytes, including the length word of each.
    pub fn room(&self) -> u64 {
        self.capacity().saturating_sub(self.head.written.load(Ordering::Relaxed).saturating_sub(self.read()))
    }

    fn capacity(&self) -> u64 {
        (self.words.len() * WORD) as u64
    }

    /// Returns at most `max_bytes` of the answer to the query `asked`, from position `from` on. `query` is the
    /// number of the line's present query. The call releases the ring's bytes before `from`. It accepts any values that
    /// the cell may have written.
    pub fn piece(&self, asked: u32, query: u32, from: u64, max_bytes: usize) -> AnswerPiece {
        let state = match self.head.number.load(Ordering::Acquire) {
            _ if asked != query => QueryState::Replaced,
            answered if answered == asked => QueryState::Answered,
            _ => QueryState::Open,
        };
        let mut piece = AnswerPiece { state, from, bytes: Vec::new(), end: from, lost: 0 };
        if state != QueryState::Answered {
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
