//! The device's queues: received frames to the cores that they belong to, frames to send to the device.
//!
//! A queue is served by one core. Its interrupt masks itself and makes an event; the event takes frames in
//! batches and makes itself again while there are more; once there are none, the interrupt is let in again. So a
//! busy queue is polled between the core's other events, and an idle one costs nothing. Where interrupts come at a high
//! rate all the same, they stay masked, and the event makes itself again whether it finds frames or not
//! ([`isola_events::polling`]). A core that does not keep up
//! with its events looks at its device more and more rarely, and the device drops what it has no room for; frames for
//! another core that does not keep up are dropped here.

use crate::core_network::NETWORK;
use crate::drops::count_dropped;
use crate::interface;
use crate::outbox::Outbox;
use crate::steering::tcp_flow_of;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use isola_abi::report::NetworkReport;
use isola_ebbs::{CellEbb, Ebb, Representative, current_core, platform};
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::{Event, Placement, StaticEvent};
use isola_events::interrupt::{Interrupt, on_interrupt};
use isola_events::polling::{AdaptivePolling, Mode, Thresholds};
use isola_events::{elsewhere, last_look, on_carried, spawn_on};
use isola_iobuf::{IoBuf, IoBufMut};
use isola_net_stack::{Counter, Instant, MAX_CORES, Owner, Stack, Steering, datagram_port};
use isola_platform::CoreIndex;
use isola_platform::network::{
    FlowSpreading, Frame, FramesPending, NetworkQueue, ReceivedChecksum, ReceivedFrame,
};
use spin::Mutex;

static QUEUES: Ebb<Queues> = Ebb::new();
static OWNERS: CellEbb<Owners> = CellEbb::new();

/// Polls the core's queue.
static POLL: StaticEvent = StaticEvent::new(INFRASTRUCTURE, || QUEUES.poll());

/// Frames taken from the device in one event.
const BATCH: usize = 64;

/// Which cores own queues. Who owns none, core `i`, sends by queue `i` modulo their number.
struct Owners {
    /// By queue, of which the first `count` have one.
    cores: [AtomicU8; MAX_CORES as usize],
    count: AtomicUsize,
    /// Queues that no core owns yet.
    vacant: Mutex<VecDeque<Box<dyn NetworkQueue + Send>>>,
    /// What spreads received frames over the queues, where the device does as it is told.
    spreading: Mutex<Option<Box<dyn FlowSpreading + Send>>>,
}

impl Representative for Owners {
    fn create() -> Self {
        Self {
            cores: [const { AtomicU8::new(0) }; MAX_CORES as usize],
            count: AtomicUsize::new(0),
            vacant: Mutex::default(),
            spreading: Mutex::default(),
        }
    }
}

impl Owners {
    /// By queue.
    fn cores(&self) -> impl ExactSizeIterator<Item = CoreIndex> {
        let cores = self.cores.iter().take(self.count.load(Ordering::Acquire));
        cores.map(|core| CoreIndex(core.load(Ordering::Relaxed).into()))
    }

    /// The owner of the next queue is that core. Called by whoever starts the network, or moves flows.
    fn add(&self, core: CoreIndex) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(place) = self.cores.get(count) {
            place.store(core.0 as u8, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Release);
        }
    }
}

/// The queue that a core serves, where it serves one.
struct Queues {
    /// Where frames are counted.
    report: &'static NetworkReport,
    served: RefCell<Option<Served>>,
    /// Maps flows to cores. Set when the core begins to serve its queue.
    steering: Cell<Option<&'static Arc<Steering>>>,
    /// Frames that the device's queue had no room for.
    waiting: RefCell<VecDeque<Frame>>,
    /// UDP ports whose datagrams all go to one core.
    datagram_cores: RefCell<BTreeMap<u16, CoreIndex>>,
    /// Whether datagrams of some port go to another core.
    datagrams_elsewhere: Cell<bool>,
    poll_queued: Cell<bool>,
    /// The reading of the cycle counter before which nothing that is in the queue has come.
    empty_at: Cell<u64>,
}

/// A queue and the state of its service.
struct Served {
    queue: Box<dyn NetworkQueue + Send>,
    polling: AdaptivePolling,
    /// `None` if the vector was taken.
    _interrupt: Option<Interrupt>,
}

impl Representative for Queues {
    fn create() -> Self {
        Self {
            report: &platform().report().network,
            served: RefCell::default(),
            steering: Cell::default(),
            waiting: RefCell::default(),
            datagram_cores: RefCell::default(),
            datagrams_elsewhere: Cell::default(),
            poll_queued: Cell::default(),
            empty_at: Cell::default(),
        }
    }
}

