//! Two protocol stacks with a device and a link: what crosses which, the end of a link at every step, and hostile
//! neighbours.

use isola_channels::neighbours::{FrameBuffers, FrameSent, HALF_WORDS, LinkEnded, receive_frame, send_frame};
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut};
use isola_link_rings::{Armed, Half, MustNotify, Ring, SendError};
use isola_neighbours::{
    DropReason, FrameLink, MOST_NEIGHBOURS, MOST_WAITING_BYTES, Routed, Router, RouterEnvironment,
};
use isola_net_sim::{device, host_config, host_config6, host_ip, host_ip6, host_mac};
use isola_net_stack::{ConnId, Duration, Event, Instant, MacAddr, RxChecksum, Stack, StreamEnd, TxChecksum};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

type Memory = Arc<[AtomicU64]>;
type Rings = Ring<Memory, Memory>;

/// One side of a link in memory of the test.
struct FakeLink {
    mac: [u8; 6],
    rings: RefCell<Rings>,
    line: Rc<Line>,
    /// The index of the other side.
    peer: usize,
}

impl FakeLink {
    fn notify(&self, must: MustNotify) {
        if must == MustNotify::Yes {
            self.line.rung[self.peer].set(true);
        }
    }
}

/// The state that both sides share.
struct Line {
    is_open: Cell<bool>,
    sent: Cell<u32>,
    /// The number of frames after which the link ends.
    ends_after: Cell<u32>,
    longest: Cell<usize>,
    /// Whether a doorbell has rung for each side.
    rung: [Cell<bool>; 2],
}

impl FrameLink for FakeLink {
    fn mac(&self) -> [u8; 6] {
        self.mac
    }

    fn send(&self, frame: &Frame) -> Result<FrameSent, LinkEnded> {
        let line = &self.line;
        if line.sent.get() == line.ends_after.get() {
            line.is_open.set(false);
        }
        if !line.is_open.get() {
            return Err(LinkEnded);
        }
        match send_frame(&mut self.rings.borrow_mut(), frame) {
            Ok(must) => {
                self.notify(must);
                line.sent.set(line.sent.get() + 1);
                line.longest.set(line.longest.get().max(frame.len()));
                Ok(FrameSent::Yes)
            }
            Err(SendError::Full) => Ok(FrameSent::NoRoom),
            Err(_) => Err(LinkEnded),
        }
    }

    fn receive(&self, buffers: &mut FrameBuffers) -> Result<Option<IoBuf>, LinkEnded> {
        if !self.line.is_open.get() {
            return Err(LinkEnded);
        }
        receive_frame(&mut self.rings.borrow_mut(), buffers)
    }

    fn may_have_frame(&self) -> bool {
        !self.line.is_open.get() || self.rings.borrow_mut().has_packet() != Ok(false)
    }

    fn release(&self) {
        let must = self.rings.borrow_mut().release();
        self.notify(must);
    }

    fn await_frame(&self) -> bool {
        self.release();
        self.rings.borrow_mut().arm() != Ok(Armed::Yes)
    }

    fn await_room(&self, len_bytes: usize) -> bool {
        self.rings.borrow_mut().await_room(len_bytes + 8).unwrap_or(true)
    }
}

/// Returns both sides of a link between two hosts.
fn link_between(macs: [[u8; 6]; 2], ends_after: u32) -> ([FakeLink; 2], Rc<Line>) {
    let memory = || -> Memory { (0..HALF_WORDS).map(|_| AtomicU64::new(0)).collect() };
    let memories = [memory(), memory()];
    let half = |index: usize| Half::new(memories[index].clone()).unwrap();
    half(0).init();
    half(1).init();
    let line = Rc::new(Line {
        is_open: Cell::new(true),
        sent: Cell::new(0),
        ends_after: Cell::new(ends_after),
        longest: Cell::new(0),
        rung: Default::default(),
    });
    let side = |own: usize, peer: usize| FakeLink {
        mac: macs[peer],
        rings: RefCell::new(Ring::new(half(own), half(peer))),
        line: line.clone(),
        peer,
    };
    ([side(0, 1), side(1, 0)], line)
}

