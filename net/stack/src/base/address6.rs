//! The IPv6 configuration of an interface: addresses, on-link networks and routers.
//!
//! Instance 0 determines these [`Ipv6Settings`] (`autoconf/`), and the other instances use them unchanged.

use super::address::DNS_SERVERS;
use core::net::Ipv6Addr;

/// The most addresses of an interface, including the link-local one.
pub const IPV6_ADDRESSES: usize = 8;
/// The most networks whose members are reachable without a router.
pub const IPV6_PREFIXES: usize = 8;
/// The most known routers.
pub const IPV6_ROUTERS: usize = 4;

/// A fixed IPv6 address of the interface, with its network and gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// The interface's own address.
    pub address: Ipv6Addr,
    /// The network part of the address, in bits, 0 to 128.
    pub prefix_len: u8,
    /// The router for addresses outside this network.
    pub gateway: Option<Ipv6Addr>,
    /// Name servers, in order of preference.
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
}

impl Ipv6Config {
    /// Returns an address on a network with a gateway and without name servers.
    pub const fn new(address: Ipv6Addr, prefix_len: u8, gateway: Option<Ipv6Addr>) -> Self {
        Self { address, prefix_len, gateway, dns: [None; DNS_SERVERS] }
    }

    /// Returns whether these values are possible.
    pub const fn is_valid(&self) -> bool {
        self.prefix_len <= 128 && is_unicast6(self.address)
    }
}

/// Whether new communication may use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// It may.
    Preferred,
    /// Only existing communication uses it, if there is another address (RFC 4862 5.5.4).
    Deprecated,
}

/// An address of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Address {
    /// The address.
    pub ip: Ipv6Addr,
    /// Whether new connections use it.
    pub preference: Preference,
}

/// A network whose members are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix {
    /// Any address of the network.
    pub ip: Ipv6Addr,
    /// The network part of it, in bits.
    pub len: u8,
}

impl Ipv6Prefix {
    /// Returns whether `ip` is on this network.
    pub fn contains(&self, ip: Ipv6Addr) -> bool {
        common_bits(self.ip, ip) >= u32::from(self.len)
    }
}

/// The current IPv6 settings of an interface. Without an address, IPv6 is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Settings {
    /// The addresses whose uniqueness was verified.
    pub addresses: [Option<Ipv6Address>; IPV6_ADDRESSES],
    /// The on-link networks, besides the link-local one.
    pub prefixes: [Option<Ipv6Prefix>; IPV6_PREFIXES],
    /// The routers, in order of use.
    pub routers: [Option<Ipv6Addr>; IPV6_ROUTERS],
    /// Name servers, in order of preference.
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
    /// The link MTU that routers advertise, in bytes, at least 1,280.
    pub mtu: Option<u16>,
    /// The hop limit of packets.
    pub hop_limit: u8,
}

impl Default for Ipv6Settings {
    fn default() -> Self {
        Self::NONE
    }
}

impl Ipv6Settings {
    /// Settings without IPv6.
    pub const NONE: Self = Self {
        addresses: [None; IPV6_ADDRESSES],
        prefixes: [None; IPV6_PREFIXES],
        routers: [None; IPV6_ROUTERS],
        dns: [None; DNS_SERVERS],
        mtu: None,
        hop_limit: crate::base::settings::HOP_LIMIT,
    };

    /// Returns the settings of a fixed address, without a check of its uniqueness.
    pub fn fixed(config: Ipv6Config) -> Self {
        let mut settings = Self::NONE;
        settings.addresses[0] = Some(Ipv6Address { ip: config.address, preference: Preference::Preferred });
        settings.prefixes[0] = Some(Ipv6Prefix { ip: config.address, len: config.prefix_len });
        settings.routers[0] = config.gateway;
        settings.dns = config.dns;
        settings
    }

    /// Returns whether `ip` is one of the interface's addresses.
    pub fn has(&self, ip: Ipv6Addr) -> bool {
        self.addresses.iter().flatten().any(|own| own.ip == ip)
    }

    /// Returns whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.addresses.iter().all(Option::is_none)
    }

    /// Returns an address that is not link-local, if there is one.
    pub fn global(&self) -> Option<Ipv6Addr> {
        let usable = |own: &&Ipv6Address| !own.ip.is_unicast_link_local();
        let mut all = self.addresses.iter().flatten().filter(usable);
        all.clone().find(|own| own.preference == Preference::Preferred).or(all.next()).map(|own| own.ip)
    }

    /// Returns whether `ip` is reachable without a router.
    pub fn on_link(&self, ip: Ipv6Addr) -> bool {
        ip.is_unicast_link_local() || self.prefixes.iter().flatten().any(|prefix| prefix.contains(ip))
    }

    /// Returns whether this interface listens to a multicast address: that of all nodes, or the solicited-node address
    /// of one of its addresses.
    pub fn listens_to(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES || self.addresses.iter().flatten().any(|own| solicited_node(own.ip) == group)
    }

    /// Returns the source address for `destination` (RFC 6724 5, rules 1, 2, 3 and 8, which suffice for one interface
    /// without mobility and temporary addresses).
    pub fn source_for(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let wanted = scope(destination);
        let rank = |own: &&Ipv6Address| {
            let has = scope(own.ip);
            // The smallest scope that is large enough, then the largest of the smaller ones.
            let fit = if has >= wanted { 32 - (has - wanted) } else { has };
            let kept = own.preference == Preference::Preferred;
            (own.ip == destination, fit, kept, common_bits(own.ip, destination).min(64))
        };
        // Reversed to select the first of equals: `max_by_key` returns the last.
        self.addresses.iter().flatten().rev().max_by_key(rank).map(|own| own.ip)
    }

    /// Moves an unresponsive router behind the others.
    pub fn demote(&mut self, router: Ipv6Addr) -> bool {
        let known = self.routers.iter().flatten().count();
        match self.routers.iter().position(|&known| known == Some(router)) {
            Some(at) if at + 1 < known => {
                self.routers[at..known].rotate_left(1);
                true
            }
            _ => false,
        }
    }
}

