//! A channel as both sides see it: a doorbell, and the end.

use alloc::rc::Rc;
use core::cell::Cell;
use core::task::Waker;
use isola_channels::{Bell, Channel};

/// A connection to another cell.
pub trait Link {
    /// Notifies the peer.
    fn ring(&self);

    /// Wakes `waker` at the peer's next notification. There is one waker at a time.
    fn wake_by(&self, waker: &Waker);

    /// Completes at the end of the connection.
    fn closed(&self) -> impl Future<Output = ()>;
}

/// A channel.
pub struct ChannelLink {
    channel: Channel,
    bell: Bell,
    waker: Rc<Cell<Option<Waker>>>,
}

impl ChannelLink {
    /// Uses a channel, of which no packets are read any more.
    pub fn new(channel: Channel) -> Self {
        let waker = Rc::new(Cell::new(None::<Waker>));
        let woken = Rc::downgrade(&waker);
        channel.on_doorbell(move || {
            let waker = woken.upgrade().and_then(|waker| waker.take());
            let is_awaited = waker.is_some();
            waker.into_iter().for_each(Waker::wake);
            is_awaited
        });
        Self { bell: channel.bell(), channel, waker }
    }
}

impl Link for ChannelLink {
    fn ring(&self) {
        self.bell.ring();
    }

    fn wake_by(&self, waker: &Waker) {
        self.waker.set(Some(waker.clone()));
    }

    async fn closed(&self) {
        self.channel.closed().await;
    }
}
