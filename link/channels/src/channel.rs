//! Channels and listeners.

use crate::ChannelError;
use crate::memory::{PeerMemory, SharedMemory};
use crate::runtime::{LinkSlot, Listening, OpenLink, RingSizes, Rings, Runtime, runtime};
use alloc::rc::Rc;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use isola_abi::id::PhysRange;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::links::{
    LinkAccess, LinkDemand, LinkPart, LinkState, MAX_KEPT_BYTES, ServiceName, Survival, service_name,
};
use isola_abi::management::MAX_NAME_LEN;
use isola_events::spawn_task;
use isola_iobuf::Chain;
use isola_link_rings::{Broken, Message, Posted, SendError, fence_posts};

/// The most pages of memory that survives the cell that shares it: 1 MiB.
pub const MOST_KEPT_PAGES: usize = (MAX_KEPT_BYTES / PAGE_SIZE) as usize;

/// The number of packets after which a reader gives way to other events.
pub const READS_IN_A_ROW: u32 = 32;

impl From<Broken> for ChannelError {
    fn from(_: Broken) -> Self {
        Self::Closed
    }
}

/// The outcome of a message to one of several channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The message is in the ring.
    Sent,
    /// The ring has no room: the peer has not read earlier packets.
    Full,
    /// The peer has closed the channel, violated its protocol, or ended.
    Closed,
}

impl From<SendError> for Delivery {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Full => Self::Full,
            SendError::TooLong { .. } | SendError::Broken => Self::Closed,
        }
    }
}

/// Sends a message of one line over each of several channels, with one fence for all. No member delays another: the
/// deliveries, in the order of the channels, say which did not get it.
pub fn multicast<'a, C>(channels: C, message: &Message) -> Vec<Delivery>
where
    C: IntoIterator<Item = &'a Channel, IntoIter: Clone>,
{
    let channels = channels.into_iter();
    let post = |channel: &Channel| match channel.check_open() {
        Ok(()) => channel.link.rings.borrow_mut().post_message(message),
        Err(_) => Err(SendError::Broken),
    };
    let posted: Vec<Result<Posted, SendError>> = channels.clone().map(post).collect();
    fence_posts();
    let deliver = |(channel, posted): (&Channel, Result<Posted, SendError>)| match posted {
        Ok(posted) => {
            let must = channel.link.rings.borrow().must_notify(posted);
            channel.link.notify(must);
            Delivery::Sent
        }
        Err(error) => error.into(),
    };
    channels.zip(posted).map(deliver).collect()
}

/// A channel to another cell. It is closed when it and all memory of the peer that it returned are dropped.
pub struct Channel {
    pub(crate) link: Rc<OpenLink>,
    /// The packets read since the reader last gave way.
    reads: Cell<u32>,
}

/// A service of this cell. Dropping it refuses further channels to the service.
pub struct Listener {
    listening: Rc<Listening>,
    sizes: RingSizes,
}

/// Opens a channel to a service of another cell: `CELL/SERVICE`. Completes when the other cell has accepted it.
///
/// # Errors
/// A [`ChannelError`]; [`ChannelError::Closed`] if the other cell does not listen for the service, or has ended.
pub async fn open(name: &str) -> Result<Channel, ChannelError> {
    open_with(name, RingSizes::default()).await
}

/// Opens a channel like [`open`], with rings of these sizes.
///
/// # Errors
/// As for [`open`]; [`ChannelError::BadSize`] or [`ChannelError::PeerRing`].
pub async fn open_with(name: &str, sizes: RingSizes) -> Result<Channel, ChannelError> {
    let sizes = sizes.checked()?;
    let (target, service) = name.split_once('/').ok_or(ChannelError::BadName)?;
    let service = service_name(service).ok_or(ChannelError::BadName)?;
    if target.len() > MAX_NAME_LEN {
        return Err(ChannelError::BadName);
    }
    let target = target.to_string();
    let link = open_link(sizes, move |memory| LinkDemand::Open { target, service, memory });
    Ok(Channel { link: link.await?, reads: Cell::new(0) })
}

