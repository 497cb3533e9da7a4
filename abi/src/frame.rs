//! The framing of messages on the byte stream of the management console.
//!
//! A message is encoded by postcard, then by COBS (consistent overhead byte stuffing), which leaves no zero byte in it;
//! a zero byte ends the frame. A sender also begins with a zero byte, which ends a partial frame of an earlier,
//! disconnected sender. After any interruption, both sides are synchronised again at the next zero byte.
//!
//! All input is hostile: too long, not COBS, not postcard.

use alloc::vec::Vec;
use core::fmt;
use serde::{Serialize, de::DeserializeOwned};

/// The maximum length of an encoded frame, without its zero byte, in bytes. The decoder drops a longer frame
/// completely.
pub const MAX_FRAME: usize = 128 * 1024;

/// The maximum payload of a message with a part of longer data (an image, a log), in bytes. The supervisor decodes or
/// encodes such a message in half a million instructions.
pub const MAX_PART_BYTES: usize = 16 * 1024;

/// The reason why a frame is not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The frame is longer than [`MAX_FRAME`].
    TooLong,
    /// The frame is not a message of the expected type.
    Malformed,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "a frame of more than {MAX_FRAME} bytes"),
            Self::Malformed => f.write_str("a frame that is no message of this protocol"),
        }
    }
}

impl core::error::Error for FrameError {}

/// Returns the bytes to send for `message`: a zero byte, the encoded message, a zero byte.
///
/// # Errors
/// [`FrameError::TooLong`] if the message does not fit in a frame.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, FrameError> {
    let body = postcard::to_allocvec_cobs(message).map_err(|_| FrameError::Malformed)?;
    if body.len() > MAX_FRAME + 1 {
        return Err(FrameError::TooLong);
    }
    let mut frame = Vec::with_capacity(body.len() + 1);
    frame.push(0);
    frame.extend_from_slice(&body);
    Ok(frame)
}

/// Reassembles messages from received bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    frame: Vec<u8>,
    overrun: bool,
}

impl Decoder {
    /// Returns a decoder without buffered bytes.
    pub const fn new() -> Self {
        Self { frame: Vec::new(), overrun: false }
    }

    /// Consumes bytes from the front of `bytes` until they complete a message or are exhausted.
    ///
    /// Returns `None` once all bytes are consumed; the caller repeats the call until then.
    pub fn next<T: DeserializeOwned>(&mut self, bytes: &mut &[u8]) -> Option<Result<T, FrameError>> {
        while let Some(end) = bytes.iter().position(|&byte| byte == 0) {
            let (piece, rest) = (&bytes[..end], &bytes[end + 1..]);
            self.take(piece);
            *bytes = rest;
            let overrun = core::mem::take(&mut self.overrun);
            let mut frame = core::mem::take(&mut self.frame);
            if overrun {
                return Some(Err(FrameError::TooLong));
            }
            if frame.is_empty() {
                continue;
            }
            return Some(postcard::from_bytes_cobs(&mut frame).map_err(|_| FrameError::Malformed));
        }
        self.take(bytes);
        *bytes = &[];
        None
    }

    fn take(&mut self, piece: &[u8]) {
        if self.overrun || self.frame.len() + piece.len() > MAX_FRAME {
            self.overrun = true;
            self.frame = Vec::new();
        } else {
            self.frame.extend_from_slice(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn decode_all(decoder: &mut Decoder, mut bytes: &[u8]) -> Vec<Result<Vec<u8>, FrameError>> {
        core::iter::from_fn(|| decoder.next(&mut bytes)).collect()
    }

    #[test]
    fn messages_survive_any_segmentation() {
        let messages = [vec![0u8; 300], vec![], vec![1, 0, 2, 0, 0], (0..=255).collect()];
        let stream: Vec<u8> = messages.iter().flat_map(|message| encode(message).unwrap()).collect();
        for step in 1..40 {
            let mut decoder = Decoder::new();
            let decoded: Vec<_> = stream
                .chunks(step)
                .flat_map(|piece| decode_all(&mut decoder, piece))
                .map(Result::unwrap)
                .collect();
            assert_eq!(decoded, messages);
        }
    }

    #[test]
    fn a_partial_message_does_not_damage_the_next() {
        let mut stream = encode(&vec![1u8, 2, 3]).unwrap();
        stream.truncate(3);
        stream.extend(encode(&vec![4u8, 5]).unwrap());
        let decoded = decode_all(&mut Decoder::new(), &stream);
        assert_eq!(decoded.len(), 2);
        assert_eq!(decoded[0], Err(FrameError::Malformed));
        assert_eq!(decoded[1], Ok(vec![4, 5]));
    }

    #[test]
    fn an_overlong_frame_is_dropped_and_frees_its_memory() {
        let mut decoder = Decoder::new();
        let flood = vec![7u8; MAX_FRAME / 2];
        for _ in 0..5 {
            assert!(decode_all(&mut decoder, &flood).is_empty());
            assert!(decoder.frame.len() <= MAX_FRAME);
        }
        let decoded = decode_all(&mut decoder, &encode(&vec![9u8]).unwrap());
        assert_eq!(decoded, [Err(FrameError::TooLong), Ok(vec![9])]);
    }

    #[test]
    fn garbage_is_refused() {
        let decoded = decode_all(&mut Decoder::new(), &[3, 255, 255, 1, 0, 200, 1, 0]);
        assert!(decoded.iter().all(|message| *message == Err(FrameError::Malformed)), "{decoded:?}");
    }
}
