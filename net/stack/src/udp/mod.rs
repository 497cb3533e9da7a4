//! UDP (RFC 768): sockets with bounded queues of datagrams.

mod sent;

pub(crate) use sent::SentDatagrams;

use crate::base::{Counter, EventQueue, Flow, Limits, Owner, RxChecksum, Slab, Sum, UdpId};
use crate::ip::{IPV4_HEADER_LEN, IPV6_HEADER_LEN, Interface, Packet};
use crate::steering::CoreShare;
use alloc::collections::{BTreeMap, VecDeque};
use core::fmt;
use core::net::{IpAddr, SocketAddr};
use etherparse::{IpNumber, UdpHeaderSlice};
use isola_iobuf::{Chain, IoBuf};

/// Length of the header, in bytes.
pub(crate) const HEADER_LEN: usize = 8;
/// The offset of the checksum in the header.
const CHECKSUM_OFFSET: u16 = 6;
/// The first ephemeral port (RFC 6335's dynamic range).
const FIRST_EPHEMERAL: u16 = 49_152;

/// A received datagram.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The sender.
    pub remote: SocketAddr,
    /// The destination address: the interface's own, or a broadcast address.
    pub local: IpAddr,
    /// Its payload, a view of the received frame.
    pub payload: IoBuf,
}

/// The reason for which a socket cannot be bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindError {
    /// The port is taken.
    PortInUse(u16),
    /// No port is free.
    NoPorts,
    /// The configured number of sockets is reached.
    TooManySockets,
}

impl fmt::Display for BindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PortInUse(port) => {
                write!(f, "UDP port {port} is taken; choose another or close its socket")
            }
            Self::NoPorts => f.write_str("no UDP port is free; close a socket"),
            Self::TooManySockets => f.write_str("no UDP socket is free; close one or raise udp_sockets"),
        }
    }
}

impl core::error::Error for BindError {}

/// The reason for which a datagram was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendToError {
    /// The socket was closed.
    NoSocket,
    /// The payload does not fit into one packet; the limit in bytes.
    TooLong(usize),
    /// The interface has no address yet.
    NoAddress,
    /// There is no route to the destination.
    NoRoute,
    /// The transmit queue is full; send again when the device has taken some frames.
    Congested,
}

impl fmt::Display for SendToError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSocket => f.write_str("the UDP socket is closed; bind one"),
            Self::TooLong(limit) => write!(f, "the datagram is too long; send at most {limit} bytes"),
            Self::NoAddress => f.write_str("the interface has no address yet; wait for AddressChanged"),
            Self::NoRoute => f.write_str("no way leads there; check address and gateway"),
            Self::Congested => f.write_str("the transmit queue is full; try again later"),
        }
    }
}

impl core::error::Error for SendToError {}

#[derive(Debug)]
struct Socket {
    port: u16,
    queue: VecDeque<Datagram>,
    /// Memory of the queued datagrams, in bytes.
    bytes: usize,
    /// The owner of all work for the socket.
    owner: Owner,
}

/// A received datagram without its header.
pub(crate) struct ReceivedDatagram {
    pub source_port: u16,
    pub destination_port: u16,
    pub payload: IoBuf,
}

/// Removes the header and verifies the checksum.
pub(crate) fn parse(
    mut datagram: IoBuf,
    source: IpAddr,
    destination: IpAddr,
    checksum: RxChecksum,
) -> Result<ReceivedDatagram, Counter> {
    let header = UdpHeaderSlice::from_slice(&datagram).map_err(|_| Counter::DropUdpMalformed)?;
    let len = usize::from(header.length());
    let (source_port, destination_port) = (header.source_port(), header.destination_port());
    // The checksum is mandatory over IPv6 (RFC 8200 8.1).
    let summed = (header.checksum() != 0 || source.is_ipv6()) && checksum == RxChecksum::Unverified;
    if len < HEADER_LEN || len > datagram.len() || destination_port == 0 {
        return Err(Counter::DropUdpMalformed);
    }
    datagram.truncate(len);
    if summed {
        let mut sum = Sum::pseudo_header(source, destination, IpNumber::UDP.0, len);
        sum.add(&datagram);
        if sum.checksum() != 0 {
            return Err(Counter::DropUdpChecksum);
        }
    }
    datagram.advance(HEADER_LEN);
    Ok(ReceivedDatagram { source_port, destination_port, payload: datagram })
}

/// Creates the packet of a datagram. Returns `None` if it is too long for UDP.
pub(crate) fn packet(
    interface: &mut Interface,
    source: SocketAddr,
    destination: SocketAddr,
    payload: Chain,
) -> Option<Packet> {
    let len = u16::try_from(HEADER_LEN + payload.len()).ok()?;
    let mut head = interface.pool.take();
    let bytes: &mut [u8; HEADER_LEN] = head.prepend(HEADER_LEN)?.try_into().ok()?;
    bytes[0..2].copy_from_slice(&source.port().to_be_bytes());
    bytes[2..4].copy_from_slice(&destination.port().to_be_bytes());
    bytes[4..6].copy_from_slice(&len.to_be_bytes());
    bytes[6..8].fill(0);
    let ends = (source.ip(), destination.ip());
    let checksum_offset = interface.seal(&mut head, &payload, ends, IpNumber::UDP, CHECKSUM_OFFSET);
    Some(Packet {
        source: source.ip(),
        destination: destination.ip(),
        protocol: IpNumber::UDP,
        head,
        payload,
        checksum_offset,
    })
}

