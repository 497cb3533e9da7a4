//! The links of the cell, on its first core: requests to the supervisor, doorbells, and the tasks that wait for them.

use crate::ChannelError;
use crate::bell::BellHandler;
use crate::memory::{PAGE_WORDS, Pool, SharedMemory};
use alloc::collections::VecDeque;
use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::future::poll_fn;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Poll, Waker};
use isola_abi::links::{
    DOORBELL_VECTOR, Link, LinkAccess, LinkDemand, LinkPart, LinkState, LinkTable, ServiceName, Survival,
    service_name,
};
use isola_abi::network_service::ANY_CLIENT;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_events::interrupt::on_interrupt;
use isola_events::polling::{AdaptivePolling, BriefPolling, PollingMode, PollingThresholds};
use isola_events::{spawn, spawn_task};
use isola_link_rings::{Armed, Broken, Half, MustNotify, Ring};
use isola_platform::{CoreIndex, LinkPort};

static RUNTIME: Ebb<Runtime> = Ebb::new();

/// The rings of a link: this cell's half, and the peer's.
pub(crate) type Rings = Ring<&'static [AtomicU64], &'static [AtomicU64]>;

/// The most pages of a half: 1 MiB.
pub const MOST_RING_PAGES: usize = 256;

/// The sizes of the two rings of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingSizes {
    /// The pages of the ring to which this cell writes, from 1 to [`MOST_RING_PAGES`]. Slightly less than the largest power
    /// of two of bytes below them is the longest packet.
    pub pages: usize,
    /// The most pages of the peer's ring, which limit the memory that a received packet can take.
    pub most_peer_pages: usize,
}

impl Default for RingSizes {
    /// Returns 4 pages, for packets of 8,184 bytes, and 64 KiB for the peer.
    fn default() -> Self {
        Self { pages: 4, most_peer_pages: 16 }
    }
}

impl RingSizes {
    /// Returns the sizes if they are within the limits.
    pub(crate) fn checked(self) -> Result<Self, ChannelError> {
        let is_right = |pages| (1..=MOST_RING_PAGES).contains(&pages);
        if is_right(self.pages) && is_right(self.most_peer_pages) {
            Ok(self)
        } else {
            Err(ChannelError::BadSize { most_pages: MOST_RING_PAGES })
        }
    }
}

/// A link in the table. The slot is freed when this is dropped, after all references to the peer's memory.
#[derive(Debug)]
pub(crate) struct LinkSlot {
    pub(crate) slot: usize,
    /// The memory that the peer maps or may map: the half, and what was shared.
    half: SharedMemory,
    shared: RefCell<Option<SharedMemory>>,
    /// The memory to which the supervisor copies what the peer shares, when the peer ends.
    kept: RefCell<Option<SharedMemory>>,
    is_sharing: Cell<bool>,
}

impl Drop for LinkSlot {
    fn drop(&mut self) {
        let (slot, memory) = (self.slot, (self.half.clone(), self.shared.take(), self.kept.take()));
        spawn_task(async move {
            RUNTIME.free(slot).await;
            // From here on no peer maps the memory, and the supervisor does not write it.
            drop(memory);
        })
        .detach();
    }
}

/// What the tasks of a link wait for. A doorbell does not name its link, so that each one causes a look at this part of all
/// links.
pub(crate) struct Attention {
    /// The peer's word that a packet changes, and its value when the reader began to wait.
    head: &'static AtomicU64,
    seen_head: Cell<u64>,
    reader_waits: Cell<bool>,
    /// Stays after a wake-up, as it is mostly the same task that waits next.
    reader: Cell<Option<Waker>>,
    /// Whether each doorbell may be for the link: a writer waits, the link has a handler, or was dropped.
    is_rung: Cell<bool>,
}

impl Attention {
    #[inline]
    fn has_packet(&self) -> bool {
        self.reader_waits.get() && self.head.load(Ordering::Relaxed) != self.seen_head.get()
    }

    /// Wakes the reader, if it waits.
    #[inline]
    fn wake_reader(&self) {
        if self.reader_waits.replace(false)
            && let Some(reader) = self.reader.take()
        {
            reader.wake_by_ref();
            self.reader.set(Some(reader));
        }
    }
}

