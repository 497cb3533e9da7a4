//! The line between the TAP interface and the stack, and the thread that drives both.

use crate::common::Transfers;
use isola_hosted::tap::{self, TapOffloads};
use isola_iobuf::IoBuf;
use isola_net_sim::{App, Link, Random, check};
use isola_net_stack::{
    Addressing, Config, Instant, Ipv4Config, Ipv6Addressing, Ipv6Config, MacAddr, RxChecksum, Secret, Stack,
    TcpConfig,
};
use isola_platform::network::{Frame, NetworkQueue};
use isola_tests::namespace::{PREFIX_LEN, SHARED};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::net::Ipv6Addr;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant as Clock};

/// The listening port, on either side.
pub const PORT: u16 = 7777;

/// The addresses of Linux and of the stack.
pub const LINUX6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
pub const CELL6: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 2);

/// A timeout that only a hang exceeds.
const PATIENCE: Duration = Duration::from_secs(180);
/// Sleep of the thread when there is nothing to do.
const PAUSE: Duration = Duration::from_micros(100);

/// The destination of a frame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum To {
    Linux,
    Stack,
}

/// A frame in transit: its arrival time, sequence number, destination and bytes.
type Flying = (Instant, u64, To, Vec<u8>);

/// The stack, its application, and the line that frames pass.
pub struct Wire {
    pub stack: Stack,
    app: Transfers,
    queue: Box<dyn NetworkQueue + Send>,
    link: Link,
    random: Random,
    flying: BinaryHeap<Reverse<Flying>>,
    sent: u64,
    started: Clock,
}

/// Signals the end of Linux's side.
pub struct Handle(Sender<()>);

impl Handle {
    /// Reports that Linux's side is done; the stack's side may end after its connections.
    pub fn finished(&self) {
        let _ = self.0.send(());
    }
}

impl Wire {
    /// Runs the stack on the namespace's interface and `linux` in parallel, until `linux` is done and all connections
    /// have ended.
    pub fn run(link: Link, app: Transfers, connections: usize, linux: impl FnOnce(&Handle) + Send) -> Self {
        Self::run_with(TcpConfig::default(), link, app, connections, linux)
    }

