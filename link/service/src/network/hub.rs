//! The switch with the queues of its ports, on the first core of the service cell.

use super::server::{Client, most_waiting};
use super::translation;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use core::time::Duration;
use isola_ebbs::{Ebb, Representative, platform};
use isola_events::now;
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut};
use isola_nat::{ClientFrame, Gateway, OutsideFrame, is_of_connection};
use isola_net::neighbours::{LinkDrop, count_dropped, poll};
use isola_platform::VacatedMemory;
use isola_platform::network::{FramesPending, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame};
use isola_switch::frame::Mac;
use isola_switch::{DropReason, PortId, Recipients, Source, Switch, Targets};

pub(super) static HUB: Ebb<Hub> = Ebb::new();

/// The most frames that wait for the service cell's own stack.
const MOST_OWN: usize = 256;

/// The most frames for others that one call takes from the device.
const MOST_FORWARDED: usize = 64;

/// The offset of the source address in a frame.
const SOURCE: core::ops::Range<usize> = 6..12;

/// A frame on its way to a port.
#[derive(Clone)]
pub(super) struct Forwarded {
    pub bytes: Chain,
    pub checksum: ReceivedChecksum,
}

/// The switch, and the queues of its ports.
#[derive(Default)]
pub(super) struct Hub {
    state: RefCell<Option<HubState>>,
}

struct HubState {
    switch: Switch,
    clients: BTreeMap<PortId, Rc<Client>>,
    /// Frames of clients for the cell's own stack.
    own: VecDeque<Forwarded>,
    /// Translates between the clients and the device; without it, the switch connects them.
    gateway: Option<Gateway>,
    /// Whether the cell serves, so that it is certain whether there is a gateway.
    is_serving: bool,
    /// The most frames that wait for each client.
    most_waiting: usize,
    /// Whether a client has got no address.
    has_refused: bool,
}

impl Representative for Hub {
    fn create() -> Self {
        Self::default()
    }
}

impl Hub {
    /// Creates the switch of a device with this hardware address.
    pub fn start(&self, mac: Mac) {
        let state = HubState {
            switch: Switch::new(mac),
            clients: BTreeMap::new(),
            own: VecDeque::new(),
            gateway: None,
            is_serving: false,
            most_waiting: 0,
            has_refused: false,
        };
        self.state.replace(Some(state));
    }

    /// Calls `act` with the switch; returns `None` before the network has started.
    pub fn with_switch<T>(&self, act: impl FnOnce(&mut Switch) -> T) -> Option<T> {
        self.state.borrow_mut().as_mut().map(|state| act(&mut state.switch))
    }

    /// Begins to serve clients, with a gateway if their addresses are translated.
    pub fn serve(&self, gateway: Option<Gateway>) {
        if let Some(state) = self.state.borrow_mut().as_mut() {
            (state.gateway, state.is_serving) = (gateway, true);
        }
    }

    /// Calls `act` with the gateway, if addresses are translated.
    pub fn with_gateway<T>(&self, act: impl FnOnce(&mut Gateway) -> T) -> Option<T> {
        self.state.borrow_mut().as_mut()?.gateway.as_mut().map(act)
    }

    /// Adds a client whose port the switch has.
    pub fn add(&self, port: PortId, client: Rc<Client>) {
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.clients.insert(port, client);
            state.divide_memory();
        }
    }

    /// Returns whether no client was refused an address before.
    pub fn is_first_refusal(&self) -> bool {
        self.state
            .borrow_mut()
            .as_mut()
            .is_some_and(|state| !core::mem::replace(&mut state.has_refused, true))
    }

    /// Removes a client and its port.
    pub fn remove(&self, port: PortId) {
        if let Some(state) = self.state.borrow_mut().as_mut() {
            state.clients.remove(&port);
            state.divide_memory();
            state.switch.remove_port(port);
        }
    }

    /// Forwards a frame of a client to the ports and the stack, and adds frames for the device to `to_device`.
    pub fn forward(&self, from: &Client, frame: IoBufMut, to_device: &mut Vec<IoBufMut>) {
        let mut state = self.state.borrow_mut();
        let Some(state) = state.as_mut() else { return };
        if state.gateway.is_some() {
            state.forward_translated(from, frame, to_device);
        } else {
            state.forward(from.port, frame.freeze(), to_device);
        }
    }
}

