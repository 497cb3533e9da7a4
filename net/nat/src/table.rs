//! The table of flows: two indices, and for each client its flows in the order of their ends.

use crate::DropReason;
use crate::packet::TcpFlags;
use alloc::collections::{BTreeMap, BTreeSet};
use core::net::Ipv4Addr;
use core::time::Duration;

/// How long flows remain after their last packet.
pub mod timeouts {
    use core::time::Duration;

    /// A TCP connection (RFC 5382, requirement 5).
    pub const CONNECTION: Duration = Duration::from_secs(7440);
    /// A TCP connection that opens or has ended (RFC 5382, requirement 5).
    pub const TRANSITORY: Duration = Duration::from_secs(240);
    /// An exchange of datagrams (RFC 4787, requirement 5).
    pub const DATAGRAMS: Duration = Duration::from_secs(120);
    /// An exchange of echoes (RFC 5508, requirement 2).
    pub const ECHOES: Duration = Duration::from_secs(60);
}

/// How long a TCP connection must have been unused before a new flow of its client may replace it.
pub const IDLE: Duration = Duration::from_secs(300);

/// A protocol that is translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// ICMP echoes, whose identifier is the client's port, with 0 as the remote port.
    Echo,
}

/// A flow as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Inside {
    pub client: Ipv4Addr,
    pub port: u16,
    pub remote: Remote,
}

/// The end of a flow outside, with the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Remote {
    pub protocol: Protocol,
    pub ip: Ipv4Addr,
    pub port: u16,
}

/// A flow as the host outside sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Outer {
    pub port: u16,
    pub remote: Remote,
}

/// The direction of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Outbound,
    Inbound,
}

impl Direction {
    fn bit(self) -> u8 {
        if self == Self::Outbound { 1 } else { 2 }
    }
}

const BOTH: u8 = 3;

/// A flow.
#[derive(Clone, Copy, Debug)]
struct Flow {
    client: Ipv4Addr,
    port: u16,
    /// The directions in which packets, or a FIN, were seen.
    seen: u8,
    finished: u8,
    was_reset: bool,
    used_at: Duration,
    /// The time by which the client's order has the flow, which may be earlier than its end.
    queued_at: Duration,
}

impl Flow {
    fn is_connection(&self, protocol: Protocol) -> bool {
        protocol == Protocol::Tcp && self.seen == BOTH && self.finished != BOTH && !self.was_reset
    }

    fn ends_at(&self, protocol: Protocol) -> Duration {
        self.used_at
            + match protocol {
                Protocol::Tcp if self.is_connection(protocol) => timeouts::CONNECTION,
                Protocol::Tcp => timeouts::TRANSITORY,
                Protocol::Udp => timeouts::DATAGRAMS,
                Protocol::Echo => timeouts::ECHOES,
            }
    }

    /// Records a packet.
    fn note(&mut self, direction: Direction, flags: Option<TcpFlags>, now: Duration) {
        self.used_at = self.used_at.max(now);
        if let Some(flags) = flags {
            // The ports are used for a new connection.
            if flags.syn() && !flags.ack() && (self.finished != 0 || self.was_reset) {
                (self.seen, self.finished, self.was_reset) = (0, 0, false);
            }
            self.was_reset |= flags.rst();
            self.finished |= if flags.fin() { direction.bit() } else { 0 };
        }
        self.seen |= direction.bit();
    }
}

/// The flows.
#[derive(Debug)]
pub(crate) struct Table {
    flows: BTreeMap<Outer, Flow>,
    ports: BTreeMap<Inside, u16>,
    /// For each client its flows, each once, by [`Flow::queued_at`].
    order: BTreeMap<Ipv4Addr, BTreeSet<(Duration, Outer)>>,
    most: usize,
}

impl Table {
    /// Creates a table with at most `most` flows for each client.
    pub fn new(most: usize) -> Self {
        Self { flows: BTreeMap::new(), ports: BTreeMap::new(), order: BTreeMap::new(), most }
    }

    /// Returns the port of a flow outside, and records a packet of the client.
    pub fn outbound(&mut self, inside: &Inside, flags: Option<TcpFlags>, now: Duration) -> Option<u16> {
        let port = *self.ports.get(inside)?;
        self.note(Outer { port, remote: inside.remote }, Direction::Outbound, flags, now)?;
        Some(port)
    }

    /// Returns the client and its port, and records a packet from outside.
    pub fn inbound(
        &mut self,
        outer: Outer,
        flags: Option<TcpFlags>,
        now: Duration,
    ) -> Option<(Ipv4Addr, u16)> {
        self.note(outer, Direction::Inbound, flags, now)
    }

