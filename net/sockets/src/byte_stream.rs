//! [`ByteStream`] implements the traits of `embedded-io-async` for a TCP stream, for protocol crates that use them.
//!
//! This adapter copies: a read copies data from the received frames into the caller's memory, a write copies data from
//! there into a new buffer. [`TcpStream`] copies neither. [`BufRead`] gives access to received frames without a copy.
//!
//! There is no write buffer: a write queues its data at once, and [`flush`](Write::flush) does nothing. The writes of a
//! task before it waits are nevertheless sent together, as the stack sends after the tasks that run.

use crate::halves::{ReadHalf, WriteHalf};
use crate::tcp::{StreamError, TcpStream};
use core::fmt;
use embedded_io_async::{BufRead, Error, ErrorKind, ErrorType, Read, Write};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{ConnectError, FailReason};

/// The most bytes of one `write`, and of its buffer.
const MAX_WRITE: usize = 64 << 10;

/// A TCP stream that implements [`Read`], [`BufRead`] and [`Write`].
///
/// It holds unread data of at most one window, in addition to the data that waits in the stack. Dropping it ends the
/// connection, as with [`TcpStream`].
pub struct ByteStream {
    stream: TcpStream,
    /// Data that was taken from the stream, and that the caller has not read.
    unread: Chain,
}

impl ByteStream {
    /// Adapts a stream.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Chain::new() }
    }

    /// Returns the two directions, for one task that reads and writes concurrently. Separate tasks for reading and
    /// writing need another way to share the [stream](TcpStream::split).
    pub fn split(&mut self) -> (ByteReader<'_>, ByteWriter<'_>) {
        let (read, write) = self.stream.split();
        (ByteReader { half: read, unread: &mut self.unread }, ByteWriter { half: write })
    }

    /// Returns the underlying stream, for its settings.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// Returns the stream and its unread data.
    pub fn into_inner(self) -> (TcpStream, Chain) {
        (self.stream, self.unread)
    }
}

impl From<TcpStream> for ByteStream {
    fn from(stream: TcpStream) -> Self {
        Self::new(stream)
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteStream({:?}, {} bytes unread)", self.stream, self.unread.len())
    }
}

/// The reading direction of a [`ByteStream`].
#[derive(Debug)]
pub struct ByteReader<'a> {
    half: ReadHalf<'a>,
    unread: &'a mut Chain,
}

/// The writing direction of a [`ByteStream`].
#[derive(Debug)]
pub struct ByteWriter<'a> {
    half: WriteHalf<'a>,
}

impl ByteWriter<'_> {
    /// Ends the sending direction, as [`TcpStream::shutdown`] does.
    pub fn shutdown(&mut self) {
        self.half.shutdown();
    }
}

impl Error for StreamError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::NoNetwork => ErrorKind::Unsupported,
            Self::Connect(ConnectError::NoAddress | ConnectError::NoPorts) => ErrorKind::AddrNotAvailable,
            Self::Connect(ConnectError::TooManyConnections) => ErrorKind::OutOfMemory,
            Self::Connect(_) => ErrorKind::NotFound,
            Self::Failed(FailReason::Reset) => ErrorKind::ConnectionReset,
            Self::Failed(FailReason::Refused) => ErrorKind::ConnectionRefused,
            Self::Failed(FailReason::TimedOut) => ErrorKind::TimedOut,
            Self::Failed(_) => ErrorKind::ConnectionAborted,
            Self::Closed => ErrorKind::BrokenPipe,
        }
    }
}

impl ErrorType for ByteStream {
    type Error = StreamError;
}

impl ErrorType for ByteReader<'_> {
    type Error = StreamError;
}

impl ErrorType for ByteWriter<'_> {
    type Error = StreamError;
}

impl Read for ByteReader<'_> {
    /// Waits for data and copies it from its frames; returns 0 after the end of the peer's stream.
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        if buf.is_empty() || self.fill_buf().await?.is_empty() {
            return Ok(0);
        }
        let count = buf.len().min(self.unread.len());
        self.unread.copy_to_slice(&mut buf[..count]);
        self.unread.advance(count);
        Ok(count)
    }
}

impl BufRead for ByteReader<'_> {
    /// Returns the data up to the end of a frame's piece, without a copy.
    async fn fill_buf(&mut self) -> Result<&[u8], StreamError> {
        if self.unread.is_empty() {
            // Taking data opens the receive window. So more is taken only after all of this has been read.
            *self.unread = self.half.read().await?.unwrap_or_default();
        }
        Ok(self.unread.front().map_or(&[], |front| front))
    }

    fn consume(&mut self, amount: usize) {
        self.unread.advance(amount);
    }
}

impl Write for ByteWriter<'_> {
    /// Copies at most 64 KiB into a new buffer and queues it, waiting for room.
    async fn write(&mut self, buf: &[u8]) -> Result<usize, StreamError> {
        let taken = &buf[..buf.len().min(MAX_WRITE)];
        self.half.write(Chain::from(IoBuf::copy_from_slice(taken))).await?;
        Ok(taken.len())
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        Ok(())
    }
}

impl Read for ByteStream {
    async fn read(&mut self, buf: &mut [u8]) -> Result<usize, StreamError> {
        self.split().0.read(buf).await
    }
}

impl BufRead for ByteStream {
    async fn fill_buf(&mut self) -> Result<&[u8], StreamError> {
        self.split().0.fill_buf().await?;
        Ok(self.unread.front().map_or(&[], |front| front))
    }

    fn consume(&mut self, amount: usize) {
        self.unread.advance(amount);
    }
}

impl Write for ByteStream {
    async fn write(&mut self, buf: &[u8]) -> Result<usize, StreamError> {
        self.split().1.write(buf).await
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        Ok(())
    }
}