impl HubState {
    /// Divides the memory for waiting frames among the present clients.
    fn divide_memory(&mut self) {
        let memory = platform().report().memory.total_bytes.load(Ordering::Relaxed);
        self.most_waiting = most_waiting(memory, self.clients.len());
    }

    fn forward(&mut self, from: PortId, frame: IoBuf, to_device: &mut Vec<IoBufMut>) {
        let Some(targets) = self.targets(Source::Port(from), &frame) else { return };
        let forwarded = Forwarded { bytes: frame.clone().into(), checksum: ReceivedChecksum::Unchecked };
        self.deliver(Source::Port(from), targets, &forwarded);
        if targets.own {
            if self.own.len() < MOST_OWN {
                self.own.push_back(forwarded);
                poll();
            } else {
                count_dropped(LinkDrop::Full);
            }
        } else {
            drop(forwarded);
        }
        if targets.uplink {
            // Of a frame that went to clients as well, the device gets a copy.
            to_device.push(translation::sole(frame));
        }
    }

    /// Forwards a client's frame to the other clients, or translates it.
    fn forward_translated(&mut self, from: &Client, mut frame: IoBufMut, to_device: &mut Vec<IoBufMut>) {
        let (Some(gateway), Some(ip)) = (&mut self.gateway, from.ip) else { return };
        if let Err(reason) = gateway.check(ip, &frame) {
            return translation::count(reason);
        }
        let Some(targets) = self.targets(Source::Port(from.port), &frame) else { return };
        let Some(gateway) = &mut self.gateway else { return };
        match gateway.from_client(ip, frame.data_mut(), time()) {
            Ok(ClientFrame::Outside) => to_device.push(frame),
            Ok(ClientFrame::Inside) => {
                let bytes = Chain::from(frame.freeze());
                let forwarded = Forwarded { bytes, checksum: ReceivedChecksum::Unchecked };
                self.deliver(Source::Port(from.port), targets, &forwarded);
            }
            Ok(ClientFrame::Answer(answer)) => {
                let bytes = IoBuf::copy_from_slice(&answer).into();
                from.deliver(Forwarded { bytes, checksum: ReceivedChecksum::Unchecked }, self.most_waiting);
            }
            Ok(ClientFrame::Waits(request)) => {
                to_device.extend(request.as_deref().map(translation::copy));
            }
            Err(reason) => translation::count(reason),
        }
        self.take_released(to_device);
    }

    /// Adds the frames that waited for the hardware address of their next hop.
    fn take_released(&mut self, to_device: &mut Vec<IoBufMut>) {
        while let Some(frame) = self.gateway.as_mut().and_then(Gateway::take_released) {
            to_device.push(translation::copy(&frame));
        }
    }

    /// Passes a frame of the device to the client that it is translated for; returns it if it is for the stack.
    fn receive_translated(&mut self, received: ReceivedFrame) -> Option<ReceivedFrame> {
        let checksum = received.checksum;
        let mut frame = translation::whole(received);
        let result = self.gateway.as_mut()?.from_outside(frame.data_mut(), time());
        let mut released = Vec::new();
        self.take_released(&mut released);
        translation::send_later(released);
        match result {
            Ok(OutsideFrame::Own) => Some(ReceivedFrame { frame: frame.freeze(), rest: None, checksum }),
            Ok(OutsideFrame::Client(mac)) => {
                let targets = self.switch.port_of(mac).map(Recipients::One).unwrap_or(Recipients::None);
                let targets = Targets { uplink: false, own: false, ports: targets };
                let forwarded = Forwarded { bytes: frame.freeze().into(), checksum };
                self.deliver(Source::Uplink, targets, &forwarded);
                None
            }
            Err(reason) => {
                translation::count(reason);
                None
            }
        }
    }

    /// Returns the targets of a frame, of which `headers` has at least the headers; `None` if it has none.
    fn targets(&mut self, from: Source, headers: &[u8]) -> Option<Targets> {
        let targets = self.switch.forward(from, headers, time());
        if let (Err(DropReason::ForeignAddress | DropReason::Malformed), Source::Port(_)) = (&targets, from) {
            count_dropped(LinkDrop::Source);
        }
        targets.ok()
    }

