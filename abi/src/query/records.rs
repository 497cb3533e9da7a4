//! Extraction of records from a cell's answer. The bytes are hostile: a cell can write anything.

use super::{AnswerPiece, FRAMES_BYTES, WORD};
use alloc::vec::Vec;
use core::fmt;
use serde::de::DeserializeOwned;

/// The reason why a cell's answer is not a sequence of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordError {
    /// A record has an impossible length.
    Length(u64),
    /// Bytes are missing.
    Gap,
    /// A record cannot be decoded.
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

/// Reassembles records from the parts of an answer.
#[derive(Debug, Default)]
pub struct Records {
    bytes: Vec<u8>,
    /// The number of bytes at the start of `bytes` that were already returned.
    taken: usize,
    /// The position after `bytes`; `None` before the first part.
    end: Option<u64>,
}

impl Records {
    /// Returns the position from which the next part must begin.
    pub fn end(&self) -> u64 {
        self.end.unwrap_or(0)
    }

    /// Adds a part.
    ///
    /// # Errors
    /// [`RecordError::Gap`] if the part does not begin at the end of the previous one.
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

    /// Returns the next record, or `None` if it is not complete.
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

/// Reads a value that consists of all of `bytes`.
pub(super) fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, RecordError> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        _ => Err(RecordError::Malformed),
    }
}
