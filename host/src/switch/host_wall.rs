//! The filter between cells and the host's own services on QEMU's user-mode network: it passes answers only.
//!
//! That network delivers a packet for one of its own addresses (10.0.2.0/24, fec0::/64, link-local) to the host's
//! loopback interface, so a cell could reach each service that listens at 127.0.0.1. The filter passes DHCP, DNS, ICMP,
//! and answers: TCP segments that do not open a connection, and UDP datagrams to a peer that has sent one before, as
//! the clients of published ports do. It passes packets to other addresses unchanged.

use super::fabric::Port;
use super::frame::{Content, Frame, Payload};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

/// How long a cell may answer a UDP peer after its last datagram. QEMU drops an idle flow after four minutes.
const FLOW_TIME: Duration = Duration::from_secs(300);

/// The maximum number of UDP peers of a port; a further one replaces the one that was idle for the longest time.
const MAX_FLOWS: usize = 4096;

/// The name servers of the user-mode network.
const DNS: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(10, 0, 2, 3)), IpAddr::V6(Ipv6Addr::new(0xfec0, 0, 0, 0, 0, 0, 0, 3))];
const DNS_PORT: u16 = 53;
const DHCP_SERVER: u16 = 67;
const DHCP6_SERVER: u16 = 547;

/// A UDP peer's address and port, and the cell's port that it sends to.
type Flow = (IpAddr, u16, u16);

/// The filter of a machine.
#[derive(Debug)]
pub struct HostWall {
    flows: Vec<HashMap<Flow, Instant>>,
}

impl HostWall {
    /// Creates a filter for that many ports.
    pub fn new(ports: usize) -> Self {
        Self { flows: vec![HashMap::new(); ports] }
    }

    /// Records a frame that a port receives from the uplink.
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

    /// Returns whether a port may send a frame to the uplink.
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

/// Returns whether QEMU's user-mode network delivers packets for the address to the host itself.
fn is_host(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, _] = ip.octets();
            [a, b, c] == [10, 0, 2] || a == 0 || a == 127 || ip.is_multicast() || ip.is_broadcast()
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            // Multicast, link-local, site-local, and the addresses that begin with a zero byte: loopback and
            // IPv4-mapped.
            ip.is_multicast() || first & 0xffc0 == 0xfe80 || first & 0xffc0 == 0xfec0 || first >> 8 == 0
        }
    }
}