/// The surroundings of a router.
struct Around {
    stack: RefCell<Stack>,
    now: Cell<Instant>,
    changes: Cell<u32>,
    asked: RefCell<Vec<[u8; 6]>>,
    linked: RefCell<Option<Vec<[u8; 6]>>>,
    sought: RefCell<Vec<IpAddr>>,
    dropped: RefCell<Vec<DropReason>>,
}

impl RouterEnvironment for Around {
    fn mac_of(&self, ip: IpAddr) -> Option<[u8; 6]> {
        self.stack.borrow().neighbour(ip).map(|MacAddr(mac)| mac)
    }

    fn epoch(&self) -> u32 {
        self.stack.borrow().neighbour_epoch()
    }

    fn seek(&self, ip: IpAddr) {
        self.sought.borrow_mut().push(ip);
    }

    fn changes(&self) -> u32 {
        self.changes.get()
    }

    fn ask(&self, mac: [u8; 6]) {
        self.asked.borrow_mut().push(mac);
    }

    fn links_changed(&self, macs: Vec<[u8; 6]>) {
        self.linked.replace(Some(macs));
    }

    fn dropped(&self, reason: DropReason) {
        self.dropped.borrow_mut().push(reason);
    }

    fn now(&self) -> isola_platform::Instant {
        isola_platform::Instant::from_ns(self.now.get().as_nanos())
    }
}

/// A cell: its stack, its router, and one side of a stream that has `AMOUNT` bytes in each direction.
struct Host {
    around: Around,
    router: Router<FakeLink>,
    has_offloads: bool,
    stream: Option<ConnId>,
    sent: usize,
    /// The bytes that it may send so far.
    limit: usize,
    received: usize,
    has_ended: bool,
    failure: Option<String>,
}

/// The bytes of a stream in each direction: many frames, and no multiple of anything.
const AMOUNT: usize = 300_001;

fn byte_at(position: usize) -> u8 {
    (position * 7 + position / 251) as u8
}

impl Host {
    fn new(config: isola_net_stack::Config) -> Self {
        let (mac, has_offloads) = (config.mac.0, config.tx_checksum == TxChecksum::Device);
        let around = Around {
            stack: RefCell::new(Stack::new(config, Instant::ZERO).unwrap()),
            now: Cell::new(Instant::ZERO),
            changes: Cell::new(0),
            asked: RefCell::default(),
            linked: RefCell::default(),
            sought: RefCell::default(),
            dropped: RefCell::default(),
        };
        Self {
            around,
            router: Router::new(mac),
            has_offloads,
            stream: None,
            sent: 0,
            limit: AMOUNT,
            received: 0,
            has_ended: false,
            failure: None,
        }
    }

    /// Sends what fits, and reads what there is.
    fn work(&mut self) {
        let mut stack = self.around.stack.borrow_mut();
        while let Some(event) = stack.next_event() {
            match event {
                Event::Accepted { conn, .. } | Event::Connected(conn) => self.stream = Some(conn),
                Event::Failed(_, reason) => self.failure = Some(format!("{reason}")),
                Event::Closed(_) => self.stream = None,
                _ => {}
            }
        }
        let Some(stream) = self.stream else { return };
        if let Some((data, end)) = stack.read_all(stream) {
            for byte in data.to_vec() {
                assert_eq!(byte, byte_at(self.received), "at {}", self.received);
                self.received += 1;
            }
            self.has_ended |= end == StreamEnd::Yes;
        }
        while self.sent < self.limit {
            let end = self.limit.min(self.sent + 50_000);
            let bytes: Vec<u8> = (self.sent..end).map(byte_at).collect();
            let mut chain = Chain::from(IoBuf::copy_from_slice(&bytes));
            match stack.send_some(stream, &mut chain) {
                Ok(count) if count > 0 => self.sent += count,
                _ => return,
            }
            if self.sent == AMOUNT {
                stack.shutdown(stream);
            }
        }
    }

