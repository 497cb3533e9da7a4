//! The router of the clients' network, which works on Ethernet frames.

use crate::leases::Leases;
use crate::neighbours::{Neighbours, Resolved};
use crate::packet::{Content, End, IP_HEADER, Packet, TcpFlags, protocol, word};
use crate::translator::{Forward, Target, Translator, continues_connection};
use crate::{DropReason, Limits, Outside, Prefix, dhcp};
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::net::Ipv4Addr;
use core::time::Duration;
use isola_switch::frame::{HEADER_LEN, Mac};

const BROADCAST: Mac = [0xff; 6];

const ARP: [u8; 2] = [0x08, 0x06];
const IPV4: [u8; 2] = [0x08, 0x00];

/// The length of an ARP packet, and its fixed begin: Ethernet, IPv4, and the lengths of their addresses.
const ARP_LEN: usize = 28;
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];

/// UDP ports of DHCP.
const DHCP_SERVER: u16 = 67;
const DHCP_CLIENT: u16 = 68;

/// The result for a client's frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// It was rewritten, and is for the device.
    Outside,
    /// It is for the other clients only, if for any.
    Inside,
    /// This frame is the answer.
    Answer(Vec<u8>),
    /// It waits for the hardware address of its next hop. If there is a frame, it goes to the device, as the request.
    Waits(Option<Vec<u8>>),
}

/// The result for a frame from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutsideFrame {
    /// It is for the stack of the serving cell.
    Own,
    /// It was rewritten, and is for the client with this hardware address.
    Client(Mac),
}

/// A gateway between clients and the network outside.
#[derive(Debug)]
pub struct Gateway {
    mac: Mac,
    prefix: Prefix,
    outside: Option<Outside>,
    /// The name server of the clients, in place of those outside.
    name_server: Option<Ipv4Addr>,
    leases: Leases,
    macs: BTreeMap<Ipv4Addr, Mac>,
    translator: Translator,
    neighbours: Neighbours,
    /// Frames for the device, whose next hops are known since.
    released: VecDeque<Vec<u8>>,
}

impl Gateway {
    /// Creates a gateway without clients, in a cell whose network device has this hardware address.
    pub fn new(mac: Mac, prefix: Prefix, forwards: Vec<Forward>, limits: Limits) -> Self {
        Self {
            mac,
            prefix,
            outside: None,
            name_server: None,
            leases: Leases::new(prefix, limits.clients),
            macs: BTreeMap::new(),
            translator: Translator::new(prefix, forwards, limits.flows),
            neighbours: Neighbours::default(),
            released: VecDeque::new(),
        }
    }

    /// Sets the name server of the clients. By default they have those of the network outside.
    pub fn with_name_server(self, name_server: Option<Ipv4Addr>) -> Self {
        Self { name_server, ..self }
    }

    /// Returns the network of the clients.
    pub fn prefix(&self) -> Prefix {
        self.prefix
    }

    /// Sets the network of the device, or that it has none at present. With another address, all flows end. A network that
    /// has addresses of the clients' counts as none.
    pub fn set_outside(&mut self, outside: Option<Outside>) {
        let outside = outside.filter(|outside| !self.prefix.overlaps(outside.address, outside.prefix_len));
        if outside == self.outside {
            return;
        }
        let address = |outside: &Option<Outside>| outside.map(|outside| outside.address);
        if address(&outside) != address(&self.outside) {
            self.translator.clear();
        }
        self.neighbours.clear();
        self.outside = outside;
    }

    /// Adds a client with this name and hardware address, and returns its IP address: the same each time, unless another
    /// client has it. Returns `None` if there are too many clients.
    pub fn connect(&mut self, name: &str, mac: Mac) -> Option<Ipv4Addr> {
        let (ip, lost) = self.leases.connect(name)?;
        if let Some(lost) = lost {
            self.translator.forget(lost);
        }
        self.translator.set_client(name, ip);
        self.macs.insert(ip, mac);
        Some(ip)
    }