/// Opens a link by the request that `demand` makes of the memory of this cell's half.
pub(crate) async fn open_link(
    sizes: RingSizes,
    demand: impl FnOnce(PhysRange) -> LinkDemand + 'static,
) -> Result<Rc<OpenLink>, ChannelError> {
    let runtime = runtime()?;
    // In a task of its own, which ends even if the caller loses interest: the slot is freed then.
    let opening = async move {
        let half = runtime.half(sizes)?;
        let memory = runtime.port().ok_or(ChannelError::Unsupported)?.range_of(half.words());
        let slot = LinkSlot::new(runtime.request(&demand(memory)).await?, half);
        let state = || runtime.port().and_then(|port| port.table().get(slot.slot)).map(|link| link.state());
        runtime.wait_until(|| (state() != Some(LinkState::Waiting)).then_some(())).await;
        runtime.connect(slot, sizes)
    };
    spawn_task(opening).await
}

/// Listens for a service: other cells open channels to it under `CELL/SERVICE`, with this cell's name. A listener named `*`
/// gets the channels to all services that have no listener of their own ([`Channel::service`]).
///
/// # Errors
/// A [`ChannelError`].
pub fn listen(service: &str) -> Result<Listener, ChannelError> {
    listen_with(service, RingSizes::default())
}

/// Listens like [`listen`], for channels with rings of these sizes.
///
/// # Errors
/// A [`ChannelError`].
pub fn listen_with(service: &str, sizes: RingSizes) -> Result<Listener, ChannelError> {
    let runtime = runtime()?;
    listen_for(runtime, service_name(service).ok_or(ChannelError::BadName)?, sizes.checked()?)
}

/// Listens for a service of this name.
pub(crate) fn listen_for(
    runtime: &Runtime,
    service: ServiceName,
    sizes: RingSizes,
) -> Result<Listener, ChannelError> {
    if runtime.listening_for(&service).is_some() {
        return Err(ChannelError::NameTaken);
    }
    Ok(Listener { listening: runtime.listen(service), sizes })
}

impl Drop for Listener {
    fn drop(&mut self) {
        for slot in self.listening.invited.take() {
            spawn_task(async move {
                if let Ok(runtime) = runtime() {
                    runtime.free(slot).await;
                }
            })
            .detach();
        }
    }
}

impl Listener {
    /// Accepts the next channel.
    ///
    /// # Errors
    /// A [`ChannelError`]; [`ChannelError::Closed`] if the opener has changed its mind, or ended. The listener can accept
    /// others.
    pub async fn accept(&self) -> Result<Channel, ChannelError> {
        let link = self.accept_link().await?;
        Ok(Channel { link, reads: Cell::new(0) })
    }

    /// Accepts the next link.
    pub(crate) async fn accept_link(&self) -> Result<Rc<OpenLink>, ChannelError> {
        let runtime = runtime()?;
        let slot = poll_fn(|context| match self.listening.invited.borrow_mut().pop_front() {
            Some(slot) => Poll::Ready(slot),
            None => {
                self.listening.waiting.set(Some(context.waker().clone()));
                Poll::Pending
            }
        })
        .await;
        let sizes = self.sizes;
        let accepting = async move {
            let half = match runtime.half(sizes) {
                Ok(half) => half,
                Err(error) => {
                    runtime.free(slot).await;
                    return Err(error);
                }
            };
            let memory = runtime.port().ok_or(ChannelError::Unsupported)?.range_of(half.words());
            let result = runtime.request(&LinkDemand::Accept { slot, memory }).await;
            // Frees the slot also if the opener has ended meanwhile.
            let slot = LinkSlot::new(slot, half);
            result.map_err(|_| ChannelError::Closed)?;
            runtime.connect(slot, sizes)
        };
        spawn_task(accepting).await
    }
}

impl Channel {
    /// Returns the name of the service to which the channel was opened; `None` if it is no text.
    pub fn service(&self) -> Option<String> {
        let name = self.link.service();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        core::str::from_utf8(name).ok().map(ToString::to_string)
    }

    /// Returns the longest packet, in bytes.
    pub fn most_bytes(&self) -> usize {
        self.link.rings.borrow().most_bytes()
    }

    /// Sends a packet. Waits while the peer has not read earlier ones.
    ///
    /// # Errors
    /// [`ChannelError::Closed`] or [`ChannelError::TooLong`]; the packet was not sent.
    pub async fn write(&self, packet: &[u8]) -> Result<(), ChannelError> {
        loop {
            self.check_open()?;
            let sent = self.link.rings.borrow_mut().send(packet);
            if self.is_sent(sent)? {
                return Ok(());
            }
            self.await_room(packet.len()).await?;
        }
    }