    /// Passes the stack's frames to the router. Returns those for the device, and whether there were any.
    fn transmit(&mut self, now: Instant) -> (Vec<Vec<u8>>, bool) {
        let (mut sent, mut progress) = (Vec::new(), false);
        while let Some(frame) = {
            let mut stack = self.around.stack.borrow_mut();
            stack.poll_transmit(now)
        } {
            progress = true;
            match self.router.send(frame, &self.around) {
                Routed::OverLink => {}
                Routed::ToDevice(frame) if frame.checksum.is_some() && !self.has_offloads => {}
                Routed::ToDevice(frame) => sent.extend(device::sent(&frame)),
            }
        }
        (sent, progress)
    }

    /// Acts as a core does after a doorbell. Returns whether the core must not halt.
    fn poll(&mut self, now: Instant) -> bool {
        self.around.now.set(now);
        while let Some(frame) = self.router.receive(&self.around) {
            self.around.stack.borrow_mut().receive(now, frame, RxChecksum::Verified);
            if !self.router.may_have_received() {
                break;
            }
        }
        self.work();
        assert!(self.transmit(now).0.is_empty(), "the link goes on");
        self.router.await_frames(&self.around)
    }
}

/// Two cells on a wire, in the order in which they were started, and the links that the test permits.
struct Net {
    hosts: [Host; 2],
    wire: VecDeque<(usize, Vec<u8>)>,
    now: Instant,
    over_device: usize,
    /// After how many frames each further link ends.
    lives: VecDeque<u32>,
    lines: Vec<Rc<Line>>,
}

impl Net {
    fn new(configs: [isola_net_stack::Config; 2], lives: impl IntoIterator<Item = u32>) -> Self {
        Self {
            hosts: configs.map(Host::new),
            wire: VecDeque::new(),
            now: Instant::ZERO,
            over_device: 0,
            lives: lives.into_iter().collect(),
            lines: Vec::new(),
        }
    }

    /// Lets both cells act once. Returns whether anything happened.
    fn step(&mut self) -> bool {
        let mut progress = false;
        for _ in 0..self.wire.len() {
            let Some((to, bytes)) = self.wire.pop_front() else { break };
            let host = &mut self.hosts[to];
            let mut stack = host.around.stack.borrow_mut();
            stack.receive(self.now, IoBuf::from(bytes), RxChecksum::Unverified);
            progress = true;
        }
        for own in 0..2 {
            let host = &mut self.hosts[own];
            host.around.now.set(self.now);
            while let Some(frame) = host.router.receive(&host.around) {
                host.around.stack.borrow_mut().receive(self.now, frame, RxChecksum::Verified);
                progress = true;
            }
            host.router.await_frames(&host.around);
            for ip in host.around.sought.take() {
                host.around.stack.borrow_mut().seek_neighbour(self.now, ip);
            }
            if let Some(macs) = host.around.linked.take() {
                host.around.stack.borrow_mut().set_linked(macs.into_iter().map(MacAddr).collect());
            }
            host.work();
            let (sent, has_sent) = host.transmit(self.now);
            progress |= has_sent;
            self.over_device += sent.len();
            self.wire.extend(sent.into_iter().map(|bytes| (1 - own, bytes)));
            let mut heads = 0;
            host.router.reclaim(&mut |_| heads += 1);
            for mac in host.around.asked.take() {
                self.introduce(own, mac);
            }
        }
        progress
    }

