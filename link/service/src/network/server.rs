//! The service cell: its network manager, and its clients.

use super::hub::{Forwarded, HUB, SwitchedQueue, time};
use super::translation;
use crate::admission::{STEP_LIMIT, accept_all, refuse};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::{Future, poll_fn};
use core::net::{IpAddr, Ipv4Addr};
use core::ops::Deref;
use core::pin::pin;
use core::sync::atomic::AtomicU64;
use core::task::{Poll, Waker};
use isola_abi::id::ActivityId;
use isola_abi::network_service::{ANY_CLIENT, NetworkHello, NetworkService};
use isola_abi::service::{DeviceOffer, DriverSetup, QueueSetup, Reply, ServiceRefusal, decode, encode};
use isola_activities::INFRASTRUCTURE;
use isola_channels::{Bell, Channel, ChannelError, WritableMemory, listen};
use isola_ebbs::platform;
use isola_events::{register_activity, spawn_task, spawn_task_for, timeout};
use isola_iobuf::IoBufMut;
use isola_nat::Prefix;
use isola_net::bridge::{count_received, send_for};
use isola_net::interface::link;
use isola_net::neighbours::{LinkDrop, count_dropped};
use isola_net::{CellNetwork, NetworkManager, wait_for_address};
use isola_platform::network::{NetworkPort, ReceivedChecksum};
use isola_switch::{PortId, PortRefusal, port_mac};
use isola_virtio_device::net::{DEVICE_TYPE, LEAST_FRAME, NetSettings, SentFrame, deliver};
use isola_virtio_device::{DeviceQueue, DriverFault, DriverMemory, QueuePlace};

pub use super::translation::{NatOptions, NatOptionsError};

/// The most frames that wait for a client that does not supply buffers, and the fewest of a cell with little memory.
pub const MOST_WAITING: usize = 64;
const FEWEST_WAITING: usize = 8;

/// The part of the cell's memory that frames for clients may take, and the memory of one.
const WAITING_PART: u64 = 4;
const FRAME_MEMORY: u64 = 2048;

/// The descriptors of each of a client's queues.
const QUEUE_SIZE: u16 = 64;

/// The longest IP packet between the ports.
const MAX_MTU: u16 = 1500;

/// The frames of a client that are copied before other events run.
const BATCH: usize = 32;

/// The free bytes in front of a frame, for the header of the device.
pub(super) const HEADROOM: usize = 16;

/// The reason why a cell cannot serve its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServeError {
    /// Its specification does not say that it does, so it has its device for its own frames, and the supervisor does not
    /// check the names of its clients.
    NotServer,
    /// It has no network device.
    NoDevice,
    /// It cannot listen.
    Channel(ChannelError),
    /// The network of the clients has addresses of the device's network.
    Overlap(Prefix),
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotServer => {
                f.write_str("the cell was not started as a service: use `isola run --service net`")
            }
            Self::NoDevice => f.write_str("the cell has no network device to serve"),
            Self::Channel(error) => error.fmt(f),
            Self::Overlap(prefix) => {
                write!(
                    f,
                    "the network of the clients, {prefix}, overlaps with the cell's own: choose another"
                )
            }
        }
    }
}

impl core::error::Error for ServeError {}

/// The network manager of a service cell: the cell's first queue pair behind the switch.
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchedNetwork;

impl NetworkManager for SwitchedNetwork {
    fn open(&self) -> Option<NetworkPort> {
        let port = CellNetwork.open()?;
        // Links and the switch are on the first core.
        let device = port.queues.into_iter().next()?;
        HUB.start(port.mac);
        let queues = Vec::from([Box::new(SwitchedQueue::new(device)) as Box<_>]);
        Some(NetworkPort { queues, spreading: None, ..port })
    }
}

