//! A core's own protocol stack, and what waits on its connections and sockets.
//!
//! What comes in is taken in as a batch; handlers are called, and what they answer is sent before the event is over.
//! Whatever else touches the stack, tasks that were woken above all, queues one *flush*: an event behind all others of the
//! core, which sends what the stack has ready. Answers to a batch of requests thus leave in one batch, with the
//! acknowledgements on them.

use crate::attribution::{Attribution, owner_of};
use crate::connection::Connection;
use crate::device;
use crate::drops::count_dropped;
use crate::interface::{self, Beginning};
use crate::latency::Latency;
use crate::steering::Arriving;
use crate::tcp::Listener;
use crate::udp::Socket;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::net::IpAddr;
use core::sync::atomic::Ordering;
use isola_abi::report::{MemoryPressure, Report};
use isola_ebbs::{Ebb, Representative, current_core, cycles, platform};
use isola_events::StaticEvent;
use isola_events::activity::{INFRASTRUCTURE, charge_to};
use isola_events::{Alarm, current_activity, now};
use isola_iobuf::IoBufMut;
use isola_net_stack::{
    self as stack, ConnId, Counter, Evidence, Ipv4Config, Ipv6Settings, ListenerId, MacAddr, Owner,
    RxChecksum, Stack, UdpId,
};
use isola_platform::Clock;
use isola_platform::CoreIndex;
use isola_platform::network::{ReceivedChecksum, ReceivedFrame};

pub(crate) static NETWORK: Ebb<CoreNetwork> = Ebb::new();

/// Sends the frames that the core's stack has ready.
static FLUSH: StaticEvent = StaticEvent::new(INFRASTRUCTURE, || {
    NETWORK.flush_queued.set(false);
    NETWORK.attribution.begin();
    NETWORK.flush();
});

/// A core's own protocol stack.
pub(crate) struct CoreNetwork {
    pub stack: RefCell<Option<Stack>>,
    /// By the index of their ids.
    pub connections: RefCell<Vec<Option<Rc<Connection>>>>,
    listeners: RefCell<BTreeMap<ListenerId, (u16, Arc<Listener>)>>,
    sockets: RefCell<BTreeMap<UdpId, Rc<Socket>>>,
    flush_queued: Cell<bool>,
    /// Flows that are on their way here from another core.
    pub arriving: Arriving,
    /// Whether what came in is being taken in: what is to be sent is looked at when that is over.
    taking_in: Cell<bool>,
    /// How long requests take.
    pub latency: Latency,
    /// For whom the running event works.
    pub attribution: Attribution,
    clock: &'static Clock,
    report: &'static Report,
    /// Whether tasks were woken that may have something to send.
    calls_expected: Cell<bool>,
    alarm: Alarm,
    /// When the alarm rings.
    rings_at: Cell<stack::Instant>,
}

impl Representative for CoreNetwork {
    fn create() -> Self {
        let network = Self {
            stack: RefCell::new(None),
            connections: RefCell::default(),
            listeners: RefCell::default(),
            sockets: RefCell::default(),
            flush_queued: Cell::new(false),
            arriving: Arriving::default(),
            taking_in: Cell::new(false),
            latency: Latency::new(),
            attribution: Attribution::new(),
            clock: platform().clock(),
            report: platform().report(),
            calls_expected: Cell::new(false),
            alarm: Alarm::new(|| NETWORK.ring()),
            rings_at: Cell::new(stack::Instant::NEVER),
        };
        if let Some(beginning) = interface::join() {
            network.begin(beginning);
        }
        network
    }
}

/// What is the same for all frames that are taken in together.
pub(crate) struct Intake {
    /// Cycle counter at the start.
    began: u64,
    now: stack::Instant,
    longest: usize,
    nothing_arrives: bool,
}

impl Intake {
    /// Returns the cycle counter at the start, before the driver read the device's ring.
    pub fn began(&self) -> u64 {
        self.began
    }
}

/// Longest frame that is taken while memory is short, in bytes.
const LONGEST_IN_NEED: usize = 128;