    fn introduce(&mut self, own: usize, mac: [u8; 6]) {
        let macs = [0, 1].map(|index: usize| host_mac(index as u8 + 1).0);
        let both = [0, 1].map(|index: usize| self.hosts[index].router.is_linked(macs[1 - index]));
        let Some(life) =
            (mac == macs[1 - own] && both == [false; 2]).then(|| self.lives.pop_front()).flatten()
        else {
            let host = &mut self.hosts[own];
            return host.router.refuse(mac, &host.around);
        };
        let (sides, line) = link_between(macs, life);
        self.lines.push(line);
        for (host, side) in self.hosts.iter_mut().zip(sides) {
            host.router.link(side, &host.around);
        }
    }

    /// Runs until both streams are complete.
    fn run(&mut self) {
        let end = Instant::from_nanos(400_000_000_000);
        while !self.hosts.iter().all(|host| host.received == AMOUNT && host.has_ended) {
            if self.step() {
                self.now += Duration::from_micros(1);
                continue;
            }
            let deadlines =
                self.hosts.iter().filter_map(|host| host.around.stack.borrow_mut().next_deadline());
            let next = deadlines.min().expect("a timer, or progress");
            self.now = self.now.max(next) + Duration::from_micros(1);
            for host in &self.hosts {
                host.around.stack.borrow_mut().on_timer(self.now);
            }
            let state = self.hosts.iter().map(|host| (host.received, host.failure.clone()));
            assert!(self.now < end, "no end: {:?}", state.collect::<Vec<_>>());
        }
        assert!(self.hosts.iter().all(|host| host.failure.is_none()));
    }

    fn listen_and_connect(&mut self, server: IpAddr) {
        let mut stack = self.hosts[0].around.stack.borrow_mut();
        stack.listen(80, 8).unwrap();
        drop(stack);
        let mut stack = self.hosts[1].around.stack.borrow_mut();
        stack.connect(self.now, SocketAddr::new(server, 80)).unwrap();
    }

    fn over_links(&self) -> u32 {
        self.lines.iter().map(|line| line.sent.get()).sum()
    }
}

fn transfer(lives: impl IntoIterator<Item = u32>) -> Net {
    let mut net = Net::new([host_config(1), host_config(2)], lives);
    net.listen_and_connect(host_ip(1).into());
    net.run();
    net
}

#[test]
fn a_stream_goes_over_the_link_in_long_frames() {
    let net = transfer([u32::MAX]);
    assert!(net.over_device < 10, "{} frames over the device", net.over_device);
    assert!(net.over_links() < 300, "{} frames over the link", net.over_links());
    assert!(net.lines[0].longest.get() > 40_000);
    let without = transfer([]);
    assert!(without.over_device > 2 * AMOUNT / 1500 && without.over_links() == 0);
}

#[test]
fn a_side_that_has_halted_is_woken_by_each_message() {
    let mut net = Net::new([host_config(1), host_config(2)], [u32::MAX]);
    net.hosts.iter_mut().for_each(|host| host.limit = 0);
    net.listen_and_connect(host_ip(1).into());
    // The link is opened by the handshake, before either side has data to send.
    for _ in 0..20 {
        net.step();
        net.now += Duration::from_micros(1);
    }
    assert!(net.lines.len() == 1 && net.hosts.iter().all(|host| host.stream.is_some()));
    let rung = |net: &Net, side: usize| net.lines[0].rung[side].take();
    for round in 1..200 {
        for side in [1, 0] {
            net.now += Duration::from_micros(1);
            net.hosts[side].limit = 64 * round;
            assert!(!net.hosts[side].poll(net.now), "may halt");
            assert!(rung(&net, 1 - side), "{round}: a doorbell to the side that has halted");
            while net.hosts[1 - side].poll(net.now) {}
            assert_eq!(net.hosts[1 - side].received, 64 * round);
        }
    }
    // All of a stream, while only doorbells make the sides act.
    net.hosts[1].limit = AMOUNT;
    let mut awake = [false, true];
    while net.hosts[0].received < AMOUNT {
        assert_ne!(awake, [false; 2], "{} bytes received", net.hosts[0].received);
        net.now += Duration::from_micros(1);
        for (host, is_awake) in net.hosts.iter_mut().zip(&mut awake) {
            *is_awake = *is_awake && host.poll(net.now);
        }
        (0..2).for_each(|side| awake[side] |= rung(&net, side));
    }
}

