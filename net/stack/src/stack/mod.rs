//! The stack: its parts, and the five calls that drive it. `receive.rs` is the way in, `link.rs` what concerns
//! neighbours and addresses, `calls.rs` the application's side.

mod calls;
mod ends;
mod fast_path;
mod link;
mod moving;
mod receive;

pub use moving::Moved;

use crate::address::Ipv4Config;
use crate::autoconf::Autoconf;
use crate::config::{Addressing, Config, ConfigError, CoreShare, Ipv6Addressing};
use crate::counters::{Counter, Counters};
use crate::event::{Event, EventQueue};
use crate::fragments::Reassembler;
use crate::interface::Interface;
use crate::limit::RateLimit;
use crate::owner::Owner;
use crate::sent_datagrams::SentDatagrams;
use crate::tcp::tables::{Around, SearchOutcome, Tcp};
use crate::time::Instant;
use crate::udp::UdpSockets;
use crate::{MacAddr, dhcp, dhcp6, udp};
use alloc::collections::VecDeque;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};
use isola_iobuf::{Chain, Frame, IoBuf, IoBufMut};

/// One core's protocol state for one interface. See the crate's page for how it is driven.
pub struct Stack {
    core: CoreShare,
    counters: Counters,
    interface: Interface,
    events: EventQueue,
    tcp: Tcp,
    udp: UdpSockets,
    sent_datagrams: SentDatagrams,
    dhcp: Option<dhcp::Client>,
    /// When the IPv4 address was set, and when it was last defended against somebody who claims it.
    address_since: Instant,
    defended: Option<Instant>,
    autoconf: Option<Autoconf>,
    dhcp6: dhcp6::Client,
    fragments: Reassembler,
    reassembled: VecDeque<IoBuf>,
    echo_limit: RateLimit,
    error_limit: RateLimit,
    /// When those want to act who see to the interface's addresses: DHCP's clients and IPv6's configuration. Zero where
    /// something happened since they were asked.
    setup_due: Instant,
    /// The latest time that was told: for calls that need no newer one.
    now: Instant,
}

/// How full the stack's TCP tables are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occupancy {
    /// Connections.
    pub connections: usize,
    /// Handshakes without their last segment.
    pub half_open: usize,
    /// TIME-WAIT entries.
    pub time_wait: usize,
}

/// The parts that TCP works with, without TCP itself.
macro_rules! around {
    ($stack:expr) => {
        Around {
            now: $stack.now,
            interface: &mut $stack.interface,
            counters: &mut $stack.counters,
            events: &mut $stack.events,
        }
    };
}
use around;

impl Stack {
    /// A stack at the time `now`, with its address set, or its first DHCP message ready to be sent.
    pub fn new(config: Config, now: Instant) -> Result<Self, ConfigError> {
        config.validate()?;
        let (dhcp_seed, udp_seed) = config.secret.keys(4);
        let limits = &config.limits;
        let mut stack = Self {
            core: config.core.clone(),
            counters: Counters::new(),
            interface: Interface::new(&config),
            events: EventQueue::new(limits.events),
            tcp: Tcp::new(&config, now),
            udp: UdpSockets::new(limits, config.core.clone(), udp_seed),
            sent_datagrams: SentDatagrams::default(),
            dhcp: None,
            address_since: now,
            defended: None,
            autoconf: None,
            dhcp6: dhcp6::Client::new(config.mac, config.secret.keys(6).0),
            fragments: Reassembler::new(limits),
            reassembled: VecDeque::new(),
            echo_limit: RateLimit::new(limits.icmp_per_second, now),
            error_limit: RateLimit::new(limits.icmp_per_second, now),
            setup_due: Instant::ZERO,
            now,
        };
        match config.addressing {
            Addressing::Unset => {}
            Addressing::Static(ipv4) => stack.change_address(Some(ipv4)),
            Addressing::Dhcp => stack.dhcp = Some(dhcp::Client::new(config.mac, dhcp_seed, now)),
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

    /// Tells the stack the time. One that lies before an earlier one counts as that.
    fn at(&mut self, now: Instant) {
        self.now = self.now.max(now);
    }

    /// Takes the next frame to transmit: call until it returns `None`.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Frame> {
        let mut next = None;
        self.transmit_next(now, |frame| next = Some(frame));
        next
    }

    /// Gives `send` the next frame to transmit, as [`Self::poll_transmit`] returns it; returns whether there was one. A frame
    /// of the fast path is built in the place of `send`'s argument. Inlined for that.
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

    /// Takes the next frame to transmit, whatever it is.
    fn transmit_any(&mut self) -> Option<Frame> {
        if self.now >= self.setup_due {
            self.set_up();
        }
        if let Some(frame) = self.interface.pop() {
            return self.counted(frame);
        }
        if let Some(frame) = self.tcp.transmit(&mut around!(self)) {
            return self.counted(frame);
        }
        // What the connections had to say may have gone by way of the interface.
        let frame = self.interface.pop()?;
        self.counted(frame)
    }

    /// Whether [`Self::poll_transmit`] may have another frame, after it has returned one.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.interface.has_ready() || self.tcp.has_ready() || self.now >= self.setup_due
    }