    /// Passes a frame to the ports among its targets.
    fn deliver(&self, from: Source, targets: Targets, frame: &Forwarded) {
        let deliver = |client: &Rc<Client>| {
            if !client.deliver(frame.clone(), self.most_waiting) {
                count_dropped(LinkDrop::Full);
            }
        };
        match targets.ports {
            Recipients::None => {}
            Recipients::One(port) => self.clients.get(&port).into_iter().for_each(deliver),
            Recipients::All => {
                let others = self.clients.iter().filter(|(port, _)| Source::Port(**port) != from);
                others.for_each(|(_, client)| deliver(client));
            }
        }
    }

    fn own_mac(&self) -> Mac {
        self.switch.own_mac()
    }
}

pub(super) fn time() -> Duration {
    Duration::from_nanos(now().as_ns())
}

/// The device's queue behind the switch, for the stack of the service cell.
pub(super) struct SwitchedQueue {
    device: Box<dyn NetworkQueue + Send>,
    /// Whether the next frame to be sent was distributed to the ports, and the device had no room for it.
    is_repeated: bool,
}

impl SwitchedQueue {
    pub fn new(device: Box<dyn NetworkQueue + Send>) -> Self {
        Self { device, is_repeated: false }
    }
}

impl NetworkQueue for SwitchedQueue {
    fn vector(&self) -> Option<u8> {
        self.device.vector()
    }

    fn offloads(&self) -> Offloads {
        // A frame may go to a client, whose driver gets complete frames.
        Offloads::default()
    }

    fn attach(&mut self) {
        self.device.attach();
    }

    fn redirect(&mut self) {
        self.device.redirect();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        let mut state = HUB.state.borrow_mut();
        let Some(state) = state.as_mut() else { return self.device.receive() };
        if let Some(Forwarded { mut bytes, checksum }) = state.own.pop_front() {
            let frame = bytes.pop_front()?;
            let rest = (!bytes.is_empty()).then(|| Box::new(bytes));
            return Some(ReceivedFrame { frame, rest, checksum });
        }
        // Without a frame for it, the caller enables interrupts, which reports that more wait.
        for _ in 0..MOST_FORWARDED {
            let received = self.device.receive()?;
            if state.gateway.is_some() {
                match state.receive_translated(received) {
                    Some(own) => return Some(own),
                    None => continue,
                }
            }
            // It may be for a client whose connection the gateway will know.
            if !state.is_serving && is_of_connection(&received.frame) {
                continue;
            }
            let Some(targets) = state.targets(Source::Uplink, &received.frame) else { continue };
            if targets.ports != Recipients::None {
                let mut bytes = Chain::from(received.frame.clone());
                received.rest.iter().for_each(|rest| bytes.append((**rest).clone()));
                state.deliver(Source::Uplink, targets, &Forwarded { bytes, checksum: received.checksum });
            }
            if targets.own {
                return Some(received);
            }
        }
        None
    }

    fn may_have_received(&self) -> bool {
        let has_own = || HUB.state.borrow().as_ref().is_some_and(|state| !state.own.is_empty());
        self.device.may_have_received() || has_own()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let is_repeated = core::mem::replace(&mut self.is_repeated, false);
        let mut state = HUB.state.borrow_mut();
        // With a gateway, clients get no frame of the stack, and the gateway's frames have the same source.
        let is_own = |state: &&mut HubState| {
            state.gateway.is_none() && frame.head.get(SOURCE) == Some(&state.own_mac()[..])
        };
        // Frames of clients were distributed before they came here.
        if let Some(state) = state.as_mut().filter(is_own).filter(|_| !is_repeated) {
            let Some(targets) = state.targets(Source::Own, &frame.head) else { return Ok(()) };
            if targets.ports != Recipients::None {
                let mut bytes = Chain::from(IoBuf::copy_from_slice(&frame.head));
                bytes.append(frame.payload.clone());
                let forwarded = Forwarded { bytes, checksum: ReceivedChecksum::Valid };
                state.deliver(Source::Own, targets, &forwarded);
            }
            if !targets.uplink {
                return Ok(());
            }
        }
        self.device.send(frame).inspect_err(|_| self.is_repeated = true)
    }

    fn flush(&mut self) {
        self.device.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        self.device.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        let device = self.device.enable_interrupts();
        let has_own = HUB.state.borrow().as_ref().is_some_and(|state| !state.own.is_empty());
        if has_own { FramesPending::Yes } else { device }
    }

    fn disable_interrupts(&mut self) {
        self.device.disable_interrupts();
    }

    fn vacate(&mut self, memory: &VacatedMemory) {
        self.device.vacate(memory);
    }

    fn has_failed(&self) -> bool {
        self.device.has_failed()
    }
}
