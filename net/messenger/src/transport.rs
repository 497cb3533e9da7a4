//! The transport of a connection: a TCP stream, or a channel to a cell of the same machine.

use crate::frame::ProtocolViolation;
use alloc::boxed::Box;
use core::fmt;
use core::future::{Future, poll_fn};
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use isola_channels::{Channel, ChannelStream, RingSizes};
use isola_events::sleep;
use isola_events::timer::Sleep;
use isola_iobuf::Chain;
use isola_net::{KeepAlive, TcpStream};

/// The time of silence after which the peer is probed.
const SILENCE: Duration = Duration::from_secs(5);

/// The interval and number of TCP's probes, after which the connection ends.
const SILENCE_PROBES: (Duration, u8) = (Duration::from_secs(1), 5);

/// The rings of a connection over a channel: 64 KiB of each side, for packets of 16 KiB.
pub(crate) const RINGS: RingSizes = RingSizes { pages: 16, most_peer_pages: 16 };

/// The path of the frames to another machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransportKind {
    /// A TCP connection.
    Tcp,
    /// A channel: the other machine is a cell of the same machine.
    Channel,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Channel => "a channel",
        })
    }
}

/// A stream of bytes to another machine.
pub(crate) enum Transport {
    Tcp(TcpStream),
    Channel(ProbedChannel),
}

impl Transport {
    /// Returns a transport over TCP, which detects a machine that disappeared without closing the connection.
    pub fn tcp(mut stream: TcpStream) -> Self {
        let (interval, probes) = SILENCE_PROBES;
        let (idle, interval) = (SILENCE.into(), interval.into());
        stream.set_keep_alive(Some(KeepAlive { idle, interval, probes }));
        Self::Tcp(stream)
    }

    /// Returns a transport over a channel. It ends when the peer is silent and does not read for about `read_limit`.
    pub fn channel(channel: Channel, read_limit: Duration) -> Self {
        Self::Channel(ProbedChannel::new(channel, SILENCE, read_limit))
    }

    pub fn kind(&self) -> TransportKind {
        match self {
            Self::Tcp(_) => TransportKind::Tcp,
            Self::Channel(_) => TransportKind::Channel,
        }
    }

    /// Writes bytes, and removes from `data` those that were accepted. Ready when all were.
    pub fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &mut Chain,
    ) -> Poll<Result<(), ProtocolViolation>> {
        match self {
            Self::Tcp(stream) => stream.poll_write(context, data).map_err(|_| ProtocolViolation),
            Self::Channel(channel) => channel.stream.poll_write(context, data).map_err(|_| ProtocolViolation),
        }
    }

    pub async fn write(&mut self, data: Chain) -> Result<(), ProtocolViolation> {
        let mut data = data;
        poll_fn(|context| self.poll_write(context, &mut data)).await
    }

    /// Reads the next bytes; `None` at the end of the connection.
    pub fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Option<Chain>> {
        match self {
            Self::Tcp(stream) => stream.poll_read(context).map(Result::unwrap_or_default),
            Self::Channel(channel) => channel.poll_read(context),
        }
    }

    pub async fn read(&mut self) -> Option<Chain> {
        poll_fn(|context| self.poll_read(context)).await
    }
}

/// A channel whose peer is probed by an empty packet after each interval of silence: it must read that, but not answer.
///
/// The supervisor closes the channel at the peer's death, so probes only detect a cell whose first core hangs.
pub(crate) struct ProbedChannel {
    stream: ChannelStream,
    silence: Duration,
    /// The number of intervals of silence, during which the peer read nothing, that end the connection.
    most_unread: u32,
    unread: u32,
    /// Whether the peer has written in the present interval.
    was_heard: bool,
    interval: Pin<Box<Sleep>>,
}