    /// Removes a client. Its flows remain for its next connection.
    pub fn disconnect(&mut self, ip: Ipv4Addr) {
        self.leases.disconnect(ip);
        self.macs.remove(&ip);
    }

    /// Returns the number of a client's flows.
    pub fn flows_of(&self, ip: Ipv4Addr) -> usize {
        self.translator.flows_of(ip)
    }

    /// Checks the IPv4 source address of a client's frame, which must be the assigned one, before any host gets it.
    ///
    /// # Errors
    /// [`DropReason::ForeignAddress`], or [`DropReason::Malformed`].
    pub fn check(&self, ip: Ipv4Addr, frame: &[u8]) -> Result<(), DropReason> {
        let (_, kind, payload) = split(frame).ok_or(DropReason::Malformed)?;
        let source = match kind {
            ARP => address_at(payload, 14),
            IPV4 => address_at(payload, 12),
            _ => return Ok(()),
        };
        let source = source.ok_or(DropReason::Malformed)?;
        // A request by DHCP, and a probe by ARP, have none (RFC 5227 2.1.1).
        let is_permitted = source == ip || source.is_unspecified();
        if is_permitted { Ok(()) } else { Err(DropReason::ForeignAddress) }
    }

    /// Processes a frame of a client, which [`Self::check`] has passed, and rewrites it if it goes outside.
    ///
    /// # Errors
    /// A [`DropReason`].
    pub fn from_client(
        &mut self,
        ip: Ipv4Addr,
        frame: &mut [u8],
        now: Duration,
    ) -> Result<ClientFrame, DropReason> {
        let (destination, kind, payload) = split(frame).ok_or(DropReason::Malformed)?;
        let is_broadcast = destination == BROADCAST;
        if destination != self.mac && !is_broadcast {
            return Ok(ClientFrame::Inside);
        }
        let mac = *self.macs.get(&ip).ok_or(DropReason::ForeignAddress)?;
        match kind {
            ARP => Ok(self.answer_arp(mac, payload).map_or(ClientFrame::Inside, ClientFrame::Answer)),
            IPV4 => {
                if let Some(message) = dhcp_message(payload, self.prefix.gateway()) {
                    let outside = self.outside.as_ref().ok_or(DropReason::Unreachable)?;
                    let dns = self.name_server.map_or(outside.dns, |server| [Some(server), None]);
                    let answer = dhcp::answer(message, mac, ip, self.prefix, &dns);
                    return answer
                        .map(|answer| ClientFrame::Answer(self.dhcp_frame(mac, &answer)))
                        .ok_or(DropReason::Malformed);
                }
                if is_broadcast {
                    return Ok(ClientFrame::Inside);
                }
                self.route(ip, mac, frame, now)
            }
            _ if is_broadcast => Ok(ClientFrame::Inside),
            _ => Err(DropReason::Protocol),
        }
    }

    /// Translates a client's packet, and addresses it to its next hop.
    fn route(
        &mut self,
        ip: Ipv4Addr,
        mac: Mac,
        frame: &mut [u8],
        now: Duration,
    ) -> Result<ClientFrame, DropReason> {
        let packet = frame.get_mut(HEADER_LEN..).unwrap_or_default();
        if let Some(answer) = self.answer_echo(ip, mac, packet) {
            return Ok(ClientFrame::Answer(answer));
        }
        let outside = self.outside.ok_or(DropReason::Unreachable)?;
        let destination = self.translator.outbound(ip, outside.address, packet, now)?;
        let is_near = Prefix::is_same(outside.address, destination, outside.prefix_len);
        let hop = if is_near { destination } else { outside.router.ok_or(DropReason::Unreachable)? };
        let Resolved { mac: hop_mac, must_ask } = self.neighbours.resolve(hop, now);
        address_frame(frame, hop_mac.unwrap_or(BROADCAST), self.mac);
        let request = must_ask.then(|| self.ask(hop, outside.address));
        match (hop_mac, request) {
            (Some(_), None) => Ok(ClientFrame::Outside),
            // The known address serves until the answer.
            (Some(_), Some(request)) => {
                self.released.push_back(request);
                Ok(ClientFrame::Outside)
            }
            (None, request) => {
                let is_held = self.neighbours.hold(hop, frame);
                if is_held || request.is_some() {
                    Ok(ClientFrame::Waits(request))
                } else {
                    Err(DropReason::Unreachable)
                }
            }
        }
    }

