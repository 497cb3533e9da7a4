//! A connection to another machine, on the core of its flow, or on the first core if it is a channel: it sends and
//! receives frames until either side ends it.

use crate::frame::{Frame, GREETING_LEN, LOCATION_LEN, ProtocolViolation};
use crate::send_queue::{SendAction, SendQueue};
use crate::transport::{Transport, TransportKind};
use crate::write_deadline::WriteDeadline;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_channels::Channel;
use isola_iobuf::{Chain, IoBuf};
use isola_net::TcpStream;

/// The delivery of received frames. The connection reads no more until it completes.
type Delivery = Pin<Box<dyn Future<Output = Result<(), ProtocolViolation>>>>;

/// The number of parts that the received bytes may always have.
const FEW_PARTS: usize = 64;

/// The number of bytes for which they may have another part.
const BYTES_A_PART: usize = 512;

/// A connection.
pub(crate) struct Connection {
    stream: Transport,
    /// Data taken from the queue that the transport has not accepted yet.
    sending: Chain,
    /// Received bytes that are not a whole frame yet.
    partial: Chain,
    write_deadline: WriteDeadline,
}

impl Connection {
    /// Returns a connection over TCP to a machine that must take data within the time limit `write_limit`.
    pub fn tcp(stream: TcpStream, write_limit: Duration) -> Self {
        Self::new(Transport::tcp(stream), write_limit)
    }

    /// Returns a connection over a channel to a machine that must take data within the time limit `write_limit`.
    pub fn channel(channel: Channel, write_limit: Duration) -> Self {
        Self::new(Transport::channel(channel, write_limit), write_limit)
    }

    fn new(stream: Transport, write_limit: Duration) -> Self {
        Self {
            stream,
            sending: Chain::new(),
            partial: Chain::new(),
            write_deadline: WriteDeadline::new(write_limit),
        }
    }

    /// Returns the kind of its transport.
    pub fn kind(&self) -> TransportKind {
        self.stream.kind()
    }

    /// Sends one frame.
    pub async fn send(&mut self, frame: Frame) -> Result<(), ProtocolViolation> {
        self.stream.write(frame.encode()).await
    }

    /// Receives the greeting. It has no payload, so the buffer for an unidentified machine is bounded by its length.
    pub async fn receive_greeting(&mut self) -> Result<Frame, ProtocolViolation> {
        self.receive_frame(GREETING_LEN).await
    }

    /// Asks the first machine where it is, and receives the answer.
    pub async fn locate(&mut self) -> Result<Frame, ProtocolViolation> {
        self.send(Frame::Locate).await?;
        self.receive_frame(LOCATION_LEN).await
    }

    /// Receives a frame of at most `most` bytes.
    async fn receive_frame(&mut self, most: usize) -> Result<Frame, ProtocolViolation> {
        loop {
            if let Some(frame) = Frame::take(&mut self.partial)? {
                return Ok(frame);
            }
            if self.partial.len() >= most {
                return Err(ProtocolViolation);
            }
            match self.stream.read().await {
                Some(data) => keep(&mut self.partial, data),
                None => return Err(ProtocolViolation),
            }
        }
    }

    /// Sends queued frames and passes received frames to `deliver`, until the connection ends.
    pub async fn run<F>(mut self, send_queue: &SendQueue, deliver: impl Fn(Vec<Frame>) -> F)
    where
        F: Future<Output = Result<(), ProtocolViolation>> + 'static,
    {
        let mut delivery: Option<Delivery> = None;
        poll_fn(|context| {
            let ended = self.poll_send(context, send_queue).is_ready()
                || self.poll_receive(context, send_queue, &mut delivery, &deliver).is_ready()
                // The delivery may have queued answers.
                || self.poll_send(context, send_queue).is_ready();
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        send_queue.end();
    }

    /// Sends queued frames. Ready when the connection has ended.
    fn poll_send(&mut self, context: &mut Context<'_>, send_queue: &SendQueue) -> Poll<()> {
        loop {
            if self.sending.is_empty() {
                match send_queue.take(context.waker()) {
                    SendAction::End => return Poll::Ready(()),
                    SendAction::Send(frames) if frames.is_empty() => {
                        self.write_deadline.clear();
                        return Poll::Pending;
                    }
                    SendAction::Send(frames) => self.sending = frames,
                }
            }
            let before = self.sending.len();
            let written = self.stream.poll_write(context, &mut self.sending);
            self.write_deadline.progress(before - self.sending.len());
            send_queue.set_sending(self.sending.len());
            match written {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                // A peer that does not read can leave the connection here while the queue fills or senders wait for
                // room; so this checks for an end of the connection too.
                Poll::Pending if send_queue.has_ended(context.waker()) => return Poll::Ready(()),
                Poll::Pending => return self.write_deadline.poll(context),
            }
        }
    }

    /// Receives and delivers frames. Ready when the connection has ended.
    fn poll_receive<F>(
        &mut self,
        context: &mut Context<'_>,
        send_queue: &SendQueue,
        delivery: &mut Option<Delivery>,
        deliver: &impl Fn(Vec<Frame>) -> F,
    ) -> Poll<()>
    where
        F: Future<Output = Result<(), ProtocolViolation>> + 'static,
    {
        loop {
            if let Some(in_progress) = delivery {
                match in_progress.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => *delivery = None,
                    Poll::Ready(Err(ProtocolViolation)) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match self.stream.poll_read(context) {
                Poll::Ready(Some(data)) => keep(&mut self.partial, data),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
            let mut frames = Vec::new();
            loop {
                match Frame::take(&mut self.partial) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(ProtocolViolation) => return Poll::Ready(()),
                }
            }
            send_queue.set_partial(self.partial.len());
            if !frames.is_empty() {
                *delivery = Some(Box::pin(deliver(frames)));
            }
        }
    }
}

/// Adds received data. Its parts are views of network buffers, which a single byte keeps allocated: if there are too
/// many parts for the number of bytes, they are copied into one.
fn keep(partial: &mut Chain, data: Chain) {
    partial.append(data);
    if partial.parts().len() > FEW_PARTS + partial.len() / BYTES_A_PART {
        *partial = Chain::from(IoBuf::from(partial.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_byte_segments_do_not_retain_their_buffers() {
        let frame = IoBuf::from(alloc::vec![7; 2048]);
        let mut partial = Chain::new();
        for bytes in 1..=20_000 {
            keep(&mut partial, Chain::from(frame.slice(5..6).unwrap()));
            assert!(partial.len() == bytes && partial.parts().len() <= FEW_PARTS + bytes / BYTES_A_PART);
        }
        assert!(partial.to_vec().iter().all(|byte| *byte == 7));
        // Full segments are not copied.
        let mut partial = Chain::new();
        (0..500).for_each(|_| keep(&mut partial, Chain::from(frame.clone())));
        assert_eq!(partial.parts().len(), 500);
    }
}