    /// Runs as [`Self::run`], with these TCP settings.
    pub fn run_with(
        tcp: TcpConfig,
        link: Link,
        app: Transfers,
        connections: usize,
        linux: impl FnOnce(&Handle) + Send,
    ) -> Self {
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            let mut wire = Self::new(tcp, link, app);
            wire.start();
            let runner = scope.spawn(move || {
                wire.serve(connections, &receiver);
                wire
            });
            let other = scope.spawn(move || linux(&Handle(sender)));
            let wire = runner.join().expect("the stack's side");
            other.join().expect("Linux's side");
            wire
        })
    }

    fn new(tcp: TcpConfig, link: Link, app: Transfers) -> Self {
        let mut port = tap::open("shared", 1, TapOffloads::None).expect("the namespace's interface");
        let queue = port.queues.pop().expect("a queue");
        let mut config = Config::new(MacAddr(port.mac), Secret([42; 32]));
        config.addressing = Addressing::Static(Ipv4Config::new(SHARED.cell(), PREFIX_LEN, None));
        config.tcp = tcp;
        config.ipv6 = Ipv6Addressing::Static(Ipv6Config::new(CELL6, 64, None));
        let stack = Stack::new(config, Instant::ZERO).expect("a configuration that works");
        Self {
            stack,
            app,
            queue,
            link,
            random: Random::new(7),
            flying: BinaryHeap::new(),
            sent: 0,
            started: Clock::now(),
        }
    }

    /// Waits until the interface has its addresses, then starts the application.
    fn start(&mut self) {
        // An IPv6 address can be used after duplicate address detection.
        while self.stack.ipv6().addresses.iter().flatten().all(|address| address.ip != CELL6) {
            if !self.step() {
                thread::sleep(PAUSE);
            }
            assert!(self.started.elapsed() < PATIENCE, "no address: {:?}", self.stack.ipv6());
        }
        let now = self.now();
        self.app.start(&mut self.stack, now);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.started.elapsed().as_nanos() as u64)
    }

    fn serve(&mut self, connections: usize, linux: &Receiver<()>) {
        let mut linux_is_done = false;
        while !(linux_is_done && self.app.closed.len() + self.app.failed.len() >= connections) {
            // A disconnected channel means that Linux's side has failed; its panic has the reason.
            match linux.try_recv() {
                Ok(()) => linux_is_done = true,
                Err(TryRecvError::Disconnected) if !linux_is_done => return,
                Err(_) => {}
            }
            assert!(self.started.elapsed() < PATIENCE, "timeout: {:?}", self.stack.occupancy());
            if !self.step() {
                thread::sleep(PAUSE);
            }
        }
    }

    /// Performs all work that is due. Returns whether there was any.
    fn step(&mut self) -> bool {
        let now = self.now();
        let mut acted = false;
        while let Some(frame) = self.queue.receive() {
            self.carry(now, To::Stack, frame.frame.to_vec());
            acted = true;
        }
        while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, bytes))) = self.flying.pop() else { break };
            self.arrive(now, to, bytes);
            acted = true;
        }
        if self.stack.next_deadline().is_some_and(|at| at <= now) {
            self.stack.on_timer(now);
            acted = true;
        }
        while let Some(event) = self.stack.next_event() {
            self.app.on_event(&mut self.stack, now, event);
            acted = true;
        }
        while let Some(frame) = self.stack.poll_transmit(now) {
            let bytes = frame.to_vec();
            self.stack.recycle(frame.head);
            check::frame(&bytes, 1500);
            self.carry(now, To::Linux, bytes);
            acted = true;
        }
        acted
    }

    /// Puts a frame on the line, with the line's faults.
    fn carry(&mut self, now: Instant, to: To, mut bytes: Vec<u8>) {
        let link = &self.link;
        if self.random.happens(link.loss) {
            return;
        }
        // Corrupts only bytes behind the IP header: neither the headers' fields nor ARP have an end-to-end checksum.
        let behind_headers = match bytes.get(12..14) {
            Some([8, 0]) => Some(34),
            Some([0x86, 0xdd]) => Some(54),
            _ => None,
        };
        if let Some(least) = behind_headers.filter(|_| self.random.happens(link.corruption)) {
            let at = least + self.random.below((bytes.len() - least) as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        let copies = if self.random.happens(link.duplication) { 2 } else { 1 };
        for _ in 0..copies {
            let jitter = self.random.below(link.jitter.as_nanos() + 1);
            let at = now + link.latency + isola_net_stack::Duration::from_nanos(jitter);
            self.sent += 1;
            self.flying.push(Reverse((at, self.sent, to, bytes.clone())));
        }
    }

    fn arrive(&mut self, now: Instant, to: To, bytes: Vec<u8>) {
        match to {
            To::Stack => self.stack.receive(now, IoBuf::from(bytes), RxChecksum::Unverified),
            To::Linux => {
                let mut head = isola_iobuf::IoBufMut::with_room(0, bytes.len());
                head.append_slice(&bytes).expect("room");
                let frame = Frame { head, payload: Default::default(), checksum: None, segment_len: None };
                // A frame for which the interface has no room is lost.
                let _ = self.queue.send(frame);
            }
        }
    }

    /// Checks that all connections closed without failure, received the entire stream, and left nothing behind.
    pub fn check(&self, amount: usize, connections: usize) {
        assert_eq!(self.app.failed, [], "no connection may fail");
        assert_eq!(self.app.closed.len(), connections);
        assert!(self.app.closed.iter().all(|&received| received == amount));
        assert_eq!((self.app.open(), self.stack.occupancy().connections), (0, 0));
    }
}