/// The time, as the stack counts it.
pub(crate) fn stack_now() -> stack::Instant {
    stack::Instant::from_nanos(now().as_ns())
}

/// Makes the calling core's stack, where there is none.
pub(crate) fn touch() {
    NETWORK.queue_flush();
}

impl CoreNetwork {
    /// As [`stack_now`].
    fn now(&self) -> stack::Instant {
        stack::Instant::from_nanos(self.clock.instant(cycles()).as_ns())
    }

    fn begin(&self, beginning: Beginning) {
        // The interface has checked it.
        let Ok(mut stack) = Stack::new(beginning.config, stack_now()) else { return };
        if current_core() != CoreIndex(0) {
            stack.set_ipv6(stack_now(), beginning.ipv6);
        }
        // How old that is nobody knows: it is checked when it is used.
        beginning.neighbours.into_iter().for_each(|(ip, mac)| stack.learn_claim(stack_now(), ip, mac));
        self.stack.replace(Some(stack));
        beginning.listeners.into_iter().for_each(|(port, listener)| self.listen(port, listener));
    }

    /// Runs `work` on the stack, and sends what comes of it; `None` where the cell has no device. Inlined, so that what `work`
    /// returns is not copied out of an option.
    #[inline(always)]
    pub fn with<T>(&self, work: impl FnOnce(&mut Stack) -> T) -> Option<T> {
        let result = self.stack.borrow_mut().as_mut().map(work);
        if result.is_some() && !self.taking_in.get() {
            self.queue_flush();
        }
        result
    }

    /// Runs `work` on the stack for the network's sake, tells the application what happened, and sends what comes of
    /// both: at once, or, where tasks were woken, behind them, so that what they send is in it.
    fn take_in(&self, work: impl FnOnce(&mut Stack)) {
        // An application's event may call this, and an alarm outside of any event.
        let caller = current_activity();
        charge_to(INFRASTRUCTURE);
        self.attribution.begin();
        if self.stack.borrow_mut().as_mut().map(work).is_some() {
            self.answer();
        }
        charge_to(caller);
    }

    /// Tells the application what happened, and sends.
    pub fn answer(&self) {
        self.attribution.begin_common();
        self.taking_in.set(true);
        self.calls_expected.set(false);
        self.take_events();
        self.taking_in.set(false);
        if self.calls_expected.get() {
            self.queue_flush();
        } else {
            self.flush();
        }
    }

    /// Notes that a task was woken which may have something to send.
    pub fn expect_calls(&self) {
        self.calls_expected.set(true);
    }

    /// Looks at the stack without touching it.
    pub fn look<T>(&self, work: impl FnOnce(&Stack) -> T) -> Option<T> {
        self.stack.borrow().as_ref().map(work)
    }

    /// Takes frames that came for this core, by the table's `version`, at the reading `came_at` of the cycle counter or later,
    /// and answers. Those of flows that have gone since go after them.
    pub fn receive(&self, batch: Vec<ReceivedFrame>, version: u32, came_at: u64) {
        self.latency.begin(came_at);
        // Asked for each, as one may end a left-behind flow.
        let is_current = || interface::steering().is_none_or(|steering| steering.version() == version);
        let intake = self.begin_intake();
        for received in batch {
            let received = if is_current() { Some(received) } else { device::pass_on(received) };
            if let Some(received) = received {
                self.absorb(&intake, received);
                self.attribution.next_piece();
            }
        }
        self.answer();
        self.latency.end();
    }

    /// Takes received frames; [`Self::answer`] is due.
    pub fn absorb_all(&self, frames: Vec<ReceivedFrame>) {
        let intake = self.begin_intake();
        for received in frames {
            self.absorb(&intake, received);
            self.attribution.next_piece();
        }
    }

    /// Begins to take received frames in.
    #[inline]
    pub fn begin_intake(&self) -> Intake {
        let longest = match self.report.memory.pressure.load(Ordering::Relaxed) {
            level if level == MemoryPressure::Critical as u32 => LONGEST_IN_NEED,
            _ => usize::MAX,
        };
        let began = self.attribution.begin();
        let now = stack::Instant::from_nanos(self.clock.instant(began).as_ns());
        Intake { began, now, longest, nothing_arrives: self.arriving.is_empty() }
    }