#[test]
fn a_connection_over_a_link_has_no_slow_start() {
    const WINDOW: u32 = 256 << 10;
    let mut net = Net::new([host_config(1), host_config(2)], [6]);
    net.listen_and_connect(host_ip(1).into());
    let windows = |net: &Net, over_link: bool| -> Vec<u32> {
        let view = |host: &Host| {
            let stack = host.around.stack.borrow();
            let view = stack.connections(net.now).next().map(|(_, view)| view());
            view.filter(|view| view.over_link == over_link).map(|view| view.stats.congestion_window)
        };
        net.hosts.iter().filter_map(view).collect()
    };
    while windows(&net, true).len() < 2 {
        assert!(net.step(), "both have the link before the stream ends");
        net.now += Duration::from_micros(1);
    }
    assert_eq!(windows(&net, true), [WINDOW; 2]);
    net.run();
    assert!(windows(&net, true).is_empty());
    assert!(windows(&net, false).iter().all(|window| *window < WINDOW), "{:?}", windows(&net, false));
    assert!(net.over_links() == 6);
}

#[test]
fn a_stream_over_ipv6_goes_over_the_link() {
    let mut net = Net::new([host_config6(1), host_config6(2)], [u32::MAX]);
    while net.step() || net.now < Instant::from_nanos(5_000_000_000) {
        net.now += Duration::from_millis(1);
        net.hosts.iter().for_each(|host| host.around.stack.borrow_mut().on_timer(net.now));
    }
    let before = net.over_device;
    net.listen_and_connect(host_ip6(1).into());
    net.run();
    assert!(net.over_device - before < 20 && net.lines[0].longest.get() > 40_000);
}

#[test]
fn a_stream_survives_the_end_of_the_link_at_every_frame() {
    let whole = transfer([u32::MAX]).over_links();
    for ends_after in 0..whole {
        let net = transfer([ends_after]);
        assert!(net.over_links() >= ends_after && net.over_device > 0, "{ends_after}");
    }
}

#[test]
fn a_stream_survives_links_that_come_and_go() {
    for life in [0, 1, 2, 3, 7, 20, 50] {
        let mut net = Net::new([host_config(1), host_config(2)], [life; 1000]);
        net.listen_and_connect(host_ip(1).into());
        net.run();
    }
}

/// Returns a frame with these addresses and protocol.
fn frame(to: [u8; 6], from: [u8; 6], source: IpAddr, protocol: u8) -> Frame {
    let IpAddr::V4(source) = source else { panic!("for IPv4 only") };
    let mut bytes = [to, from].concat();
    bytes.extend([8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0]);
    bytes.extend(source.octets());
    bytes.extend(host_ip(1).octets());
    bytes.extend([0; 20]);
    let mut head = IoBufMut::with_room(0, bytes.len());
    head.append_slice(&bytes).unwrap();
    Frame { head, payload: Chain::new(), checksum: None, segment_len: None }
}

/// Returns a host that knows host 2, with a link to it, and the other side of the link.
fn victim() -> (Host, FakeLink) {
    let mut host = Host::new(host_config(1));
    host.around.stack.borrow_mut().learn(Instant::ZERO, host_ip(2), host_mac(2));
    host.around.stack.borrow_mut().learn(Instant::ZERO, host_ip(3), host_mac(3));
    let ([own, theirs], _) = link_between([host_mac(1).0, host_mac(2).0], u32::MAX);
    host.router.link(own, &host.around);
    (host, theirs)
}