/// Serves the cell's network, which [`SwitchedNetwork`] has opened, to the cells that this one accepts, on the first core,
/// until the cell ends. With options for it, the clients have a network of their own, whose addresses are translated.
///
/// # Errors
/// A [`ServeError`].
pub fn serve(translation: Option<NatOptions>) -> Result<(), ServeError> {
    if platform().descriptor().network_service != NetworkService::Server {
        return Err(ServeError::NotServer);
    }
    let mtu = link().ok_or(ServeError::NoDevice)?.mtu.min(MAX_MTU);
    let mac = HUB.with_switch(|switch| switch.own_mac()).ok_or(ServeError::NoDevice)?;
    let listener = listen(ANY_CLIENT).map_err(ServeError::Channel)?;
    let is_translated = translation.is_some();
    HUB.serve(translation.map(|options| options.gateway(mac)));
    if !is_translated {
        spawn_task(async {
            // No client may claim the router's address, also before the router has sent a frame.
            if let Some(router) = wait_for_address().await.gateway {
                HUB.with_switch(|switch| switch.reserve(IpAddr::V4(router)));
            }
        })
        .detach();
    }
    spawn_task_for(INFRASTRUCTURE, accept_all(listener, move |channel| begin(channel, mtu))).detach();
    Ok(())
}

/// Completes when the cell has an address, whose network must not have addresses of the clients: otherwise they get none.
///
/// # Errors
/// [`ServeError::Overlap`].
pub async fn check_networks(prefix: Prefix) -> Result<(), ServeError> {
    let own = wait_for_address().await;
    // Packets from outside may come before the first frame of a client.
    translation::update();
    if prefix.overlaps(own.address, own.prefix_len) { Err(ServeError::Overlap(prefix)) } else { Ok(()) }
}

fn begin(channel: Channel, mtu: u16) {
    let Some(name) = channel.service() else { return };
    // Without memory for an activity, the work is for the cell's infrastructure.
    let activity = register_activity(&name).unwrap_or(INFRASTRUCTURE);
    spawn_task_for(activity, serve_client(name, activity, channel, mtu)).detach();
}

async fn serve_client(name: String, activity: ActivityId, channel: Channel, mtu: u16) {
    let Some((port, settings)) = admit(&name, &channel, mtu).await else { return };
    let mut leased = Lease { port, ip: None };
    if let Some(ip) = HUB.with_gateway(|gateway| gateway.connect(&name, settings.mac)) {
        let Some(ip) = ip else {
            // A client that had an address tries again: one line for all.
            if HUB.is_first_refusal() {
                let reason = "its network is too small for all clients";
                platform().print(format!("network: no address is left for {name}: {reason}\n").as_bytes());
            }
            drop(leased);
            return refuse(&channel, ServiceRefusal::NoAddress).await;
        };
        leased.ip = Some(ip);
    }
    let Some((receive, transmit)) = start(&channel, &settings).await else { return };
    let client = Rc::new(Client {
        port,
        ip: leased.ip,
        activity,
        longest_frame: settings.longest_frame(),
        receive: RefCell::new(receive),
        transmit: RefCell::new(transmit),
        inbound: RefCell::default(),
        bell: channel.bell(),
        task: Cell::new(None),
    });
    HUB.add(port, client.clone());
    let woken = Rc::downgrade(&client);
    channel.on_doorbell(move || woken.upgrade().is_some_and(|client| client.wake_for_chains()));
    client.serve(&channel).await;
    drop(leased);
}

/// The port of a client, and its address if addresses are translated, until this is dropped.
struct Lease {
    port: PortId,
    ip: Option<Ipv4Addr>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        HUB.remove(self.port);
        if let Some(ip) = self.ip {
            HUB.with_gateway(|gateway| gateway.disconnect(ip));
        }
    }
}

