//! The IPv6 side of an interface: which addresses it has, which networks it is on, and who leads elsewhere.
//!
//! Instance 0 finds these [`Ipv6Settings`] out (`autoconf/`), and the other instances take them over as they are.

use crate::address::DNS_SERVERS;
use core::net::Ipv6Addr;

/// Addresses that an interface has at once, the link-local one included.
pub const IPV6_ADDRESSES: usize = 8;
/// Networks whose members are reached without a router.
pub const IPV6_PREFIXES: usize = 8;
/// Routers that are known at once.
pub const IPV6_ROUTERS: usize = 4;

/// An IPv6 address that somebody gives the interface, with its network and the way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Config {
    /// The interface's own address.
    pub address: Ipv6Addr,
    /// Bits of the address that name the network, 0 to 128.
    pub prefix_len: u8,
    /// The router for whatever is not on this network.
    pub gateway: Option<Ipv6Addr>,
    /// Name servers, in order of preference.
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
}

impl Ipv6Config {
    /// An address on a network with a gateway and no name servers.
    pub const fn new(address: Ipv6Addr, prefix_len: u8, gateway: Option<Ipv6Addr>) -> Self {
        Self { address, prefix_len, gateway, dns: [None; DNS_SERVERS] }
    }

    /// Whether an interface can work with these values.
    pub const fn is_valid(&self) -> bool {
        self.prefix_len <= 128 && is_unicast6(self.address)
    }
}

/// How long an address is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preference {
    /// For everything.
    Preferred,
    /// Only for what uses it already, where there is another (RFC 4862 5.5.4).
    Deprecated,
}

/// An address that the interface has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Address {
    /// The address.
    pub ip: Ipv6Addr,
    /// Whether new connections begin from it.
    pub preference: Preference,
}

/// A network whose members are neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Prefix {
    /// Any address of the network.
    pub ip: Ipv6Addr,
    /// Bits of it that name the network.
    pub len: u8,
}

impl Ipv6Prefix {
    /// Whether `ip` is on this network.
    pub fn contains(&self, ip: Ipv6Addr) -> bool {
        common_bits(self.ip, ip) >= u32::from(self.len)
    }
}

/// What an interface uses of IPv6 at a time. Without an address, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Settings {
    /// The addresses whose uniqueness was checked.
    pub addresses: [Option<Ipv6Address>; IPV6_ADDRESSES],
    /// The networks on the link, besides the link-local one.
    pub prefixes: [Option<Ipv6Prefix>; IPV6_PREFIXES],
    /// The routers, the next one to be used first.
    pub routers: [Option<Ipv6Addr>; IPV6_ROUTERS],
    /// Name servers, in order of preference.
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
    /// The longest packet that the link's routers allow, in bytes; never less than 1,280.
    pub mtu: Option<u16>,
    /// Hops that packets may make.
    pub hop_limit: u8,
}

impl Default for Ipv6Settings {
    fn default() -> Self {
        Self::NONE
    }
}

impl Ipv6Settings {
    /// No IPv6 at all.
    pub const NONE: Self = Self {
        addresses: [None; IPV6_ADDRESSES],
        prefixes: [None; IPV6_PREFIXES],
        routers: [None; IPV6_ROUTERS],
        dns: [None; DNS_SERVERS],
        mtu: None,
        hop_limit: crate::ip::HOP_LIMIT,
    };

    /// The settings that a given address stands for, without its uniqueness checked.
    pub fn fixed(config: Ipv6Config) -> Self {
        let mut settings = Self::NONE;
        settings.addresses[0] = Some(Ipv6Address { ip: config.address, preference: Preference::Preferred });
        settings.prefixes[0] = Some(Ipv6Prefix { ip: config.address, len: config.prefix_len });
        settings.routers[0] = config.gateway;
        settings.dns = config.dns;
        settings
    }

    /// Whether `ip` is one of the interface's addresses.
    pub fn has(&self, ip: Ipv6Addr) -> bool {
        self.addresses.iter().flatten().any(|own| own.ip == ip)
    }

    /// Whether there is no address.
    pub fn is_empty(&self) -> bool {
        self.addresses.iter().all(Option::is_none)
    }

    /// An address with which others than neighbours can be talked to, where there is one.
    pub fn global(&self) -> Option<Ipv6Addr> {
        let usable = |own: &&Ipv6Address| !own.ip.is_unicast_link_local();
        let mut all = self.addresses.iter().flatten().filter(usable);
        all.clone().find(|own| own.preference == Preference::Preferred).or(all.next()).map(|own| own.ip)
    }

