//! How messages are cut into frames on the byte stream of the management console.
//!
//! A message is encoded with postcard and then by COBS (consistent overhead byte stuffing), which leaves no
//! zero byte in it; a zero byte ends it. A sender begins with a zero byte as well, so that whatever a peer
//! that went away left half-sent is cut off there: after any break, both sides agree again at the next zero.
//!
//! Everything here takes hostile bytes: too long, not COBS, not postcard.

use alloc::vec::Vec;
use core::fmt;
use serde::{Serialize, de::DeserializeOwned};

/// Longest encoded frame, its zero byte not counted, in bytes. A longer one is dropped whole.
pub const MAX_FRAME: usize = 128 * 1024;

/// Most payload bytes in one message that carries a piece of something long (an image, a log): so few that a supervisor
/// decodes or encodes them in half a million instructions.
pub const MAX_CHUNK: usize = 16 * 1024;

/// Why a frame is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// Longer than [`MAX_FRAME`].
    TooLong,
    /// Not a message of the type that is expected.
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

/// The bytes to send for `message`: a zero byte, the message, a zero byte.
///
/// # Errors
/// [`FrameError::TooLong`] where the message does not fit in a frame.
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

/// Puts received bytes together to messages.
#[derive(Debug, Default)]
pub struct Decoder {
    frame: Vec<u8>,
    overrun: bool,
}

impl Decoder {
    /// A decoder that has seen nothing.
    pub const fn new() -> Self {
        Self { frame: Vec::new(), overrun: false }
    }

    /// Takes bytes from the front of `bytes` until they complete a message or there are no more.
    ///
    /// Returns `None` once all bytes are taken; call again until then.
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
    fn messages_survive_any_cutting() {
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
    fn a_half_sent_message_costs_only_itself() {
        let mut stream = encode(&vec![1u8, 2, 3]).unwrap();
        stream.truncate(3);
        stream.extend(encode(&vec![4u8, 5]).unwrap());
        let decoded = decode_all(&mut Decoder::new(), &stream);
        assert_eq!(decoded.len(), 2);
        assert_eq!(decoded[0], Err(FrameError::Malformed));
        assert_eq!(decoded[1], Ok(vec![4, 5]));
    }

    #[test]
    fn an_overlong_frame_is_dropped_whole_and_holds_no_memory() {
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
    fn garbage_is_no_message() {
        let decoded = decode_all(&mut Decoder::new(), &[3, 255, 255, 1, 0, 200, 1, 0]);
        assert!(decoded.iter().all(|message| *message == Err(FrameError::Malformed)), "{decoded:?}");
    }
}
