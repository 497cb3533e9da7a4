//! The device's queues: distributes received frames to the cores of their flows, and passes frames to the device.
//!
//! One core serves a queue. Its interrupt masks itself and queues an event; the event processes frames in batches and
//! queues itself again while there are more; when there are none, it unmasks the interrupt. So a busy queue is polled
//! between the core's other events, and an idle one costs nothing. At a high interrupt rate the interrupt stays masked,
//! and the event queues itself again whether it finds frames or not ([`isola_events::polling`]). An overloaded core
//! reads its device less and less often, and the device drops frames without room; frames for another core that is
//! overloaded are dropped here.

use crate::attribution::activity_of;
use crate::core_network::NETWORK;
use crate::divided_input;
use crate::divided_output::{DividedOutput, Sent};
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
use isola_abi::id::ActivityId;
use isola_abi::query::GridClient;
use isola_abi::report::NetworkReport;
use isola_ebbs::{CellEbb, Ebb, Representative, current_core, platform};
use isola_events::activity::INFRASTRUCTURE;
use isola_events::event::{Event, Placement, StaticEvent};
use isola_events::interrupt::{Interrupt, on_interrupt};
use isola_events::polling::{AdaptivePolling, PollingMode, PollingThresholds};
use isola_events::processor::{has_competition, has_policy};
use isola_events::{Alarm, elsewhere, last_arrival_check, on_vcore_moved, spawn_on};
use isola_iobuf::{IoBuf, IoBufMut};
use isola_net_stack::{Counter, Instant, MAX_CORES, Owner, Stack, Steering, datagram_port};
use isola_platform::CoreIndex;
use isola_platform::network::{
    FlowSpreading, Frame, FramesPending, NetworkQueue, ReceivedChecksum, ReceivedFrame,
};
use isola_resources::{ClientStatistics, NETWORK_WRITE};
use spin::Mutex;

static QUEUE: Ebb<CoreQueue> = Ebb::new();
static QUEUE_OWNERS: CellEbb<QueueOwners> = CellEbb::new();

/// Polls the core's queue.
static POLL: StaticEvent = StaticEvent::new(INFRASTRUCTURE, || QUEUE.poll());

/// The most frames that one event takes from the device.
const BATCH: usize = 64;

/// The cores that own queues. A core `i` that owns none sends through queue `i` modulo their number.
struct QueueOwners {
    /// The owners by queue; the first `count` are valid.
    cores: [AtomicU8; MAX_CORES as usize],
    count: AtomicUsize,
    /// Queues without an owner.
    vacant: Mutex<VecDeque<Box<dyn NetworkQueue + Send>>>,
    /// The interface by which the device distributes received frames over the queues, if it supports one.
    spreading: Mutex<Option<Box<dyn FlowSpreading + Send>>>,
}

impl Representative for QueueOwners {
    fn create() -> Self {
        Self {
            cores: [const { AtomicU8::new(0) }; MAX_CORES as usize],
            count: AtomicUsize::new(0),
            vacant: Mutex::default(),
            spreading: Mutex::default(),
        }
    }
}

impl QueueOwners {
    /// Returns the owners, by queue.
    fn cores(&self) -> impl ExactSizeIterator<Item = CoreIndex> {
        let cores = self.cores.iter().take(self.count.load(Ordering::Acquire));
        cores.map(|core| CoreIndex(core.load(Ordering::Relaxed).into()))
    }

    /// Makes a core the owner of the next queue. Called only while the network starts, or by the one task that moves
    /// flows.
    fn add(&self, core: CoreIndex) {
        let count = self.count.load(Ordering::Relaxed);
        if let Some(owner) = self.cores.get(count) {
            owner.store(core.0 as u8, Ordering::Relaxed);
            self.count.store(count + 1, Ordering::Release);
        }
    }
}

