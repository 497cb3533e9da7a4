//! Hardware addresses, the addresses of an interface, and the pair of endpoints that identifies a flow.
//!
//! The transport layer and the layers above use [`IpAddr`] and [`SocketAddr`], so that IPv6 affects only the layers
//! below. Names show which items are specific to IPv4 ([`Ipv4Config`], ARP, DHCP).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, SocketAddr};

/// An Ethernet hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddr(pub [u8; 6]);

impl MacAddr {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns whether this is a group address (broadcast included), which no sender and no neighbour can have.
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Returns whether this identifies one interface: neither a group nor all zero.
    pub const fn is_unicast(self) -> bool {
        !self.is_group() && !matches!(self.0, [0, 0, 0, 0, 0, 0])
    }
}

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The most DNS servers stored from a lease.
pub const DNS_SERVERS: usize = 3;

/// The IPv4 configuration of an interface: address, network and default gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Config {
    /// The interface's own address.
    pub address: Ipv4Addr,
    /// The network part of the address, in bits, 0 to 32.
    pub prefix_len: u8,
    /// The router for addresses outside this network.
    pub gateway: Option<Ipv4Addr>,
    /// Name servers, in order of preference.
    pub dns: [Option<Ipv4Addr>; DNS_SERVERS],
}

impl Ipv4Config {
    /// Returns an address on a network with a gateway and without name servers.
    pub const fn new(address: Ipv4Addr, prefix_len: u8, gateway: Option<Ipv4Addr>) -> Self {
        Self { address, prefix_len, gateway, dns: [None; DNS_SERVERS] }
    }

    /// Returns the network mask as a number.
    pub const fn mask(&self) -> u32 {
        match u32::MAX.checked_shl(32 - self.prefix_len as u32) {
            Some(mask) if self.prefix_len <= 32 => mask,
            _ => 0,
        }
    }

    /// Returns whether `ip` is on this network, reachable without a router.
    pub const fn on_link(&self, ip: Ipv4Addr) -> bool {
        (ip.to_bits() ^ self.address.to_bits()) & self.mask() == 0
    }

    /// Returns whether `ip` is this network's broadcast address, or the limited one.
    pub const fn is_broadcast(&self, ip: Ipv4Addr) -> bool {
        ip.is_broadcast()
            || (self.prefix_len < 31 && self.on_link(ip) && ip.to_bits() | self.mask() == u32::MAX)
    }

    /// Returns whether these values are possible: a unicast address and a prefix of at most 32 bits.
    pub const fn is_valid(&self) -> bool {
        self.prefix_len <= 32 && is_unicast(self.address) && !self.is_broadcast(self.address)
    }
}

/// Returns whether `ip` can be an interface's address: not unspecified, loopback, multicast or reserved.
pub(crate) const fn is_unicast(ip: Ipv4Addr) -> bool {
    let first = ip.octets()[0];
    first != 0 && first != 127 && first < 224
}

/// Both endpoints of a connection from this stack's side: the key by which its segments are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flow {
    /// This stack's endpoint.
    pub local: SocketAddr,
    /// The other endpoint.
    pub remote: SocketAddr,
}

impl Flow {
    /// Returns the flow between two endpoints given by address and port.
    pub const fn new(local_ip: IpAddr, local_port: u16, remote_ip: IpAddr, remote_port: u16) -> Self {
        Self { local: SocketAddr::new(local_ip, local_port), remote: SocketAddr::new(remote_ip, remote_port) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_broadcast_address_follow_from_the_prefix() {
        let net = Ipv4Config::new(Ipv4Addr::new(10, 1, 2, 3), 24, None);
        assert!(net.is_valid());
        assert!(net.on_link(Ipv4Addr::new(10, 1, 2, 254)));
        assert!(!net.on_link(Ipv4Addr::new(10, 1, 3, 3)));
        assert!(net.is_broadcast(Ipv4Addr::new(10, 1, 2, 255)));
        assert!(!net.is_broadcast(Ipv4Addr::new(10, 1, 3, 255)));
    }

    #[test]
    fn extreme_prefixes_do_not_overflow() {
        let everything = Ipv4Config::new(Ipv4Addr::new(10, 1, 2, 3), 0, None);
        assert!(everything.on_link(Ipv4Addr::new(200, 1, 1, 1)));
        let alone = Ipv4Config::new(Ipv4Addr::new(10, 1, 2, 3), 32, None);
        assert!(!alone.on_link(Ipv4Addr::new(10, 1, 2, 2)));
        assert!(!alone.is_broadcast(alone.address));
        assert!(!Ipv4Config::new(Ipv4Addr::new(10, 1, 2, 3), 33, None).is_valid());
        assert!(!Ipv4Config::new(Ipv4Addr::new(10, 1, 2, 255), 24, None).is_valid());
    }
}
