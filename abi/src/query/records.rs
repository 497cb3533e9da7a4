//! Records cut out of what a cell wrote. The bytes are hostile: a cell can say anything.

use super::{AnswerPiece, FRAMES_BYTES, WORD};
use alloc::vec::Vec;
use core::fmt;

/// What a cell wrote is no row of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// A length that no record has.
    Length(u64),
    /// Bytes are missing.
    Gap,
    /// A record that means nothing.
    Malformed,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self {
            Self::Length(len) => return write!(f, "the cell's answer has a record of {len} bytes: {REMEDY}"),
            Self::Gap => "parts of the cell's answer are missing",
            Self::Malformed => "the cell's answer makes no sense",
        };
        write!(f, "{what}: {REMEDY}")
    }
}

const REMEDY: &str = "ask again, and build image and isola from one tree";

impl core::error::Error for RecordError {}

/// Puts pieces of an answer together to records.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// Of `bytes`, what was taken.
    taken: usize,
    /// Position behind `bytes`; none at the beginning.
    end: Option<u64>,
}

impl Records {
    /// The position from which on more is wanted.
    pub fn end(&self) -> u64 {
        self.end.unwrap_or(0)
    }

    /// Takes a piece.
    ///
    /// # Errors
    /// [`RecordError::Gap`] where it does not go on where the one before ended.
    pub fn add(&mut self, piece: &AnswerPiece) -> Result<(), RecordError> {
        if self.end.is_some_and(|end| end != piece.from) {
            return Err(RecordError::Gap);
        }
        self.bytes.drain(..self.taken);
        self.taken = 0;
        self.bytes.extend_from_slice(&piece.bytes);
        self.end = Some(piece.from.saturating_add(piece.bytes.len() as u64));
        Ok(())
    }

    /// The next record, where there is a whole one.
    ///
    /// # Errors
    /// [`RecordError::Length`].
    pub fn next_record(&mut self) -> Result<Option<&[u8]>, RecordError> {
        let rest = self.bytes.get(self.taken..).unwrap_or_default();
        let Some((head, rest)) = rest.split_first_chunk::<WORD>() else { return Ok(None) };
        let len = u64::from_le_bytes(*head);
        if len > FRAMES_BYTES as u64 {
            return Err(RecordError::Length(len));
        }
        let len = len as usize;
        let padded = len.next_multiple_of(WORD);
        if rest.len() < padded {
            return Ok(None);
        }
        self.taken += WORD + padded;
        Ok(rest.get(..len))
    }
}