/// The state of a core's queue, if the core serves one.
struct CoreQueue {
    /// The frame counters.
    report: &'static NetworkReport,
    served: RefCell<Option<ServedQueue>>,
    /// The steering table. Set when the core begins to serve its queue.
    steering: Cell<Option<&'static Arc<Steering>>>,
    /// Frames without room in the device's queue.
    waiting: RefCell<VecDeque<Frame>>,
    /// Frames by activity, while there is a policy for them.
    divided: RefCell<Option<DividedOutput>>,
    /// Whether there is.
    has_policy: Cell<bool>,
    /// Whether the next poll divides received frames among their activities: more arrive than a batch, or earlier ones
    /// wait, which no later frame may overtake, even if the policy has ended.
    divides_input: Cell<bool>,
    /// UDP ports whose datagrams all go to one core.
    datagram_cores: RefCell<BTreeMap<u16, CoreIndex>>,
    /// Whether the datagrams of any port go to another core.
    datagrams_elsewhere: Cell<bool>,
    poll_queued: Cell<bool>,
    /// The cycle counter at a time after which all frames in the queue arrived.
    empty_at: Cell<u64>,
}

/// A queue and the state of its service.
struct ServedQueue {
    queue: Box<dyn NetworkQueue + Send>,
    polling: AdaptivePolling,
    /// `None` if the vector was taken.
    _interrupt: Option<Interrupt>,
}

impl Representative for CoreQueue {
    fn create() -> Self {
        Self {
            report: &platform().report().network,
            served: RefCell::default(),
            steering: Cell::default(),
            waiting: RefCell::default(),
            divided: RefCell::default(),
            has_policy: Cell::default(),
            divides_input: Cell::default(),
            datagram_cores: RefCell::default(),
            datagrams_elsewhere: Cell::default(),
            poll_queued: Cell::default(),
            empty_at: Cell::default(),
        }
    }
}

/// Assigns queues to the cores that the cell has, the first to the calling core; the others are for cores that join. A
/// core with a queue stays in use.
pub(crate) fn start(
    queues: Vec<Box<dyn NetworkQueue + Send>>,
    spreading: Option<Box<dyn FlowSpreading + Send>>,
) {
    NETWORK_WRITE.on_change(|| on_queue_cores(|| QUEUE.follow_policy()));
    *QUEUE_OWNERS.vacant.lock() = queues.into();
    *QUEUE_OWNERS.spreading.lock() = spreading;
    let cores = (0..platform().descriptor().cores.len() as u32).map(CoreIndex);
    let assigned: Vec<_> = cores.filter_map(|core| Some((core, assign_queue(core)?))).collect();
    // Before a core sends through any of them.
    spread();
    for (core, mut queue) in assigned {
        let serve = move || {
            queue.attach();
            QUEUE.serve(queue);
        };
        if core == current_core() { serve() } else { spawn_on(core, serve) }
    }
}

/// Assigns a queue to each of these cores without one, as long as there are any. On return these cores serve them.
pub(crate) async fn assign_queues(cores: impl Iterator<Item = CoreIndex>) {
    for core in cores {
        if QUEUE_OWNERS.cores().any(|owner| owner == core) {
            continue;
        }
        let Some(mut queue) = assign_queue(core) else { return };
        let serve = move || async move {
            queue.attach();
            // Before the core sends through it.
            spread();
            QUEUE.serve(queue);
        };
        elsewhere(core, serve).await;
    }
}

/// Removes a queue from the vacant ones and makes the core its owner.
fn assign_queue(core: CoreIndex) -> Option<Box<dyn NetworkQueue + Send>> {
    let queue = QUEUE_OWNERS.vacant.lock().pop_front()?;
    // Before the core serves the queue, so that the core learns of ports bound from now on.
    QUEUE_OWNERS.add(core);
    Some(queue)
}

/// Makes the device deliver frames to the queues of the cores that own their flows or, if such a core has no queue, of
/// cores that forward them. If the device rejects the table, it is not asked again: the cores steer received frames in
/// any case.
pub(crate) fn spread() {
    let owners: Vec<CoreIndex> = QUEUE_OWNERS.cores().collect();
    let Some(steering) = interface::steering().filter(|_| owners.len() > 1) else { return };
    let queue_of = |core: u16| {
        let own = owners.iter().position(|owner| owner.0 == u32::from(core));
        own.unwrap_or(usize::from(core) % owners.len()) as u16
    };
    let mut spreading = QUEUE_OWNERS.spreading.lock();
    let Some(device) = spreading.as_mut() else { return };
    if let Err(refused) = device.spread(steering.key(), &steering.owners().map(queue_of), owners.len() as u16)
    {
        *spreading = None;
        drop(spreading);
        platform().print(format!("{refused}\n").as_bytes());
    }
}

