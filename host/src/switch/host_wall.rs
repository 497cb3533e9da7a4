//! What of a cell's reaches the host's own services through QEMU's user-mode network: answers alone.
//!
//! That network hands a packet for an address of its own (10.0.2.0/24, fec0::/64, link-local) to the host's loopback
//! interface, so that a cell could reach each service that listens at 127.0.0.1. The wall lets through DHCP, DNS, ICMP,
//! and answers: TCP segments that ask for no connection, and UDP datagrams to a peer from which one came before, which is
//! how published ports appear. Packets to other addresses go out as they are.

use super::fabric::Port;
use super::frame::{Content, Frame, Payload};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a UDP peer may be answered. QEMU forgets one after four minutes.
const FLOW_TIME: Duration = Duration::from_secs(300);

/// Most UDP peers of a port; beyond that the one that was silent the longest is forgotten.
const MAX_FLOWS: usize = 4096;

/// The name servers of the user-mode network.
const DNS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3)), IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 3))];
const DNS_PORT: u16 = 53;
const DHCP_SERVER: u16 = 67;
const DHCP6_SERVER: u16 = 547;

/// A UDP peer behind the uplink, and the cell's port that it talks to.
type Flow = (IpAddr, u16, u16);

/// The wall of a machine.
#[derive(Debug)]
pub struct HostWall {
    flows: Vec<HashMap<Flow, Instant>>,
}

impl HostWall {
    /// A wall for so many ports.
    pub fn new(ports: usize) -> Self {
        Self { flows: vec![HashMap::new(); ports] }
    }

    /// Takes note of a frame from the uplink that a port gets.
    pub fn note(&mut self, port: Port, frame: &Frame<'_>, now: Instant) {
        let (peer, from, to) = match frame.payload {
            Payload::Ipv4 { source, content: Content::Udp { from, to, .. }, .. } => (source.into(), from, to),
            Payload::Ipv6 { source, content: Content::Udp { from, to, .. }, .. } => (source.into(), from, to),
            _ => return,
        };
        let Some(flows) = self.flows.get_mut(port).filter(|_| is_host(peer)) else { return };
        if flows.len() >= MAX_FLOWS && !flows.contains_key(&(peer, from, to)) {
            flows.retain(|_, seen| now.duration_since(*seen) < FLOW_TIME);
            let oldest = flows.iter().min_by_key(|(_, seen)| **seen).map(|(flow, _)| *flow);
            if let Some(oldest) = oldest.filter(|_| flows.len() >= MAX_FLOWS) {
                flows.remove(&oldest);
            }
        }
        flows.insert((peer, from, to), now);
    }

    /// Whether a frame of a port may go to the uplink.
    pub fn may_pass(&self, port: Port, frame: &Frame<'_>, now: Instant) -> bool {
        let (destination, content) = match frame.payload {
            Payload::Ipv4 { destination, content, .. } => (IpAddr::from(destination), content),
            Payload::Ipv6 { destination, content, .. } => (IpAddr::from(destination), content),
            Payload::Arp { .. } => return true,
            Payload::Other => return false,
        };
        if !is_host(destination) {
            return true;
        }
        match content {
            Content::Tcp { to: DNS_PORT, .. } | Content::Udp { to: DNS_PORT, .. }
                if DNS.contains(&destination) =>
            {
                true
            }
            Content::Tcp { opens, .. } => !opens,
            Content::Udp { to: DHCP_SERVER | DHCP6_SERVER, .. } => true,
            Content::Udp { from, to, .. } => self
                .flows
                .get(port)
                .and_then(|flows| flows.get(&(destination, to, from)))
                .is_some_and(|seen| now.duration_since(*seen) < FLOW_TIME),
            Content::Icmp { .. } | Content::Fragment => true,
            Content::Other => false,
        }
    }
}

/// Whether QEMU's user-mode network hands packets for the address to the host itself.
fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            [a, b, c] == [10, 0, 2] || a == 0 || a == 127 || ip.is_multicast() || ip.is_broadcast()
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            // Multicast, link-local, site-local, and all that begins with zeros: loopback and IPv4 in IPv6.
            ip.is_multicast() || first & 0xffc0 == 0xfe80 || first & 0xffc0 == 0xfec0 || first >> 8 == 0
        }
    }
}
