//! Frames that a cell has captured: made whole, and written down.
//!
//! | file | what |
//! |---|---|
//! | this | a frame, as the cell tells of it |
//! | [`sums`] | checksums that the cell left to its device |
//! | [`file`](mod@file) | a pcapng file, for tcpdump and Wireshark |
//! | [`line`](mod@line) | a line a frame, for people |
//!
//! All of it comes from the cell, and may be anything.

pub mod file;
pub mod line;
pub mod sums;

use isola_abi::query::{FrameHead, RecordError};

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Captured {
    /// When, which way, and how long it was.
    pub head: FrameHead,
    /// What was captured of it, with the checksum that the device was to fill in where all of it is there.
    pub bytes: Vec<u8>,
}

impl Captured {
    /// The frame of a record.
    ///
    /// # Errors
    /// [`RecordError::Malformed`].
    pub fn decode(record: &[u8]) -> Result<Self, RecordError> {
        let (head, bytes) = FrameHead::decode(record)?;
        let mut bytes = bytes.to_vec();
        if let Some(sum) = head.sum
            && bytes.len() == head.len_bytes as usize
        {
            sums::complete(&mut bytes, sum);
        }
        Ok(Self { head, bytes })
    }
}
