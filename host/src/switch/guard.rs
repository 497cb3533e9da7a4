//! The addresses that a cell may use as a source on its port. The switch drops frames with another cell's address.
//!
//! The operator assigns IPv4 addresses, or the DHCP server behind the uplink does; [`Guard::learn`] reads its
//! acknowledgements. A cell generates IPv6 addresses itself (RFC 7217): an address belongs to the first port that uses
//! it, until that port is declared again. No port may use an address of the uplink, or send as a router or DHCP server.

use super::fabric::{Address, Port};
use super::frame::{Content, Frame, Mac, Payload, is_group};
use std::collections::{HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The maximum numbers of IPv6 addresses per port, and of the uplink.
const MAX_IPV6: usize = 64;
const MAX_UPLINK_IPV6: usize = 1024;

/// The maximum number of IPv6 addresses behind a port whose cell is a switch, and of hardware addresses.
const MAX_BEHIND_SWITCH: usize = 1024;

/// The maximum number of IPv4 addresses of the uplink that no switch may use.
const MAX_UPLINK_IPV4: usize = 1024;

/// The types of ICMP and ICMPv6 messages that the rules name (RFC 792; RFC 4861).
mod icmp {
    pub const REDIRECT_V4: u8 = 5;
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
    pub const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
    pub const REDIRECT: u8 = 137;
}

/// UDP ports of DHCP servers (RFC 2131, RFC 8415).
const DHCP_SERVER: u16 = 67;
const DHCP6_SERVER: u16 = 547;

/// The owners of all addresses.
#[derive(Debug)]
pub struct Guard {
    macs: Vec<Mac>,
    addresses: Vec<PortAddress>,
    ipv6: HashMap<Ipv6Addr, AddressOwner>,
    /// The ports of hardware addresses behind switches.
    behind: HashMap<Mac, Port>,
    /// IPv4 addresses that hosts behind the uplink announce.
    uplink_ipv4: HashSet<Ipv4Addr>,
}

/// The IPv4 address of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PortAddress {
    declared: Address,
    lease: Option<Ipv4Addr>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AddressOwner {
    Uplink,
    Port(Port),
}

impl Guard {
    /// Creates a guard for ports with these hardware addresses; no port has an address yet.
    pub fn new(macs: Vec<Mac>) -> Self {
        let addresses = vec![PortAddress { declared: Address::None, lease: None }; macs.len()];
        let routers = ["fe80::2", "fec0::2", "fe80::3", "fec0::3"].iter().filter_map(|ip| ip.parse().ok());
        Self {
            macs,
            addresses,
            ipv6: routers.map(|ip| (ip, AddressOwner::Uplink)).collect(),
            behind: HashMap::new(),
            uplink_ipv4: HashSet::new(),
        }
    }

    /// Returns the port of a hardware address: its device's, or the one of the switch that has used it as a source.
    pub fn port_of(&self, mac: Mac) -> Option<Port> {
        self.device_of(mac).or_else(|| self.behind.get(&mac).copied())
    }

    /// Returns the port of the device with a hardware address.
    pub fn device_of(&self, mac: Mac) -> Option<Port> {
        self.macs.iter().position(|own| *own == mac)
    }

    /// Declares the address of a port's cell, before the cell starts. The port's earlier cell has ended, so its IPv6
    /// addresses are free. An unchanged declaration keeps the lease. Another port that had the address loses it, and
    /// its IPv6 addresses: its cell has ended.
    pub fn declare(&mut self, port: Port, address: Address) {
        self.free_ipv6(port);
        let Some(entry) = self.addresses.get_mut(port).filter(|entry| entry.declared != address) else {
            return;
        };
        *entry = PortAddress { declared: address, lease: None };
        // A switch that is started again has the same clients, which may be silent until a host outside sends to them.
        self.behind.retain(|_, owner| *owner != port);
        if let Address::Fixed(ip) = address {
            let mut ended = Vec::new();
            for (other, entry) in self.addresses.iter_mut().enumerate().filter(|(other, _)| *other != port) {
                if entry.declared == address {
                    entry.declared = Address::None;
                    ended.push(other);
                }
                entry.lease = entry.lease.filter(|lease| *lease != ip);
            }
            ended.into_iter().for_each(|other| self.free_ipv6(other));
        }
    }

    fn free_ipv6(&mut self, port: Port) {
        self.ipv6.retain(|_, owner| *owner != AddressOwner::Port(port));
    }

    /// Returns whether the cell behind `port` may send the frame.
    pub fn may_send(&mut self, port: Port, frame: &Frame<'_>) -> bool {
        let Some(PortAddress { declared, .. }) = self.addresses.get(port).copied() else { return false };
        if declared == Address::None || is_group(frame.source) || !self.has_mac(port, frame.source, declared)
        {
            return false;
        }
        match frame.payload {
            // An ARP probe for a duplicate address has sender address 0 (RFC 5227 2.1.1).
            Payload::Arp { sender_mac, sender, .. } => {
                sender_mac == frame.source && (sender.is_unspecified() || self.has(port, sender))
            }
            Payload::Ipv4 { source, content, .. } => match content {
                Content::Udp { from: DHCP_SERVER, .. } | Content::Icmp { kind: icmp::REDIRECT_V4, .. } => {
                    false
                }
                Content::Udp { to: DHCP_SERVER, .. } if source.is_unspecified() => true,
                _ => self.has(port, source),
            },
            Payload::Ipv6 { source, content, .. } => match content {
                Content::Udp { from: DHCP6_SERVER, .. }
                | Content::Icmp { kind: icmp::ROUTER_ADVERTISEMENT | icmp::REDIRECT, .. } => false,
                // The target address follows four bytes of flags (RFC 4861 4.4).
                Content::Icmp { kind: icmp::NEIGHBOUR_ADVERTISEMENT, rest } => {
                    target(rest).is_some_and(|target| self.claim(port, target)) && self.claim(port, source)
                }
                // Duplicate address detection sends from the unspecified address (RFC 4862 5.4).
                Content::Icmp { .. } if source.is_unspecified() => true,
                _ => self.claim(port, source),
            },
            Payload::Other => false,
        }
    }

    /// Learns from a frame of the uplink: leases, and addresses that no cell may use.
    pub fn learn(&mut self, frame: &Frame<'_>) {
        match frame.payload {
            Payload::Arp { sender, .. } if self.uplink_ipv4.len() < MAX_UPLINK_IPV4 => {
                self.uplink_ipv4.insert(sender);
            }
            Payload::Ipv4 { content: Content::Udp { from: DHCP_SERVER, data, .. }, .. } => {
                let Some((mac, ip)) = acknowledged(data) else { return };
                let Some(port) = self.port_of(mac) else { return };
                let is_fixed = self.addresses.iter().any(|entry| entry.declared == Address::Fixed(ip));
                let asks = self.addresses.get(port).is_some_and(|entry| entry.declared == Address::Dhcp);
                if asks && !is_fixed {
                    // The server leases an address to one client at a time: an earlier lessee has lost it.
                    for (other, entry) in self.addresses.iter_mut().enumerate() {
                        entry.lease =
                            if other == port { Some(ip) } else { entry.lease.filter(|own| *own != ip) };
                    }
                }
            }
            Payload::Ipv6 { source, content: Content::Icmp { .. }, .. }
                if !source.is_unspecified()
                    && self.ipv6.len() < MAX_UPLINK_IPV6 + MAX_IPV6 * self.macs.len() =>
            {
                self.ipv6.entry(source).or_insert(AddressOwner::Uplink);
            }
            _ => {}
        }
    }

    /// Returns whether a hardware address is a port's. A port whose cell is a switch gets free ones.
    fn has_mac(&mut self, port: Port, mac: Mac, declared: Address) -> bool {
        match self.port_of(mac) {
            Some(owner) => owner == port,
            None if declared == Address::Switch && self.behind.len() < MAX_BEHIND_SWITCH => {
                self.behind.insert(mac, port).is_none()
            }
            None => false,
        }
    }

    /// Returns whether a port has an IPv4 address.
    fn has(&self, port: Port, ip: Ipv4Addr) -> bool {
        self.addresses.get(port).is_some_and(|entry| match entry.declared {
            Address::None => false,
            Address::Fixed(own) => own == ip,
            Address::Dhcp => entry.lease == Some(ip),
            Address::Switch => {
                let is_taken =
                    |entry: &PortAddress| entry.declared == Address::Fixed(ip) || entry.lease == Some(ip);
                !self.uplink_ipv4.contains(&ip) && !self.addresses.iter().any(is_taken)
            }
        })
    }

    /// Returns whether a port has an IPv6 address, and assigns it a free one.
    fn claim(&mut self, port: Port, ip: Ipv6Addr) -> bool {
        if ip.is_unspecified() || ip.is_multicast() || ip.is_loopback() || ip.to_ipv4().is_some() {
            return false;
        }
        if let Some(owner) = self.ipv6.get(&ip) {
            return *owner == AddressOwner::Port(port);
        }
        let is_switch = self.addresses.get(port).is_some_and(|entry| entry.declared == Address::Switch);
        let most = if is_switch { MAX_BEHIND_SWITCH } else { MAX_IPV6 };
        let owned = self.ipv6.values().filter(|owner| **owner == AddressOwner::Port(port)).count();
        owned < most && self.ipv6.insert(ip, AddressOwner::Port(port)).is_none()
    }
}

/// Returns the target of a neighbour advertisement.
fn target(rest: &[u8]) -> Option<Ipv6Addr> {
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(rest.get(4..20)?).ok()?))
}

/// Returns the client and its address if the message of a DHCP server is an acknowledgement (RFC 2131 2, RFC 2132 9.6).
fn acknowledged(message: &[u8]) -> Option<(Mac, Ipv4Addr)> {
    let (header, mut options) = message.split_first_chunk::<240>()?;
    if header[..3] != [2, 1, 6] || header[236..] != [99, 130, 83, 99] {
        return None;
    }
    let mac = header[28..34].try_into().ok()?;
    let ip = <[u8; 4]>::try_from(&header[16..20]).ok()?.into();
    while let [code, rest @ ..] = options {
        let (len, rest) = match code {
            0 => (0, rest),
            255 => return None,
            _ => rest.split_first().map(|(len, rest)| (usize::from(*len), rest))?,
        };
        let value = rest.get(..len)?;
        if *code == 53 {
            return (value == [5]).then_some((mac, ip));
        }
        options = &rest[len..];
    }
    None
}
