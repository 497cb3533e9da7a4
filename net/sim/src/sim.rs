//! Several stacks on one virtual switch, with one clock.

use crate::{Link, Random, check, device};
use isola_iobuf::{Chain, IoBuf};
use isola_net_stack::{Config, CoreShare, Duration, Event, Instant, Stack, TxChecksum};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// An application on a host.
pub trait App {
    /// Starts the application, when its host is added.
    fn start(&mut self, _stack: &mut Stack, _now: Instant) {}

    /// Handles an event of the host's stack.
    fn on_event(&mut self, stack: &mut Stack, now: Instant, event: Event);

    /// Returns the time of the next call of `on_timer`.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// Handles a deadline.
    fn on_timer(&mut self, _stack: &mut Stack, _now: Instant) {}
}

/// A host: a stack and its application. One of several stacks on one interface is a host as well, and receives the
/// frames that are steered to its core.
pub struct Host<A> {
    /// The stack.
    pub stack: Stack,
    /// The application.
    pub app: A,
    /// The properties of the link on which it sends.
    pub link: Link,
    mtu: usize,
    tx_checksum: TxChecksum,
    core: CoreShare,
    /// The time at which its last frame has left.
    line_free: Instant,
}

/// A frame in transit, ordered by arrival, then by transmission.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct FrameInTransit {
    at: Instant,
    number: u64,
    to: usize,
    bytes: Vec<u8>,
}

/// A test's decision about a frame.
pub type Filter = Box<dyn FnMut(usize, &[u8]) -> bool>;

/// Hosts on one switch. Every frame reaches every other host, whose stack filters by address.
pub struct Sim<A> {
    /// The current time.
    pub now: Instant,
    /// The hosts, in the order in which they were added.
    pub hosts: Vec<Host<A>>,
    /// Called for every frame sent, with sender and bytes. Returns whether the frame is forwarded.
    pub filter: Option<Filter>,
    in_transit: BinaryHeap<Reverse<FrameInTransit>>,
    sent: u64,
    random: Random,
}

impl<A: App> Sim<A> {
    /// Creates a switch without hosts.
    pub fn new(seed: u64) -> Self {
        Self {
            now: Instant::ZERO,
            hosts: Vec::new(),
            filter: None,
            in_transit: BinaryHeap::new(),
            sent: 0,
            random: Random::new(seed),
        }
    }

    /// Adds a host and starts its application. Returns its number.
    pub fn add(&mut self, config: Config, app: A, link: Link) -> usize {
        let (mtu, tx_checksum, core) = (config.mtu, config.tx_checksum, config.core.clone());
        let stack = Stack::new(config, self.now).expect("a configuration that works");
        let mut host = Host { stack, app, link, mtu, tx_checksum, core, line_free: self.now };
        host.app.start(&mut host.stack, self.now);
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    /// Puts a frame on the switch that no host sent.
    pub fn inject(&mut self, bytes: Vec<u8>) {
        for to in 0..self.hosts.len() {
            self.send_at(self.now, to, bytes.clone());
        }
    }

    fn send_at(&mut self, at: Instant, to: usize, bytes: Vec<u8>) {
        self.sent += 1;
        self.in_transit.push(Reverse(FrameInTransit { at, number: self.sent, to, bytes }));
    }

    /// Runs until `done`, until `limit` of simulated time has passed, or until no frame is in transit and no timer is
    /// set. Returns whether `done` was reached.
    pub fn run(&mut self, limit: Duration, mut done: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + limit;
        loop {
            self.settle();
            if done(self) {
                return true;
            }
            let Some(next) = self.next_moment().filter(|&next| next <= end) else {
                self.now = end;
                return false;
            };
            self.now = self.now.max(next);
            self.pass_time();
        }
    }

    /// Advances the simulated time by `span`.
    pub fn pass(&mut self, span: Duration) {
        self.run(span, |_| false);
    }

    fn next_moment(&mut self) -> Option<Instant> {
        let arrival = self.in_transit.peek().map(|Reverse(frame)| frame.at);
        let timers = self.hosts.iter_mut().flat_map(|host| [host.stack.next_deadline(), host.app.deadline()]);
        timers.chain([arrival]).flatten().min()
    }

    fn pass_time(&mut self) {
        while let Some(Reverse(frame)) = self.in_transit.peek()
            && frame.at <= self.now
        {
            let Some(Reverse(frame)) = self.in_transit.pop() else { break };
            let host = &mut self.hosts[frame.to];
            if host.core.steering.core_of_frame(&frame.bytes) != host.core.index {
                continue;
            }
            let checksum = device::received(&frame.bytes, host.tx_checksum);
            host.stack.receive(self.now, IoBuf::from(frame.bytes), checksum);
        }
        for host in &mut self.hosts {
            if host.stack.next_deadline().is_some_and(|at| at <= self.now) {
                host.stack.on_timer(self.now);
            }
            if host.app.deadline().is_some_and(|at| at <= self.now) {
                host.app.on_timer(&mut host.stack, self.now);
            }
        }
    }

    /// Lets every host handle its events and send, until none has anything left at this time.
    fn settle(&mut self) {
        for number in 0..self.hosts.len() {
            let mut frames = Vec::new();
            let host = &mut self.hosts[number];
            loop {
                while let Some(event) = host.stack.next_event() {
                    host.app.on_event(&mut host.stack, self.now, event);
                }
                let Some(frame) = host.stack.poll_transmit(self.now) else { break };
                frames.extend(device::sent(&frame));
                host.stack.recycle(frame.head);
            }
            let mtu = host.mtu;
            for bytes in frames {
                check::frame(&bytes, mtu);
                self.transmit(number, bytes);
            }
        }
    }

    fn transmit(&mut self, from: usize, mut bytes: Vec<u8>) {
        if let Some(filter) = &mut self.filter
            && !filter(from, &bytes)
        {
            return;
        }
        let link = self.hosts[from].link.clone();
        let mut leaves = self.now;
        if let Some(rate) = link.rate {
            let host = &mut self.hosts[from];
            let free = host.line_free.max(self.now);
            let waiting = free.since(self.now).as_nanos() as u128 * u128::from(rate) / 1_000_000_000;
            if waiting > u128::from(link.queue) {
                return;
            }
            leaves = free + Duration::from_nanos(bytes.len() as u64 * 1_000_000_000 / rate);
            host.line_free = leaves;
        }
        let too_long = link.longest.is_some_and(|longest| bytes.len() > longest);
        if too_long || self.random.happens(link.loss) {
            return;
        }
        let copies = if self.random.happens(link.duplication) { 2 } else { 1 };
        if self.random.happens(link.corruption) {
            let at = self.random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << self.random.below(8);
        }
        for _ in 0..copies {
            for to in (0..self.hosts.len()).filter(|&to| to != from) {
                let jitter = Duration::from_nanos(self.random.below(link.jitter.as_nanos() + 1));
                self.send_at(leaves + link.latency + jitter, to, bytes.clone());
            }
        }
    }
}

/// Returns a chain of `bytes` in pieces of `piece` bytes.
pub fn chain_of(bytes: &[u8], piece: usize) -> Chain {
    let mut chain = Chain::new();
    bytes.chunks(piece.max(1)).for_each(|part| chain.push_back(IoBuf::copy_from_slice(part)));
    chain
}