#[test]
fn a_neighbour_cannot_send_under_the_address_of_another() {
    let (mut host, theirs) = victim();
    let [own, peer, other] = [1, 2, 3].map(|number| host_mac(number).0);
    let ip = |number| IpAddr::from(host_ip(number));
    let good = || frame(own, peer, ip(2), 6);
    let bad = [
        frame(own, other, ip(2), 6),
        frame(own, own, ip(2), 6),
        frame(other, peer, ip(2), 6),
        frame([0xff; 6], peer, ip(2), 17),
        frame(own, peer, ip(3), 6),
        frame(own, peer, ip(1), 6),
        frame(own, peer, ip(9), 17),
        frame(own, peer, ip(2), 1),
    ];
    for bad in bad {
        for frame in [good(), bad, good()] {
            assert_eq!(theirs.send(&frame), Ok(FrameSent::Yes));
        }
        let accepted: Vec<IoBuf> = std::iter::from_fn(|| host.router.receive(&host.around)).collect();
        assert!(accepted.len() == 2 && accepted.iter().all(|frame| **frame == *good().to_vec()));
        assert_eq!(host.around.dropped.take(), [DropReason::Source]);
    }
    assert_eq!(host.around.sought.take(), [ip(1), ip(9)], "asked for over the device");
    // Another host takes over the address: the link's frames no longer have it.
    host.around.stack.borrow_mut().learn(Instant::ZERO, host_ip(2), host_mac(3));
    let _ = theirs.send(&good());
    assert!(host.router.receive(&host.around).is_none());
    assert_eq!(host.around.dropped.take(), [DropReason::Source]);
}

#[test]
fn a_violation_of_the_protocol_ends_the_link() {
    for packet in [vec![], vec![0; 100], vec![9; 100], vec![8; 3], vec![1; 65_600]] {
        let (mut host, theirs) = victim();
        let _ = theirs.rings.borrow_mut().send(&packet).unwrap();
        assert!(host.router.receive(&host.around).is_none());
        assert!(!host.router.is_linked(host_mac(2).0), "{} bytes", packet.len());
        assert_eq!(host.around.linked.take(), Some(vec![]));
    }
}

#[test]
fn the_buffer_of_a_long_frame_is_used_again_after_its_last_view() {
    let (mut host, theirs) = victim();
    let mut receive = |number: u8| {
        let mut long = frame(host_mac(1).0, host_mac(2).0, host_ip(2).into(), 6);
        long.payload = Chain::from(IoBuf::from(vec![number; 6000 - usize::from(number)]));
        assert_eq!(theirs.send(&long), Ok(FrameSent::Yes));
        let mut received = None;
        let cost = allocation_counter::measure(|| received = host.router.receive(&host.around));
        assert!(host.router.receive(&host.around).is_none(), "gives the room back");
        (received.expect("a frame"), cost.bytes_total)
    };
    let mut random = fastrand::Rng::with_seed(19);
    let mut held: Vec<(u8, IoBuf)> = Vec::new();
    for number in 0..200 {
        held.push((number, receive(number).0));
        if held.len() > random.usize(1..7) {
            held.swap_remove(random.usize(..held.len()));
        }
        for (number, frame) in &held {
            assert!(frame[54..].iter().all(|byte| byte == number), "a view of {number} has changed");
        }
    }
    drop(held);
    receive(200);
    assert!((201..=255).all(|number| receive(number).1 < 4096));
}

#[test]
fn a_flood_of_unacceptable_frames_lets_other_events_run() {
    let (mut host, theirs) = victim();
    let (own, other) = (host_mac(1).0, host_mac(3).0);
    let bad = frame(own, other, host_ip(2).into(), 6);
    while theirs.send(&bad) == Ok(FrameSent::Yes) {}
    assert!(host.router.receive(&host.around).is_none());
    assert_eq!(host.around.dropped.take().len(), 64);
    assert!(host.router.await_frames(&host.around), "it is polled again");
}

