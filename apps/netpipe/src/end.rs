//! One end of a connection: messages out of one memory, and into none.

use core::fmt;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{StreamError, TcpStream};

/// Why the other end is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndError {
    /// The connection.
    Stream(StreamError),
    /// It ended in the middle of something.
    Short,
    /// What was said is not what this protocol says.
    Protocol,
}

impl From<StreamError> for EndError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl fmt::Display for EndError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(error) => error.fmt(f),
            Self::Short => f.write_str("the other end has left in the middle of a message"),
            Self::Protocol => f.write_str("the other end is no netpipe of this version"),
        }
    }
}

impl core::error::Error for EndError {}

/// What all messages are made of, so that none has memory of its own, whatever size the other end asks for.
static SLICE: [u8; 64 << 10] = [b'n'; 64 << 10];

/// A message of `size` bytes.
fn message(size: usize) -> Chain {
    let mut message = Chain::new();
    while message.len() < size {
        let mut slice = IoBuf::from_static(&SLICE);
        slice.truncate(size - message.len());
        message.push_back(slice);
    }
    message
}

/// An end of a connection.
#[derive(Debug)]
pub struct End {
    stream: TcpStream,
    /// What came and was not read.
    unread: Chain,
}

impl End {
    /// The end that has this stream.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Chain::new() }
    }

    /// Sends a message of `size` bytes.
    ///
    /// # Errors
    /// [`EndError`].
    pub async fn send(&mut self, size: usize) -> Result<(), EndError> {
        Ok(self.stream.write(message(size)).await?)
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// [`EndError`].
    pub async fn say(&mut self, bytes: &[u8]) -> Result<(), EndError> {
        Ok(self.stream.write(IoBuf::copy_from_slice(bytes).into()).await?)
    }

    /// Reads `size` bytes, and forgets them as they come.
    ///
    /// # Errors
    /// [`EndError`].
    pub async fn receive(&mut self, size: usize) -> Result<(), EndError> {
        let mut left = size;
        loop {
            let come = self.unread.len().min(left);
            self.unread.advance(come);
            left -= come;
            if left == 0 {
                return Ok(());
            }
            self.unread = self.stream.read().await?.ok_or(EndError::Short)?;
        }
    }

    /// Reads as many bytes as there is room for; `None` where the other end has ended before the first.
    ///
    /// # Errors
    /// [`EndError`].
    pub async fn hear<const N: usize>(&mut self) -> Result<Option<[u8; N]>, EndError> {
        let mut bytes = [0; N];
        while self.unread.copy_to_slice(&mut bytes).is_none() {
            match self.stream.read().await? {
                Some(more) => self.unread.append(more),
                None if self.unread.is_empty() => return Ok(None),
                None => return Err(EndError::Short),
            }
        }
        self.unread.advance(N);
        Ok(Some(bytes))
    }

    /// Says that nothing more will be sent.
    pub fn shutdown(&mut self) {
        self.stream.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizes::MAX_SIZE;

    #[test]
    fn a_message_costs_no_memory_of_its_size() {
        for size in [1, SLICE.len(), SLICE.len() + 1, MAX_SIZE] {
            assert_eq!(message(size).len(), size);
            let cost = allocation_counter::measure(|| drop(message(size)));
            assert!(cost.bytes_total < 64 << 10, "{size} bytes allocate {cost:?}");
        }
    }
}
