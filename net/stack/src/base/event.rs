//! The stack's events for the layer above, and the ids of connections, sockets and listeners.
//!
//! Events are edge-triggered and none is lost: an event reports that a condition has become true since the same event
//! was last taken. Each kind waits at most once per connection or socket, so the queue is bounded by construction.
//! After `Readable` the caller reads until nothing is left; after a rejected `send` it gets `SendSpace` once.

use super::address::{Ipv4Config, MacAddr};
use super::order::Order;
use super::slab::Key;
use alloc::collections::VecDeque;
use core::fmt;
use core::net::{IpAddr, SocketAddr};

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
    /// Returns a small number that no other existing connection has, to index an application's table.
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

impl UdpId {
    /// Returns a small number that no other existing socket has, to index an application's table.
    pub const fn index(self) -> usize {
        self.0.index as usize
    }
}

/// An event for the layer above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A handshake of a listener completed. The connection belongs to the application from here on.
    Accepted {
        /// The listener.
        listener: ListenerId,
        /// The new connection.
        conn: ConnId,
    },
    /// A connection opened by `connect` is established.
    Connected(ConnId),
    /// Data arrived since this event was last taken: call `read` until it returns `None`.
    Readable(ConnId),
    /// There is room for data that `send` rejected.
    SendSpace(ConnId),
    /// The peer has ended its stream (half-close): after the data that `read` still returns, there is no more.
    PeerClosed(ConnId),
    /// Both directions ended in order and all data was read. The id is invalid from now on.
    Closed(ConnId),
    /// The connection was aborted; unread and unsent data is lost. The id is invalid from now on.
    Failed(ConnId, FailReason),
    /// Datagrams arrived since this event was last taken: call `udp_receive` until it returns `None`.
    Datagram(UdpId),
    /// A host reports that it has no socket at the port to which a datagram was sent. If several stacks share the interface,
    /// instance 0 receives all such reports. They are not authentic: anybody can send them.
    DatagramRefused {
        /// Our port.
        port: u16,
        /// The destination of the datagram.
        remote: SocketAddr,
    },
    /// The interface's address changed. On instance 0: pass it to `set_ipv4` of the other instances.
    AddressChanged(Option<Ipv4Config>),
    /// The IPv6 settings changed. On instance 0: pass `ipv6` to `set_ipv6` of the other instances.
    Ipv6Changed,
    /// A neighbour's hardware address was learned. If several stacks share the interface, instance 0 receives all ARP
    /// and NDP packets: pass this to `learn` of the other instances.
    Neighbour {
        /// The neighbour.
        ip: IpAddr,
        /// Its hardware address.
        mac: MacAddr,
        /// The evidence for the address.
        evidence: Evidence,
    },
}

/// The evidence for a neighbour's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The neighbour answered a request, so it receives our packets.
    Confirmed,
    /// An unsolicited claim, of the neighbour or of another host: verified on use.
    Claimed,
}

/// The reason for which a connection was aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The peer reset an established connection.
    Reset,
    /// The remote port has no listener.
    Refused,
    /// The peer stopped answering.
    TimedOut,
    /// A router reported that the destination is unreachable, or the neighbour did not answer.
    Unreachable,
    /// The interface has lost the local address.
    AddressLost,
}

impl fmt::Display for FailReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "the peer reset the connection",
            Self::Refused => "the port has no listener; check the port",
            Self::TimedOut => "the peer does not answer",
            Self::Unreachable => "there is no way to the peer; check address and gateway",
            Self::AddressLost => "the local address was taken away; connect again",
        })
    }
}

/// The order of events. Connections and sockets have their own flags and are queued at most once each, by their indices
/// in their tables; all other events are in a short separate queue.
#[derive(Debug)]
pub(crate) struct EventQueue {
    pub connections: Order,
    pub sockets: Order,
    /// The current address, if it changed: a newer one replaces it, and it is never lost.
    address: Option<Option<Ipv4Config>>,
    /// Whether the IPv6 settings changed.
    ipv6: Ipv6Change,
    /// Whether an address, IPv6 or other event waits: a single check if none does.
    news: Pending,
    notices: VecDeque<Event>,
    notice_limit: usize,
}

impl EventQueue {
    pub const fn new(notice_limit: usize) -> Self {
        Self {
            connections: Order::new(),
            sockets: Order::new(),
            address: None,
            ipv6: Ipv6Change::None,
            news: Pending::None,
            notices: VecDeque::new(),
            notice_limit,
        }
    }

    /// Queues an event that belongs to no connection and no socket. A full queue drops its oldest.
    pub fn notice(&mut self, event: Event) {
        if self.notices.len() >= self.notice_limit.max(1) {
            self.notices.pop_front();
        }
        self.notices.push_back(event);
        self.news = Pending::Some;
    }

    /// Reports a change of the IPv4 address.
    pub fn address_changed(&mut self, address: Option<Ipv4Config>) {
        self.address = Some(address);
        self.news = Pending::Some;
    }

    /// Reports a change of the IPv6 settings.
    pub fn ipv6_changed(&mut self) {
        self.ipv6 = Ipv6Change::Changed;
        self.news = Pending::Some;
    }

    /// Returns whether no event waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.news == Pending::None && self.sockets.first().is_none() && self.connections.first().is_none()
    }

    /// Takes an event that belongs to no connection and no socket.
    #[inline]
    pub fn take_notice(&mut self) -> Option<Event> {
        if self.news == Pending::None { None } else { self.take_news() }
    }

    #[cold]
    fn take_news(&mut self) -> Option<Event> {
        let event = self.first_news();
        if event.is_none() {
            self.news = Pending::None;
        }
        event
    }

    fn first_news(&mut self) -> Option<Event> {
        match self.address.take() {
            Some(address) => Some(Event::AddressChanged(address)),
            None if core::mem::take(&mut self.ipv6) == Ipv6Change::Changed => Some(Event::Ipv6Changed),
            None => self.notices.pop_front(),
        }
    }
}

/// Whether an event may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    None,
    Some,
}

/// Whether the IPv6 settings changed since the last event about them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Ipv6Change {
    #[default]
    None,
    Changed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::Ipv4Addr;

    #[test]
    fn a_full_queue_of_notices_drops_its_oldest() {
        let event = |number: u8| Event::Neighbour {
            ip: Ipv4Addr::new(10, 0, 0, number).into(),
            mac: MacAddr([number; 6]),
            evidence: Evidence::Claimed,
        };
        let mut queue = EventQueue::new(2);
        (1..=3).for_each(|number| queue.notice(event(number)));
        assert_eq!(queue.take_notice(), Some(event(2)));
        assert_eq!(queue.take_notice(), Some(event(3)));
        assert_eq!(queue.take_notice(), None);
    }
}