    /// Counts a frame that leaves.
    fn counted(&mut self, frame: Frame) -> Option<Frame> {
        self.counters.bump(Counter::FramesOut);
        self.counters.add(Counter::BytesOut, frame.len() as u64);
        Some(frame)
    }

    /// Gives the head of a frame back that the device is done with, so that its memory serves another one. Optional.
    pub fn recycle(&mut self, head: IoBufMut) {
        self.interface.recycle(head);
    }

    /// When `on_timer` is to be called next; `None` while nothing waits for time to pass. Exact: an idle
    /// connection has no deadline.
    pub fn next_deadline(&mut self) -> Option<Instant> {
        self.next_deadline_before(Instant::NEVER)
    }

    /// The same, where it lies before `limit`. That takes a few instructions while it does not: for a caller who has set
    /// an alarm already.
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

    /// Acts on everything that is due at `now`. Calling it early or often does no harm.
    pub fn on_timer(&mut self, now: Instant) {
        self.at(now);
        self.set_up();
        self.on_fragment_timer();
        self.on_neighbour_timer();
        self.tcp.on_timer(&mut around!(self));
        self.setup_due = Instant::ZERO;
    }

    /// Has those act who see to the interface's addresses, and notes when they want to act next.
    #[cold]
    fn set_up(&mut self) {
        self.interface.owner = Owner::UNKNOWN;
        self.poll_dhcp();
        self.poll_autoconf();
        self.poll_dhcp6();
        self.setup_due = self.find_setup_deadline();
    }

    fn find_setup_deadline(&self) -> Instant {
        let dhcp = self.dhcp.as_ref().and_then(dhcp::Client::deadline);
        let autoconf = self.autoconf.as_ref().and_then(Autoconf::deadline);
        // Until there is an address to ask from, that is what is waited for.
        let may_ask = |_: &Instant| self.autoconf.as_ref().and_then(Autoconf::link_local).is_some();
        let dhcp6 = self.dhcp6.deadline().filter(may_ask);
        [dhcp, autoconf, dhcp6].into_iter().flatten().min().unwrap_or(Instant::NEVER)
    }

    /// Takes the next event: call until it returns `None`, and before `poll_transmit`.
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

    /// Returns the owner of the frame that was received last, of the event that was taken last, or of the frame to
    /// transmit that was taken last: whichever call was the last one.
    #[inline]
    pub fn owner(&self) -> Owner {
        self.interface.owner
    }

    /// Whether [`Self::next_event`] may have one.
    #[inline]
    pub fn may_have_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// How full the TCP tables are.
    pub fn occupancy(&self) -> Occupancy {
        let (connections, half_open, time_wait) = self.tcp.occupancy();
        Occupancy { connections, half_open, time_wait }
    }

    /// The interface's hardware address.
    pub fn mac(&self) -> MacAddr {
        self.interface.mac
    }

    /// The interface's IPv4 side; `None` while it has no address.
    pub fn ipv4(&self) -> Option<Ipv4Config> {
        self.interface.ipv4
    }

    /// Sets or takes the interface's address: on instances other than 0, what instance 0's
    /// [`Event::AddressChanged`] says. Ends a DHCP client. Connections on another address fail.
    ///
    /// An address that no host can have counts as none.
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
        let mut around = around!(self);
        self.tcp.on_address_change(&mut around);
        self.tcp.on_search_ended(&waiting, SearchOutcome::Found, &mut around);
    }

    /// Sends what the DHCP client has to say.
    fn poll_dhcp(&mut self) {
        let Some(client) = &mut self.dhcp else { return };
        let (message, change) = client.poll(self.now);
        self.apply(change);
        let Some(message) = message else { return };
        let own = self.interface.ipv4.map_or(Ipv4Addr::UNSPECIFIED, |own| own.address);
        let to = message.server.unwrap_or(Ipv4Addr::BROADCAST);
        let source = SocketAddr::new(IpAddr::V4(own), dhcp::CLIENT_PORT);
        let destination = SocketAddr::new(IpAddr::V4(to), dhcp::SERVER_PORT);
        let payload = Chain::from(IoBuf::from(message.bytes));
        if let Some(packet) = udp::packet(&mut self.interface, source, destination, payload) {
            self.interface.send(self.now, packet, &mut self.counters);
        }
    }

    fn apply(&mut self, change: Option<dhcp::Change>) {
        match change {
            Some(dhcp::Change::Gained(ipv4)) => self.change_address(Some(ipv4)),
            Some(dhcp::Change::Lost) => self.change_address(None),
            None => {}
        }
    }
}