    /// Takes a received frame: a piece of work, which the caller ends. [`Self::answer`] is due. While next to no memory is left, a long one is dropped, as if the
    /// wire had lost it: what it carries would stay until somebody reads it, and the cell would end for want of memory.
    /// Short ones, with acknowledgements among them, are what gets memory back.
    #[inline]
    pub fn absorb(&self, intake: &Intake, received: ReceivedFrame) {
        let received = match intake.nothing_arrives {
            true => received,
            false => match self.hold_back(received) {
                Some(received) => received,
                None => return,
            },
        };
        // Only now: what lies between the device and the stack may use the network itself.
        let mut stack = self.stack.borrow_mut();
        let Some(stack) = stack.as_mut() else { return };
        if received.len() > intake.longest {
            count_dropped(Counter::DropMemoryShort, 1);
            return;
        }
        let ReceivedFrame { frame, rest, checksum } = received;
        let checksum = match checksum {
            ReceivedChecksum::Unchecked => RxChecksum::Unverified,
            ReceivedChecksum::Valid => RxChecksum::Verified,
        };
        match rest {
            None => stack.receive(intake.now, frame, checksum),
            Some(rest) => stack.receive_long(intake.now, frame, rest, checksum),
        }
        while let Some(whole) = stack.take_reassembled() {
            device::steer_again(whole);
        }
        self.attribution.charge(stack.owner());
    }

    /// Takes the memory of a sent frame's head back.
    pub fn recycle(&self, head: IoBufMut) {
        if let Some(stack) = self.stack.borrow_mut().as_mut() {
            stack.recycle(head);
        }
    }

    /// Sets the address that another core's stack was given.
    pub fn set_address(&self, address: Option<Ipv4Config>) {
        self.take_in(|stack| stack.set_ipv4(stack_now(), address));
    }

    /// Sets what another core's stack found out about IPv6.
    pub fn set_ipv6(&self, settings: Ipv6Settings) {
        self.take_in(|stack| stack.set_ipv6(stack_now(), settings));
    }

    /// Learns a neighbour that another core's stack heard of.
    pub fn learn(&self, ip: IpAddr, mac: MacAddr, evidence: Evidence) {
        self.take_in(|stack| match evidence {
            Evidence::Confirmed => stack.learn(stack_now(), ip, mac),
            Evidence::Claimed => stack.learn_claim(stack_now(), ip, mac),
        });
    }

    /// Listens at a port, for all who connect by a flow of this core.
    pub fn listen(&self, port: u16, listener: Arc<Listener>) {
        let (backlog, owner) = (listener.backlog, owner_of(listener.activity));
        let listen = |stack: &mut Stack| {
            stack.listen(port, backlog).inspect(|id| stack.set_listener_owner(*id, owner))
        };
        if let Some(Ok(id)) = self.with(listen) {
            self.listeners.borrow_mut().insert(id, (port, listener));
        }
    }

    /// Stops listening at a port.
    pub fn stop_listening(&self, port: u16) {
        let mut listeners = self.listeners.borrow_mut();
        let id = listeners.iter().find(|(_, (listened, _))| *listened == port).map(|(id, _)| *id);
        if let Some(id) = id {
            listeners.remove(&id);
            drop(listeners);
            self.with(|stack| stack.unlisten(stack_now(), id));
        }
    }

    /// Has the events of a connection noted in the returned record.
    pub fn add_connection(&self, id: ConnId) -> Rc<Connection> {
        self.put_connection(Connection::new(id))
    }

    /// Has the events of a connection noted in this record.
    pub fn put_connection(&self, connection: Connection) -> Rc<Connection> {
        let index = connection.id.index();
        let connection = Rc::new(connection);
        let mut connections = self.connections.borrow_mut();
        if connections.len() <= index {
            connections.resize(index + 1, None);
        }
        connections[index] = Some(connection.clone());
        connection
    }