/// An open link.
pub(crate) struct OpenLink {
    attention: Rc<Attention>,
    pub(crate) slot: Rc<LinkSlot>,
    port: &'static dyn LinkPort,
    /// The link's entry in the table, which other links use after the slot was free.
    link: &'static Link,
    pub(crate) rings: RefCell<Rings>,
    pub(crate) brief_polling: BriefPolling,
    writer: Cell<Option<Waker>>,
    watcher: Cell<Option<Waker>>,
    /// The link's entry when its watcher and its reader were last woken for a change of the table.
    seen: Cell<(LinkState, u32)>,
    bell: RefCell<Option<BellHandler>>,
}

impl Drop for OpenLink {
    fn drop(&mut self) {
        self.attention.is_rung.set(true);
    }
}

impl OpenLink {
    /// Notifies the peer if it waits for that.
    #[inline]
    pub(crate) fn notify(&self, must: MustNotify) {
        if must == MustNotify::Yes {
            self.port.ring_doorbell(self.slot.slot);
        }
    }

    pub(crate) fn port(&self) -> &'static dyn LinkPort {
        self.port
    }

    /// Returns whether the link is still open.
    pub(crate) fn is_open(&self) -> bool {
        self.link.state() == LinkState::Open
    }

    /// Returns the parts of the entry that tasks wait for.
    fn entry(&self) -> (LinkState, u32) {
        (self.link.state(), self.link.shares())
    }

    /// Returns the name of the service.
    pub(crate) fn service(&self) -> ServiceName {
        self.link.service()
    }

    /// Returns the peer's hardware address, of a link for frames.
    pub(crate) fn peer_mac(&self) -> Option<[u8; 6]> {
        self.link.peer_mac()
    }

    /// Registers the reader for the next packet. Returns whether there is one already.
    pub(crate) fn await_packet(&self, waker: &Waker) -> Result<bool, Broken> {
        let mut rings = self.rings.borrow_mut();
        self.notify(rings.release());
        let Attention { reader, seen_head, reader_waits, .. } = &*self.attention;
        let same = reader.take().filter(|reader| reader.will_wake(waker));
        reader.set(Some(same.unwrap_or_else(|| waker.clone())));
        let has_packet = match RUNTIME.mode() {
            PollingMode::Interrupts => rings.arm()? == Armed::HasPacket,
            PollingMode::Polling => rings.has_packet()?,
        };
        seen_head.set(rings.seen_head());
        reader_waits.set(true);
        Ok(has_packet)
    }

    /// Waits a short time for the next packet, if packets come soon. Returns whether there is one. The peer need not send a
    /// doorbell for it then, and this core need not halt.
    #[inline]
    pub(crate) fn poll_briefly(&self) -> Result<bool, Broken> {
        let look = |rings: &mut Rings| match rings.has_packet() {
            Ok(false) => None,
            found => Some(found),
        };
        if !self.brief_polling.is_on() {
            return Ok(false);
        }
        let mut rings = self.rings.borrow_mut();
        // The peer may wait for room.
        self.notify(rings.release());
        self.brief_polling.poll(|| look(&mut rings)).unwrap_or(Ok(false))
    }

    /// Calls `handler` at each doorbell of any peer.
    pub(crate) fn set_bell(&self, handler: BellHandler) {
        self.bell.replace(Some(handler));
        self.attention.is_rung.set(true);
    }

    /// Registers the writer for room. Returns whether there is some already.
    pub(crate) fn await_room(&self, len_bytes: usize, waker: &Waker) -> Result<bool, Broken> {
        self.writer.set(Some(waker.clone()));
        self.attention.is_rung.set(true);
        self.rings.borrow_mut().await_room(len_bytes)
    }

    /// Registers a task that waits for a change of the link.
    pub(crate) fn watch(&self, waker: &Waker) {
        self.watcher.set(Some(waker.clone()));
    }

    /// Wakes the tasks other than the reader that can go on after a doorbell. Returns whether there was work.
    fn poll(&self, has_changed: bool) -> bool {
        if has_changed {
            // The change is one of a single link: the tasks of the others, up to 510, need not run.
            let entry = self.entry();
            if self.seen.replace(entry) != entry {
                self.watcher.take().into_iter().for_each(Waker::wake);
                self.attention.wake_reader();
            }
        }
        if !self.attention.is_rung.get() {
            return false;
        }
        // A peer that consumes sends a doorbell for room, and seldom.
        self.writer.take().into_iter().for_each(Waker::wake);
        // No borrow is held during the call.
        let handler = self.bell.borrow().clone();
        self.attention.is_rung.set(handler.is_some());
        handler.is_some_and(|handler| handler())
    }
}