#[test]
fn a_neighbour_that_does_not_read_delays_nobody() {
    let (mut host, theirs) = victim();
    let (own, peer, other) = (host_mac(1).0, host_mac(2).0, host_mac(3).0);
    let to = |mac| frame(mac, own, host_ip(1).into(), 17);
    let len = to(peer).len();
    for _ in 0..100_000 {
        assert!(matches!(host.router.send(to(peer), &host.around), Routed::OverLink));
        assert!(matches!(host.router.send(to(other), &host.around), Routed::ToDevice(_)));
    }
    let dropped = host.around.dropped.take().len();
    let mut received = 0;
    loop {
        while let Ok(Some(_)) = theirs.receive(&mut FrameBuffers::default()) {
            received += 1;
        }
        theirs.release();
        host.router.send_waiting(&host.around);
        if theirs.rings.borrow_mut().has_packet() == Ok(false) {
            break;
        }
    }
    assert_eq!(received + dropped, 100_000);
    let most = MOST_WAITING_BYTES / len + 2048;
    assert!(received <= most && received > MOST_WAITING_BYTES / len, "{received} were stored");
    let mut heads = 0;
    host.router.reclaim(&mut |_| heads += 1);
    assert_eq!(heads, 64, "the memory of some headers comes back");
}

#[test]
fn a_refusal_holds_until_a_cell_starts_or_ends() {
    let mut host = Host::new(host_config(1));
    let (own, peer) = (host_mac(1).0, host_mac(2).0);
    let send = |host: &mut Host, mac| {
        let sent = host.router.send(frame(mac, own, host_ip(1).into(), 6), &host.around);
        assert!(matches!(sent, Routed::ToDevice(_)));
        host.around.asked.take().len()
    };
    assert_eq!((send(&mut host, peer), send(&mut host, peer)), (1, 0), "one request at a time");
    host.router.refuse(peer, &host.around);
    host.around.now.set(Instant::from_nanos(10_000_000_000));
    assert_eq!(send(&mut host, peer), 0);
    host.around.changes.set(1);
    assert_eq!((send(&mut host, peer), send(&mut host, peer)), (1, 0));
    host.router.refuse(peer, &host.around);
    host.around.changes.set(2);
    assert_eq!(send(&mut host, peer), 0, "at most once a second");
    // Broadcasts and groups have no neighbour.
    assert_eq!((send(&mut host, [0xff; 6]), send(&mut host, [0x33, 0x33, 0, 0, 0, 1])), (0, 0));
}

#[test]
fn the_core_may_halt_while_no_neighbour_has_sent() {
    let (mut host, theirs) = victim();
    assert!(!host.router.await_frames(&host.around) && !host.router.may_have_received());
    assert_eq!(theirs.send(&frame(host_mac(1).0, host_mac(2).0, host_ip(2).into(), 6)), Ok(FrameSent::Yes));
    assert!(host.router.await_frames(&host.around) && host.router.may_have_received());
    assert!(host.router.receive(&host.around).is_some() && !host.router.may_have_received());
    assert!(host.router.receive(&host.around).is_none());
    assert!(!host.router.await_frames(&host.around));
    theirs.line.is_open.set(false);
    assert!(host.router.may_have_received(), "the end of the link");
}

#[test]
fn the_oldest_answer_is_forgotten_beyond_the_most_addresses() {
    const MOST: u8 = 64;
    let mut host = Host::new(host_config(1));
    let mut asks = |last: u8| {
        let to = [2, 9, 9, 9, 9, last];
        host.router.send(frame(to, host_mac(1).0, host_ip(1).into(), 6), &host.around);
        host.around.asked.take().len()
    };
    assert_eq!((0..MOST).map(&mut asks).sum::<usize>(), usize::from(MOST));
    assert_eq!((0..MOST).map(&mut asks).sum::<usize>(), 0, "all are stored");
    assert_eq!((asks(MOST), asks(1), asks(MOST)), (1, 0, 0));
    assert_eq!((asks(0), asks(2)), (1, 0), "the oldest was forgotten, and now the next");
    assert_eq!(asks(1), 1);
}

