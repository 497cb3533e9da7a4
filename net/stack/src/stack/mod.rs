//! The stack: its parts, and the calls that drive it. `receive.rs` processes received frames, `link.rs` neighbours and
//! addresses, and `calls.rs` has the application's calls.

mod calls;
mod config;
mod link;
mod moving;
mod receive;

pub use config::{Addressing, Config, ConfigError, Ipv6Addressing};
pub use moving::MovedBuckets;

use crate::base::{Counter, Counters, Event, EventQueue, Instant, Ipv4Config, MacAddr, Owner, RateLimit};
use crate::configuration::{
    Autoconf, DHCP_CLIENT_PORT, DHCP_SERVER_PORT, Dhcp6Client, DhcpChange, DhcpClient,
};
use crate::ip::{Interface, Reassembler};
use crate::steering::{CoreShare, datagram_port, fast_path_flow_of, flow_of};
use crate::tcp::{SearchOutcome, StackParts, Tcp, is_in_use};
use crate::udp::{self, SentDatagrams, UdpSockets};
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut};

/// The protocol state of one core for one interface. The crate's documentation describes its use.
pub struct Stack {
    core: CoreShare,
    counters: Counters,
    interface: Interface,
    events: EventQueue,
    tcp: Tcp,
    udp: UdpSockets,
    sent_datagrams: SentDatagrams,
    dhcp: Option<DhcpClient>,
    /// The time at which the IPv4 address was set, and the time of its last defence against another host.
    address_since: Instant,
    defended: Option<Instant>,
    autoconf: Option<Autoconf>,
    dhcp6: Dhcp6Client,
    fragments: Reassembler,
    reassembled: VecDeque<IoBuf>,
    echo_limit: RateLimit,
    error_limit: RateLimit,
    /// The limit of received errors about datagrams, which anyone can send.
    refusal_limit: RateLimit,
    /// The earliest deadline of the DHCP clients and IPv6 autoconfiguration. Zero if it must be recomputed.
    setup_due: Instant,
    /// The latest time passed to any call, used by calls without a time.
    now: Instant,
}

/// Number of entries in the stack's TCP tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Connections.
    pub connections: usize,
    /// Handshakes whose last segment is missing.
    pub half_open: usize,
    /// TIME-WAIT entries.
    pub time_wait: usize,
}

/// Borrows the parts of the stack that TCP uses.
macro_rules! stack_parts {
    ($stack:expr) => {
        StackParts {
            now: $stack.now,
            interface: &mut $stack.interface,
            counters: &mut $stack.counters,
            events: &mut $stack.events,
        }
    };
}
use stack_parts;

