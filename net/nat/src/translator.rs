//! The translation of IPv4 packets.

use crate::packet::{Content, End, Packet, TcpFlags};
use crate::table::{Direction, Inside, Outer, Protocol, Remote, Table};
use crate::{DropReason, Prefix};
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::net::Ipv4Addr;
use core::str::FromStr;
use core::time::Duration;

/// The least port outside of a flow that a client opens: those below are the serving cell's own and published ones.
pub const LEAST_PORT: u16 = 1024;

/// The most ports that are tried for a flow whose client's port is in use.
const MOST_TRIES: u32 = 64;

/// A published port: connections and datagrams to a port of the serving cell go to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// The port of the serving cell.
    pub port: u16,
    /// The client's name.
    pub client: String,
    /// The client's port.
    pub client_port: u16,
}

/// A published port is not written as `PORT:CELL:PORT[/udp]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardError;

impl fmt::Display for ForwardError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a published port is PORT:CELL:PORT[/udp], as in 8080:web:80")
    }
}

impl core::error::Error for ForwardError {}

impl FromStr for Forward {
    type Err = ForwardError;

    fn from_str(text: &str) -> Result<Self, ForwardError> {
        let (ports, protocol) = match text.split_once('/') {
            None | Some((_, "tcp")) => (text.split('/').next().unwrap_or(text), Protocol::Tcp),
            Some((ports, "udp")) => (ports, Protocol::Udp),
            Some(_) => return Err(ForwardError),
        };
        let (port, rest) = ports.split_once(':').ok_or(ForwardError)?;
        let (client, client_port) = rest.split_once(':').ok_or(ForwardError)?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0).ok_or(ForwardError);
        if client.is_empty() {
            return Err(ForwardError);
        }
        Ok(Self { protocol, port: number(port)?, client: client.into(), client_port: number(client_port)? })
    }
}

/// The target of a packet from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The stack of the serving cell.
    Own,
    /// A client, to which the packet was translated.
    Client(Ipv4Addr),
}

/// A published port with the address of its client, if it has one by now.
#[derive(Debug)]
struct Published {
    forward: Forward,
    client: Option<Ipv4Addr>,
}

/// The translator.
#[derive(Debug)]
pub(crate) struct Translator {
    table: Table,
    prefix: Prefix,
    published: Vec<Published>,
}

impl Translator {
    pub fn new(prefix: Prefix, forwards: Vec<Forward>, most_flows: usize) -> Self {
        let published = forwards.into_iter().map(|forward| Published { forward, client: None }).collect();
        Self { table: Table::new(most_flows), prefix, published }
    }

    /// Records the address of a client, whose flows of an earlier address end.
    pub fn set_client(&mut self, name: &str, ip: Ipv4Addr) {
        for published in self.published.iter_mut().filter(|published| published.forward.client == name) {
            published.client = Some(ip);
        }
    }

    /// Removes a client that no longer has this address.
    pub fn forget(&mut self, ip: Ipv4Addr) {
        self.table.forget(ip);
        for published in self.published.iter_mut().filter(|published| published.client == Some(ip)) {
            published.client = None;
        }
    }

    /// Removes all flows: the serving cell has another address.
    pub fn clear(&mut self) {
        self.table.clear();
    }

    /// Returns the number of a client's flows.
    pub fn flows_of(&self, client: Ipv4Addr) -> usize {
        self.table.len_of(client)
    }