/// Steers the datagrams for a UDP port to the core that has bound it, or by flow if it is not bound. Called after each
/// change of that binding.
///
/// Messages of two cores about a port may arrive out of order. So each queue's core reads the current binding.
pub(crate) fn steer_datagrams(port: u16) {
    on_queue_cores(move || QUEUE.steer_datagrams(port));
}

/// Calls `act` on each core that serves a queue: at once on the calling core, in an event on others.
fn on_queue_cores(act: impl Fn() + Clone + Send + 'static) {
    for owner in QUEUE_OWNERS.cores() {
        if owner == current_core() { act() } else { spawn_on(owner, act.clone()) }
    }
}

/// Runs `change` on each queue of the device, in an event on the core that serves it.
pub(crate) fn on_queues(change: impl Fn(&mut Box<dyn NetworkQueue + Send>) + Clone + Send + 'static) {
    for owner in QUEUE_OWNERS.cores() {
        let change = change.clone();
        spawn_on(owner, move || {
            QUEUE.served.borrow_mut().iter_mut().for_each(|served| change(&mut served.queue));
        });
    }
}

/// Returns the frames of an activity that the calling core's queue has sent since there is a policy for
/// [`NETWORK_WRITE`], with their cost in bytes. The default if the core serves no queue.
pub fn write_statistics(activity: ActivityId) -> ClientStatistics {
    QUEUE.divided.borrow().as_ref().map(|divided| divided.statistics(activity)).unwrap_or_default()
}

/// Returns the same for all activities.
pub fn write_report() -> Vec<GridClient> {
    let divided = QUEUE.divided.borrow();
    divided.as_ref().map(|divided| divided.report(current_core().0)).unwrap_or_default()
}

/// Sets the rates above which the queues of the cell's network device are polled, and below which they interrupt again.
pub fn set_polling(thresholds: PollingThresholds) {
    on_queue_cores(move || {
        if let Some(served) = QUEUE.served.borrow_mut().as_mut() {
            served.polling = AdaptivePolling::new(thresholds);
        }
    });
}

/// Forwards a reassembled packet to the core of its flow.
pub(crate) fn forward_reassembled(frame: IoBuf) {
    let version = interface::steering().map_or(0, |steering| steering.version());
    let core = QUEUE.core_of(&frame);
    let received = ReceivedFrame { frame, rest: None, checksum: ReceivedChecksum::Unchecked };
    forward(core, vec![received], version, NETWORK.latency.arrived_at());
}

/// Forwards a frame to the core that owns its TCP flow. Returns it if that is the calling core.
pub(crate) fn forward_if_moved(received: ReceivedFrame) -> Option<ReceivedFrame> {
    let Some((steering, flow)) = interface::steering().zip(tcp_flow_of(&received.frame)) else {
        return Some(received);
    };
    let version = steering.version();
    let core = CoreIndex(steering.core_of(&flow).into());
    if core == current_core() {
        return Some(received);
    }
    forward(core, vec![received], version, NETWORK.latency.arrived_at());
    None
}

/// Forwards frames to another core. They were steered by the table's `version` and arrived when the cycle counter was
/// `arrived_at` or later.
fn forward(core: CoreIndex, batch: Vec<ReceivedFrame>, version: u32, arrived_at: u64) {
    let event = Event::new().at(Placement::Core(core)).charged_to(INFRASTRUCTURE);
    let count = batch.len();
    if event.try_spawn(move || NETWORK.receive(batch, version, arrived_at)).is_err() {
        count_dropped(Counter::DropCoreBusy, count);
    }
}

/// Forwards a batch to each of several cores.
#[cold]
#[inline(never)]
fn forward_all(batches: Vec<(CoreIndex, Vec<ReceivedFrame>)>, version: u32, arrived_at: u64) {
    batches.into_iter().for_each(|(core, batch)| forward(core, batch, version, arrived_at));
}