/// All nodes on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link.
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// All MLDv2 routers (RFC 3810).
pub(crate) const ALL_MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// Returns the solicited-node multicast address of `ip` (RFC 4291 2.7.1).
pub(crate) const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(GROUP | (ip.to_bits() & 0xff_ffff))
}

/// Returns the Ethernet address of a multicast address (RFC 2464 7).
pub(crate) const fn group_mac(group: Ipv6Addr) -> crate::base::address::MacAddr {
    let [a, b, c, d] = (group.to_bits() as u32).to_be_bytes();
    crate::base::address::MacAddr([0x33, 0x33, a, b, c, d])
}

/// Returns whether `ip` can be an interface's address on a network.
pub(crate) const fn is_unicast6(ip: Ipv6Addr) -> bool {
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && ip.to_bits() >> 32 != 0xffff
}

/// Returns the scope of an address, as the number in multicast addresses (RFC 4007, RFC 6724 3.1).
fn scope(ip: Ipv6Addr) -> u32 {
    const LINK_LOCAL: u32 = 2;
    const SITE_LOCAL: u32 = 5;
    const GLOBAL: u32 = 14;
    let first = ip.segments()[0];
    match first {
        _ if ip.is_multicast() => u32::from(first & 0xf),
        _ if ip.is_unicast_link_local() || ip.is_loopback() => LINK_LOCAL,
        _ if first & 0xffc0 == 0xfec0 => SITE_LOCAL,
        _ => GLOBAL,
    }
}

/// Returns the number of common leading bits.
fn common_bits(a: Ipv6Addr, b: Ipv6Addr) -> u32 {
    (a.to_bits() ^ b.to_bits()).leading_zeros()
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    fn ip(text: &str) -> Ipv6Addr {
        text.parse().unwrap()
    }

    fn settings(addresses: &[(&str, Preference)]) -> Ipv6Settings {
        let mut settings = Ipv6Settings::NONE;
        for (slot, &(text, preference)) in settings.addresses.iter_mut().zip(addresses) {
            *slot = Some(Ipv6Address { ip: ip(text), preference });
        }
        settings
    }

    #[proves(
        "RFC 6724 5",
        "a source is the destination itself, of its scope, not deprecated, and near, in this order."
    )]
    #[test]
    fn the_source_address_follows_the_selection_rules() {
        use Preference::{Deprecated, Preferred};
        let own = [
            ("fe80::1", Preferred),
            ("2001:db8:1::1", Deprecated),
            ("2001:db8:2::1", Preferred),
            ("fd00::1", Preferred),
            ("2001:db8:2::7", Preferred),
        ];
        let all = settings(&own);
        let from = |to: &str| all.source_for(ip(to)).unwrap();
        assert_eq!(from("fe80::9"), ip("fe80::1"));
        assert_eq!(from("ff02::1"), ip("fe80::1"));
        assert_eq!(from("2001:db8:2::9"), ip("2001:db8:2::1"));
        assert_eq!(from("fd00::9"), ip("fd00::1"));
        assert_eq!(from("2001:db8:1::9"), ip("2001:db8:2::1"), "a deprecated address was chosen");
        assert_eq!(from("2001:db8:1::1"), ip("2001:db8:1::1"));
        assert_eq!(settings(&own[..2]).source_for(ip("2600::1")), Some(ip("2001:db8:1::1")));
        assert_eq!(settings(&own[..1]).source_for(ip("2600::1")), Some(ip("fe80::1")));
        assert_eq!(Ipv6Settings::NONE.source_for(ip("2600::1")), None);
    }

    #[proves("RFC 4291 2.7.1", "the solicited-node group ends in the address's last 24 bits.")]
    #[proves("RFC 2464 7", "a group's hardware address ends in the group's last 32 bits.")]
    #[test]
    fn multicast_groups_follow_from_addresses() {
        let group = solicited_node(ip("fd00::12:3456"));
        assert_eq!(group, ip("ff02::1:ff12:3456"));
        assert_eq!(group_mac(group).0, [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let own = settings(&[("fd00::12:3456", Preference::Preferred)]);
        assert!(own.listens_to(group) && own.listens_to(ALL_NODES) && !own.listens_to(ALL_ROUTERS));
    }

    #[test]
    fn an_unresponsive_router_moves_behind_the_others() {
        let mut own = Ipv6Settings::NONE;
        let routers = ["fe80::a", "fe80::b", "fe80::c"].map(ip);
        for (slot, router) in own.routers.iter_mut().zip(routers) {
            *slot = Some(router);
        }
        assert!(own.demote(routers[0]));
        assert_eq!(own.routers, [Some(routers[1]), Some(routers[2]), Some(routers[0]), None]);
        assert!(!own.demote(routers[0]) && !own.demote(ip("fe80::d")));
    }

    #[test]
    fn impossible_addresses_are_invalid() {
        for text in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert!(!Ipv6Config::new(ip(text), 64, None).is_valid(), "{text}");
        }
        assert!(Ipv6Config::new(ip("2001:db8::1"), 64, None).is_valid());
        assert!(!Ipv6Config::new(ip("2001:db8::1"), 129, None).is_valid());
    }
}