    /// Translates a packet of a client to the address `own`, and returns its destination.
    pub fn outbound(
        &mut self,
        client: Ipv4Addr,
        own: Ipv4Addr,
        bytes: &mut [u8],
        now: Duration,
    ) -> Result<Ipv4Addr, DropReason> {
        let mut packet = Packet::parse(bytes)?;
        if packet.address(End::Source) != client {
            return Err(DropReason::ForeignAddress);
        }
        let destination = packet.address(End::Destination);
        if destination == own || self.prefix.contains(destination) || !is_host(destination) {
            return Err(DropReason::Destination);
        }
        let content = packet.content()?;
        if !packet.pass() {
            return Err(DropReason::Hops);
        }
        let remote = |protocol, port| Remote { protocol, ip: destination, port };
        let (inside, flags) = match content {
            Content::Tcp(flags) => (
                Inside {
                    client,
                    port: packet.port(End::Source),
                    remote: remote(Protocol::Tcp, packet.port(End::Destination)),
                },
                Some(flags),
            ),
            Content::Udp => (
                Inside {
                    client,
                    port: packet.port(End::Source),
                    remote: remote(Protocol::Udp, packet.port(End::Destination)),
                },
                None,
            ),
            Content::EchoRequest => {
                (Inside { client, port: packet.identifier(), remote: remote(Protocol::Echo, 0) }, None)
            }
            // Requests from outside are not translated.
            Content::EchoReply => return Err(DropReason::NoFlow),
            Content::Error => {
                self.outbound_error(client, own, &mut packet)?;
                return Ok(destination);
            }
        };
        let port = match self.table.outbound(&inside, flags, now) {
            Some(port) => port,
            None => self.open(inside, flags, now)?,
        };
        packet.translate(End::Source, own, port);
        Ok(destination)
    }

    /// Opens a flow of a client, and returns its port outside.
    fn open(&mut self, inside: Inside, flags: Option<TcpFlags>, now: Duration) -> Result<u16, DropReason> {
        // A reset opens nothing.
        if flags.is_some_and(TcpFlags::rst) {
            return Err(DropReason::NoFlow);
        }
        let port = self.choose_port(&inside, now).ok_or(DropReason::Full)?;
        self.table.add(inside, port, Direction::Outbound, flags, now)?;
        Ok(port)
    }

    /// Chooses the port outside: of the published port that the flow belongs to, the client's own, or another one, which is
    /// always tried in the same order, so that a flow has the same port when an empty table learns it again.
    fn choose_port(&mut self, inside: &Inside, now: Duration) -> Option<u16> {
        let Inside { client, port, remote } = *inside;
        let published = self.published.iter().find(|published| {
            let Forward { protocol, client_port, .. } = published.forward;
            published.client == Some(client) && (protocol, client_port) == (remote.protocol, port)
        });
        let published = published.map(|published| published.forward.port);
        if let Some(port) = published.filter(|port| !self.table.is_used(&Outer { port: *port, remote }, now))
        {
            return Some(port);
        }
        let range = u32::from(u16::MAX - LEAST_PORT) + 1;
        let first = hash(inside);
        let others = (0..MOST_TRIES).map(|step| LEAST_PORT + (first.wrapping_add(step) % range) as u16);
        let preserved = (port >= LEAST_PORT || remote.protocol == Protocol::Echo).then_some(port);
        preserved.into_iter().chain(others).find(|port| {
            !self.is_published(remote.protocol, *port)
                && !self.table.is_used(&Outer { port: *port, remote }, now)
        })
    }

    fn is_published(&self, protocol: Protocol, port: u16) -> bool {
        self.find_published(protocol, port).is_some()
    }

    fn find_published(&self, protocol: Protocol, port: u16) -> Option<&Published> {
        self.published
            .iter()
            .find(|published| (published.forward.protocol, published.forward.port) == (protocol, port))
    }

    /// Translates a client's error about a packet that it received.
    fn outbound_error(
        &mut self,
        client: Ipv4Addr,
        own: Ipv4Addr,
        packet: &mut Packet<'_>,
    ) -> Result<(), DropReason> {
        let inner = packet.inner()?;
        if inner.destination != client || inner.source != packet.address(End::Destination) {
            return Err(DropReason::ForeignAddress);
        }
        let remote = Remote { protocol: inner.protocol, ip: inner.source, port: inner.source_port };
        let inside = Inside { client, port: inner.destination_port, remote };
        let port = self.table.outer_port(&inside).ok_or(DropReason::NoFlow)?;
        packet.translate_error((End::Source, own), (End::Destination, own, port));
        Ok(())
    }