    /// Processes a frame of the device, and rewrites it if it is for a client.
    ///
    /// # Errors
    /// A [`DropReason`].
    pub fn from_outside(&mut self, frame: &mut [u8], now: Duration) -> Result<OutsideFrame, DropReason> {
        let (destination, kind, payload) = split(frame).ok_or(DropReason::Malformed)?;
        match kind {
            ARP => {
                self.learn(payload, now);
                Ok(OutsideFrame::Own)
            }
            IPV4 if destination == self.mac => {
                let Some(outside) = self.outside else {
                    return if is_of_connection(frame) {
                        Err(DropReason::NoFlow)
                    } else {
                        Ok(OutsideFrame::Own)
                    };
                };
                let packet = frame.get_mut(HEADER_LEN..).unwrap_or_default();
                match self.translator.inbound(outside.address, packet, now)? {
                    Target::Own => Ok(OutsideFrame::Own),
                    Target::Client(ip) => {
                        let mac = *self.macs.get(&ip).ok_or(DropReason::NoFlow)?;
                        address_frame(frame, mac, self.mac);
                        Ok(OutsideFrame::Client(mac))
                    }
                }
            }
            _ => Ok(OutsideFrame::Own),
        }
    }

    /// Returns the next frame that waited and is now for the device.
    pub fn take_released(&mut self) -> Option<Vec<u8>> {
        self.released.pop_front()
    }

    /// Records the hardware address of a host outside.
    fn learn(&mut self, packet: &[u8], now: Duration) {
        let Some(outside) = self.outside else { return };
        let Some(Arp { sender_mac, sender, .. }) = Arp::parse(packet) else { return };
        let is_near = Prefix::is_same(outside.address, sender, outside.prefix_len);
        if !is_near || isola_switch::frame::is_group(sender_mac) {
            return;
        }
        for mut frame in self.neighbours.learn(sender, sender_mac, now) {
            address_frame(&mut frame, sender_mac, self.mac);
            self.released.push_back(frame);
        }
    }

    /// Returns the answer to a request for the gateway's hardware address.
    fn answer_arp(&self, mac: Mac, packet: &[u8]) -> Option<Vec<u8>> {
        let arp = Arp::parse(packet).filter(|arp| arp.is_request && arp.target == self.prefix.gateway())?;
        Some(arp_frame(ARP_REPLY, (self.mac, self.prefix.gateway()), (mac, arp.sender), mac))
    }

    /// Returns the request for the hardware address of a host outside.
    fn ask(&self, ip: Ipv4Addr, own: Ipv4Addr) -> Vec<u8> {
        arp_frame(ARP_REQUEST, (self.mac, own), ([0; 6], ip), BROADCAST)
    }

    /// Returns the answer to a ping of the gateway.
    fn answer_echo(&self, ip: Ipv4Addr, mac: Mac, packet: &mut [u8]) -> Option<Vec<u8>> {
        let mut packet_view = Packet::parse(packet).ok()?;
        let is_for_us = packet_view.address(End::Destination) == self.prefix.gateway()
            && packet_view.address(End::Source) == ip
            && packet_view.content() == Ok(Content::EchoRequest);
        if !is_for_us {
            return None;
        }
        packet_view.answer_echo();
        Some([&mac[..], &self.mac, &IPV4, packet].concat())
    }