/// Returns the longest payload that fits into one packet of `mtu` bytes to `destination`.
pub(crate) fn max_payload(mtu: usize, destination: IpAddr) -> usize {
    let ip = if destination.is_ipv4() { IPV4_HEADER_LEN } else { IPV6_HEADER_LEN };
    mtu.saturating_sub(ip + HEADER_LEN)
}

/// All sockets of one stack.
#[derive(Debug)]
pub(crate) struct UdpSockets {
    sockets: Slab<Socket>,
    ports: BTreeMap<u16, u32>,
    datagram_limit: usize,
    byte_limit: usize,
    core: CoreShare,
    /// The start of the search for a free port, which advances with each assigned port.
    next_port: u16,
}

impl UdpSockets {
    pub fn new(limits: &Limits, core: CoreShare, seed: u64) -> Self {
        Self {
            sockets: Slab::new(limits.udp_sockets),
            ports: BTreeMap::new(),
            datagram_limit: limits.udp_datagrams,
            byte_limit: limits.udp_bytes,
            core,
            next_port: FIRST_EPHEMERAL | seed as u16,
        }
    }

    /// Creates a socket with a port.
    pub fn bind(&mut self, port: u16) -> Result<UdpId, BindError> {
        if self.ports.contains_key(&port) {
            return Err(BindError::PortInUse(port));
        }
        let socket = Socket { port, queue: VecDeque::new(), bytes: 0, owner: Owner::UNKNOWN };
        let key = self.sockets.insert(socket).map_err(|_| BindError::TooManySockets)?;
        self.ports.insert(port, key.index);
        Ok(UdpId(key))
    }

    /// Creates a socket for `remote`, on a free port whose flow belongs to this core.
    pub fn bind_for(&mut self, local: IpAddr, remote: SocketAddr) -> Result<UdpId, BindError> {
        for _ in FIRST_EPHEMERAL..=u16::MAX {
            let port = self.next_port;
            self.next_port = port.wrapping_add(1) | FIRST_EPHEMERAL;
            let flow = Flow { local: SocketAddr::new(local, port), remote };
            if self.core.serves(&flow) && !self.ports.contains_key(&port) {
                return self.bind(port);
            }
        }
        Err(BindError::NoPorts)
    }

    /// Closes a socket; its queued datagrams are lost.
    pub fn close(&mut self, id: UdpId, events: &mut EventQueue) {
        if let Some(socket) = self.sockets.remove(id.0) {
            events.sockets.remove(id.0.index);
            self.ports.remove(&socket.port);
        }
    }

    /// Sets the owner of all work for a socket.
    pub fn set_owner(&mut self, id: UdpId, owner: Owner) {
        if let Some(socket) = self.sockets.get_mut(id.0) {
            socket.owner = owner;
        }
    }

    /// Returns the owner of the socket at an index of the table.
    pub fn owner_at(&self, index: u32) -> Owner {
        self.sockets.at(index).map_or(Owner::UNKNOWN, |socket| socket.owner)
    }

    /// Returns the owner of the socket that is bound to `port`.
    pub fn owner_of_port(&self, port: u16) -> Owner {
        self.ports.get(&port).map_or(Owner::UNKNOWN, |&index| self.owner_at(index))
    }

    /// Returns the port of a socket.
    pub fn port(&self, id: UdpId) -> Option<u16> {
        self.sockets.get(id.0).map(|socket| socket.port)
    }

    /// Returns whether a socket is bound to `port`.
    pub fn is_bound(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// Queues a datagram for the socket of its port, or returns the reason for its drop.
    pub fn deliver(&mut self, port: u16, datagram: Datagram, events: &mut EventQueue) -> Result<(), Counter> {
        let index = *self.ports.get(&port).ok_or(Counter::DropUdpPort)?;
        let socket = self.sockets.at_mut(index).ok_or(Counter::DropUdpPort)?;
        let bytes = datagram.payload.storage_len();
        if socket.queue.len() >= self.datagram_limit || socket.bytes + bytes > self.byte_limit {
            return Err(Counter::DropUdpQueueFull);
        }
        socket.bytes += bytes;
        socket.queue.push_back(datagram);
        events.sockets.push_new(index);
        Ok(())
    }

    /// Takes the oldest datagram.
    pub fn receive(&mut self, id: UdpId) -> Option<Datagram> {
        let socket = self.sockets.get_mut(id.0)?;
        let datagram = socket.queue.pop_front()?;
        socket.bytes = socket.bytes.saturating_sub(datagram.payload.storage_len());
        Some(datagram)
    }

    /// Returns the id of the socket at an index of the table.
    pub fn id_at(&self, index: u32) -> Option<UdpId> {
        self.sockets.key_at(index).map(UdpId)
    }
}
