//! The two directions of a [`TcpStream`], for one task that reads and writes concurrently.

use crate::connection::Connection;
use crate::tcp::{StreamError, TcpStream};
use core::future::poll_fn;
use core::task::{Context, Poll};
use isola_iobuf::Chain;

/// The reading direction of a stream.
#[derive(Debug)]
pub struct ReadHalf<'a> {
    stream: &'a TcpStream,
}

/// The writing direction of a stream.
#[derive(Debug)]
pub struct WriteHalf<'a> {
    stream: &'a TcpStream,
}

impl TcpStream {
    /// Returns the two directions.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf { stream: self }, WriteHalf { stream: self })
    }
}

impl ReadHalf<'_> {
    pub(crate) fn record(&self) -> &Connection {
        self.stream.record()
    }

    /// Reads like [`TcpStream::read`].
    ///
    /// # Errors
    /// As [`TcpStream::read`].
    pub async fn read(&mut self) -> Result<Option<Chain>, StreamError> {
        poll_fn(|context| self.poll_read(context)).await
    }

    /// Reads like [`TcpStream::poll_read`].
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Chain>, StreamError>> {
        self.stream.poll_incoming(context)
    }
}

impl WriteHalf<'_> {
    pub(crate) fn record(&self) -> &Connection {
        self.stream.record()
    }

    /// Writes like [`TcpStream::write`].
    ///
    /// # Errors
    /// As [`TcpStream::write`].
    pub async fn write(&mut self, mut data: Chain) -> Result<(), StreamError> {
        poll_fn(|context| self.poll_write(context, &mut data)).await
    }

    /// Writes like [`TcpStream::poll_write`].
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), StreamError>> {
        self.stream.poll_outgoing(context, data)
    }

    /// Ends the sending direction like [`TcpStream::shutdown`].
    pub fn shutdown(&mut self) {
        self.stream.end_outgoing();
    }
}
