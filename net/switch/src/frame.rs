//! The parser of Ethernet frames: addresses, and as much of the payload as the switch's rules need.
//!
//! Every field comes from a cell or from the network: a packet that is shorter than its own lengths demand is
//! [`Payload::Other`].

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An Ethernet hardware address.
pub type Mac = [u8; 6];

/// Length of an Ethernet header.
pub const HEADER_LEN: usize = 14;

/// The type of an ICMPv6 neighbour solicitation (RFC 4861 4.3).
const NEIGHBOUR_SOLICITATION: u8 = 135;

/// A frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The receiver.
    pub destination: Mac,
    /// The sender.
    pub source: Mac,
    /// The payload.
    pub payload: Payload<'a>,
}

/// The payload of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// An ARP packet for IPv4 on Ethernet (RFC 826).
    Arp {
        /// The sender's hardware address, as the packet claims it.
        sender_mac: Mac,
        /// The sender's IPv4 address, as the packet claims it.
        sender: Ipv4Addr,
        /// The address whose owner the packet asks for. An announcement of the sender's own address (RFC 5227 3) asks for
        /// none.
        requested: Option<Ipv4Addr>,
    },
    /// An IPv4 packet.
    Ipv4 {
        /// The source address.
        source: Ipv4Addr,
        /// The destination address.
        destination: Ipv4Addr,
        /// The content.
        content: Content<'a>,
    },
    /// An IPv6 packet.
    Ipv6 {
        /// The source address.
        source: Ipv6Addr,
        /// The destination address.
        destination: Ipv6Addr,
        /// The content.
        content: Content<'a>,
    },
    /// Anything else, or a malformed packet.
    Other,
}

/// The content of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// A TCP segment.
    Tcp {
        /// The destination port.
        to: u16,
        /// Whether the segment opens a connection: SYN without ACK.
        opens: bool,
    },
    /// A UDP datagram, or its first fragment.
    Udp {
        /// The source port.
        from: u16,
        /// The destination port.
        to: u16,
        /// The datagram's data.
        data: &'a [u8],
    },
    /// ICMP, or ICMPv6.
    Icmp {
        /// The message type.
        kind: u8,
        /// The bytes after type, code and checksum.
        rest: &'a [u8],
    },
    /// A fragment other than the first, of a protocol other than TCP.
    Fragment,
    /// Another protocol, or one of these in a form without a legitimate use: fragmented TCP, or truncated headers.
    Other,
}

impl<'a> Frame<'a> {
    /// Parses a frame; returns `None` if it is shorter than an Ethernet header.
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, rest) = bytes.split_first_chunk::<HEADER_LEN>()?;
        let payload = match u16::from_be_bytes([header[12], header[13]]) {
            0x0806 => arp(rest),
            0x0800 => ipv4(rest),
            0x86dd => ipv6(rest),
            _ => None,
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, ..] = *header;
        Some(Self {
            destination: [d0, d1, d2, d3, d4, d5],
            source: [s0, s1, s2, s3, s4, s5],
            payload: payload.unwrap_or(Payload::Other),
        })
    }
}

impl Payload<'_> {
    /// Returns whether a packet is for all routers of a link: a router solicitation, or a report of multicast groups
    /// (RFC 4861 4.1, RFC 3810 5.2.14, RFC 3376 4.2.14).
    pub fn is_for_routers(&self) -> bool {
        match self {
            Self::Ipv4 { destination, .. } => matches!(destination.octets(), [224, 0, 0, 2 | 22]),
            Self::Ipv6 { destination, .. } => {
                matches!(destination.segments(), [0xff02, 0, 0, 0, 0, 0, 0, 2 | 0x16])
            }
            Self::Arp { .. } | Self::Other => false,
        }
    }

    /// Returns the address whose owner a packet asks for: an ARP request, or a neighbour solicitation (RFC 4861 4.3).
    pub fn requested(&self) -> Option<IpAddr> {
        match *self {
            Self::Arp { requested, .. } => requested.map(IpAddr::from),
            Self::Ipv6 { content: Content::Icmp { kind: NEIGHBOUR_SOLICITATION, rest }, .. } => {
                neighbour_target(rest).map(IpAddr::from)
            }
            _ => None,
        }
    }
}