/// A service for which the cell listens.
#[derive(Default)]
pub(crate) struct Listening {
    pub(crate) invited: RefCell<VecDeque<usize>>,
    pub(crate) waiting: Cell<Option<Waker>>,
}

/// The turn of a task to send a request to the supervisor, until the task has read the answer.
struct Turn<'a>(&'a Runtime);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.is_requesting.set(false);
        self.0.waiting.take().into_iter().for_each(Waker::wake);
    }
}

/// The state of the first core.
#[derive(Default)]
pub(crate) struct Runtime {
    is_started: Cell<bool>,
    /// The number of the last request.
    number: Cell<u32>,
    /// Whether a task has sent a request and has not read the answer, which the next request's answer replaces.
    is_requesting: Cell<bool>,
    /// The tasks that wait for an answer, or for their turn.
    waiting: RefCell<Vec<Waker>>,
    changes: Cell<u32>,
    open: RefCell<Vec<(Rc<Attention>, Weak<OpenLink>)>>,
    listening: RefCell<Vec<(ServiceName, Weak<Listening>)>>,
    /// The slots whose invitation has a listener, or is being refused, until they are free.
    dispatched: RefCell<Vec<usize>>,
    pool: Pool,
    polling: RefCell<Option<AdaptivePolling>>,
    table: Cell<Option<&'static LinkTable>>,
    /// Whether an event is queued that polls the links.
    is_queued: Cell<bool>,
}

impl Representative for Runtime {
    fn create() -> Self {
        Self::default()
    }
}

/// Returns the calling core's memory for peers.
pub(crate) fn pool() -> &'static Pool {
    &RUNTIME.pool
}

/// Returns the runtime, on the first core of a cell with a supervisor.
pub(crate) fn runtime() -> Result<&'static Ebb<Runtime>, ChannelError> {
    if current_core() != CoreIndex(0) {
        return Err(ChannelError::WrongCore);
    }
    RUNTIME.port().ok_or(ChannelError::Unsupported)?;
    RUNTIME.start();
    Ok(&RUNTIME)
}