impl ProbedChannel {
    pub fn new(channel: Channel, silence: Duration, read_limit: Duration) -> Self {
        let most_unread = read_limit.as_millis().div_ceil(silence.as_millis().max(1)) as u32;
        let interval = Box::pin(sleep(silence));
        let stream = ChannelStream::new(channel);
        Self { stream, silence, most_unread, unread: 0, was_heard: false, interval }
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<Option<Chain>> {
        loop {
            match self.stream.poll_read(context) {
                Poll::Ready(Ok(data)) => {
                    self.was_heard = true;
                    if !data.is_empty() {
                        return Poll::Ready(Some(Chain::from(data)));
                    }
                }
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending => break,
            }
        }
        // Only an end is ready.
        loop {
            ready!(self.interval.as_mut().poll(context));
            self.interval = Box::pin(sleep(self.silence));
            if core::mem::take(&mut self.was_heard) {
                self.unread = 0;
                continue;
            }
            match self.stream.poll_flush(context) {
                Poll::Ready(Ok(())) => self.unread = 0,
                Poll::Ready(Err(_)) => return Poll::Ready(None),
                Poll::Pending => self.unread += 1,
            }
            let is_alive = self.unread < self.most_unread;
            if !is_alive || (self.unread == 0 && self.stream.write_empty().is_err()) {
                return Poll::Ready(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::sync::Arc;
    use core::sync::atomic::{AtomicBool, Ordering};
    use isola_channels::{ChannelError, listen, open};
    use isola_events::timeout;
    use isola_link_sim::Machine;

    const INTERVAL: Duration = Duration::from_millis(100);

    /// Runs a cell that receives over a probed channel until that ends, and `peer` in another cell. Returns whether the
    /// probed channel has ended before the peer.
    fn ends_before(peer: impl AsyncFn(&Channel) + Send + Sync + Copy + 'static) -> bool {
        let machine = Machine::new();
        let is_closing = Arc::new(AtomicBool::new(false));
        let has_ended = Arc::new(AtomicBool::new(false));
        let (closing, ended) = (is_closing.clone(), has_ended.clone());
        let probing = machine.start("kv", move |_| {
            let (closing, ended) = (closing.clone(), ended.clone());
            async move {
                let channel = listen("messenger").unwrap().accept().await.unwrap();
                let mut channel = ProbedChannel::new(channel, INTERVAL, 5 * INTERVAL);
                while poll_fn(|context| channel.poll_read(context)).await.is_some() {}
                ended.store(!closing.load(Ordering::Acquire), Ordering::Release);
            }
        });
        let opening = machine.start("web", move |_| {
            let is_closing = is_closing.clone();
            async move {
                let channel = loop {
                    match open("kv/messenger").await {
                        Ok(channel) => break channel,
                        Err(error) => assert_eq!(error, ChannelError::Closed),
                    }
                    sleep(Duration::from_millis(1)).await;
                };
                peer(&channel).await;
                is_closing.store(true, Ordering::Release);
            }
        });
        opening.join().unwrap();
        probing.join().unwrap();
        has_ended.load(Ordering::Acquire)
    }

    #[test]
    fn a_silent_peer_that_does_not_read_loses_its_channel() {
        let waits = async |channel: &Channel| {
            // Far more than the limit.
            let _ = timeout(100 * INTERVAL, channel.closed()).await;
        };
        assert!(ends_before(waits));
    }

    #[test]
    fn a_silent_peer_that_reads_probes_keeps_its_channel() {
        let reads_probes = async |channel: &Channel| {
            for _ in 0..8 {
                assert!(channel.read().await.unwrap().is_empty(), "a probe has no bytes");
            }
        };
        assert!(!ends_before(reads_probes));
    }

    #[test]
    fn a_peer_that_writes_keeps_its_channel_without_reading() {
        let writes = async |channel: &Channel| {
            for _ in 0..40 {
                channel.write(&[1]).await.unwrap();
                sleep(INTERVAL / 5).await;
            }
        };
        assert!(!ends_before(writes));
    }
}
