//! A relay between a connection of the cell and one of Linux: it forwards bytes, ends and resets in both directions.

use crate::linux;
use isola_iobuf::Chain;
use isola_net::{StreamError, TcpStream};
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll};

/// One of the two connections.
trait Stream {
    /// The error of the connection. The relay resets the other connection, for any error.
    type Error;

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Chain>, Self::Error>>;

    /// Writes data and removes it from `data`; ready once `data` is empty.
    fn poll_write(&mut self, context: &mut Context<'_>, data: &mut Chain) -> Poll<Result<(), Self::Error>>;

    fn shutdown(&mut self);
}

impl Stream for TcpStream {
    type Error = StreamError;

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Chain>, StreamError>> {
        TcpStream::poll_read(self, context)
    }

    fn poll_write(&mut self, context: &mut Context<'_>, data: &mut Chain) -> Poll<Result<(), StreamError>> {
        TcpStream::poll_write(self, context, data)
    }

    fn shutdown(&mut self) {
        TcpStream::shutdown(self);
    }
}

impl Stream for linux::TcpStream {
    type Error = io::Error;

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Option<Chain>>> {
        linux::TcpStream::poll_read(self, context).map_ok(|data| data.map(Chain::from))
    }

    fn poll_write(&mut self, context: &mut Context<'_>, data: &mut Chain) -> Poll<io::Result<()>> {
        linux::TcpStream::poll_write(self, context, data)
    }

    fn shutdown(&mut self) {
        linux::TcpStream::shutdown(self);
    }
}

/// One direction: the data in transit, and the state of its end.
#[derive(Default)]
struct Direction {
    pending: Chain,
    /// Whether the sender has ended its stream.
    at_end: bool,
    /// Whether that end was forwarded to the receiver.
    end_forwarded: bool,
}

/// The side of a direction that failed.
enum FailedSide {
    Sender,
    Receiver,
}

impl Direction {
    /// Forwards bytes until one of the sides is not ready.
    fn forward(
        &mut self,
        context: &mut Context<'_>,
        from: &mut impl Stream,
        to: &mut impl Stream,
    ) -> Result<(), FailedSide> {
        while !self.end_forwarded {
            if !self.pending.is_empty() {
                match to.poll_write(context, &mut self.pending) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Err(FailedSide::Receiver),
                    Poll::Pending => return Ok(()),
                }
            } else if self.at_end {
                to.shutdown();
                self.end_forwarded = true;
            } else {
                match from.poll_read(context) {
                    Poll::Ready(Ok(Some(data))) => self.pending = data,
                    Poll::Ready(Ok(None)) => self.at_end = true,
                    Poll::Ready(Err(_)) => return Err(FailedSide::Sender),
                    Poll::Pending => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

/// The connection to reset after the other has failed.
enum ResetSide {
    Cell,
    Linux,
}

/// Forwards bytes until both directions have ended, or one connection fails: then it resets the other.
pub async fn relay(mut cell: TcpStream, mut linux: linux::TcpStream) {
    let (mut inwards, mut outwards) = (Direction::default(), Direction::default());
    let outcome = poll_fn(|context| {
        inwards.forward(context, &mut linux, &mut cell).map_err(|failed| match failed {
            FailedSide::Sender => ResetSide::Cell,
            FailedSide::Receiver => ResetSide::Linux,
        })?;
        outwards.forward(context, &mut cell, &mut linux).map_err(|failed| match failed {
            FailedSide::Sender => ResetSide::Linux,
            FailedSide::Receiver => ResetSide::Cell,
        })?;
        if inwards.end_forwarded && outwards.end_forwarded {
            Poll::Ready(Ok::<(), ResetSide>(()))
        } else {
            Poll::Pending
        }
    });
    match outcome.await {
        Ok(()) => {}
        Err(ResetSide::Cell) => cell.abort(),
        Err(ResetSide::Linux) => linux.abort(),
    }
}