/// Sends the frames that a core's stack has ready.
pub(crate) fn transmit(stack: &mut Stack, now: Instant) {
    let queues = &*QUEUE;
    if queues.served.borrow().is_some() {
        return queues.send_from(stack, now);
    }
    let owners = QUEUE_OWNERS.count.load(Ordering::Acquire);
    let queue = (current_core().0 as usize).checked_rem(owners);
    let Some(owner) = queue.and_then(|queue| QUEUE_OWNERS.cores.get(queue)) else { return };
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
        if event.try_spawn(move || QUEUE.send(frames)).is_err() {
            count_dropped(Counter::DropCoreBusy, count);
        }
    }
}

impl CoreQueue {
    /// Records the core that has bound a port.
    fn steer_datagrams(&self, port: u16) {
        let mut cores = self.datagram_cores.borrow_mut();
        match interface::core_of_udp_port(port) {
            Some(core) => cores.insert(port, core),
            None => cores.remove(&port),
        };
        self.datagrams_elsewhere.set(cores.values().any(|core| *core != current_core()));
    }

    /// Serves a queue that is attached to this core.
    fn serve(&self, queue: Box<dyn NetworkQueue + Send>) {
        let interrupt = on_interrupt(queue.vector(), || QUEUE.interrupted());
        let interrupt =
            interrupt.inspect_err(|error| platform().print(format!("network: {error}\n").as_bytes())).ok();
        let polling = AdaptivePolling::new(PollingThresholds::default());
        self.steering.set(interface::steering());
        self.served.replace(Some(ServedQueue { queue, polling, _interrupt: interrupt }));
        self.follow_policy();
        interface::bound_udp_ports().into_iter().for_each(|port| self.steer_datagrams(port));
        on_vcore_moved(|| {
            if let Some(served) = QUEUE.served.borrow_mut().as_mut() {
                served.queue.redirect();
            }
            // Interrupts may have gone to the core that ran this vcore before.
            QUEUE.queue_poll();
        });
        // Frames that arrived before the queue was served caused no interrupt.
        self.queue_poll();
    }