/// Gives a client its port. A client that says nothing gets none, and its link ends.
async fn admit(name: &str, channel: &Channel, mtu: u16) -> Option<(PortId, NetSettings)> {
    let hello = timeout(STEP_LIMIT, channel.read()).await.ok()?.ok()?;
    let refusal = match decode::<NetworkHello>(&hello) {
        None => ServiceRefusal::Malformed,
        Some(NetworkHello { version }) if version != isola_abi::VERSION => {
            ServiceRefusal::Version(isola_abi::VERSION)
        }
        Some(_) => {
            let added = HUB.with_switch(|switch| {
                let mac = port_mac(switch.own_mac(), name);
                switch.add_port(mac, time()).map(|port| (port, NetSettings { mac, mtu }))
            });
            match added? {
                Ok(added) => return Some(added),
                // The link of the client's former life has not ended yet.
                Err(PortRefusal::MacTaken) => ServiceRefusal::InUse,
            }
        }
    };
    refuse(channel, refusal).await;
    None
}

/// The memory of a client, which both of its queues use.
#[derive(Clone)]
struct ClientMemory(Rc<WritableMemory>);

impl Deref for ClientMemory {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        &self.0
    }
}

type ClientQueue = DeviceQueue<ClientMemory>;

/// Offers the device to a client, and returns its queues for receiving and sending once the client has started its driver.
async fn start(channel: &Channel, settings: &NetSettings) -> Option<(ClientQueue, ClientQueue)> {
    let features = settings.features();
    let offer = DeviceOffer {
        device_type: DEVICE_TYPE,
        features,
        queues: Vec::from([QUEUE_SIZE; 2]),
        configuration: settings.configuration(),
    };
    let steps = async {
        channel.write(&encode(&Reply::Offer(offer))).await.ok()?;
        let setup: DriverSetup = decode(&channel.read().await.ok()?)?;
        let memory = channel.mapped().await.ok()?.into_writable()?;
        Some((setup, memory))
    };
    let (setup, memory) = timeout(STEP_LIMIT, steps).await.ok()??;
    if setup.features & !features != 0 {
        return None;
    }
    let memory = DriverMemory::new(ClientMemory(Rc::new(memory)), setup.base);
    let queue = |place: &QueueSetup| {
        let QueueSetup { size, descriptors, available, used } = *place;
        let place = QueuePlace { size, descriptors, available, used };
        let queue = (size <= QUEUE_SIZE).then(|| DeviceQueue::new(memory.clone(), place, setup.features));
        queue?.ok()
    };
    let [receive, transmit] = &setup.queues[..] else { return None };
    Some((queue(receive)?, queue(transmit)?))
}

/// Returns how many frames may wait for each of `clients` clients in a cell of `memory_bytes`: if none of them reads, the
/// frames of all together take a part of the memory.
pub(super) fn most_waiting(memory_bytes: u64, clients: usize) -> usize {
    let frames = memory_bytes / WAITING_PART / FRAME_MEMORY / (clients.max(1) as u64);
    usize::try_from(frames).unwrap_or(MOST_WAITING).clamp(FEWEST_WAITING, MOST_WAITING)
}

/// A client of the network.
pub(super) struct Client {
    pub port: PortId,
    /// The address, if addresses are translated.
    pub ip: Option<Ipv4Addr>,
    activity: ActivityId,
    longest_frame: usize,
    receive: RefCell<ClientQueue>,
    transmit: RefCell<ClientQueue>,
    /// Frames for the client.
    inbound: RefCell<VecDeque<Forwarded>>,
    bell: Bell,
    /// Wakes the client's task.
    task: Cell<Option<Waker>>,
}

impl Client {
    /// Passes a frame to the client's task, if fewer than `most` frames wait. Returns whether it has room.
    pub fn deliver(&self, frame: Forwarded, most: usize) -> bool {
        let mut inbound = self.inbound.borrow_mut();
        if inbound.len() >= most || frame.bytes.len() > self.longest_frame {
            return false;
        }
        inbound.push_back(frame);
        drop(inbound);
        self.wake();
        true
    }

    /// Wakes the client's task if it has work, and returns whether it has.
    fn wake_for_chains(&self) -> bool {
        let may_deliver = !self.inbound.borrow().is_empty() && self.receive.borrow().has_available();
        let has_work = may_deliver || self.transmit.borrow().has_available();
        if has_work {
            self.wake();
        }
        has_work
    }

    fn wake(&self) {
        self.task.take().into_iter().for_each(Waker::wake);
    }

