//! [`ByteStream`]: a TCP stream as protocol crates of the ecosystem know one, behind the traits of `embedded-io-async`.
//!
//! This is an adapter, and it copies: what is read goes from the frames that it came in into the caller's memory, what is
//! written goes from there into a buffer of its own, once each. [`TcpStream`] itself copies neither. Who reads by
//! [`BufRead`] looks at the frames where they are.
//!
//! Nothing is gathered: what is written is handed over at once, and [`flush`](Write::flush) has nothing to do. What a task
//! writes before it waits leaves together all the same, as the stack sends behind the tasks that run.

use crate::halves::{ReadHalf, WriteHalf};
use crate::tcp::{StreamError, TcpStream};
use core::fmt;
use embedded_io_async::{BufRead, Error, ErrorKind, ErrorType, Read, Write};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{ConnectError, FailReason};

/// Bytes that one `write` takes at most: one buffer of its own.
const MAX_WRITE: usize = 64 << 10;

/// A TCP stream behind [`Read`], [`BufRead`] and [`Write`].
///
/// It holds what the peer sent in one window at most, beside what waits in the stack. Dropping it ends the connection, as
/// with [`TcpStream`].
pub struct ByteStream {
    stream: TcpStream,
    /// What was taken from the stream and is not read.
    unread: Chain,
}

impl ByteStream {
    /// Adapts a stream.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, unread: Chain::new() }
    }

    /// Both directions, each by itself: for one task that reads and writes at once. Who reads and who writes in tasks of
    /// their own shares the [stream](TcpStream::split) by other means.
    pub fn split(&mut self) -> (ByteReader<'_>, ByteWriter<'_>) {
        let (read, write) = self.stream.split();
        (ByteReader { half: read, unread: &mut self.unread }, ByteWriter { half: write })
    }

    /// The stream below, for its settings.
    pub fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    /// The stream, and what came on it and was not read.
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
    /// Says that nothing more will be sent, as [`TcpStream::shutdown`].
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
    /// Copies what is there out of its frames, once there is some; 0 bytes after the peer's last.
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
    /// What is there in one piece, where it came: no copy.
    async fn fill_buf(&mut self) -> Result<&[u8], StreamError> {
        if self.unread.is_empty() {
            // The window opens again by what is taken here: more is taken only when all of that is read.
            *self.unread = self.half.read().await?.unwrap_or_default();
        }
        Ok(self.unread.front().map_or(&[], |front| front))
    }

    fn consume(&mut self, amount: usize) {
        self.unread.advance(amount);
    }
}

impl Write for ByteWriter<'_> {
    /// Copies the bytes into a buffer of their own (64 KiB at most) and hands that over, waiting for room.
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