/// Deals the queues out over the cores that there are, the first to this one; the others are for cores that come. A queue's
/// core is needed from now on.
pub(crate) fn start(
    queues: Vec<Box<dyn NetworkQueue + Send>>,
    spreading: Option<Box<dyn FlowSpreading + Send>>,
) {
    *OWNERS.vacant.lock() = queues.into();
    *OWNERS.spreading.lock() = spreading;
    let cores = (0..platform().descriptor().cores.len() as u32).map(CoreIndex);
    let dealt: Vec<_> = cores.filter_map(|core| Some((core, deal(core)?))).collect();
    // Before any of them is sent by.
    spread();
    for (core, mut queue) in dealt {
        let serve = move || {
            queue.attach();
            QUEUES.serve(queue);
        };
        if core == current_core() { serve() } else { spawn_on(core, serve) }
    }
}

/// Gives each of these cores a queue that has none, as long as there are any. When that is done they serve them.
pub(crate) async fn deal_out(cores: impl Iterator<Item = CoreIndex>) {
    for core in cores {
        if OWNERS.cores().any(|owner| owner == core) {
            continue;
        }
        let Some(mut queue) = deal(core) else { return };
        let serve = move || async move {
            queue.attach();
            // Before it is sent by.
            spread();
            QUEUES.serve(queue);
        };
        elsewhere(core, serve).await;
    }
}

/// A queue that no core owned yet, and that this one owns from now on.
fn deal(core: CoreIndex) -> Option<Box<dyn NetworkQueue + Send>> {
    let queue = OWNERS.vacant.lock().pop_front()?;
    // Before it serves it, so that it hears of ports that are bound from now on.
    OWNERS.add(core);
    Some(queue)
}

/// Has the device hand frames to the queues of the cores that they belong to, or of those that pass them on. One that does not
/// is left alone from then on: the cores steer what they receive in any case.
pub(crate) fn spread() {
    let owners: Vec<CoreIndex> = OWNERS.cores().collect();
    let Some(steering) = interface::steering().filter(|_| owners.len() > 1) else { return };
    let queue_of = |core: u16| {
        let own = owners.iter().position(|owner| owner.0 == u32::from(core));
        own.unwrap_or(usize::from(core) % owners.len()) as u16
    };
    let mut spreading = OWNERS.spreading.lock();
    let Some(device) = spreading.as_mut() else { return };
    if let Err(refused) = device.spread(steering.key(), &steering.owners().map(queue_of), owners.len() as u16)
    {
        *spreading = None;
        drop(spreading);
        platform().print(format!("{refused}\n").as_bytes());
    }
}

/// Has the datagrams for a UDP port go to the core that bound it, whatever their flow, or to their flows' cores again. To be
/// called after each change of that.
///
/// What two cores say about a port may come in another order than they said it: so a queue's core asks who has the port by
/// then.
pub(crate) fn steer_datagrams(port: u16) {
    for owner in OWNERS.cores() {
        let steer = move || QUEUES.steer_datagrams(port);
        if owner == current_core() { steer() } else { spawn_on(owner, steer) }
    }
}

/// Has something done to each queue of the device, on the core that serves it, by an event.
pub(crate) fn on_queues(change: impl Fn(&mut Box<dyn NetworkQueue + Send>) + Clone + Send + 'static) {
    for owner in OWNERS.cores() {
        let change = change.clone();
        spawn_on(owner, move || {
            QUEUES.served.borrow_mut().iter_mut().for_each(|served| change(&mut served.queue));
        });
    }
}

/// Sets from which rates on the queues of the cell's network device are polled, and from which they interrupt again.
pub fn set_polling(thresholds: Thresholds) {
    for owner in OWNERS.cores() {
        let set = move || {
            if let Some(served) = QUEUES.served.borrow_mut().as_mut() {
                served.polling = AdaptivePolling::new(thresholds);
            }
        };
        if owner == current_core() { set() } else { spawn_on(owner, set) }
    }
}

/// Has a frame that was put together of fragments received on the core of its flow.
pub(crate) fn steer_again(frame: IoBuf) {
    let version = interface::steering().map_or(0, |steering| steering.version());
    let core = QUEUES.core_of(&frame);
    let received = ReceivedFrame { frame, rest: None, checksum: ReceivedChecksum::Unchecked };
    hand_on(core, vec![received], version, NETWORK.latency.came_at());
}

/// Passes a frame on to the core that its flow of TCP has gone to; gives it back where that is this one.
pub(crate) fn pass_on(received: ReceivedFrame) -> Option<ReceivedFrame> {
    let Some((steering, flow)) = interface::steering().zip(tcp_flow_of(&received.frame)) else {
        return Some(received);
    };
    let version = steering.version();
    let core = CoreIndex(steering.core_of(&flow).into());
    if core == current_core() {
        return Some(received);
    }
    hand_on(core, vec![received], version, NETWORK.latency.came_at());
    None
}