impl Stack {
    /// Returns a stack with its address set, or with its first DHCP message ready to be sent.
    ///
    /// # Errors
    ///
    /// See [`ConfigError`].
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        let (dhcp_seed, udp_seed) = config.secret.keys(4);
        let limits = &config.limits;
        let mut stack = Self {
            core: config.core.clone(),
            counters: Counters::new(),
            interface: Interface::new(&config.interface()),
            events: EventQueue::new(limits.events),
            tcp: Tcp::new(&config.tcp, limits, config.core.clone(), &config.secret, now),
            udp: UdpSockets::new(limits, config.core.clone(), udp_seed),
            sent_datagrams: SentDatagrams::default(),
            dhcp: None,
            address_since: now,
            defended: None,
            autoconf: None,
            dhcp6: Dhcp6Client::new(config.mac, config.secret.keys(6).0),
            fragments: Reassembler::new(limits),
            reassembled: VecDeque::new(),
            echo_limit: RateLimit::new(limits.icmp_per_second, now),
            error_limit: RateLimit::new(limits.icmp_per_second, now),
            refusal_limit: RateLimit::new(limits.icmp_per_second, now),
            setup_due: Instant::ZERO,
            now,
        };
        match config.addressing {
            Addressing::Unset => {}
            Addressing::Static(ipv4) => stack.change_address(Some(ipv4)),
            Addressing::Dhcp => stack.dhcp = Some(DhcpClient::new(config.mac, dhcp_seed, now)),
        }
        stack.autoconf = match config.ipv6 {
            Ipv6Addressing::Unset => None,
            Ipv6Addressing::Static(given) => {
                Some(Autoconf::new(config.mac, &config.secret, Some(given), now))
            }
            Ipv6Addressing::Auto => Some(Autoconf::new(config.mac, &config.secret, None, now)),
        };
        Ok(stack)
    }

    /// Sets the time. A time before an earlier one is replaced by that.
    fn at(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Returns the next frame to transmit. Call this until it returns `None`.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Frame> {
        let mut next = None;
        self.transmit_next(now, |frame| next = Some(frame));
        next
    }

    /// Passes the next frame to transmit to `send`, the same that [`Self::poll_transmit`] would return. Returns whether
    /// there was one. This function is inlined so that a fast-path frame is built directly in the argument of `send`.
    #[inline(always)]
    pub fn transmit_next(&mut self, now: Instant, send: impl FnOnce(Frame)) -> bool {
        self.at(now);
        if self.now < self.setup_due && !self.interface.has_ready() {
            let Self { now, tcp, interface, counters, .. } = self;
            match tcp.next_fast(*now, interface) {
                Some(fast) => {
                    counters.bump(Counter::FramesOut);
                    counters.add(Counter::BytesOut, fast.len() as u64);
                    send(fast.into_frame());
                    return true;
                }
                None if tcp.has_ready() => {}
                None => return false,
            }
        }
        self.transmit_any().map(send).is_some()
    }

    /// Returns the next frame to transmit, of any kind.
    fn transmit_any(&mut self) -> Option<Frame> {
        if self.now >= self.setup_due {
            self.set_up();
        }
        if let Some(frame) = self.interface.pop() {
            return self.counted(frame);
        }
        if let Some(frame) = self.tcp.transmit(&mut stack_parts!(self)) {
            return self.counted(frame);
        }
        // TCP may have queued frames at the interface.
        let frame = self.interface.pop()?;
        self.counted(frame)
    }

    /// Returns whether [`Self::poll_transmit`] may have another frame, after it has returned one.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.interface.has_ready() || self.tcp.has_ready() || self.now >= self.setup_due
    }

    /// Counts an outgoing frame.
    fn counted(&mut self, frame: Frame) -> Option<Frame> {
        self.counters.bump(Counter::FramesOut);
        self.counters.add(Counter::BytesOut, frame.len() as u64);
        Some(frame)
    }

    /// Returns the head of a transmitted frame, so that its memory can be reused. Optional.
    pub fn recycle(&mut self, head: IoBufMut) {
        self.interface.recycle(head);
    }

    /// Frees the memory of recycled heads.
    pub fn free_recycled(&mut self) {
        self.interface.free_recycled();
    }

    /// Returns the time of the next call of `on_timer`; `None` if no timer runs. It is exact; an idle connection has no
    /// timer.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.next_deadline_before(Instant::NEVER)
    }

    /// Returns the time of the next call of `on_timer` if it is before `limit`. Otherwise the call takes a few
    /// instructions: for callers that have armed a timer for `limit`.
    pub fn next_deadline_before(&mut self, limit: Instant) -> Option<Instant> {
        let tcp = self.tcp.deadline_before(limit, self.now);
        if self.setup_due == Instant::ZERO {
            self.setup_due = self.find_setup_deadline();
        }
        let mut first = tcp.unwrap_or(limit).min(self.setup_due);
        if !self.fragments.is_empty() || self.interface.neighbours.is_searching() {
            let others = [self.fragments.deadline(), self.interface.neighbours.deadline()];
            first = others.into_iter().flatten().fold(first, Instant::min);
        }
        (first < limit).then_some(first)
    }

    /// Acts on all timers that have expired at `now`. Early and repeated calls are harmless.
    pub fn on_timer(&mut self, now: Instant) {
        self.at(now);
        self.set_up();
        self.on_fragment_timer();
        self.on_neighbour_timer();
        self.tcp.on_timer(&mut stack_parts!(self));
        self.setup_due = Instant::ZERO;
    }

    /// Polls the DHCP clients and IPv6 autoconfiguration, and updates their deadline.
    #[cold]
    fn set_up(&mut self) {
        self.interface.owner = Owner::UNKNOWN;
        self.poll_dhcp();
        self.poll_autoconf();
        self.poll_dhcp6();
        self.setup_due = self.find_setup_deadline();
    }

    fn find_setup_deadline(&self) -> Instant {
        let dhcp = self.dhcp.as_ref().and_then(DhcpClient::deadline);
        let autoconf = self.autoconf.as_ref().and_then(Autoconf::deadline);
        // Without a link-local address DHCPv6 cannot send, so its deadline does not count.
        let may_ask = |_: &Instant| self.autoconf.as_ref().and_then(Autoconf::link_local).is_some();
        let dhcp6 = self.dhcp6.deadline().filter(may_ask);
        [dhcp, autoconf, dhcp6].into_iter().flatten().min().unwrap_or(Instant::NEVER)
    }

    /// Returns the next event. Call this until it returns `None`, and before `poll_transmit`.
    #[inline]
    pub fn next_event(&mut self) -> Option<Event> {
        if let Some(event) = self.events.take_notice() {
            self.interface.owner = Owner::UNKNOWN;
            return Some(event);
        }
        while let Some(index) = self.events.sockets.first() {
            self.events.sockets.remove(index);
            self.interface.owner = self.udp.owner_at(index);
            if let Some(id) = self.udp.id_at(index) {
                return Some(Event::Datagram(id));
            }
        }
        self.tcp.take_event(&mut self.interface, &mut self.events)
    }

    /// Returns the owner of the last received frame, the last event or the last frame to transmit, according to the
    /// latest call.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.interface.owner
    }

    /// Returns the owner of a received frame before its processing, [`Owner::UNKNOWN`] if only the processing finds it.
    pub fn owner_of(&self, frame: &[u8]) -> Owner {
        let flow = fast_path_flow_of(frame);
        if flow.is_none()
            && let Some(port) = datagram_port(frame)
        {
            return self.udp.owner_of_port(port);
        }
        match flow.or_else(|| flow_of(frame)) {
            Some(flow) if is_in_use() => self.tcp.owner_of(&flow),
            _ => Owner::UNKNOWN,
        }
    }

    /// Returns whether [`Self::next_event`] may have an event.
    #[inline]
    pub fn may_have_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of entries in the TCP tables.
    pub fn occupancy(&self) -> Occupancy {
        let (connections, half_open, time_wait) = self.tcp.occupancy();
        Occupancy { connections, half_open, time_wait }
    }

    /// Returns the interface's hardware address.
    pub fn mac(&self) -> MacAddr {
        self.interface.mac
    }

    /// Returns the interface's IPv4 settings; `None` while it has no address.
    pub fn ipv4(&self) -> Option<Ipv4Config> {
        self.interface.ipv4
    }

    /// Sets or removes the interface's IPv4 address: on instances other than 0, that of instance 0's
    /// [`Event::AddressChanged`]. Ends a DHCP client. Connections of another address fail. An invalid host address is
    /// treated as none.
    pub fn set_ipv4(&mut self, now: Instant, ipv4: Option<Ipv4Config>) {
        self.at(now);
        self.setup_due = Instant::ZERO;
        self.dhcp = None;
        self.change_address(ipv4.filter(Ipv4Config::is_valid));
    }

    fn change_address(&mut self, ipv4: Option<Ipv4Config>) {
        if self.interface.ipv4 == ipv4 {
            return;
        }
        self.setup_due = Instant::ZERO;
        (self.address_since, self.defended) = (self.now, None);
        let waiting = self.interface.set_ipv4(ipv4, &mut self.counters);
        self.events.address_changed(ipv4);
        let mut parts = stack_parts!(self);
        self.tcp.on_address_change(&mut parts);
        self.tcp.on_search_ended(&waiting, SearchOutcome::Found, &mut parts);
    }

    /// Sends the DHCP client's message, and applies its result.
    fn poll_dhcp(&mut self) {
        let Some(client) = &mut self.dhcp else { return };
        let (message, change) = client.poll(self.now);
        self.apply(change);
        let Some(message) = message else { return };
        let own = self.interface.ipv4.map_or(Ipv4Addr::UNSPECIFIED, |own| own.address);
        let to = message.server.unwrap_or(Ipv4Addr::BROADCAST);
        let source = SocketAddr::new(IpAddr::V4(own), DHCP_CLIENT_PORT);
        let destination = SocketAddr::new(IpAddr::V4(to), DHCP_SERVER_PORT);
        let payload = Chain::from(IoBuf::from(message.bytes));
        if let Some(packet) = udp::packet(&mut self.interface, source, destination, payload) {
            self.interface.send(self.now, packet, &mut self.counters);
        }
    }

    fn apply(&mut self, change: Option<DhcpChange>) {
        match change {
            Some(DhcpChange::Gained(ipv4)) => self.change_address(Some(ipv4)),
            Some(DhcpChange::Lost) => self.change_address(None),
            None => {}
        }
    }
}
