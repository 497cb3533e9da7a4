//! A connection to another machine, on the core that it belongs to: frames out and frames in, until either side ends it.

use crate::frame::{Broken, Frame};
use crate::outgoing::{Next, Outgoing};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll};
use isola_iobuf::Chain;
use isola_net::TcpStream;

/// What is done with frames that came: nothing more is read until it is done.
type Delivery = Pin<Box<dyn Future<Output = Result<(), Broken>>>>;

/// A connection.
pub(crate) struct Connection {
    stream: TcpStream,
    /// What was taken from the queue and is not handed over for sending.
    sending: Chain,
    /// What has come and is no whole frame yet.
    come: Chain,
}

impl Connection {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, sending: Chain::new(), come: Chain::new() }
    }

    /// Sends one frame.
    pub async fn send(&mut self, frame: Frame) -> Result<(), Broken> {
        self.stream.write(frame.encode()).await.map_err(|_| Broken)
    }

    /// The next frame that comes.
    pub async fn receive(&mut self) -> Result<Frame, Broken> {
        loop {
            if let Some(frame) = Frame::take(&mut self.come)? {
                return Ok(frame);
            }
            match self.stream.read().await {
                Ok(Some(data)) => self.come.append(data),
                _ => return Err(Broken),
            }
        }
    }

    /// Sends what is queued, and has `deliver` take what comes, until the connection ends.
    pub async fn run<F>(mut self, outgoing: &Outgoing, deliver: impl Fn(Vec<Frame>) -> F)
    where
        F: Future<Output = Result<(), Broken>> + 'static,
    {
        let mut delivery: Option<Delivery> = None;
        poll_fn(|context| {
            let ended = self.poll_send(context, outgoing).is_ready()
                || self.poll_receive(context, &mut delivery, &deliver).is_ready()
                // What came may have been answered.
                || self.poll_send(context, outgoing).is_ready();
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        outgoing.end();
    }

    /// Ready: the connection has ended.
    fn poll_send(&mut self, context: &mut Context<'_>, outgoing: &Outgoing) -> Poll<()> {
        loop {
            if self.sending.is_empty() {
                match outgoing.take(context.waker()) {
                    Next::End => return Poll::Ready(()),
                    Next::Send(frames) if frames.is_empty() => return Poll::Pending,
                    Next::Send(frames) => self.sending = frames,
                }
            }
            match self.stream.poll_write(context, &mut self.sending) {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Ready: the connection has ended.
    fn poll_receive<F>(
        &mut self,
        context: &mut Context<'_>,
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
                Poll::Ready(Ok(Some(data))) => self.come.append(data),
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
            if !frames.is_empty() {
                *delivery = Some(Box::pin(deliver(frames)));
            }
        }
    }
}