impl Runtime {
    pub(crate) fn port(&self) -> Option<&'static dyn LinkPort> {
        platform().links()
    }

    fn start(&self) {
        if self.is_started.replace(true) {
            return;
        }
        *self.polling.borrow_mut() = Some(AdaptivePolling::new(PollingThresholds::default()));
        self.table.set(self.port().map(LinkPort::table));
        let handler = on_interrupt(DOORBELL_VECTOR, || {
            let mode = RUNTIME.polling.borrow_mut().as_mut().map(AdaptivePolling::interrupted);
            if mode == Some(PollingMode::Polling) {
                // At this rate of doorbells the links are looked at once in each round of the queue.
                RUNTIME.queue_poll();
            } else {
                RUNTIME.poll();
            }
        });
        // Only this function installs a handler for the vector.
        handler.into_iter().for_each(isola_events::interrupt::Interrupt::keep);
        spawn(|| _ = RUNTIME.poll());
    }

    fn mode(&self) -> PollingMode {
        self.polling.borrow().as_ref().map_or(PollingMode::Interrupts, AdaptivePolling::mode)
    }

    /// Polls the links in an event that queues itself again, until their rate falls.
    fn queue_poll(&self) {
        if self.is_queued.replace(true) {
            return;
        }
        spawn(|| {
            RUNTIME.is_queued.set(false);
            let found = RUNTIME.poll();
            let mode = RUNTIME.polling.borrow_mut().as_mut().map(|polling| polling.polled(found));
            if mode == Some(PollingMode::Polling) {
                RUNTIME.queue_poll();
            } else {
                // Each reader arms its ring when it runs.
                let mut next = 0;
                while let Some(attention) = RUNTIME.next_with_news(&mut next, true) {
                    attention.wake_reader();
                }
            }
        });
    }

    /// Looks for packets, room and changes. Returns the number of links with work.
    fn poll(&self) -> usize {
        let Some(table) = self.table.get() else { return 0 };
        let changes = table.changes();
        let has_changed = self.changes.replace(changes) != changes;
        if has_changed {
            self.waiting.take().into_iter().for_each(Waker::wake);
            self.dispatch_invitations(table);
        }
        let (mut found, mut next) = (0, 0);
        // No borrow is held while a task is woken, or a handler runs.
        while let Some(attention) = self.next_with_news(&mut next, has_changed) {
            if attention.has_packet() {
                attention.wake_reader();
                found += 1;
            }
            if (has_changed || attention.is_rung.get())
                && let Some(link) = self.link_at(&mut next)
            {
                found += usize::from(link.poll(has_changed));
            }
        }
        found
    }

    /// Returns the next link with a packet or other news from the index `next` on, which it sets behind that link's.
    #[inline]
    fn next_with_news(&self, next: &mut usize, has_changed: bool) -> Option<Rc<Attention>> {
        let open = self.open.borrow();
        let has_news =
            |attention: &Attention| has_changed || attention.is_rung.get() || attention.has_packet();
        let mut rest = open.get(*next..)?.iter();
        let (attention, _) = rest.find(|(attention, _)| has_news(attention))?;
        *next = open.len() - rest.len();
        Some(attention.clone())
    }

    /// Returns the link before the index `next`. One that was dropped is removed, and `next` is its index.
    fn link_at(&self, next: &mut usize) -> Option<Rc<OpenLink>> {
        let mut open = self.open.borrow_mut();
        let index = *next - 1;
        let link = open.get(index)?.1.upgrade();
        if link.is_none() {
            open.swap_remove(index);
            *next = index;
        }
        link
    }

    /// Passes invitations on to their listeners, and refuses those without one.
    fn dispatch_invitations(&self, table: &LinkTable) {
        self.listening.borrow_mut().retain(|(_, listening)| listening.strong_count() > 0);
        for (slot, link) in table.iter().filter(|(_, link)| link.state() == LinkState::Invited) {
            if self.dispatched.borrow().contains(&slot) {
                continue;
            }
            self.dispatched.borrow_mut().push(slot);
            match self.listening_to(&link.service()) {
                Some(listening) => {
                    listening.invited.borrow_mut().push_back(slot);
                    listening.waiting.take().into_iter().for_each(Waker::wake);
                }
                None => spawn_task(async move { RUNTIME.free(slot).await }).detach(),
            }
        }
    }

    /// Closes a link, or refuses an invitation. The slot may have another invitation afterwards.
    pub(crate) async fn free(&self, slot: usize) {
        let _ = self.request(&LinkDemand::Close { slot }).await;
        self.dispatched.borrow_mut().retain(|of| *of != slot);
        if let Some(table) = self.table.get() {
            self.dispatch_invitations(table);
        }
    }

    /// Returns the listener of this name.
    pub(crate) fn listening_for(&self, service: &ServiceName) -> Option<Rc<Listening>> {
        let listening = self.listening.borrow();
        listening.iter().find(|(name, _)| name == service).and_then(|(_, listening)| listening.upgrade())
    }

    /// Returns the listener for invitations to a service: the one of its name, else the one for any name. Links for frames
    /// between neighbours have no name.
    fn listening_to(&self, service: &ServiceName) -> Option<Rc<Listening>> {
        let any = service_name(ANY_CLIENT).filter(|_| service[0] != 0);
        self.listening_for(service).or_else(|| self.listening_for(&any?))
    }

    pub(crate) fn listen(&self, service: ServiceName) -> Rc<Listening> {
        let listening = Rc::new(Listening::default());
        self.listening.borrow_mut().push((service, Rc::downgrade(&listening)));
        listening
    }

    /// Returns an initialised half, of memory that no peer maps.
    pub(crate) fn half(&self, sizes: RingSizes) -> Result<SharedMemory, ChannelError> {
        let half = SharedMemory::new(sizes.pages)?;
        Half::new(half.words()).map_err(|_| ChannelError::Unsupported)?.init();
        Ok(half)
    }

    /// Shares memory over a link, or revokes the memory that is shared.
    pub(crate) async fn share(
        &self,
        slot: &LinkSlot,
        memory: Option<(SharedMemory, LinkAccess, Survival)>,
    ) -> Result<(), ChannelError> {
        let port = self.port().ok_or(ChannelError::Unsupported)?;
        let demand = match &memory {
            Some((memory, access, survival)) => LinkDemand::Share {
                slot: slot.slot,
                memory: port.range_of(memory.words()),
                access: *access,
                survival: *survival,
            },
            None => LinkDemand::Unshare { slot: slot.slot },
        };
        // The supervisor has revoked the memory that was shared before.
        self.change_memory(slot, &demand, || slot.shared.replace(memory.map(|(memory, ..)| memory))).await
    }

    /// Names the memory to which the supervisor copies what the peer shares over a link, when the peer ends.
    pub(crate) async fn keep(&self, slot: &LinkSlot, memory: SharedMemory) -> Result<(), ChannelError> {
        let port = self.port().ok_or(ChannelError::Unsupported)?;
        let demand = LinkDemand::Keep { slot: slot.slot, memory: port.range_of(memory.words()) };
        self.change_memory(slot, &demand, || slot.kept.replace(Some(memory))).await
    }

    /// Sends a request about the memory of a link. Calls `replace` before any other, if the supervisor accepts it.
    async fn change_memory<T>(
        &self,
        slot: &LinkSlot,
        demand: &LinkDemand,
        replace: impl FnOnce() -> T,
    ) -> Result<(), ChannelError> {
        // One request at a time for a link, so that the order of the answers is that of the requests.
        self.wait_until(|| (!slot.is_sharing.replace(true)).then_some(())).await;
        let result = self.request(demand).await.map(|_| drop(replace()));
        slot.is_sharing.set(false);
        self.waiting.take().into_iter().for_each(Waker::wake);
        result
    }

    /// Sends a request to the supervisor, and returns its answer.
    pub(crate) async fn request(&self, demand: &LinkDemand) -> Result<usize, ChannelError> {
        let port = self.port().ok_or(ChannelError::Unsupported)?;
        let table = port.table();
        let _turn = self.wait_until(|| self.take_turn(table)).await;
        let number = port.send(demand);
        self.number.set(number);
        self.wait_until(|| table.answer(number)).await.map_err(ChannelError::Refused)
    }

    /// Takes the turn to send a request, if no other is open.
    fn take_turn(&self, table: &LinkTable) -> Option<Turn<'_>> {
        // The request of a task that was dropped stays open until it is answered.
        let is_free = table.answered() == self.number.get() && !self.is_requesting.replace(true);
        is_free.then(|| Turn(self))
    }

    /// Waits until `condition` returns a value; checks after each change of the table.
    pub(crate) async fn wait_until<T>(&self, condition: impl Fn() -> Option<T>) -> T {
        poll_fn(|context| match condition() {
            Some(value) => Poll::Ready(value),
            None => {
                self.waiting.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// Makes a link that is open usable.
    pub(crate) fn connect(&self, slot: Rc<LinkSlot>, sizes: RingSizes) -> Result<Rc<OpenLink>, ChannelError> {
        let port = self.port().ok_or(ChannelError::Unsupported)?;
        let peer = port.peer_words(slot.slot, LinkPart::Ring).ok_or(ChannelError::Closed)?.0;
        if peer.len() > sizes.most_peer_pages * PAGE_WORDS {
            return Err(ChannelError::PeerRing);
        }
        let own = Half::new(slot.half.words()).map_err(|_| ChannelError::Closed)?;
        let peer = Half::new(peer).map_err(|_| ChannelError::Closed)?;
        let attention = Rc::new(Attention {
            head: peer.head_word().ok_or(ChannelError::Closed)?,
            seen_head: Cell::default(),
            reader_waits: Cell::default(),
            reader: Cell::default(),
            is_rung: Cell::default(),
        });
        let rings = RefCell::new(Ring::new(own, peer));
        let link = port.table().get(slot.slot).ok_or(ChannelError::Closed)?;
        let open = Rc::new(OpenLink {
            attention: attention.clone(),
            link,
            port,
            slot,
            rings,
            brief_polling: BriefPolling::default(),
            writer: Cell::default(),
            watcher: Cell::default(),
            seen: Cell::new((link.state(), link.shares())),
            bell: RefCell::default(),
        });
        self.open.borrow_mut().push((attention, Rc::downgrade(&open)));
        Ok(open)
    }
}

impl LinkSlot {
    pub(crate) fn new(slot: usize, half: SharedMemory) -> Rc<Self> {
        Rc::new(Self {
            slot,
            half,
            shared: RefCell::default(),
            kept: RefCell::default(),
            is_sharing: Cell::default(),
        })
    }
}