    /// Whether `ip` is reached without a router.
    pub fn on_link(&self, ip: Ipv6Addr) -> bool {
        ip.is_unicast_link_local() || self.prefixes.iter().flatten().any(|prefix| prefix.contains(ip))
    }

    /// Whether a multicast address is one that this interface listens to: everybody's, or that of the
    /// neighbours who look for one of its addresses.
    pub fn listens_to(&self, group: Ipv6Addr) -> bool {
        group == ALL_NODES || self.addresses.iter().flatten().any(|own| solicited_node(own.ip) == group)
    }

    /// The address to talk to `destination` from (RFC 6724 5, as far as one interface without mobility and
    /// temporary addresses needs it: rules 1, 2, 3 and 8).
    pub fn source_for(&self, destination: Ipv6Addr) -> Option<Ipv6Addr> {
        let wanted = scope(destination);
        let rank = |own: &&Ipv6Address| {
            let has = scope(own.ip);
            // The smallest scope that is large enough, then the largest of those too small.
            let fit = if has >= wanted { 32 - (has - wanted) } else { has };
            let kept = own.preference == Preference::Preferred;
            (own.ip == destination, fit, kept, common_bits(own.ip, destination).min(64))
        };
        // The first of equals: `max_by_key` would take the last.
        self.addresses.iter().flatten().rev().max_by_key(rank).map(|own| own.ip)
    }

    /// Puts the router that does not answer behind the others.
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

/// All machines on the link.
pub(crate) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// All routers on the link.
pub(crate) const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
/// Everybody who counts listeners (RFC 3810).
pub(crate) const ALL_MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);

/// The group in which whoever has `ip` is looked for (RFC 4291 2.7.1).
pub(crate) const fn solicited_node(ip: Ipv6Addr) -> Ipv6Addr {
    const GROUP: u128 = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0).to_bits();
    Ipv6Addr::from_bits(GROUP | (ip.to_bits() & 0xff_ffff))
}

/// The group address of Ethernet that carries a multicast address (RFC 2464 7).
pub(crate) const fn group_mac(group: Ipv6Addr) -> crate::address::MacAddr {
    let [a, b, c, d] = (group.to_bits() as u32).to_be_bytes();
    crate::address::MacAddr([0x33, 0x33, a, b, c, d])
}

/// Whether `ip` can be one interface's address on a network.
pub(crate) const fn is_unicast6(ip: Ipv6Addr) -> bool {
    !ip.is_unspecified() && !ip.is_loopback() && !ip.is_multicast() && ip.to_bits() >> 32 != 0xffff
}

/// How far an address reaches, as the number that multicast addresses carry (RFC 4007, RFC 6724 3.1).
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

/// Leading bits that two addresses share.
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
    fn the_source_of_a_packet_fits_its_destination() {
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
        assert_eq!(from("2001:db8:1::9"), ip("2001:db8:2::1"), "the nearest one is deprecated");
        assert_eq!(from("2001:db8:1::1"), ip("2001:db8:1::1"));
        assert_eq!(settings(&own[..2]).source_for(ip("2600::1")), Some(ip("2001:db8:1::1")));
        assert_eq!(settings(&own[..1]).source_for(ip("2600::1")), Some(ip("fe80::1")));
        assert_eq!(Ipv6Settings::NONE.source_for(ip("2600::1")), None);
    }

    #[proves("RFC 4291 2.7.1", "the solicited-node group ends in the address's last 24 bits.")]
    #[proves("RFC 2464 7", "a group's hardware address ends in the group's last 32 bits.")]
    #[test]
    fn groups_follow_from_addresses() {
        let group = solicited_node(ip("fd00::12:3456"));
        assert_eq!(group, ip("ff02::1:ff12:3456"));
        assert_eq!(group_mac(group).0, [0x33, 0x33, 0xff, 0x12, 0x34, 0x56]);
        let own = settings(&[("fd00::12:3456", Preference::Preferred)]);
        assert!(own.listens_to(group) && own.listens_to(ALL_NODES) && !own.listens_to(ALL_ROUTERS));
    }

    #[test]
    fn a_router_that_is_silent_goes_behind_the_others() {
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
    fn impossible_addresses_are_told_apart() {
        for text in ["::", "::1", "ff02::1", "::ffff:10.0.0.1"] {
            assert!(!Ipv6Config::new(ip(text), 64, None).is_valid(), "{text}");
        }
        assert!(Ipv6Config::new(ip("2001:db8::1"), 64, None).is_valid());
        assert!(!Ipv6Config::new(ip("2001:db8::1"), 129, None).is_valid());
    }
}
