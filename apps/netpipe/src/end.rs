//! The client's side of a connection: sends views of one buffer, and discards the data that it receives.

use crate::message::message;
use core::fmt;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{StreamError, TcpStream};

/// The reasons why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndError {
    /// The connection itself failed.
    Stream(StreamError),
    /// The peer closed the connection in the middle of a message.
    Short,
    /// The peer violated the protocol.
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

/// One side of a connection.
#[derive(Debug)]
pub struct End {
    stream: TcpStream,
    /// Received data that was not read yet.
    unread: Chain,
}

impl End {
    /// Creates an end from a stream.
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

    /// Reads `size` bytes, and discards them as they arrive.
    ///
    /// # Errors
    /// [`EndError`].
    pub async fn receive(&mut self, size: u64) -> Result<(), EndError> {
        let mut left = size;
        loop {
            let come = left.min(self.unread.len() as u64);
            self.unread.advance(come as usize);
            left -= come;
            if left == 0 {
                return Ok(());
            }
            self.unread = self.stream.read().await?.ok_or(EndError::Short)?;
        }
    }

    /// Closes the sending direction.
    pub fn shutdown(&mut self) {
        self.stream.shutdown();
    }
}