    /// Translates a packet from outside to the address `own`, if it is for a client.
    pub fn inbound(&mut self, own: Ipv4Addr, bytes: &mut [u8], now: Duration) -> Result<Target, DropReason> {
        // The stack knows fragments, options and other protocols.
        let Ok(mut packet) = Packet::parse(bytes) else { return Ok(Target::Own) };
        if packet.address(End::Destination) != own {
            return Ok(Target::Own);
        }
        let Ok(content) = packet.content() else { return Ok(Target::Own) };
        let ip = packet.address(End::Source);
        let remote = |protocol, port| Remote { protocol, ip, port };
        let port = packet.port(End::Destination);
        let (outer, flags) = match content {
            Content::Tcp(flags) => {
                (Outer { port, remote: remote(Protocol::Tcp, packet.port(End::Source)) }, Some(flags))
            }
            Content::Udp => (Outer { port, remote: remote(Protocol::Udp, packet.port(End::Source)) }, None),
            Content::EchoReply => {
                (Outer { port: packet.identifier(), remote: remote(Protocol::Echo, 0) }, None)
            }
            Content::EchoRequest => return Ok(Target::Own),
            Content::Error => return self.inbound_error(own, &mut packet),
        };
        let found = match self.table.inbound(outer, flags, now) {
            Some(found) => Some(found),
            None => self.open_published(outer, flags, now)?,
        };
        let Some((client, port)) = found else {
            let is_known = flags.is_some_and(|flags| continues_connection(outer.port, flags));
            return if is_known { Err(DropReason::NoFlow) } else { Ok(Target::Own) };
        };
        if !packet.pass() {
            return Err(DropReason::Hops);
        }
        packet.translate(End::Destination, client, port);
        Ok(Target::Client(client))
    }

    /// Opens a flow at a published port, if it is one, and returns the client with its port.
    fn open_published(
        &mut self,
        outer: Outer,
        flags: Option<TcpFlags>,
        now: Duration,
    ) -> Result<Option<(Ipv4Addr, u16)>, DropReason> {
        let Some(published) = self.find_published(outer.remote.protocol, outer.port) else {
            return Ok(None);
        };
        let client_port = published.forward.client_port;
        let client = published.client.ok_or(DropReason::NoFlow)?;
        if flags.is_some_and(TcpFlags::rst) || !is_host(outer.remote.ip) {
            return Err(DropReason::NoFlow);
        }
        let inside = Inside { client, port: client_port, remote: outer.remote };
        self.table.add(inside, outer.port, Direction::Inbound, flags, now)?;
        Ok(Some((client, client_port)))
    }

    /// Translates an error about a packet of a client.
    fn inbound_error(&mut self, own: Ipv4Addr, packet: &mut Packet<'_>) -> Result<Target, DropReason> {
        let Ok(inner) = packet.inner() else { return Ok(Target::Own) };
        if inner.source != own {
            return Ok(Target::Own);
        }
        let remote = Remote { protocol: inner.protocol, ip: inner.destination, port: inner.destination_port };
        let Some((client, port)) = self.table.client(&Outer { port: inner.source_port, remote }) else {
            return Ok(Target::Own);
        };
        if !packet.pass() {
            return Err(DropReason::Hops);
        }
        packet.translate_error((End::Destination, client), (End::Source, client, port));
        Ok(Target::Client(client))
    }
}

/// Returns whether a segment from outside to `port` continues a connection that can be a client's. Without a flow in the
/// table it is of an earlier incarnation of the service cell, whose own stack would reset the connection.
pub(crate) fn continues_connection(port: u16, flags: TcpFlags) -> bool {
    port >= LEAST_PORT && (!flags.syn() || flags.ack())
}

/// Returns whether a host can have the address.
fn is_host(ip: Ipv4Addr) -> bool {
    let [first, ..] = ip.octets();
    first != 0 && !ip.is_loopback() && first < 224
}

/// A hash of a flow (FNV-1a), by which its port is searched.
fn hash(inside: &Inside) -> u32 {
    let Inside { client, port, remote } = inside;
    let words = [client.to_bits(), u32::from(*port) << 16 | u32::from(remote.port), remote.ip.to_bits()];
    let bytes = words.iter().flat_map(|word| word.to_be_bytes());
    bytes.fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}