/// Has frames received on another core, to which they were steered by the table's `version`, and which came at the reading
/// `came_at` of the cycle counter or later.
fn hand_on(core: CoreIndex, batch: Vec<ReceivedFrame>, version: u32, came_at: u64) {
    let event = Event::new().at(Placement::Core(core)).charged_to(INFRASTRUCTURE);
    let count = batch.len();
    if event.try_spawn(move || NETWORK.receive(batch, version, came_at)).is_err() {
        count_dropped(Counter::DropCoreBusy, count);
    }
}

/// Hands a batch to each of several cores.
#[cold]
#[inline(never)]
fn hand_on_all(batches: Vec<(CoreIndex, Vec<ReceivedFrame>)>, version: u32, came_at: u64) {
    batches.into_iter().for_each(|(core, batch)| hand_on(core, batch, version, came_at));
}

/// Sends what a core's stack has ready.
pub(crate) fn transmit(stack: &mut Stack, now: Instant) {
    let queues = &*QUEUES;
    if queues.served.borrow().is_some() {
        return queues.send_from(stack, now);
    }
    let owners = OWNERS.count.load(Ordering::Acquire);
    let queue = (current_core().0 as usize).checked_rem(owners);
    let Some(owner) = queue.and_then(|queue| OWNERS.cores.get(queue)) else { return };
    let owner = CoreIndex(owner.load(Ordering::Relaxed).into());
    let mut frames = Vec::new();
    while let Some(frame) = stack.poll_transmit(now) {
        let owner = stack.owner();
        NETWORK.attribution.charge(owner);
        frames.push((owner, frame));
        NETWORK.attribution.next_piece();
    }
    if !frames.is_empty() {
        let event = Event::new().at(Placement::Core(owner)).charged_to(INFRASTRUCTURE);
        let count = frames.len();
        if event.try_spawn(move || QUEUES.send(frames)).is_err() {
            count_dropped(Counter::DropCoreBusy, count);
        }
    }
}

impl Queues {
    /// Takes note of which core has a port.
    fn steer_datagrams(&self, port: u16) {
        let mut cores = self.datagram_cores.borrow_mut();
        match interface::core_of_datagrams(port) {
            Some(core) => cores.insert(port, core),
            None => cores.remove(&port),
        };
        self.datagrams_elsewhere.set(cores.values().any(|core| *core != current_core()));
    }

    /// Serves a queue that is attached to this core.
    fn serve(&self, queue: Box<dyn NetworkQueue + Send>) {
        let interrupt = on_interrupt(queue.vector(), || QUEUES.interrupted());
        let interrupt =
            interrupt.inspect_err(|error| platform().print(format!("network: {error}\n").as_bytes())).ok();
        let polling = AdaptivePolling::new(Thresholds::default());
        self.steering.set(interface::steering());
        self.served.replace(Some(Served { queue, polling, _interrupt: interrupt }));
        interface::ports_of_datagrams().into_iter().for_each(|port| self.steer_datagrams(port));
        on_carried(|| {
            if let Some(served) = QUEUES.served.borrow_mut().as_mut() {
                served.queue.redirect();
            }
            // Meanwhile interrupts may have gone to who carried this core before.
            QUEUES.queue_poll();
        });
        // Whatever came before somebody looked made no interrupt.
        self.queue_poll();
    }