#[test]
fn the_number_of_links_is_bounded_and_a_second_one_is_closed() {
    let mut host = Host::new(host_config(1));
    let own = host_mac(1).0;
    for number in 0..MOST_NEIGHBOURS as u8 + 5 {
        for _ in 0..2 {
            let ([side, _], _) = link_between([own, [2, 1, 0, 0, 0, number]], u32::MAX);
            host.router.link(side, &host.around);
        }
    }
    let linked = (0..=255).filter(|number| host.router.is_linked([2, 1, 0, 0, 0, *number])).count();
    assert_eq!(linked, MOST_NEIGHBOURS);
    assert_eq!(host.around.linked.take().map(|macs| macs.len()), Some(MOST_NEIGHBOURS));
}

#[test]
fn no_link_is_requested_beyond_the_most_neighbours() {
    let mut host = Host::new(host_config(1));
    let own = host_mac(1).0;
    let mut lines = Vec::new();
    for number in 0..MOST_NEIGHBOURS as u8 {
        let ([side, _], line) = link_between([own, [2, 1, 0, 0, 0, number]], u32::MAX);
        host.router.link(side, &host.around);
        lines.push(line);
    }
    let mut asks = |to| {
        host.router.send(frame(to, own, host_ip(1).into(), 6), &host.around);
        host.around.asked.take()
    };
    let other = [2, 9, 9, 9, 9, 9];
    assert_eq!(asks(other), Vec::<[u8; 6]>::new());
    lines[0].is_open.set(false);
    assert_eq!(asks([2, 1, 0, 0, 0, 0]), Vec::<[u8; 6]>::new(), "the link ends");
    assert_eq!(asks(other), [other]);
}

#[test]
fn an_address_whose_requested_link_has_ended_is_requested_again_after_a_second() {
    let mut host = Host::new(host_config(1));
    let (own, peer) = (host_mac(1).0, host_mac(2).0);
    let asks = |host: &mut Host| {
        host.router.send(frame(peer, own, host_ip(1).into(), 6), &host.around);
        host.around.asked.take().len()
    };
    assert_eq!(asks(&mut host), 1);
    let ([side, _], line) = link_between([own, peer], u32::MAX);
    host.router.link(side, &host.around);
    assert_eq!(asks(&mut host), 0, "the frame goes over the link");
    line.is_open.set(false);
    assert_eq!(asks(&mut host), 0, "the link ends");
    host.around.now.set(Instant::from_nanos(999_999_999));
    assert_eq!(asks(&mut host), 0);
    host.around.now.set(Instant::from_nanos(1_000_000_000));
    assert_eq!((asks(&mut host), asks(&mut host)), (1, 0));
}

/// Each cell that ends is stored as one that is not to be asked for a second.
#[test]
fn the_oldest_of_many_ended_links_is_forgotten() {
    const MOST: u8 = 64;
    let mut host = Host::new(host_config(1));
    let own = host_mac(1).0;
    let asks = |host: &mut Host, number| {
        host.router.send(frame([2, 1, 0, 0, 0, number], own, host_ip(1).into(), 6), &host.around);
        host.around.asked.take().len()
    };
    for number in 0..=MOST {
        let ([side, _], line) = link_between([own, [2, 1, 0, 0, 0, number]], u32::MAX);
        host.router.link(side, &host.around);
        line.is_open.set(false);
        assert!(host.router.receive(&host.around).is_none(), "the link ends");
    }
    assert_eq!((asks(&mut host, 1), asks(&mut host, MOST)), (0, 0));
    assert_eq!(asks(&mut host, 0), 1, "the oldest was forgotten");
}
