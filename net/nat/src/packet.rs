//! IPv4 packets, rewritten in place: each replaced word changes the checksums by its difference (RFC 1624), so a packet
//! with a wrong checksum keeps a wrong one, and its receiver drops it.

use crate::DropReason;
use crate::table::Protocol;
use core::net::Ipv4Addr;

/// Length of an IPv4 header without options.
pub(crate) const IP_HEADER: usize = 20;

/// Offsets in the IPv4 header (RFC 791).
const HOPS: usize = 8;
const CHECKSUM: usize = 10;

/// The numbers of protocols.
pub(crate) mod protocol {
    pub const ICMP: u8 = 1;
    pub const TCP: u8 = 6;
    pub const UDP: u8 = 17;
}

/// The types of ICMP messages (RFC 792).
mod icmp {
    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    pub const PARAMETER_PROBLEM: u8 = 12;
}

/// The flags of a TCP segment (RFC 9293 3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TcpFlags(pub u8);

impl TcpFlags {
    pub fn fin(self) -> bool {
        self.0 & 0x01 != 0
    }

    pub fn syn(self) -> bool {
        self.0 & 0x02 != 0
    }

    pub fn rst(self) -> bool {
        self.0 & 0x04 != 0
    }

    pub fn ack(self) -> bool {
        self.0 & 0x10 != 0
    }
}

/// An end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Source,
    Destination,
}

impl End {
    fn address_at(self) -> usize {
        if self == Self::Source { 12 } else { 16 }
    }

    fn port_at(self) -> usize {
        if self == Self::Source { IP_HEADER } else { IP_HEADER + 2 }
    }
}

/// The content of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// A TCP segment.
    Tcp(TcpFlags),
    /// A UDP datagram.
    Udp,
    /// A request of ICMP for an echo.
    EchoRequest,
    /// The answer.
    EchoReply,
    /// An ICMP error about a packet, which begins at [`INNER`].
    Error,
}

/// The offset of the packet that an ICMP error is about.
pub(crate) const INNER: usize = IP_HEADER + 8;

/// An IPv4 packet without options that is no fragment.
pub(crate) struct Packet<'a> {
    bytes: &'a mut [u8],
}

impl<'a> Packet<'a> {
    /// Checks the header of a packet, which padding may follow.
    pub fn parse(bytes: &'a mut [u8]) -> Result<Self, DropReason> {
        let header = bytes.first_chunk::<IP_HEADER>().ok_or(DropReason::Malformed)?;
        if header[0] >> 4 != 4 {
            return Err(DropReason::Malformed);
        }
        // Options can route a packet past the translation (RFC 7126).
        if header[0] & 0xf != 5 {
            return Err(DropReason::Protocol);
        }
        if word(header, 6).unwrap_or(0) & 0x3fff != 0 {
            return Err(DropReason::Fragment);
        }
        let len = usize::from(word(header, 2).unwrap_or(0));
        if len < IP_HEADER {
            return Err(DropReason::Malformed);
        }
        Ok(Self { bytes: bytes.get_mut(..len).ok_or(DropReason::Malformed)? })
    }

    /// Returns the content, if it is complete and of a kind that can be translated.
    pub fn content(&self) -> Result<Content, DropReason> {
        let data = self.bytes.get(IP_HEADER..).unwrap_or_default();
        let has = |len: usize| if data.len() < len { Err(DropReason::Malformed) } else { Ok(()) };
        match self.bytes.get(9) {
            Some(&protocol::TCP) => {
                has(20)?;
                Ok(Content::Tcp(TcpFlags(data[13])))
            }
            Some(&protocol::UDP) => has(8).map(|()| Content::Udp),
            Some(&protocol::ICMP) => {
                has(8)?;
                match data[0] {
                    icmp::ECHO => Ok(Content::EchoRequest),
                    icmp::ECHO_REPLY => Ok(Content::EchoReply),
                    icmp::UNREACHABLE | icmp::TIME_EXCEEDED | icmp::PARAMETER_PROBLEM => Ok(Content::Error),
                    _ => Err(DropReason::Protocol),
                }
            }
            _ => Err(DropReason::Protocol),
        }
    }

    pub fn address(&self, end: End) -> Ipv4Addr {
        address(self.bytes, end)
    }

    /// Returns the port of a segment or datagram.
    pub fn port(&self, end: End) -> u16 {
        word(self.bytes, end.port_at()).unwrap_or(0)
    }

    /// Returns the identifier of an echo.
    pub fn identifier(&self) -> u16 {
        word(self.bytes, IP_HEADER + 4).unwrap_or(0)
    }

    /// Replaces the address and the port, or the identifier of an echo, of one end.
    pub fn translate(&mut self, end: End, ip: Ipv4Addr, port: u16) {
        rewrite(self.bytes, end, ip, port);
    }

    /// Returns the flow of the packet that this ICMP error is about, with its ends as that packet has them.
    pub fn inner(&self) -> Result<Inner, DropReason> {
        let inner = self.bytes.get(INNER..).unwrap_or_default();
        let is_whole = inner.len() >= IP_HEADER + 8;
        let is_first = word(inner, 6).unwrap_or(0) & 0x1fff == 0;
        if !is_whole || inner[0] != 0x45 || !is_first {
            return Err(DropReason::Malformed);
        }
        let ports = [End::Source, End::Destination].map(|end| word(inner, end.port_at()).unwrap_or(0));
        let (protocol, [source_port, destination_port]) = match inner[9] {
            protocol::TCP => (Protocol::Tcp, ports),
            protocol::UDP => (Protocol::Udp, ports),
            // Only requests for echoes are translated, and errors about them.
            protocol::ICMP if inner[IP_HEADER] == icmp::ECHO => {
                (Protocol::Echo, [word(inner, IP_HEADER + 4).unwrap_or(0), 0])
            }
            _ => return Err(DropReason::Protocol),
        };
        Ok(Inner {
            protocol,
            source: address(inner, End::Source),
            source_port,
            destination: address(inner, End::Destination),
            destination_port,
        })
    }

