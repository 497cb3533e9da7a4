//! A connection to another machine, on the core of its flow: it sends and receives frames until either side ends it.

use crate::frame::{Broken, Frame, GREETING_LEN};
use crate::outgoing::{Next, Outgoing};
use crate::patience::Patience;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{KeepAlive, TcpStream};

/// The delivery of received frames. The connection reads no more until it completes.
type Delivery = Pin<Box<dyn Future<Output = Result<(), Broken>>>>;

/// The number of parts that the received bytes may always have.
const FEW_PARTS: usize = 64;

/// The number of bytes for which they may have another part.
const BYTES_A_PART: usize = 512;

/// The time of silence after which TCP probes the peer.
const SILENCE: Duration = Duration::from_secs(5);

/// The interval and number of probes, after which the connection ends.
const SILENCE_PROBES: (Duration, u8) = (Duration::from_secs(1), 5);

/// A connection.
pub(crate) struct Connection {
    stream: TcpStream,
    /// Data taken from the queue that TCP has not accepted yet.
    sending: Chain,
    /// Received bytes that are not a whole frame yet.
    come: Chain,
    patience: Patience,
}

impl Connection {
    /// Returns a connection to a machine that must take data within the time limit `patience`.
    pub fn new(stream: TcpStream, patience: Duration) -> Self {
        let mut stream = stream;
        // Detects a machine that disappeared without closing the connection.
        let (interval, probes) = SILENCE_PROBES;
        let (idle, interval) = (SILENCE.into(), interval.into());
        stream.set_keep_alive(Some(KeepAlive { idle, interval, probes }));
        Self { stream, sending: Chain::new(), come: Chain::new(), patience: Patience::of(patience) }
    }

    /// Sends one frame.
    pub async fn send(&mut self, frame: Frame) -> Result<(), Broken> {
        self.stream.write(frame.encode()).await.map_err(|_| Broken)
    }

    /// Receives the greeting. It has no payload, so the buffer for an unidentified machine is bounded by its length.
    pub async fn receive_greeting(&mut self) -> Result<Frame, Broken> {
        loop {
            if let Some(frame) = Frame::take(&mut self.come)? {
                return Ok(frame);
            }
            if self.come.len() >= GREETING_LEN {
                return Err(Broken);
            }
            match self.stream.read().await {
                Ok(Some(data)) => keep(&mut self.come, data),
                _ => return Err(Broken),
            }
        }
    }

    /// Sends queued frames and passes received frames to `deliver`, until the connection ends.
    pub async fn run<F>(mut self, outgoing: &Outgoing, deliver: impl Fn(Vec<Frame>) -> F)
    where
        F: Future<Output = Result<(), Broken>> + 'static,
    {
        let mut delivery: Option<Delivery> = None;
        poll_fn(|context| {
            let ended = self.poll_send(context, outgoing).is_ready()
                || self.poll_receive(context, outgoing, &mut delivery, &deliver).is_ready()
                // The delivery may have queued answers.
                || self.poll_send(context, outgoing).is_ready();
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        outgoing.end();
    }

    /// Sends queued frames. Ready when the connection has ended.
    fn poll_send(&mut self, context: &mut Context<'_>, outgoing: &Outgoing) -> Poll<()> {
        loop {
            if self.sending.is_empty() {
                match outgoing.take(context.waker()) {
                    Next::End => return Poll::Ready(()),
                    Next::Send(frames) if frames.is_empty() => {
                        self.patience.rest();
                        return Poll::Pending;
                    }
                    Next::Send(frames) => self.sending = frames,
                }
            }
            let before = self.sending.len();
            let written = self.stream.poll_write(context, &mut self.sending);
            self.patience.taken(before - self.sending.len());
            outgoing.set_sending(self.sending.len());
            match written {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                // A peer that does not read can leave the connection here while the queue fills or senders wait for
                // room; so this checks for an end of the connection too.
                Poll::Pending if outgoing.has_ended(context.waker()) => return Poll::Ready(()),
                Poll::Pending => return self.patience.poll(context),
            }
        }
    }

    /// Receives and delivers frames. Ready when the connection has ended.
    fn poll_receive<F>(
        &mut self,
        context: &mut Context<'_>,
        outgoing: &Outgoing,
        delivery: &mut Option<Delivery>,
        deliver: &impl Fn(Vec<Frame>) -> F,
    ) -> Poll<()>
    where
        F: Future<Output = Result<(), Broken>> + 'static,
    {
        loop {
            if let Some(under_way) = delivery {
                match under_way.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => *delivery = None,
                    Poll::Ready(Err(Broken)) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
            match self.stream.poll_read(context) {
                Poll::Ready(Ok(Some(data))) => keep(&mut self.come, data),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
            let mut frames = Vec::new();
            loop {
                match Frame::take(&mut self.come) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(Broken) => return Poll::Ready(()),
                }
            }
            outgoing.set_come(self.come.len());
            if !frames.is_empty() {
                *delivery = Some(Box::pin(deliver(frames)));
            }
        }
    }
}

/// Adds received data. Its parts are views of network buffers, which a single byte keeps allocated: if there are too
/// many parts for the number of bytes, they are copied into one.
fn keep(come: &mut Chain, data: Chain) {
    come.append(data);
    if come.parts().len() > FEW_PARTS + come.len() / BYTES_A_PART {
        *come = Chain::from(IoBuf::from(come.to_vec()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn single_byte_segments_do_not_retain_their_buffers() {
        let frame = IoBuf::from(alloc::vec![7; 2048]);
        let mut come = Chain::new();
        for bytes in 1..=20_000 {
            keep(&mut come, Chain::from(frame.slice(5..6).unwrap()));
            assert!(come.len() == bytes && come.parts().len() <= FEW_PARTS + bytes / BYTES_A_PART);
        }
        assert!(come.to_vec().iter().all(|byte| *byte == 7));
        // Full segments are not copied.
        let mut come = Chain::new();
        (0..500).for_each(|_| keep(&mut come, Chain::from(frame.clone())));
        assert_eq!(come.parts().len(), 500);
    }
}
