//! The queue in front of the network device, and the tasks that open links.

use crate::forwarding::{self, ForwardingQueue};
use crate::router::{DropReason, FrameLink, Routed, Router, RouterEnvironment};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::task::Wake;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::net::IpAddr;
use core::task::Waker;
use isola_channels::neighbours::{self, FrameBuffers, FrameSent, LinkEnded, NeighbourLink};
use isola_ebbs::{Ebb, Representative};
use isola_events::{now, sleep, spawn, spawn_task};
use isola_iobuf::{Frame, IoBuf, IoBufMut};
use isola_net::neighbours as network;
use isola_net::neighbours::LinkDrop;
use isola_platform::Instant;
use isola_platform::VacatedMemory;
use isola_platform::network::{
    FramesPending, NetworkPort, NetworkQueue, Offloads, ReceivedChecksum, ReceivedFrame,
};

static LINKS: Ebb<Links> = Ebb::new();

/// The links of the first core.
#[derive(Default)]
struct Links {
    router: RefCell<Option<Router<PolledLink>>>,
}

impl Representative for Links {
    fn create() -> Self {
        Self::default()
    }
}

/// Returns the port with links to neighbours beside the device, if the cell's specification permits neighbours. To be
/// called on the first core, which serves the first queue and has the links.
pub fn over_links(port: NetworkPort) -> NetworkPort {
    let Some(own) = neighbours::own_mac().filter(|mac| *mac == port.mac) else { return port };
    if port.queues.is_empty() {
        return port;
    }
    LINKS.router.replace(Some(Router::new(own)));
    let queues = port.queues.into_iter().enumerate();
    let over_links =
        |(number, device): (usize, Box<dyn NetworkQueue + Send>)| -> Box<dyn NetworkQueue + Send> {
            if number == 0 {
                Box::new(LinkedQueue::new(device))
            } else {
                Box::new(ForwardingQueue::new(device))
            }
        };
    let queues = queues.map(over_links).collect();
    spawn_task(accept_links()).detach();
    NetworkPort { queues, ..port }
}

/// Accepts the links that neighbours open.
async fn accept_links() {
    let Ok(listener) = neighbours::listen() else { return };
    loop {
        match listener.accept().await {
            Ok(link) => add(link),
            // The opener has ended meanwhile, or memory is short.
            Err(_) => sleep(core::time::Duration::from_millis(10)).await,
        }
    }
}

/// Opens a link to a hardware address, or records that there is none.
async fn open_link(mac: [u8; 6]) {
    match neighbours::open(mac).await {
        Ok(link) => add(link),
        Err(_) => LINKS.with(|router| router.refuse(mac, &Cell)).unwrap_or_default(),
    }
}

fn add(link: NeighbourLink) {
    LINKS.with(|router| router.link(PolledLink { link, waker: Arc::new(PollWaker).into() }, &Cell));
    // The link arms itself when the queue is empty.
    network::poll();
}

impl Links {
    fn with<T>(&self, work: impl FnOnce(&mut Router<PolledLink>) -> T) -> Option<T> {
        self.router.borrow_mut().as_mut().map(work)
    }
}

/// Wakes by a poll of the core's queue.
struct PollWaker;

impl Wake for PollWaker {
    fn wake(self: Arc<Self>) {
        network::poll();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        network::poll();
    }
}

/// A link whose news cause a poll of the core's queue.
struct PolledLink {
    link: NeighbourLink,
    waker: Waker,
}

impl FrameLink for PolledLink {
    fn mac(&self) -> [u8; 6] {
        self.link.mac()
    }

    fn send(&self, frame: &Frame) -> Result<FrameSent, LinkEnded> {
        self.link.send(frame)
    }

    fn receive(&self, buffers: &mut FrameBuffers) -> Result<Option<IoBuf>, LinkEnded> {
        self.link.receive(buffers)
    }

    fn may_have_frame(&self) -> bool {
        self.link.may_have_frame()
    }

    fn release(&self) {
        self.link.release();
    }

    fn await_frame(&self) -> bool {
        self.link.await_frame(&self.waker)
    }

    fn await_room(&self, len_bytes: usize) -> bool {
        self.link.await_room(len_bytes, &self.waker)
    }
}

/// The cell of the calling core.
struct Cell;