    /// Replaces one end of an ICMP error, and the end of the packet that it is about.
    pub fn translate_error(&mut self, outer: (End, Ipv4Addr), inner: (End, Ipv4Addr, u16)) {
        let (end, ip, port) = inner;
        let change = rewrite(self.bytes.get_mut(INNER..).unwrap_or_default(), end, ip, port);
        correct(self.bytes, IP_HEADER + 2, change);
        let (end, ip) = outer;
        rewrite_address(self.bytes, end, ip);
    }

    /// Counts this hop. Returns whether the packet may go further.
    pub fn pass(&mut self) -> bool {
        let Some(hops) = word(self.bytes, HOPS).filter(|word| word >> 8 > 1) else { return false };
        let mut change = Change::default();
        change.put(self.bytes, HOPS, hops - 0x100);
        correct(self.bytes, CHECKSUM, change);
        true
    }

    /// Makes the answer of a request for an echo.
    pub fn answer_echo(&mut self) {
        let (source, destination) = (self.address(End::Source), self.address(End::Destination));
        rewrite_address(self.bytes, End::Source, destination);
        rewrite_address(self.bytes, End::Destination, source);
        if let Some(kind) = word(self.bytes, IP_HEADER) {
            let mut change = Change::default();
            change.put(self.bytes, IP_HEADER, kind & 0xff | u16::from(icmp::ECHO_REPLY) << 8);
            correct(self.bytes, IP_HEADER + 2, change);
        }
    }
}

/// The flow of a packet that an ICMP error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub protocol: Protocol,
    pub source: Ipv4Addr,
    pub source_port: u16,
    pub destination: Ipv4Addr,
    pub destination_port: u16,
}

/// The difference of a one's complement sum (RFC 1624, equation 3).
#[derive(Clone, Copy, Debug, Default)]
struct Change(u32);

impl Change {
    /// Replaces a word, which may be beyond the end of a truncated packet.
    fn put(&mut self, bytes: &mut [u8], at: usize, new: u16) {
        let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>()) else { return };
        self.0 += u32::from(!u16::from_be_bytes(*place)) + u32::from(new);
        *place = new.to_be_bytes();
    }

    /// Returns the checksum after this change.
    fn of(self, checksum: u16) -> u16 {
        let mut sum = u32::from(!checksum) + self.0;
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        !(sum as u16)
    }
}

/// Corrects the checksum at `at` by a change of the bytes that it covers, and returns the change with its own.
fn correct(bytes: &mut [u8], at: usize, change: Change) -> Change {
    let mut all = change;
    if let Some(checksum) = word(bytes, at) {
        all.put(bytes, at, change.of(checksum));
    }
    all
}

/// Replaces an address of a packet and corrects the checksum of its header. Returns the change of the address, and the
/// change of the header.
fn rewrite_address(bytes: &mut [u8], end: End, ip: Ipv4Addr) -> (Change, Change) {
    let mut change = Change::default();
    let [a, b, c, d] = ip.octets();
    change.put(bytes, end.address_at(), u16::from_be_bytes([a, b]));
    change.put(bytes, end.address_at() + 2, u16::from_be_bytes([c, d]));
    (change, correct(bytes, CHECKSUM, change))
}

/// Replaces the address and the port, or identifier, of one end of a packet, which may be truncated after the first eight
/// bytes of its content. Returns the change of all its bytes.
fn rewrite(bytes: &mut [u8], end: End, ip: Ipv4Addr, port: u16) -> Change {
    let (pseudo_header, header) = rewrite_address(bytes, end, ip);
    let (port_at, checksum_at, covered) = match bytes.get(9) {
        Some(&protocol::TCP) => (end.port_at(), IP_HEADER + 16, pseudo_header),
        Some(&protocol::UDP) => (end.port_at(), IP_HEADER + 6, pseudo_header),
        // No pseudo header.
        _ => (IP_HEADER + 4, IP_HEADER + 2, Change::default()),
    };
    let mut ports = Change::default();
    ports.put(bytes, port_at, port);
    let is_udp = bytes.get(9) == Some(&protocol::UDP);
    // A datagram may have no checksum (RFC 768).
    if is_udp && word(bytes, checksum_at) == Some(0) {
        return Change(header.0 + ports.0);
    }
    let content = Change(covered.0 + ports.0);
    let before = word(bytes, checksum_at);
    correct(bytes, checksum_at, content);
    if is_udp && word(bytes, checksum_at) == Some(0) {
        Change::default().put(bytes, checksum_at, 0xffff);
    }
    let mut all = Change(header.0 + ports.0);
    if let (Some(before), Some(after)) = (before, word(bytes, checksum_at)) {
        all.0 += u32::from(!before) + u32::from(after);
    }
    all
}

fn address(bytes: &[u8], end: End) -> Ipv4Addr {
    let octets = bytes.get(end.address_at()..).and_then(|rest| rest.first_chunk::<4>());
    octets.map_or(Ipv4Addr::UNSPECIFIED, |octets| Ipv4Addr::from(*octets))
}

pub(crate) fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk::<2>()?))
}
