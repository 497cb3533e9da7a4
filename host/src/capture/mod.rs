//! Captured frames: completion of checksums, files, and one-line descriptions.
//!
//! | file | contents |
//! |---|---|
//! | this | a captured frame, as the cell reports it |
//! | [`sums`] | checksums that the cell left to its device |
//! | [`file`](mod@file) | a pcapng file, for tcpdump and Wireshark |
//! | [`line`](mod@line) | a one-line description of a frame |
//!
//! All data comes from the cell and is untrusted.

pub mod file;
pub mod line;
pub mod sums;

use isola_abi::query::{FrameHead, RecordError};

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapturedFrame {
    /// The time, direction and length.
    pub head: FrameHead,
    /// The captured bytes. If the whole frame was captured, they include the checksum that the device was to fill in.
    pub bytes: Vec<u8>,
}

impl CapturedFrame {
    /// Decodes the frame of a record.
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