    fn interrupted(&self) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.disable_interrupts();
            served.polling.interrupted();
        }
        // The interrupts were let in since the queue was empty: only what came since the core last looked makes one.
        if !self.poll_queued.replace(true) {
            self.empty_at.set(self.empty_at.get().max(last_look()));
            POLL.spawn();
        }
    }

    fn queue_poll(&self) {
        if !self.poll_queued.replace(true) {
            POLL.spawn();
        }
    }

    /// Takes a batch of frames in, hands those of other cores on, and answers.
    fn poll(&self) {
        self.poll_queued.set(false);
        let here = current_core();
        let mut elsewhere: Vec<(CoreIndex, Vec<ReceivedFrame>)> = Vec::new();
        // Before the table is looked at: a change that it does not count may be seen all the same.
        let steering = self.steering.get();
        let version = steering.map_or(0, |steering| steering.version());
        let came_at = self.empty_at.get();
        NETWORK.latency.begin(came_at);
        let (mut taken, mut bytes) = (0, 0);
        let intake = NETWORK.begin_intake();
        if let Some(Served { queue, .. }) = self.served.borrow_mut().as_mut() {
            let is_sole = |steering: &Arc<Steering>| steering.is_sole(here.0 as u16);
            let alone = !self.datagrams_elsewhere.get() && steering.is_some_and(is_sole);
            while let Some(received) = queue.receive() {
                taken += 1;
                bytes += received.len() as u64;
                let core = if alone { here } else { self.core_of(&received.frame) };
                if core == here {
                    NETWORK.absorb(&intake, received);
                } else {
                    match elsewhere.iter_mut().find(|(of, _)| *of == core) {
                        Some((_, batch)) => batch.push(received),
                        None => elsewhere.push((core, vec![received])),
                    }
                }
                if taken == BATCH || !queue.may_have_received() {
                    break;
                }
                if core == here {
                    NETWORK.attribution.next_piece();
                }
            }
            NETWORK.attribution.next_piece();
        }
        self.report.received_frames.fetch_add(taken as u64, Ordering::Relaxed);
        self.report.received_bytes.fetch_add(bytes, Ordering::Relaxed);
        if taken < BATCH {
            // The poll took every frame that the device had returned when it read the ring, which was later.
            self.empty_at.set(intake.began());
        }
        if !elsewhere.is_empty() {
            hand_on_all(elsewhere, version, came_at);
        }
        if taken > 0 {
            NETWORK.answer();
        }
        NETWORK.latency.end();
        self.send_waiting();
        self.rest(taken);
    }

    /// Lets interrupts in again, or looks at the queue again behind the core's other events: where there may be more, or
    /// they come so often that polling is cheaper.
    fn rest(&self, taken: usize) {
        let mut served = self.served.borrow_mut();
        let Some(Served { queue, polling, .. }) = served.as_mut() else { return };
        let more = polling.looked(taken) == Mode::Polling
            || taken == BATCH
            || queue.enable_interrupts() == FramesPending::Yes;
        if more {
            queue.disable_interrupts();
            self.queue_poll();
        }
    }

    fn core_of(&self, frame: &[u8]) -> CoreIndex {
        let Some(steering) = interface::steering() else { return CoreIndex(0) };
        if let Some(core) = steering.core_of_fast(frame) {
            return CoreIndex(core.into());
        }
        let bound = datagram_port(frame).and_then(|port| self.datagram_cores.borrow().get(&port).copied());
        bound.unwrap_or_else(|| CoreIndex(steering.core_of_frame(frame).into()))
    }

    /// Hands frames of another core to the device, behind those that wait already.
    fn send(&self, frames: Vec<(Owner, Frame)>) {
        self.reclaim(&mut |head| NETWORK.recycle(head));
        let attribution = &NETWORK.attribution;
        attribution.begin();
        self.send_all(|outbox| {
            for (owner, frame) in frames {
                attribution.charge(owner);
                outbox.push(frame);
                attribution.next_piece();
            }
        });
    }

    /// Hands what the stack has ready to the device, behind the frames that wait already.
    #[inline]
    fn send_from(&self, stack: &mut Stack, now: Instant) {
        let attribution = &NETWORK.attribution;
        attribution.begin_common();
        self.reclaim(&mut |head| stack.recycle(head));
        self.send_all(|outbox| {
            attribution.next_stage();
            while stack.transmit_next(now, |frame| outbox.push(frame)) {
                attribution.charge(stack.owner());
                if !stack.may_transmit() {
                    break;
                }
                attribution.next_piece();
            }
            attribution.next_stage();
            attribution.begin_common();
        });
    }

    fn send_waiting(&self) {
        if !self.waiting.borrow().is_empty() {
            self.send(Vec::new());
        }
    }

    /// Takes back what the device is done with.
    fn reclaim(&self, recycle: &mut dyn FnMut(IoBufMut)) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.reclaim(recycle);
        }
    }

    /// Hands the frames that wait to the device, and then those that `push` gives. What it has no room for waits.
    #[inline]
    fn send_all(&self, push: impl FnOnce(&mut Outbox<'_>)) {
        let mut served = self.served.borrow_mut();
        let mut waiting = self.waiting.borrow_mut();
        // A core may have frames to send before it has its queue.
        let queue = served.as_mut().map(|served| &mut *served.queue);
        let mut outbox = Outbox { queue, waiting: &mut waiting, sent: 0, sent_bytes: 0, dropped: 0 };
        outbox.push_waiting();
        push(&mut outbox);
        let Outbox { queue, sent, sent_bytes, dropped, .. } = outbox;
        self.report.sent_frames.fetch_add(sent, Ordering::Relaxed);
        self.report.sent_bytes.fetch_add(sent_bytes, Ordering::Relaxed);
        if dropped > 0 {
            count_dropped(Counter::DropDeviceFull, dropped);
        }
        let Some(queue) = queue else { return };
        queue.flush();
        if !waiting.is_empty() {
            // The device works off its queue meanwhile; a pass of the loop later there may be room.
            self.queue_poll();
        }
    }
}