/// Returns the target of a neighbour solicitation or advertisement, of which `rest` has the bytes after the checksum: it
/// follows four bytes of flags (RFC 4861 4.3 and 4.4).
pub(crate) fn neighbour_target(rest: &[u8]) -> Option<Ipv6Addr> {
    let bytes = rest.get(4..20)?.first_chunk::<16>()?;
    Some(Ipv6Addr::from(*bytes))
}

/// Returns whether a hardware address is a group address: broadcast or multicast.
pub fn is_group(mac: Mac) -> bool {
    mac[0] & 1 != 0
}

fn arp(packet: &[u8]) -> Option<Payload<'static>> {
    let packet = packet.first_chunk::<28>()?;
    if packet[..6] != [0, 1, 8, 0, 6, 4] {
        return None;
    }
    let sender_mac = packet[8..14].try_into().ok()?;
    let (sender, target) = (ipv4_at(packet, 14)?, ipv4_at(packet, 24)?);
    let is_request = packet[6..8] == [0, 1];
    let requested = (is_request && target != sender).then_some(target);
    Some(Payload::Arp { sender_mac, sender, requested })
}

fn ipv4(packet: &[u8]) -> Option<Payload<'_>> {
    let header = packet.first_chunk::<20>()?;
    let header_len = usize::from(header[0] & 0xf) * 4;
    if header[0] >> 4 != 4 || header_len < 20 {
        return None;
    }
    let total_len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let data = packet.get(header_len..total_len)?;
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
    let content = match (header[9], fragment & 0x1fff, fragment) {
        // If the first fragment ended before the flags, a second one could set them (RFC 1858).
        (6, _, 1..) => Content::Other,
        (_, 1.., _) => Content::Fragment,
        (6, ..) => tcp(data),
        (17, ..) => udp(data),
        (1, ..) => icmp(data),
        _ => Content::Other,
    };
    Some(Payload::Ipv4 { source: ipv4_at(header, 12)?, destination: ipv4_at(header, 16)?, content })
}

fn ipv6(packet: &[u8]) -> Option<Payload<'_>> {
    let (header, rest) = packet.split_first_chunk::<40>()?;
    if header[0] >> 4 != 6 {
        return None;
    }
    let address = |at: usize| Some(Ipv6Addr::from(<[u8; 16]>::try_from(header.get(at..at + 16)?).ok()?));
    let data = rest.get(..usize::from(u16::from_be_bytes([header[4], header[5]])))?;
    let content = match header[6] {
        6 => tcp(data),
        17 => udp(data),
        58 => icmp(data),
        // Multicast listener reports have a hop-by-hop options header (RFC 3810 5): accept one, followed by ICMPv6
        // only.
        0 => match (data.first(), data.get(1).and_then(|len| data.get(8 + usize::from(*len) * 8..))) {
            (Some(58), Some(rest)) => icmp(rest),
            _ => Content::Other,
        },
        _ => Content::Other,
    };
    Some(Payload::Ipv6 { source: address(8)?, destination: address(24)?, content })
}

fn tcp(segment: &[u8]) -> Content<'_> {
    match segment.first_chunk::<20>() {
        // SYN is bit 1, ACK bit 4 (RFC 9293 3.1).
        Some(header) => {
            Content::Tcp { to: u16::from_be_bytes([header[2], header[3]]), opens: header[13] & 0x12 == 0x02 }
        }
        None => Content::Other,
    }
}

fn udp(datagram: &[u8]) -> Content<'_> {
    match datagram.split_first_chunk::<8>() {
        Some((header, data)) => Content::Udp {
            from: u16::from_be_bytes([header[0], header[1]]),
            to: u16::from_be_bytes([header[2], header[3]]),
            data,
        },
        None => Content::Other,
    }
}

fn icmp(message: &[u8]) -> Content<'_> {
    match message.split_first_chunk::<4>() {
        Some((header, rest)) => Content::Icmp { kind: header[0], rest },
        None => Content::Other,
    }
}

fn ipv4_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    Some(<[u8; 4]>::try_from(bytes.get(at..at + 4)?).ok()?.into())
}