    /// Forgets a connection that nobody waits for any more.
    pub fn remove_connection(&self, id: ConnId) {
        let mut connections = self.connections.borrow_mut();
        if let Some(slot) = connections.get_mut(id.index())
            && slot.as_ref().is_some_and(|connection| connection.id == id)
        {
            let removed = slot.take();
            // Without a borrow: it may hold a handler.
            drop(connections);
            drop(removed);
        }
    }

    fn connection(&self, id: ConnId) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        connections.get(id.index())?.as_ref().filter(|connection| connection.id == id).cloned()
    }

    /// Has the arrivals at a socket noted in the returned record.
    pub fn add_socket(&self, id: UdpId) -> Rc<Socket> {
        let socket = Rc::new(Socket::default());
        self.sockets.borrow_mut().insert(id, socket.clone());
        socket
    }

    /// Forgets a socket.
    pub fn remove_socket(&self, id: UdpId) {
        self.sockets.borrow_mut().remove(&id);
    }

    #[inline]
    fn take_events(&self) {
        self.attribution.next_stage();
        while let Some((event, owner)) = self.next_event() {
            self.attribution.charge(owner);
            self.handle(event);
            if !self.look(Stack::may_have_events).unwrap_or(false) {
                return self.attribution.next_stage();
            }
            self.attribution.next_piece();
        }
    }

    fn next_event(&self) -> Option<(stack::Event, Owner)> {
        let mut stack = self.stack.borrow_mut();
        let stack = stack.as_mut()?;
        Some((stack.next_event()?, stack.owner()))
    }

    fn handle(&self, event: stack::Event) {
        use stack::Event;
        match event {
            Event::Accepted { listener, conn } => {
                let listener = self.listeners.borrow().get(&listener).map(|(_, listener)| listener.clone());
                match listener {
                    Some(listener) => (listener.accept)(self.add_connection(conn)),
                    None => _ = self.with(|stack| stack.close(stack_now(), conn)),
                }
            }
            Event::Connected(id) => self.connection(id).iter().for_each(|found| found.connected()),
            Event::Readable(id) | Event::PeerClosed(id) => {
                if let Some(found) = self.connection(id) {
                    found.readable();
                }
            }
            Event::SendSpace(id) => self.connection(id).iter().for_each(Connection::writable),
            Event::Closed(id) => self.connection(id).iter().for_each(|found| found.ended(None)),
            Event::Failed(id, reason) => {
                self.connection(id).iter().for_each(|found| found.ended(Some(reason)));
            }
            Event::Datagram(id) => {
                let socket = self.sockets.borrow().get(&id).cloned();
                socket.iter().for_each(|socket| socket.readable());
            }
            // The others hear of it from the first, and say so again.
            Event::AddressChanged(address) if current_core() == CoreIndex(0) => {
                interface::publish_address(address)
            }
            Event::Ipv6Changed if current_core() == CoreIndex(0) => {
                if let Some(settings) = self.look(Stack::ipv6) {
                    interface::publish_ipv6(settings);
                }
            }
            Event::AddressChanged(_) | Event::Ipv6Changed => {}
            Event::Neighbour { ip, mac, evidence } => interface::publish_neighbour(ip, mac, evidence),
        }
    }

    /// Has what the stack has ready sent, behind the events that wait now.
    #[inline(never)]
    pub fn queue_flush(&self) {
        if !self.flush_queued.replace(true) {
            FLUSH.spawn();
        }
    }

    fn flush(&self) {
        let (deadline, may_have_events) = match self.stack.borrow_mut().as_mut() {
            Some(stack) => {
                device::transmit(stack, self.now());
                self.latency.sent();
                (stack.next_deadline_before(self.rings_at.get()), stack.may_have_events())
            }
            None => return,
        };
        // What it rings for moves on most of the time: it rings all the same, and is set anew only then.
        if let Some(deadline) = deadline {
            self.rings_at.set(deadline);
            self.alarm.set(Some(isola_platform::Instant::from_ns(deadline.as_nanos())));
        }
        if may_have_events {
            self.take_events();
        }
    }

    fn ring(&self) {
        self.rings_at.set(stack::Instant::NEVER);
        self.take_in(|stack| stack.on_timer(stack_now()));
    }
}
