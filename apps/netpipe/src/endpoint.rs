//! The client's side of a connection: sends views of one buffer, and discards the data that it receives.

use crate::message::message;
use core::fmt;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{StreamError, TcpStream};

/// The reasons why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointError {
    /// The connection itself failed.
    Stream(StreamError),
    /// The peer closed the connection in the middle of a message.
    Short,
    /// The peer violated the protocol.
    Protocol,
}

impl From<StreamError> for EndpointError {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

impl fmt::Display for EndpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(error) => error.fmt(f),
            Self::Short => f.write_str("the peer closed the connection in the middle of a message"),
            Self::Protocol => f.write_str("the peer is not a netpipe of this version"),
        }
    }
}

impl core::error::Error for EndpointError {}

/// One side of a connection.
#[derive(Debug)]
pub struct Endpoint {
    stream: TcpStream,
    /// Received data that was not read yet.
    unread: Chain,
}

impl Endpoint {
    /// Creates an end from a stream.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Chain::new() }
    }

    /// Sends a message of `size` bytes.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub async fn send(&mut self, size: usize) -> Result<(), EndpointError> {
        Ok(self.stream.write(message(size)).await?)
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub async fn send_bytes(&mut self, bytes: &[u8]) -> Result<(), EndpointError> {
        Ok(self.stream.write(IoBuf::copy_from_slice(bytes).into()).await?)
    }

    /// Reads `size` bytes, and discards them as they arrive.
    ///
    /// # Errors
    /// [`EndpointError`].
    pub async fn receive(&mut self, size: u64) -> Result<(), EndpointError> {
        let mut left = size;
        loop {
            let count = left.min(self.unread.len() as u64);
            self.unread.advance(count as usize);
            left -= count;
            if left == 0 {
                return Ok(());
            }
            self.unread = self.stream.read().await?.ok_or(EndpointError::Short)?;
        }
    }

    /// Closes the sending direction.
    pub fn shutdown(&mut self) {
        self.stream.shutdown();
    }
}