    fn note(
        &mut self,
        outer: Outer,
        direction: Direction,
        flags: Option<TcpFlags>,
        now: Duration,
    ) -> Option<(Ipv4Addr, u16)> {
        let flow = self.flows.get_mut(&outer)?;
        if flow.ends_at(outer.remote.protocol) <= now {
            self.remove(outer);
            return None;
        }
        let before = flow.ends_at(outer.remote.protocol);
        flow.note(direction, flags, now);
        let (client, port, queued_at) = (flow.client, flow.port, flow.queued_at);
        let ends_at = flow.ends_at(outer.remote.protocol);
        // An end that becomes earlier moves the flow at once; a later one, when the order is looked at.
        if ends_at < before {
            flow.queued_at = ends_at;
            self.requeue(client, outer, queued_at, ends_at);
        }
        Some((client, port))
    }

    /// Returns the port of a flow outside without a packet of it.
    pub fn outer_port(&self, inside: &Inside) -> Option<u16> {
        self.ports.get(inside).copied()
    }

    /// Returns the client of a flow, and its port, without a packet of it.
    pub fn client(&self, outer: &Outer) -> Option<(Ipv4Addr, u16)> {
        self.flows.get(outer).map(|flow| (flow.client, flow.port))
    }

    /// Returns whether a flow has the port, or had it and has not been removed.
    pub fn is_used(&mut self, outer: &Outer, now: Duration) -> bool {
        let Some(flow) = self.flows.get(outer) else { return false };
        let has_ended = flow.ends_at(outer.remote.protocol) <= now;
        if has_ended {
            self.remove(*outer);
        }
        !has_ended
    }

    /// Adds a flow whose port is not used, with its first packet.
    ///
    /// # Errors
    /// [`DropReason::Full`].
    pub fn add(
        &mut self,
        inside: Inside,
        port: u16,
        direction: Direction,
        flags: Option<TcpFlags>,
        now: Duration,
    ) -> Result<(), DropReason> {
        let outer = Outer { port, remote: inside.remote };
        // The same client and port with another port outside: the former flow of a published port.
        if let Some(port) = self.outer_port(&inside) {
            self.remove(Outer { port, remote: inside.remote });
        }
        while self.len_of(inside.client) >= self.most {
            self.replace_one(inside.client, now)?;
        }
        let mut flow = Flow {
            client: inside.client,
            port: inside.port,
            seen: 0,
            finished: 0,
            was_reset: false,
            used_at: now,
            queued_at: Duration::ZERO,
        };
        flow.note(direction, flags, now);
        flow.queued_at = flow.ends_at(outer.remote.protocol);
        self.order.entry(inside.client).or_default().insert((flow.queued_at, outer));
        self.flows.insert(outer, flow);
        self.ports.insert(inside, port);
        Ok(())
    }

    /// Returns the number of a client's flows.
    pub fn len_of(&self, client: Ipv4Addr) -> usize {
        self.order.get(&client).map_or(0, BTreeSet::len)
    }

    /// Removes the client's flow that ends first.
    ///
    /// # Errors
    /// [`DropReason::Full`] if that is a TCP connection in use.
    fn replace_one(&mut self, client: Ipv4Addr, now: Duration) -> Result<(), DropReason> {
        // A flow moves back in the order at most once for each time that its packets have extended it.
        while let Some((queued_at, outer)) = self.order.get(&client).and_then(|order| order.first().copied())
        {
            let protocol = outer.remote.protocol;
            let Some(flow) = self.flows.get_mut(&outer) else { break };
            let ends_at = flow.ends_at(protocol);
            if ends_at > queued_at {
                flow.queued_at = ends_at;
                self.requeue(client, outer, queued_at, ends_at);
                continue;
            }
            if flow.is_connection(protocol) && flow.used_at + IDLE > now {
                return Err(DropReason::Full);
            }
            self.remove(outer);
            return Ok(());
        }
        Err(DropReason::Full)
    }

    fn requeue(&mut self, client: Ipv4Addr, outer: Outer, from: Duration, to: Duration) {
        if let Some(order) = self.order.get_mut(&client) {
            order.remove(&(from, outer));
            order.insert((to, outer));
        }
    }

    fn remove(&mut self, outer: Outer) {
        let Some(flow) = self.flows.remove(&outer) else { return };
        self.ports.remove(&Inside { client: flow.client, port: flow.port, remote: outer.remote });
        if let Some(order) = self.order.get_mut(&flow.client) {
            order.remove(&(flow.queued_at, outer));
            if order.is_empty() {
                self.order.remove(&flow.client);
            }
        }
    }

    /// Removes all flows of a client.
    pub fn forget(&mut self, client: Ipv4Addr) {
        for (_, outer) in self.order.remove(&client).unwrap_or_default() {
            self.remove(outer);
        }
    }

    /// Removes all flows.
    pub fn clear(&mut self) {
        *self = Self::new(self.most);
    }
}