    /// Copies frames of the client and for it, until the link ends or the driver violates the protocol.
    async fn serve(&self, channel: &Channel) {
        let mut closed = pin!(channel.closed());
        poll_fn(|context| {
            self.task.set(Some(context.waker().clone()));
            if closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            match self.copy_batch() {
                Ok(true) => context.waker().wake_by_ref(),
                Ok(false) => {}
                Err(_) => return Poll::Ready(()),
            }
            Poll::Pending
        })
        .await;
    }

    /// Copies a batch of frames in each direction. Returns whether there may be more; if not, the client's next doorbell
    /// wakes the task.
    fn copy_batch(&self) -> Result<bool, DriverFault> {
        let mut to_device = Vec::new();
        translation::update();
        let (mut sent, mut delivered) = (0, 0);
        while sent < BATCH && self.take_sent(&mut to_device)? {
            sent += 1;
        }
        while delivered < BATCH && self.deliver_next()? {
            delivered += 1;
        }
        let must_notify = self.receive.borrow_mut().must_notify() | self.transmit.borrow_mut().must_notify();
        if must_notify {
            self.bell.ring();
        }
        if !to_device.is_empty() {
            send_for(self.activity, to_device.into_iter().map(translation::complete).collect());
        }
        if sent == BATCH || delivered == BATCH {
            return Ok(true);
        }
        let may_deliver = !self.inbound.borrow().is_empty() && self.receive.borrow_mut().arm();
        Ok(self.transmit.borrow_mut().arm() || may_deliver)
    }

    /// Forwards the client's next frame. Frames for the device are collected, as its queue asks the switch for its part.
    fn take_sent(&self, to_device: &mut Vec<IoBufMut>) -> Result<bool, DriverFault> {
        let mut queue = self.transmit.borrow_mut();
        let Some(chain) = queue.take()? else { return Ok(false) };
        let sent = SentFrame::parse(queue.memory(), chain).map_err(|fault| queue.break_off(fault))?;
        let len = sent.len();
        let frame = (LEAST_FRAME..=self.longest_frame).contains(&len).then(|| {
            let mut frame = IoBufMut::with_room(HEADROOM, len);
            sent.copy_to(queue.memory(), frame.append(len).unwrap_or_default());
            frame
        });
        queue.give_back(sent.head(), 0);
        drop(queue);
        match frame {
            Some(frame) => HUB.forward(self, frame, to_device),
            None => count_dropped(LinkDrop::Source),
        }
        Ok(true)
    }

    /// Delivers the next frame for the client, if the client has supplied a buffer.
    fn deliver_next(&self) -> Result<bool, DriverFault> {
        let mut inbound = self.inbound.borrow_mut();
        let Some(Forwarded { bytes, checksum }) = inbound.front() else { return Ok(false) };
        let is_valid = *checksum == ReceivedChecksum::Valid;
        let parts = || bytes.parts().map(|part| &part[..]);
        if !deliver(&mut self.receive.borrow_mut(), parts, is_valid)? {
            return Ok(false);
        }
        count_received(self.activity, bytes.len() as u64);
        inbound.pop_front();
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::{FEWEST_WAITING, FRAME_MEMORY, MOST_WAITING, WAITING_PART, most_waiting};
    use isola_abi::links::link_slots;

    #[test]
    fn frames_that_no_client_reads_take_a_part_of_the_memory() {
        for mib in [2_u64, 4, 8, 28, 32, 64, 1024] {
            let memory = mib << 20;
            for clients in 1..=link_slots(memory) {
                let most = most_waiting(memory, clients);
                assert!((FEWEST_WAITING..=MOST_WAITING).contains(&most));
                let taken = (most * clients) as u64 * FRAME_MEMORY;
                assert!(taken <= memory / WAITING_PART, "{mib} MiB, {clients} clients: {most} frames each");
            }
        }
        assert_eq!(most_waiting(32 << 20, 64), MOST_WAITING);
        assert_eq!(most_waiting(0, 0), FEWEST_WAITING);
    }
}
