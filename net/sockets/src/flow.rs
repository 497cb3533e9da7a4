//! TCP streams as ends of flows, and relays between two of them.

use crate::connection::Connection;
use crate::core_network::NETWORK;
use crate::halves::{ReadHalf, WriteHalf};
use crate::tcp::{StreamError, TcpStream};
use core::future::{Future, poll_fn};
use core::pin::pin;
use core::task::{Context, Poll};
use isola_flows::{Flowed, Sink, SinkEnd, Source, flow};
use isola_iobuf::Chain;
use isola_net_stack::{SendError, StreamEnd};

/// Takes received data up to a number of bytes: the rest stays in the stack and keeps the receive window closed.
fn poll_source(
    connection: &Connection,
    context: &mut Context<'_>,
    most: usize,
    into: &mut Chain,
) -> Poll<Result<usize, StreamError>> {
    if let Some(reason) = connection.ended.get() {
        return Poll::Ready(reason.map_or(Ok(0), |reason| Err(StreamError::Failed(reason))));
    }
    if connection.unread.get() {
        let (taken, end) = connection.take_some(most, into);
        if taken > 0 || end == StreamEnd::Yes {
            return Poll::Ready(Ok(taken));
        }
    }
    connection.reader.set(Some(context.waker().clone()));
    Poll::Pending
}

/// Queues data as far as there is room.
fn poll_sink(
    connection: &Connection,
    context: &mut Context<'_>,
    from: &mut Chain,
) -> Poll<Result<usize, StreamError>> {
    if let Some(reason) = connection.ended.get() {
        return Poll::Ready(Err(reason.into()));
    }
    match NETWORK.with(|stack| stack.send_some(connection.id, from)) {
        Some(Ok(0) | Err(SendError::NoSpace { .. })) => {
            connection.writer.set(Some(context.waker().clone()));
            Poll::Pending
        }
        Some(Ok(count)) => Poll::Ready(Ok(count)),
        Some(Err(_)) => Poll::Ready(Err(StreamError::Closed)),
        None => Poll::Ready(Err(StreamError::NoNetwork)),
    }
}

impl Source for TcpStream {
    type Error = StreamError;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, StreamError>> {
        poll_source(self.record(), context, most, into)
    }
}

impl Source for ReadHalf<'_> {
    type Error = StreamError;

    fn poll_read(
        &mut self,
        context: &mut Context<'_>,
        most: usize,
        into: &mut Chain,
    ) -> Poll<Result<usize, StreamError>> {
        poll_source(self.record(), context, most, into)
    }
}

impl Sink for TcpStream {
    type Error = StreamError;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Chain,
    ) -> Poll<Result<usize, StreamError>> {
        poll_sink(self.record(), context, from)
    }

    fn end(&mut self) {
        self.shutdown();
    }
}

impl Sink for WriteHalf<'_> {
    type Error = StreamError;

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        from: &mut Chain,
    ) -> Poll<Result<usize, StreamError>> {
        poll_sink(self.record(), context, from)
    }

    fn end(&mut self) {
        self.shutdown();
    }
}

/// The result of a relay: of each direction, `None` if the other one failed before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it has the relay's errors"]
pub struct Relayed {
    /// From the first stream to the second.
    pub forward: Option<Flowed<StreamError, StreamError>>,
    /// From the second stream to the first.
    pub backward: Option<Flowed<StreamError, StreamError>>,
}

/// Moves the bytes of each of two streams to the other, with a window of `window` bytes in each direction, until both
/// have ended or one direction fails. The end of a stream ends the sending direction of the other.
pub async fn relay(first: &mut TcpStream, second: &mut TcpStream, window: usize) -> Relayed {
    let ((first_in, first_out), (second_in, second_out)) = (first.split(), second.split());
    let end = SinkEnd::EndAfterLast;
    let mut forward = pin!(flow(first_in, second_out).window(window).sink_end(end));
    let mut backward = pin!(flow(second_in, first_out).window(window).sink_end(end));
    let mut relayed = Relayed { forward: None, backward: None };
    poll_fn(move |context| {
        let Relayed { forward: there, backward: back } = &mut relayed;
        if there.is_none()
            && let Poll::Ready(flowed) = forward.as_mut().poll(context)
        {
            *there = Some(flowed);
        }
        if back.is_none()
            && let Poll::Ready(flowed) = backward.as_mut().poll(context)
        {
            *back = Some(flowed);
        }
        let has_failed = [there, back].into_iter().flatten().any(|flowed| flowed.result.is_err());
        let is_over = has_failed || (relayed.forward.is_some() && relayed.backward.is_some());
        if is_over { Poll::Ready(relayed) } else { Poll::Pending }
    })
    .await
}
