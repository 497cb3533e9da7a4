//! What the stack tells the layer above, and the names by which the two speak of things.
//!
//! Events are *edges* with nothing lost: an event says that something came to be true since the same event
//! was last taken, and each kind waits at most once per connection or socket, so the queue is bounded by
//! construction. Whoever takes `Readable` reads until nothing is left; whoever is refused by `send` gets
//! `SendSpace` once.

use crate::address::{Ipv4Config, MacAddr};
use crate::neighbour::Evidence;
use crate::order::Order;
use crate::slab::Key;
use alloc::collections::VecDeque;
use core::fmt;
use core::net::IpAddr;

/// A TCP connection of this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub(crate) Key);

/// A UDP socket of this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UdpId(pub(crate) Key);

/// A listening TCP port of this stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) Key);

impl ConnId {
    /// A small number that no other connection alive has: an index for the application's own table.
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

impl UdpId {
    /// A small number that no other socket alive has: an index for the application's own table.
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// Something happened that the layer above may act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A listener's handshake completed. The connection is the application's from here on.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        conn: ConnId,
    },
    /// A connection made by `connect` is established.
    Connected(ConnId),
    /// Data came in since this event was last taken: `read` until it returns `None`.
    Readable(ConnId),
    /// What `send` refused for want of space fits now.
    SendSpace(ConnId),
    /// The peer has sent all it will (half-close): after the data that `read` still returns, nothing follows.
    PeerClosed(ConnId),
    /// Both directions ended in good order and all data was read. The id is void from now on.
    Closed(ConnId),
    /// The connection ended otherwise; unread and unsent data are gone. The id is void from now on.
    Failed(ConnId, FailReason),
    /// Datagrams came in since this event was last taken: `udp_receive` until it returns `None`.
    Datagram(UdpId),
    /// The interface's address changed. On instance 0: pass it to the other instances' `set_ipv4`.
    AddressChanged(Option<Ipv4Config>),
    /// What the interface uses of IPv6 changed. On instance 0: pass its `ipv6` to the other instances'
    /// `set_ipv6`.
    Ipv6Changed,
    /// A neighbour's hardware address was learned. Where several stacks share the interface, instance 0 gets
    /// all ARP and NDP traffic: pass it to the other instances' `learn`.
    Neighbour {
        /// The neighbour.
        ip: IpAddr,
        /// Its hardware address.
        mac: MacAddr,
        /// Why it is believed.
        evidence: Evidence,
    },
}

/// Why a connection ended before its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The peer reset an established connection.
    Reset,
    /// Nobody listens at the remote port.
    Refused,
    /// The peer stopped answering.
    TimedOut,
    /// A router or the neighbour search says that there is no way there.
    Unreachable,
    /// The local address is no longer this interface's.
    AddressLost,
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "the peer reset the connection",
            Self::Refused => "nobody listens there; check the port",
            Self::TimedOut => "the peer does not answer",
            Self::Unreachable => "there is no way to the peer; check address and gateway",
            Self::AddressLost => "the local address was taken away; connect again",
        })
    }
}

/// The order in which events are taken. Connections and sockets keep their own flags and stand here at most
/// once each, by their places in their tables; the rest is a short queue by itself.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub connections: Order,
    pub sockets: Order,
    /// The address as it is now, where it changed: never lost, the newest replaces an older one.
    address: Option<Option<Ipv4Config>>,
    /// Whether the IPv6 settings changed.
    ipv6: Ipv6News,
    /// Whether any of this and of the notices waits: one look where nothing does.
    news: News,
    notices: VecDeque<Event>,
    notice_limit: usize,
}

impl EventQueue {
    pub const fn new(notice_limit: usize) -> Self {
        Self {
            connections: Order::new(),
            sockets: Order::new(),
            address: None,
            ipv6: Ipv6News::None,
            news: News::None,
            notices: VecDeque::new(),
            notice_limit,
        }
    }

    /// Queues an event that is no connection's and no socket's. A full queue loses its oldest.
    pub fn notice(&mut self, event: Event) {
        if self.notices.len() >= self.notice_limit.max(1) {
            self.notices.pop_front();
        }
        self.notices.push_back(event);
        self.news = News::Some;
    }

    /// The IPv4 address is another one.
    pub fn address_changed(&mut self, address: Option<Ipv4Config>) {
        self.address = Some(address);
        self.news = News::Some;
    }

    /// What is used of IPv6 is something else.
    pub fn ipv6_changed(&mut self) {
        self.ipv6 = Ipv6News::Changed;
        self.news = News::Some;
    }

    /// Whether there is nothing to tell.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.news == News::None && self.sockets.first().is_none() && self.connections.first().is_none()
    }

    /// Takes what is no connection's and no socket's.
    #[inline]
    pub fn take_notice(&mut self) -> Option<Event> {
        if self.news == News::None { None } else { self.take_news() }
    }

    #[cold]
    fn take_news(&mut self) -> Option<Event> {
        let event = self.first_news();
        if event.is_none() {
            self.news = News::None;
        }
        event
    }

    fn first_news(&mut self) -> Option<Event> {
        match self.address.take() {
            Some(address) => Some(Event::AddressChanged(address)),
            None if core::mem::take(&mut self.ipv6) == Ipv6News::Changed => Some(Event::Ipv6Changed),
            None => self.notices.pop_front(),
        }
    }
}

/// Whether there may be something to tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    None,
    Some,
}

/// Whether the IPv6 settings changed since that was last told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ipv6News {
    #[default]
    None,
    Changed,
}