    fn interrupted(&self) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.disable_interrupts();
            served.polling.interrupted();
        }
        // The interrupt has been unmasked since the queue was empty: only frames that arrived after the core last
        // checked cause one.
        if !self.poll_queued.replace(true) {
            self.empty_at.set(self.empty_at.get().max(last_arrival_check()));
            POLL.spawn();
        }
    }

    fn queue_poll(&self) {
        if !self.poll_queued.replace(true) {
            POLL.spawn();
        }
    }

    /// Processes a batch of frames, forwards those of other cores, and responds.
    fn poll(&self) {
        self.poll_queued.set(false);
        let has_policy = has_policy();
        if self.divides_input.get() || (has_policy && has_competition()) {
            return self.poll_for_activities();
        }
        let most = if has_policy { divided_input::BATCH } else { BATCH };
        let here = current_core();
        let mut elsewhere: Vec<(CoreIndex, Vec<ReceivedFrame>)> = Vec::new();
        // The version is read before the table: a concurrent change may be visible in the table before its version.
        let steering = self.steering.get();
        let version = steering.map_or(0, |steering| steering.version());
        let arrived_at = self.empty_at.get();
        NETWORK.latency.begin(arrived_at);
        let (mut taken, mut bytes) = (0, 0);
        let is_sole = |steering: &Arc<Steering>| steering.is_sole(here.0 as u16);
        let alone = !self.datagrams_elsewhere.get() && steering.is_some_and(is_sole);
        let mut served = self.served.borrow_mut();
        // The first frame's piece begins here: the work before is common to all frames.
        let batch = NETWORK.begin_batch();
        if let Some(ServedQueue { queue, .. }) = served.as_mut() {
            while let Some(received) = queue.receive() {
                taken += 1;
                bytes += received.len() as u64;
                let core = if alone { here } else { self.core_of(&received.frame) };
                if core == here {
                    NETWORK.process(&batch, received);
                } else {
                    match elsewhere.iter_mut().find(|(of, _)| *of == core) {
                        Some((_, batch)) => batch.push(received),
                        None => elsewhere.push((core, vec![received])),
                    }
                }
                if taken == most || !queue.may_have_received() {
                    break;
                }
                if core == here {
                    NETWORK.attribution.next_piece();
                }
            }
            NETWORK.attribution.next_piece();
        }
        drop(served);
        self.count_received(taken, bytes);
        // Behind these may be frames of an activity that would have to wait for others.
        self.divides_input.set(has_policy && taken == most);
        if taken < most {
            // The poll took all frames that the device had returned when the queue read the ring, which was later.
            self.empty_at.set(batch.started_at());
        }
        if !elsewhere.is_empty() {
            forward_all(elsewhere, version, arrived_at);
        }
        if taken > 0 {
            NETWORK.deliver_and_send();
        }
        NETWORK.latency.end();
        self.send_waiting();
        self.unmask_or_poll(taken, most);
    }

    /// Takes a batch of frames, and distributes them to their activities and to other cores.
    #[cold]
    #[inline(never)]
    fn poll_for_activities(&self) {
        let started_at = NETWORK.attribution.begin();
        // The version is read before the table, as in [`Self::poll`].
        let version = self.steering.get().map_or(0, |steering| steering.version());
        let arrived_at = self.empty_at.get();
        let mut elsewhere: BTreeMap<CoreIndex, Vec<ReceivedFrame>> = BTreeMap::new();
        let mut here = Vec::new();
        let (mut taken, mut bytes) = (0, 0);
        while taken < BATCH
            && let Some(received) =
                self.served.borrow_mut().as_mut().and_then(|served| served.queue.receive())
        {
            taken += 1;
            bytes += received.len() as u64;
            let core = self.core_of(&received.frame);
            if core == current_core() {
                here.push(received);
            } else {
                elsewhere.entry(core).or_default().push(received);
            }
        }
        self.count_received(taken, bytes);
        if taken < BATCH {
            self.empty_at.set(started_at);
        }
        if !elsewhere.is_empty() {
            forward_all(elsewhere.into_iter().collect(), version, arrived_at);
        }
        divided_input::distribute(here, version, arrived_at);
        self.divides_input.set(divided_input::has_waiting());
        self.send_waiting();
        self.unmask_or_poll(taken, BATCH);
    }

    fn count_received(&self, frames: usize, bytes: u64) {
        self.report.received_frames.fetch_add(frames as u64, Ordering::Relaxed);
        self.report.received_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Unmasks the interrupt, or polls again behind the core's other events if there may be more frames than the `most`
    /// of a batch, or they arrive so often that polling is cheaper.
    fn unmask_or_poll(&self, taken: usize, most: usize) {
        let mut served = self.served.borrow_mut();
        let Some(ServedQueue { queue, polling, .. }) = served.as_mut() else { return };
        let more = polling.polled(taken) == PollingMode::Polling
            || taken == most
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

    /// Passes another core's frames to the device, behind those that wait.
    fn send(&self, frames: Vec<(Owner, Frame)>) {
        self.reclaim(&mut |head| NETWORK.recycle(head));
        let attribution = &NETWORK.attribution;
        attribution.begin();
        if self.has_policy.get() {
            return self.send_divided(|push| {
                for (owner, frame) in frames {
                    attribution.charge(owner);
                    push(owner, frame);
                    attribution.next_piece();
                }
            });
        }
        self.send_all(|outbox| {
            for (owner, frame) in frames {
                attribution.charge(owner);
                outbox.push(frame);
                attribution.next_piece();
            }
        });
    }

    /// Passes the stack's frames to the device, behind those that wait.
    #[inline]
    fn send_from(&self, stack: &mut Stack, now: Instant) {
        let attribution = &NETWORK.attribution;
        attribution.begin_common();
        self.reclaim(&mut |head| stack.recycle(head));
        let has_policy = self.has_policy.get();
        if has_policy && self.divided.borrow().as_ref().is_some_and(DividedOutput::must_order) {
            return self.send_ordered(stack, now);
        }
        self.send_all(|outbox| {
            attribution.next_stage();
            while stack.transmit_next(now, |frame| outbox.push(frame)) {
                attribution.charge(stack.owner());
                if !stack.may_transmit() || (has_policy && !outbox.waiting.is_empty()) {
                    break;
                }
                attribution.next_piece();
            }
            attribution.next_stage();
            attribution.begin_common();
        });
        if has_policy {
            self.order_last(stack, now);
        }
    }

    /// Passes the stack's frames to the device in the order of the policy.
    #[cold]
    #[inline(never)]
    fn send_ordered(&self, stack: &mut Stack, now: Instant) {
        let attribution = &NETWORK.attribution;
        self.send_divided(|push| {
            attribution.next_stage();
            while let Some(frame) = stack.poll_transmit(now) {
                let owner = stack.owner();
                attribution.charge(owner);
                push(owner, frame);
                attribution.next_piece();
            }
            attribution.begin_common();
        });
    }

    /// Lets the policy order the stack's frames from now on, if the device had no room for its last one.
    fn order_last(&self, stack: &mut Stack, now: Instant) {
        let Some(last) = self.waiting.borrow_mut().pop_back() else { return };
        if let Some(divided) = self.divided.borrow_mut().as_mut() {
            divided.add(activity_of(stack.owner()), last);
        }
        self.send_ordered(stack, now);
    }

    fn send_waiting(&self) {
        let divides = self.has_policy.get();
        let has_waiting = || self.divided.borrow().as_ref().is_some_and(DividedOutput::has_waiting);
        if (divides && has_waiting()) || !self.waiting.borrow().is_empty() {
            self.send(Vec::new());
        }
    }

    /// Passes waiting frames and those that `supply` pushes to the device, in the order of the policy.
    #[cold]
    #[inline(never)]
    fn send_divided(&self, supply: impl FnOnce(&mut dyn FnMut(Owner, Frame))) {
        let (mut divided, mut served) = (self.divided.borrow_mut(), self.served.borrow_mut());
        let (Some(divided), Some(ServedQueue { queue, .. })) = (divided.as_mut(), served.as_mut()) else {
            return;
        };
        let mut sent = Sent::default();
        supply(&mut |owner, frame| divided.push(activity_of(owner), frame, &mut **queue, &mut sent));
        divided.send(&mut **queue, &mut sent);
        self.report.sent_frames.fetch_add(sent.frames, Ordering::Relaxed);
        self.report.sent_bytes.fetch_add(sent.bytes, Ordering::Relaxed);
        queue.flush();
        if sent.is_full {
            // The device empties its queue meanwhile: there may be room in the next pass.
            self.queue_poll();
        }
    }

    /// Follows the settings of [`NETWORK_WRITE`].
    fn follow_policy(&self) {
        let mut divided = self.divided.borrow_mut();
        match (divided.as_mut(), NETWORK_WRITE.configuration()) {
            (None, None) => {}
            (Some(divided), Some(configuration)) => divided.configure(configuration),
            (None, Some(configuration)) => {
                let mut new = DividedOutput::new(configuration, Alarm::new(|| QUEUE.queue_poll()));
                // Whose they are is no longer known.
                self.waiting.take().into_iter().for_each(|frame| new.add(INFRASTRUCTURE, frame));
                *divided = Some(new);
            }
            (Some(_), None) => {
                self.waiting
                    .borrow_mut()
                    .extend(divided.take().into_iter().flat_map(DividedOutput::into_frames));
            }
        }
        self.has_policy.set(divided.is_some());
        // Frames that waited for a policy or a limit need a new decision.
        self.queue_poll();
    }

    /// Takes back frames that the device has sent.
    fn reclaim(&self, recycle: &mut dyn FnMut(IoBufMut)) {
        if let Some(served) = self.served.borrow_mut().as_mut() {
            served.queue.reclaim(recycle);
        }
    }

    /// Passes waiting frames to the device, then those that `push` supplies. Frames without room wait.
    #[inline]
    fn send_all(&self, push: impl FnOnce(&mut Outbox<'_>)) {
        let mut served = self.served.borrow_mut();
        let mut waiting = self.waiting.borrow_mut();
        // A core may have frames to send before it serves a queue.
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
            // The device empties its queue meanwhile: there may be room in the next pass.
            self.queue_poll();
        }
    }
}