    /// Returns a frame with a message of the DHCP server.
    fn dhcp_frame(&self, mac: Mac, message: &[u8]) -> Vec<u8> {
        let udp_len = (8 + message.len()) as u16;
        let mut header = [0; IP_HEADER];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&(IP_HEADER as u16 + udp_len).to_be_bytes());
        (header[8], header[9]) = (64, protocol::UDP);
        header[12..16].copy_from_slice(&self.prefix.gateway().octets());
        // A client without an address receives broadcasts; the frame goes to no other client.
        header[16..20].copy_from_slice(&Ipv4Addr::BROADCAST.octets());
        let sum: u32 =
            header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        header[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
        let [ports, lens] = [[DHCP_SERVER, DHCP_CLIENT], [udp_len, 0]].map(|[first, second]| {
            let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
            [a, b, c, d]
        });
        [&mac[..], &self.mac, &IPV4, &header, &ports, &lens, message].concat()
    }
}

/// An ARP packet.
struct Arp {
    is_request: bool,
    sender_mac: Mac,
    sender: Ipv4Addr,
    target: Ipv4Addr,
}

impl Arp {
    fn parse(packet: &[u8]) -> Option<Self> {
        let packet = packet.first_chunk::<ARP_LEN>().filter(|packet| packet[..6] == ARP_HEAD)?;
        Some(Self {
            is_request: packet[6..8] == ARP_REQUEST,
            sender_mac: *packet[8..].first_chunk()?,
            sender: address_at(packet, 14)?,
            target: address_at(packet, 24)?,
        })
    }
}

fn arp_frame(kind: [u8; 2], sender: (Mac, Ipv4Addr), target: (Mac, Ipv4Addr), to: Mac) -> Vec<u8> {
    let (sender_mac, sender) = sender;
    let (target_mac, target) = target;
    let head = [&to[..], &sender_mac, &ARP, &ARP_HEAD, &kind].concat();
    [&head[..], &sender_mac, &sender.octets(), &target_mac, &target.octets()].concat()
}

/// Returns whether a frame from outside, of which `frame` has at least the headers, continues a connection that can be a
/// client's. A service cell must not pass such frames to its own stack before it translates them.
pub fn is_of_connection(frame: &[u8]) -> bool {
    let Some((_, IPV4, packet)) = split(frame) else { return false };
    let is_first = word(packet, 6).is_some_and(|fragment| fragment & 0x1fff == 0);
    let is_tcp = packet.first() == Some(&0x45) && packet.get(9) == Some(&protocol::TCP) && is_first;
    let (port, flags) = (word(packet, IP_HEADER + 2), packet.get(IP_HEADER + 13));
    is_tcp && port.zip(flags).is_some_and(|(port, flags)| continues_connection(port, TcpFlags(*flags)))
}

/// Returns the destination, the protocol and the payload of a frame.
fn split(frame: &[u8]) -> Option<(Mac, [u8; 2], &[u8])> {
    let (header, payload) = frame.split_first_chunk::<HEADER_LEN>()?;
    Some((*header.first_chunk()?, [header[12], header[13]], payload))
}

fn address_frame(frame: &mut [u8], to: Mac, from: Mac) {
    if let Some(header) = frame.first_chunk_mut::<HEADER_LEN>() {
        header[..6].copy_from_slice(&to);
        header[6..12].copy_from_slice(&from);
    }
}

/// Returns the message of a packet for the DHCP server of this gateway.
fn dhcp_message(packet: &[u8], gateway: Ipv4Addr) -> Option<&[u8]> {
    let header = packet.first_chunk::<IP_HEADER>()?;
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let to = address_at(header, 16)?;
    if header[0] != 0x45 || header[9] != protocol::UDP || is_fragment {
        return None;
    }
    if !to.is_broadcast() && to != gateway {
        return None;
    }
    let len = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let (udp, message) = packet.get(IP_HEADER..len)?.split_first_chunk::<8>()?;
    (u16::from_be_bytes([udp[2], udp[3]]) == DHCP_SERVER).then_some(message)
}

fn address_at(bytes: &[u8], at: usize) -> Option<Ipv4Addr> {
    Some(Ipv4Addr::from(*bytes.get(at..)?.first_chunk::<4>()?))
}