    /// Sends a doorbell: a message of one line. Waits while the peer has not read earlier ones.
    ///
    /// # Errors
    /// [`ChannelError::Closed`]; the message was not sent.
    pub async fn write_message(&self, message: &Message) -> Result<(), ChannelError> {
        loop {
            self.check_open()?;
            let sent = self.link.rings.borrow_mut().send_message(message);
            if self.is_sent(sent)? {
                return Ok(());
            }
            self.await_room(0).await?;
        }
    }

    /// Sends a message of one line if the ring has room for it.
    #[inline]
    pub fn try_write_message(&self, message: &Message) -> Delivery {
        if !self.link.is_open() {
            return Delivery::Closed;
        }
        let sent = self.link.rings.borrow_mut().send_message(message);
        match sent {
            Ok(must) => {
                self.link.notify(must);
                Delivery::Sent
            }
            Err(error) => error.into(),
        }
    }

    /// Waits until the peer has read all packets, as closing a channel discards the others.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub async fn flush(&self) -> Result<(), ChannelError> {
        self.await_room(self.most_bytes()).await
    }

    /// Ends this direction: sends an empty packet, and waits until the peer has read all. To Linux programs it is the end of
    /// the file; a channel that is closed without one was cut off, and its last packets may be lost.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub async fn finish(&self) -> Result<(), ChannelError> {
        self.write(&[]).await?;
        self.flush().await
    }

    /// Sets how long a reader polls for the next packet before it waits for a doorbell: 20 µs, unless this is called. It does so
    /// after a wait that was not longer, and while its core has no other work. Zero turns polling off.
    pub fn set_polling_time(&self, most: Duration) {
        self.link.brief_polling.set_most(most);
    }

    /// Receives the next packet.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub async fn read(&self) -> Result<Vec<u8>, ChannelError> {
        let mut packet = Vec::new();
        self.read_into(&mut packet).await?;
        Ok(packet)
    }

    /// Receives the next packet into `packet`, replacing its contents.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub async fn read_into(&self, packet: &mut Vec<u8>) -> Result<(), ChannelError> {
        self.next(|rings| Ok(rings.receive(packet)?.then_some(()))).await
    }

    /// Receives the next packet, a message of one line.
    ///
    /// # Errors
    /// [`ChannelError::Closed`], also if the packet is longer: the channel is of no use then.
    pub async fn read_message(&self) -> Result<Message, ChannelError> {
        self.next(Rings::receive_message).await
    }

    /// Receives the next packet, a message of one line, if there is one: for a task that polls.
    ///
    /// # Errors
    /// As for [`Self::read_message`].
    #[inline]
    pub fn try_read_message(&self) -> Result<Option<Message>, ChannelError> {
        let mut rings = self.link.rings.borrow_mut();
        let message = rings.receive_message()?;
        let reads = self.reads.get() + 1;
        self.reads.set(reads % READS_IN_A_ROW);
        if message.is_none() || reads == READS_IN_A_ROW {
            let must = rings.release();
            drop(rings);
            self.link.notify(must);
            if message.is_none() {
                self.check_open()?;
            }
        }
        Ok(message)
    }

    /// Maps memory of this cell in the peer. Memory that was shared over this channel before is revoked, and must have
    /// permitted the same access.
    ///
    /// # Errors
    /// A [`ChannelError`].
    pub async fn map(&self, memory: &SharedMemory, access: LinkAccess) -> Result<(), ChannelError> {
        self.share(Some((memory.clone(), access, Survival::Revoked))).await
    }

    /// Maps memory of this cell in the peer as [`Self::map`] does, for reading. The peer may
    /// [keep the contents](PeerMemory::keep) when this cell ends, in memory of its own. Up to [`MOST_KEPT_PAGES`] pages.
    ///
    /// # Errors
    /// A [`ChannelError`]; [`LinkRefusal::NotSurviving`](crate::LinkRefusal::NotSurviving) if the memory is longer.
    pub async fn map_surviving(&self, memory: &SharedMemory) -> Result<(), ChannelError> {
        self.share(Some((memory.clone(), LinkAccess::Read, Survival::Permitted))).await
    }

    /// Revokes the memory that is mapped in the peer. On return the peer cannot access it any more.
    ///
    /// # Errors
    /// A [`ChannelError`].
    pub async fn unmap(&self) -> Result<(), ChannelError> {
        self.share(None).await
    }

    /// Returns the memory that the peer has mapped for this cell; waits until there is some.
    ///
    /// # Errors
    /// [`ChannelError::Closed`].
    pub async fn mapped(&self) -> Result<PeerMemory, ChannelError> {
        let port = runtime()?.port().ok_or(ChannelError::Unsupported)?;
        let slot = self.link.slot.clone();
        poll_fn(|context| {
            self.link.watch(context.waker());
            match port.peer_words(slot.slot, LinkPart::Shared) {
                Some((words, access)) => Poll::Ready(Ok(PeerMemory::new(words, access, slot.clone()))),
                None if !self.link.is_open() => Poll::Ready(Err(ChannelError::Closed)),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Returns whether the peer has not closed the channel.
    pub fn is_open(&self) -> bool {
        self.link.is_open() && !self.link.rings.borrow().is_broken()
    }

    /// Completes when the peer has closed the channel, or ended.
    pub async fn closed(&self) {
        poll_fn(|context| {
            self.link.watch(context.waker());
            if self.link.is_open() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    async fn share(&self, memory: Option<(SharedMemory, LinkAccess, Survival)>) -> Result<(), ChannelError> {
        let (runtime, slot) = (runtime()?, self.link.slot.clone());
        // In a task of its own, which holds the memory until the answer.
        spawn_task(async move { runtime.share(&slot, memory).await }).await
    }

    /// After the peer's end, its half is other memory, in which the rings would find room at first.
    fn check_open(&self) -> Result<(), ChannelError> {
        if self.link.is_open() { Ok(()) } else { Err(ChannelError::Closed) }
    }

    fn is_sent(&self, sent: Result<isola_link_rings::MustNotify, SendError>) -> Result<bool, ChannelError> {
        match sent {
            Ok(must) => {
                self.link.notify(must);
                Ok(true)
            }
            Err(SendError::Full) => Ok(false),
            Err(SendError::TooLong { most_bytes }) => Err(ChannelError::TooLong { most_bytes }),
            Err(SendError::Broken) => Err(ChannelError::Closed),
        }
    }

    /// Sends the first `len` bytes of `data` as a packet, if the ring has room. Returns whether it had.
    pub(crate) fn try_write(&self, len: usize, data: &Chain) -> Result<bool, ChannelError> {
        self.check_open()?;
        let sent = self.link.rings.borrow_mut().send_parts(len, data.parts().map(|part| &**part));
        self.is_sent(sent)
    }

    /// Receives the next packet by `take`, which returns `None` if there is none.
    fn next<T>(
        &self,
        mut take: impl FnMut(&mut Rings) -> Result<Option<T>, Broken>,
    ) -> impl Future<Output = Result<T, ChannelError>> {
        let mut has_waited = false;
        poll_fn(move |context| self.poll_next(context, &mut has_waited, &mut take))
    }

    /// Receives the next packet by `take`. `has_waited` records whether the reader was pending since the last packet.
    #[inline]
    pub(crate) fn poll_next<T>(
        &self,
        context: &mut Context<'_>,
        has_waited: &mut bool,
        take: &mut impl FnMut(&mut Rings) -> Result<Option<T>, Broken>,
    ) -> Poll<Result<T, ChannelError>> {
        let reads = self.reads.get();
        if reads == READS_IN_A_ROW {
            // Other events run after many packets that were read without a wait.
            self.reads.set(0);
            let must = self.link.rings.borrow_mut().release();
            self.link.notify(must);
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        loop {
            if let Some(packet) = take(&mut self.link.rings.borrow_mut())? {
                let has_waited = core::mem::take(has_waited);
                if has_waited {
                    self.link.brief_polling.end_wait();
                }
                self.reads.set(if has_waited { 0 } else { reads + 1 });
                return Poll::Ready(Ok(packet));
            }
            self.check_open()?;
            if self.link.poll_briefly()? {
                continue;
            }
            if !self.link.await_packet(context.waker())? {
                *has_waited = true;
                self.link.brief_polling.begin_wait();
                return Poll::Pending;
            }
        }
    }

    async fn await_room(&self, len_bytes: usize) -> Result<(), ChannelError> {
        poll_fn(|context| self.poll_room(context, len_bytes)).await
    }

    /// Ready when the ring has room for a packet.
    pub(crate) fn poll_room(
        &self,
        context: &mut Context<'_>,
        len_bytes: usize,
    ) -> Poll<Result<(), ChannelError>> {
        self.check_open()?;
        if self.link.await_room(len_bytes, context.waker())? { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.link.slot.slot)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listener")
    }
}