impl RouterEnvironment for Cell {
    fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]> {
        network::mac_of(ip)
    }

    fn epoch(&self) -> u32 {
        network::epoch()
    }

    fn seek(&self, ip: IpAddr) {
        // The stack may be in use now.
        spawn(move || network::seek(ip));
    }

    fn changes(&self) -> u32 {
        neighbours::changes()
    }

    fn ask(&self, mac: [u8; 6]) {
        spawn_task(open_link(mac)).detach();
    }

    fn links_changed(&self, macs: Vec<[u8; 6]>) {
        forwarding::publish(&macs);
        spawn(move || network::set_linked(macs));
    }

    fn dropped(&self, reason: DropReason) {
        network::count_dropped(match reason {
            DropReason::Full => LinkDrop::Full,
            DropReason::Source => LinkDrop::Source,
        });
    }

    fn now(&self) -> Instant {
        now()
    }
}

/// The first queue of the device, and the links.
struct LinkedQueue {
    device: Box<dyn NetworkQueue + Send>,
    offloads: Offloads,
    next_sent: NextSent,
    receive_first: ReceiveSource,
}

/// The next frame that the stack sends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextSent {
    NewFrame,
    /// The frame for which the device had no room.
    DeviceRetry,
}

/// A source of received frames.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReceiveSource {
    Device,
    Links,
}

/// Sends frames of other cores.
pub(crate) fn send_over_links(frames: Vec<Frame>) {
    for frame in frames {
        // The link has ended meanwhile.
        if let Routed::ToDevice(_) = send_over_link(frame) {
            network::count_dropped(LinkDrop::Ended);
        }
    }
}

/// Sends a frame over the link to its destination, if there is one.
fn send_over_link(frame: Frame) -> Routed {
    match LINKS.router.borrow_mut().as_mut() {
        Some(router) => router.send(frame, &Cell),
        None => Routed::ToDevice(frame),
    }
}

/// Returns whether a device can send a frame. One that was made for a link may lack checksums or be too long.
pub(crate) fn can_send(offloads: Offloads, frame: &Frame) -> bool {
    let Offloads { checksums, segments_ipv4, segments_ipv6 } = offloads;
    let segments = if frame.is_ipv6() { segments_ipv6 } else { segments_ipv4 };
    (checksums || frame.checksum.is_none()) && (segments || frame.segment_len.is_none())
}

impl LinkedQueue {
    fn new(device: Box<dyn NetworkQueue + Send>) -> Self {
        Self {
            offloads: device.offloads(),
            device,
            next_sent: NextSent::NewFrame,
            receive_first: ReceiveSource::Device,
        }
    }

    fn receive_from_device(&mut self) -> Option<ReceivedFrame> {
        self.receive_first = ReceiveSource::Links;
        self.device.receive()
    }

    fn receive_from_links(&mut self) -> Option<ReceivedFrame> {
        self.receive_first = ReceiveSource::Device;
        let frame = LINKS.with(|router| router.receive(&Cell)).flatten()?;
        Some(ReceivedFrame { frame, rest: None, checksum: ReceivedChecksum::Valid })
    }
}

impl NetworkQueue for LinkedQueue {
    fn vector(&self) -> Option<u8> {
        self.device.vector()
    }

    fn offloads(&self) -> Offloads {
        self.offloads
    }

    fn attach(&mut self) {
        self.device.attach();
    }

    fn redirect(&mut self) {
        self.device.redirect();
    }

    fn receive(&mut self) -> Option<ReceivedFrame> {
        match self.receive_first {
            ReceiveSource::Device => self.receive_from_device().or_else(|| self.receive_from_links()),
            ReceiveSource::Links => self.receive_from_links().or_else(|| self.receive_from_device()),
        }
    }

    fn may_have_received(&self) -> bool {
        self.device.may_have_received() || LINKS.with(|router| router.may_have_received()).unwrap_or_default()
    }

    fn send(&mut self, frame: Frame) -> Result<(), Frame> {
        let frame = match self.next_sent {
            NextSent::NewFrame => match send_over_link(frame) {
                Routed::OverLink => return Ok(()),
                Routed::ToDevice(frame) => frame,
            },
            // It is routed already: the caller repeats it before it sends another.
            NextSent::DeviceRetry => frame,
        };
        self.next_sent = NextSent::NewFrame;
        if !can_send(self.offloads, &frame) {
            network::count_dropped(LinkDrop::Ended);
            return Ok(());
        }
        self.device.send(frame).inspect_err(|_| self.next_sent = NextSent::DeviceRetry)
    }

    fn flush(&mut self) {
        self.device.flush();
    }

    fn reclaim(&mut self, recycle: &mut dyn FnMut(IoBufMut)) {
        LINKS.with(|router| router.reclaim(recycle));
        self.device.reclaim(recycle);
    }

    fn enable_interrupts(&mut self) -> FramesPending {
        let device = self.device.enable_interrupts();
        match LINKS.with(|router| router.await_frames(&Cell)) {
            Some(true) => FramesPending::Yes,
            Some(false) | None => device,
        }
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
