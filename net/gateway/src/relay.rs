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
struct Way {
    held: Chain,
    ended: bool,
    /// Whether the end was forwarded to the receiver.
    told: bool,
}

/// The side of a direction that failed.
enum Failed {
    Sender,
    Receiver,
}

impl Way {
    /// Forwards bytes until one of the sides is not ready.
    fn carry(
        &mut self,
        context: &mut Context<'_>,
        from: &mut impl Stream,
        to: &mut impl Stream,
    ) -> Result<(), Failed> {
        while !self.told {
            if !self.held.is_empty() {
                match to.poll_write(context, &mut self.held) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => return Err(Failed::Receiver),
                    Poll::Pending => return Ok(()),
                }
            } else if self.ended {
                to.shutdown();
                self.told = true;
            } else {
                match from.poll_read(context) {
                    Poll::Ready(Ok(Some(data))) => self.held = data,
                    Poll::Ready(Ok(None)) => self.ended = true,
                    Poll::Ready(Err(_)) => return Err(Failed::Sender),
                    Poll::Pending => return Ok(()),
                }
            }
        }
        Ok(())
    }
}

/// The connection to reset after the other has failed.
enum Left {
    Cell,
    Linux,
}

/// Forwards bytes until both directions have ended, or one connection fails: then it resets the other.
pub async fn relay(mut cell: TcpStream, mut linux: linux::TcpStream) {
    let (mut inwards, mut outwards) = (Way::default(), Way::default());
    let ended = poll_fn(|context| {
        inwards.carry(context, &mut linux, &mut cell).map_err(|failed| match failed {
            Failed::Sender => Left::Cell,
            Failed::Receiver => Left::Linux,
        })?;
        outwards.carry(context, &mut cell, &mut linux).map_err(|failed| match failed {
            Failed::Sender => Left::Linux,
            Failed::Receiver => Left::Cell,
        })?;
        if inwards.told && outwards.told { Poll::Ready(Ok::<(), Left>(())) } else { Poll::Pending }
    });
    match ended.await {
        Ok(()) => {}
        Err(Left::Cell) => cell.abort(),
        Err(Left::Linux) => linux.abort(),
    }
}
