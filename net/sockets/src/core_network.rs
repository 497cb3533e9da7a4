//! A core's protocol stack, and the tasks and handlers of its connections and sockets.
//!
//! Received frames are processed as a batch; handlers are called, and their output is sent within the same event. Any
//! other use of the stack, mostly by woken tasks, queues one *flush*: an event behind all others of the core, which
//! sends the frames that the stack has ready. So the responses to a batch of requests leave in one batch, with
//! piggybacked acknowledgements.

use crate::activity_rules::{self, Attributed, attribute};
use crate::attribution::{Attribution, activity_of, owner_of};
use crate::connection::Connection;
use crate::device;
use crate::divided_events::something_arrives;
use crate::drops::count_dropped;
use crate::interface::{self, InitialState};
use crate::latency::Latency;
use crate::steering::ArrivingFlows;
use crate::tcp::Listener;
use crate::udp::Socket;
use alloc::collections::BTreeMap;
use alloc::rc::Rc;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::net::{IpAddr, SocketAddr};
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::{MemoryPressure, OVER_BUDGET, PRESSURE_LEVEL, RECLAIM, Report};
use isola_ebbs::{Ebb, Representative, current_core, cycles, platform};
use isola_events::StaticEvent;
use isola_events::activity::{INFRASTRUCTURE, charge_to};
use isola_events::processor::has_policy;
use isola_events::reclaim::is_over_budget;
use isola_events::{Alarm, current_activity, now};
use isola_iobuf::IoBufMut;
use isola_net_stack::{
    self as stack, ConnId, Counter, Evidence, Ipv4Config, Ipv6Settings, ListenerId, MacAddr, Owner,
    RxChecksum, Stack, UdpId, continues_connection,
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

/// A core's protocol stack.
pub(crate) struct CoreNetwork {
    pub stack: RefCell<Option<Stack>>,
    /// Indexed by the index of their ids.
    pub connections: RefCell<Vec<Option<Rc<Connection>>>>,
    listeners: RefCell<BTreeMap<ListenerId, (u16, Arc<Listener>)>>,
    sockets: RefCell<BTreeMap<UdpId, Rc<Socket>>>,
    flush_queued: Cell<bool>,
    /// Flows that are moving to this core.
    pub arriving: ArrivingFlows,
    /// Whether received frames are being processed: sending waits until that is done.
    delivering: Cell<bool>,
    /// The service latency of requests.
    pub latency: Latency,
    /// The activities for which the running event works.
    pub attribution: Attribution,
    clock: &'static Clock,
    report: &'static Report,
    /// Whether tasks were woken that may have data to send.
    has_woken_tasks: Cell<bool>,
    alarm: Alarm,
    /// The time of the alarm.
    alarm_at: Cell<stack::Instant>,
}

impl Representative for CoreNetwork {
    fn create() -> Self {
        let network = Self {
            stack: RefCell::new(None),
            connections: RefCell::default(),
            listeners: RefCell::default(),
            sockets: RefCell::default(),
            flush_queued: Cell::new(false),
            arriving: ArrivingFlows::default(),
            delivering: Cell::new(false),
            latency: Latency::new(),
            attribution: Attribution::new(),
            clock: platform().clock(),
            report: platform().report(),
            has_woken_tasks: Cell::new(false),
            alarm: Alarm::new(|| NETWORK.on_alarm()),
            alarm_at: Cell::new(stack::Instant::NEVER),
        };
        if let Some(initial) = interface::join() {
            network.begin(initial);
        }
        network
    }
}

/// State common to all frames of a batch.
pub(crate) struct BatchContext {
    /// The cycle counter at the start.
    started_at: u64,
    now: stack::Instant,
    max_len: usize,
    no_flow_arrives: bool,
}

impl BatchContext {
    /// Returns the cycle counter at the start, before the driver read the device's ring.
    pub fn started_at(&self) -> u64 {
        self.started_at
    }
}

/// The longest frame that is accepted at critical memory pressure, or for an activity above its hard budget, in bytes.
const MAX_LEN_OF_SHORT: usize = 128;

/// Returns the time in the stack's units.
pub(crate) fn stack_now() -> stack::Instant {
    stack::Instant::from_nanos(now().as_ns())
}

/// Creates the calling core's stack, if there is none.
pub(crate) fn create_stack() {
    NETWORK.queue_flush();
}

impl CoreNetwork {
    /// Returns the time like [`stack_now`], with one look-up fewer.
    fn now(&self) -> stack::Instant {
        stack::Instant::from_nanos(self.clock.instant(cycles()).as_ns())
    }

    fn begin(&self, initial: InitialState) {
        // The interface has validated the configuration.
        let Ok(mut stack) = Stack::new(initial.config, stack_now()) else { return };
        if current_core() != CoreIndex(0) {
            stack.set_ipv6(stack_now(), initial.ipv6);
        }
        // The age of these entries is unknown: they are verified before use.
        initial.neighbours.into_iter().for_each(|(ip, mac)| stack.learn_claim(stack_now(), ip, mac));
        if !initial.linked.is_empty() {
            stack.set_linked(initial.linked);
        }
        self.stack.replace(Some(stack));
        initial.listeners.into_iter().for_each(|(port, listener)| self.listen(port, listener));
    }

    /// Runs `work` on the stack and sends the resulting frames; returns `None` if the cell has no device. Inlined, so
    /// that the result of `work` is not copied out of an option.
    #[inline(always)]
    pub fn with<T>(&self, work: impl FnOnce(&mut Stack) -> T) -> Option<T> {
        let result = self.stack.borrow_mut().as_mut().map(work);
        if result.is_some() && !self.delivering.get() {
            self.queue_flush();
        }
        result
    }

    /// Runs `work` on the stack on behalf of the network, delivers the resulting events to the application, and sends
    /// the frames of both: at once or, if tasks were woken, after these, so that their data is included.
    fn run_and_deliver(&self, work: impl FnOnce(&mut Stack)) {
        // The caller may be an application's event, or an alarm outside of any event.
        let caller = current_activity();
        charge_to(INFRASTRUCTURE);
        self.attribution.begin();
        if self.stack.borrow_mut().as_mut().map(work).is_some() {
            self.deliver_and_send();
        }
        charge_to(caller);
    }

    /// Delivers the stack's events to the application, and sends.
    pub fn deliver_and_send(&self) {
        self.attribution.begin_common();
        self.send_after(|| self.take_events());
    }

    /// Calls `deliver`, and sends the frames that result: at once or, if tasks were woken, after these.
    #[inline]
    pub fn send_after(&self, deliver: impl FnOnce()) {
        self.delivering.set(true);
        self.has_woken_tasks.set(false);
        deliver();
        self.delivering.set(false);
        if self.has_woken_tasks.get() {
            self.queue_flush();
        } else {
            self.flush();
        }
    }

    /// Notes that a task was woken that may have data to send.
    pub fn note_woken_task(&self) {
        self.has_woken_tasks.set(true);
    }

    /// Reads from the stack without queueing a flush.
    pub fn inspect<T>(&self, work: impl FnOnce(&Stack) -> T) -> Option<T> {
        self.stack.borrow().as_ref().map(work)
    }

    /// Processes frames that were steered to this core by the table's `version` and arrived when the cycle counter was
    /// `arrived_at` or later, and responds. Frames of flows that have moved since are forwarded.
    pub fn receive(&self, frames: impl IntoIterator<Item = ReceivedFrame>, version: u32, arrived_at: u64) {
        self.latency.begin(arrived_at);
        // Checked for each frame, as one may end a left-behind flow.
        let is_current = || interface::steering().is_none_or(|steering| steering.version() == version);
        let batch = self.begin_batch();
        for received in frames {
            let received = if is_current() { Some(received) } else { device::forward_if_moved(received) };
            if let Some(received) = received {
                self.process(&batch, received);
                self.attribution.next_piece();
            }
        }
        self.deliver_and_send();
        self.latency.end();
    }

    /// Returns the activity of a received frame before its processing; [`INFRASTRUCTURE`] if only the processing finds
    /// it.
    pub fn activity_of(&self, frame: &[u8]) -> ActivityId {
        activity_of(self.inspect(|stack| stack.owner_of(frame)).unwrap_or(Owner::UNKNOWN))
    }

    /// Processes received frames. The caller calls [`Self::deliver_and_send`] afterwards.
    pub fn process_all(&self, frames: Vec<ReceivedFrame>) {
        let batch = self.begin_batch();
        for received in frames {
            self.process(&batch, received);
            self.attribution.next_piece();
        }
    }

    /// Begins a batch of received frames.
    #[inline]
    pub fn begin_batch(&self) -> BatchContext {
        let max_len = match self.report.memory.pressure.load(Ordering::Relaxed) & !RECLAIM {
            level if level < MemoryPressure::Critical as u32 => usize::MAX,
            // Whether an activity's frames are refused is checked for each.
            _ => 0,
        };
        let started_at = self.attribution.begin();
        let now = stack::Instant::from_nanos(self.clock.instant(started_at).as_ns());
        BatchContext { started_at, now, max_len, no_flow_arrives: self.arriving.is_empty() }
    }

    /// Returns the reason to drop a frame, as if lost on the wire, while memory is critically short or an activity has
    /// more than its hard budget. The frame's data would occupy memory until the application reads it: at critical
    /// pressure the cell could end for lack of memory, and memory of an activity above its budget would be the others'.
    /// Short segments of connections are accepted, because acknowledgements among them release memory.
    #[cold]
    #[inline(never)]
    fn refusal(&self, stack: &Stack, received: &ReceivedFrame) -> Option<Counter> {
        let word = self.report.memory.pressure.load(Ordering::Relaxed);
        let is_long = received.len() > MAX_LEN_OF_SHORT;
        if is_long && word & PRESSURE_LEVEL >= MemoryPressure::Critical as u32 {
            return Some(Counter::DropMemoryShort);
        }
        let is_refused = word & OVER_BUDGET != 0
            && (is_long || !continues_connection(&received.frame))
            && is_over_budget(activity_of(stack.owner_of(&received.frame)));
        is_refused.then_some(Counter::DropActivityMemory)
    }

    /// Processes a received frame, as a piece of work that the caller ends. The caller calls
    /// [`Self::deliver_and_send`] afterwards.
    #[inline]
    pub fn process(&self, batch: &BatchContext, received: ReceivedFrame) {
        let received = match batch.no_flow_arrives {
            true => received,
            false => match self.queue_if_moving(received) {
                Some(received) => received,
                None => return,
            },
        };
        // Borrowed only here: the code between device and stack may use the network itself.
        let mut stack = self.stack.borrow_mut();
        let Some(stack) = stack.as_mut() else { return };
        let len = received.len();
        if len > batch.max_len
            && let Some(reason) = self.refusal(stack, &received)
        {
            count_dropped(reason, 1);
            self.attribution.count_received(stack.owner_of(&received.frame), len as u64);
            return;
        }
        let ReceivedFrame { frame, rest, checksum } = received;
        let checksum = match checksum {
            ReceivedChecksum::Unchecked => RxChecksum::Unverified,
            ReceivedChecksum::Valid => RxChecksum::Verified,
        };
        match rest {
            None => stack.receive(batch.now, frame, checksum),
            Some(rest) => stack.receive_long(batch.now, frame, rest, checksum),
        }
        while let Some(whole) = stack.take_reassembled() {
            device::forward_reassembled(whole);
        }
        let owner = stack.owner();
        self.attribution.count_received(owner, len as u64);
        self.attribution.charge(owner);
    }

    /// Returns the memory of a sent frame's head to the stack.
    pub fn recycle(&self, head: IoBufMut) {
        if let Some(stack) = self.stack.borrow_mut().as_mut() {
            stack.recycle(head);
        }
    }

    /// Frees the memory of recycled heads.
    pub fn free_recycled(&self) {
        if let Some(stack) = self.stack.borrow_mut().as_mut() {
            stack.free_recycled();
        }
    }

    /// Sets the address that another core's stack has obtained.
    pub fn set_address(&self, address: Option<Ipv4Config>) {
        self.run_and_deliver(|stack| stack.set_ipv4(stack_now(), address));
    }

    /// Sets the IPv6 settings that another core's stack has obtained.
    pub fn set_ipv6(&self, settings: Ipv6Settings) {
        self.run_and_deliver(|stack| stack.set_ipv6(stack_now(), settings));
    }

    /// Sets the hardware addresses to which frames go over links in memory.
    pub fn set_linked(&self, linked: Vec<MacAddr>) {
        self.run_and_deliver(|stack| stack.set_linked(linked));
    }

    /// Learns a neighbour that another core's stack has discovered.
    pub fn learn(&self, ip: IpAddr, mac: MacAddr, evidence: Evidence) {
        self.run_and_deliver(|stack| match evidence {
            Evidence::Confirmed => stack.learn(stack_now(), ip, mac),
            Evidence::Claimed => stack.learn_claim(stack_now(), ip, mac),
        });
    }

    /// Listens at a port for connections of this core's flows.
    pub fn listen(&self, port: u16, listener: Arc<Listener>) {
        let (backlog, owner) = (listener.backlog, owner_of(listener.activity));
        let listen = |stack: &mut Stack| {
            stack.listen_again(port, backlog).inspect(|id| stack.set_listener_owner(*id, owner))
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

    /// Adds a record for the events of a connection, and returns it.
    pub fn add_connection(&self, id: ConnId) -> Rc<Connection> {
        self.put_connection(Connection::new(id))
    }

    /// Adds this record for the events of its connection.
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

    /// Removes the record of a connection that has ended or was released.
    pub fn remove_connection(&self, id: ConnId) {
        let mut connections = self.connections.borrow_mut();
        if let Some(slot) = connections.get_mut(id.index())
            && slot.as_ref().is_some_and(|connection| connection.id == id)
        {
            let removed = slot.take();
            // Dropped without a borrow, because it may hold a handler.
            drop(connections);
            drop(removed);
        }
    }

    /// Returns the record of a connection.
    pub fn connection(&self, id: ConnId) -> Option<Rc<Connection>> {
        let connections = self.connections.borrow();
        connections.get(id.index())?.as_ref().filter(|connection| connection.id == id).cloned()
    }

    /// Adds a record for the arrivals at a socket, and returns it.
    pub fn add_socket(&self, id: UdpId, socket: Socket) -> Rc<Socket> {
        let socket = Rc::new(socket);
        self.sockets.borrow_mut().insert(id, socket.clone());
        socket
    }

    /// Returns the record of a socket.
    pub fn socket(&self, id: UdpId) -> Option<Rc<Socket>> {
        self.sockets.borrow().get(&id).cloned()
    }

    /// Removes the record of a socket.
    pub fn remove_socket(&self, id: UdpId) {
        self.sockets.borrow_mut().remove(&id);
    }

    /// Notes that a host has no socket for a datagram of a port of this core.
    pub fn datagram_refused(&self, port: u16, remote: SocketAddr) {
        let sockets = self.sockets.borrow();
        let recipients = sockets.values().filter(|socket| socket.port == port);
        let recipients: Vec<_> = recipients.filter_map(|socket| socket.recipient.clone()).collect();
        drop(sockets);
        recipients.iter().for_each(|recipient| recipient.refused(remote));
    }

    #[inline]
    fn take_events(&self) {
        self.attribution.next_stage();
        let has_policy = has_policy();
        while let Some((event, owner)) = self.next_event() {
            if has_policy && (self.may_have_events() || something_arrives()) {
                return self.divide_events((event, owner));
            }
            self.attribution.charge(owner);
            self.handle(event);
            if !self.may_have_events() {
                return self.attribution.next_stage();
            }
            self.attribution.next_piece();
        }
    }

    fn may_have_events(&self) -> bool {
        self.inspect(Stack::may_have_events).unwrap_or(false)
    }

    pub fn next_event(&self) -> Option<(stack::Event, Owner)> {
        let mut stack = self.stack.borrow_mut();
        let stack = stack.as_mut()?;
        Some((stack.next_event()?, stack.owner()))
    }

    /// Handles an event of the stack.
    pub fn handle(&self, event: stack::Event) {
        use stack::Event;
        match event {
            Event::Accepted { listener, conn } => {
                let listener = self.listeners.borrow().get(&listener).map(|(_, listener)| listener.clone());
                match listener {
                    Some(listener) => self.accept(&listener, conn),
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
            Event::Datagram(id) => self.socket(id).iter().for_each(|socket| socket.readable(id)),
            Event::DatagramRefused { port, remote } => interface::datagram_refused(port, remote),
            // The other cores receive this from the first, and report it again.
            Event::AddressChanged(address) if current_core() == CoreIndex(0) => {
                interface::publish_address(address)
            }
            Event::Ipv6Changed if current_core() == CoreIndex(0) => {
                if let Some(settings) = self.inspect(Stack::ipv6) {
                    interface::publish_ipv6(settings);
                }
            }
            Event::AddressChanged(_) | Event::Ipv6Changed => {}
            Event::Neighbour { ip, mac, evidence } => interface::publish_neighbour(ip, mac, evidence),
        }
    }

    fn accept(&self, listener: &Listener, id: ConnId) {
        let connection = self.add_connection(id);
        let mut activity = listener.activity;
        if activity_rules::has_any()
            && let Some(found) = self.attribute(id)
        {
            activity = found.activity;
            self.with(|stack| stack.set_owner(id, owner_of(activity)));
            connection.own_activity.set(found.own);
            charge_to(activity);
        }
        (listener.accept)(connection, activity);
    }

    /// Returns the activity that a rule assigns to a connection.
    fn attribute(&self, id: ConnId) -> Option<Attributed> {
        let (local, remote) =
            self.inspect(|stack| Some((stack.local_addr(id)?, stack.remote_addr(id)?)))??;
        attribute(local, remote)
    }

    /// Queues an event, behind those that wait now, that sends the frames that the stack has ready.
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
                (stack.next_deadline_before(self.alarm_at.get()), stack.may_have_events())
            }
            None => return,
        };
        // The deadline usually moves to a later time. The alarm then still fires at the earlier time, and is set again
        // only then.
        if let Some(deadline) = deadline {
            self.alarm_at.set(deadline);
            self.alarm.set(Some(isola_platform::Instant::from_ns(deadline.as_nanos())));
        }
        if may_have_events {
            self.take_events();
        }
    }

    fn on_alarm(&self) {
        self.alarm_at.set(stack::Instant::NEVER);
        self.run_and_deliver(|stack| stack.on_timer(stack_now()));
    }
}
