//! Neighbour discovery messages (RFC 4861 4) and the contents of router advertisements (RFC 4862, RFC 8106).
//!
//! They arrive as ICMPv6 messages whose checksum was verified. A message is accepted only if it cannot have passed a
//! router, which the hop limit of 255 proves.

use crate::base::{DNS_SERVERS, MacAddr};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::net::Ipv6Addr;

pub(crate) const ROUTER_SOLICITATION: u8 = 133;
pub(crate) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(crate) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(crate) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(crate) const REDIRECT: u8 = 137;

/// The hop limit of all these messages.
pub(crate) const HOPS: u8 = 255;

const SOURCE_LINK: u8 = 1;
const TARGET_LINK: u8 = 2;
const PREFIX: u8 = 3;
const MTU: u8 = 5;
const RDNSS: u8 = 25;

/// The most options of a message.
const MAX_OPTIONS: usize = 32;
/// The most prefixes that are read from an advertisement.
pub(crate) const PREFIXES: usize = 8;

/// A received message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Solicitation { target: Ipv6Addr, sender: Option<MacAddr> },
    Advertisement { target: Ipv6Addr, mac: Option<MacAddr>, flags: AdvertFlags },
    Router(Box<RouterAdvert>),
}

/// The flags of a neighbour advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdvertFlags(u8);

impl AdvertFlags {
    const ROUTER: u8 = 0x80;
    const SOLICITED: u8 = 0x40;
    const OVERRIDE: u8 = 0x20;

    /// Returns whether the sender is a router.
    pub fn is_router(self) -> bool {
        self.0 & Self::ROUTER != 0
    }

    /// Returns whether it answers a solicitation.
    pub fn is_solicited(self) -> bool {
        self.0 & Self::SOLICITED != 0
    }

    /// Returns whether it overrides a known address.
    pub fn overrides(self) -> bool {
        self.0 & Self::OVERRIDE != 0
    }
}

/// The contents of a router advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RouterAdvert {
    /// Zero if unspecified.
    pub hop_limit: u8,
    /// The configuration available by DHCPv6.
    pub offered: Dhcp6Offer,
    /// Seconds for which the sender is a default router.
    pub router_lifetime: u16,
    /// Milliseconds for which a neighbour counts as reachable; zero if unspecified.
    pub reachable_ms: u32,
    pub mac: Option<MacAddr>,
    pub mtu: Option<u32>,
    pub prefixes: [Option<PrefixInfo>; PREFIXES],
    pub dns: [Option<Ipv6Addr>; DNS_SERVERS],
    /// Seconds for which the name servers may be used.
    pub dns_lifetime: u32,
}

/// The configuration that routers advertise as available by DHCPv6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dhcp6Offer {
    #[default]
    Nothing,
    /// Settings other than addresses.
    Settings,
    Addresses,
}

/// A flag of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    Set,
    Clear,
}

impl Flag {
    const fn of(bits: u8, mask: u8) -> Self {
        if bits & mask != 0 { Self::Set } else { Self::Clear }
    }
}

/// A prefix of a router advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrefixInfo {
    pub ip: Ipv6Addr,
    pub len: u8,
    /// Its members are neighbours.
    pub on_link: Flag,
    /// Hosts may derive addresses from it.
    pub autonomous: Flag,
    /// Seconds.
    pub valid: u32,
    pub preferred: u32,
}

/// Parses a message; returns `None` if it is malformed, or of a type that hosts do not use.
pub(crate) fn parse(bytes: &[u8]) -> Option<Message> {
    let (&[kind, code], rest) = bytes.split_first_chunk::<2>()?;
    let (_, body) = rest.split_first_chunk::<2>()?;
    if code != 0 {
        return None;
    }
    match kind {
        NEIGHBOUR_SOLICITATION => {
            let (_, body) = body.split_first_chunk::<4>()?;
            let (target, options) = body.split_first_chunk::<16>()?;
            let mut sender = None;
            each_option(options, |option, value| {
                if option == SOURCE_LINK {
                    sender = mac_of(value);
                }
            })?;
            Some(Message::Solicitation { target: target_of(*target)?, sender })
        }
        NEIGHBOUR_ADVERTISEMENT => {
            let (&[flags, ..], body) = body.split_first_chunk::<4>()?;
            let (target, options) = body.split_first_chunk::<16>()?;
            let mut mac = None;
            each_option(options, |option, value| {
                if option == TARGET_LINK {
                    mac = mac_of(value);
                }
            })?;
            Some(Message::Advertisement { target: target_of(*target)?, mac, flags: AdvertFlags(flags) })
        }
        ROUTER_ADVERTISEMENT => parse_router(body).map(|advert| Message::Router(Box::new(advert))),
        _ => None,
    }
}

fn parse_router(body: &[u8]) -> Option<RouterAdvert> {
    let (&[hop_limit, flags, a, b, r0, r1, r2, r3, ..], options) = body.split_first_chunk::<12>()?;
    let mut advert = RouterAdvert {
        hop_limit,
        offered: match (Flag::of(flags, 0x80), Flag::of(flags, 0x40)) {
            (Flag::Set, _) => Dhcp6Offer::Addresses,
            (Flag::Clear, Flag::Set) => Dhcp6Offer::Settings,
            (Flag::Clear, Flag::Clear) => Dhcp6Offer::Nothing,
        },
        router_lifetime: u16::from_be_bytes([a, b]),
        reachable_ms: u32::from_be_bytes([r0, r1, r2, r3]),
        mac: None,
        mtu: None,
        prefixes: [None; PREFIXES],
        dns: [None; DNS_SERVERS],
        dns_lifetime: 0,
    };
    each_option(options, |option, value| match option {
        SOURCE_LINK => advert.mac = mac_of(value),
        MTU => advert.mtu = word(value, 2),
        PREFIX => {
            if let Some(slot) = advert.prefixes.iter_mut().find(|slot| slot.is_none()) {
                *slot = parse_prefix(value);
            }
        }
        RDNSS => {
            advert.dns_lifetime = word(value, 2).unwrap_or(0);
            let servers = value.get(6..).unwrap_or(&[]).as_chunks::<16>().0;
            for (slot, &server) in advert.dns.iter_mut().zip(servers) {
                *slot = Some(Ipv6Addr::from(server));
            }
        }
        _ => {}
    })?;
    Some(advert)
}

fn parse_prefix(value: &[u8]) -> Option<PrefixInfo> {
    let &[len, flags, ..] = value else { return None };
    let ip = Ipv6Addr::from(*value.get(14..)?.first_chunk::<16>()?);
    let (on_link, autonomous) = (Flag::of(flags, 0x80), Flag::of(flags, 0x40));
    let info =
        PrefixInfo { ip, len, on_link, autonomous, valid: word(value, 2)?, preferred: word(value, 6)? };
    (len <= 128).then_some(info)
}

/// Calls `see` with each option's type and its bytes after the length; returns `None` if one is malformed (RFC 4861
/// 6.1.2: an option of length zero invalidates the message) or there are too many.
fn each_option(mut options: &[u8], mut see: impl FnMut(u8, &[u8])) -> Option<()> {
    for _ in 0..MAX_OPTIONS {
        let Some((&[option, units], _)) = options.split_first_chunk::<2>() else {
            return options.is_empty().then_some(());
        };
        let len = usize::from(units) * 8;
        if len == 0 {
            return None;
        }
        let (this, rest) = options.split_at_checked(len)?;
        see(option, this.get(2..)?);
        options = rest;
    }
    options.is_empty().then_some(())
}

fn mac_of(value: &[u8]) -> Option<MacAddr> {
    value.first_chunk::<6>().map(|&mac| MacAddr(mac)).filter(|mac| mac.is_unicast())
}

fn word(value: &[u8], at: usize) -> Option<u32> {
    value.get(at..)?.first_chunk::<4>().map(|&word| u32::from_be_bytes(word))
}

fn target_of(target: [u8; 16]) -> Option<Ipv6Addr> {
    let target = Ipv6Addr::from(target);
    (!target.is_multicast()).then_some(target)
}

/// Returns a neighbour solicitation of `target`, without a sender's address if the source is unspecified.
pub(crate) fn solicitation(target: Ipv6Addr, sender: Option<MacAddr>) -> Vec<u8> {
    let mut bytes = Vec::from([NEIGHBOUR_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
    bytes.extend_from_slice(&target.octets());
    push_link(&mut bytes, SOURCE_LINK, sender);
    bytes
}

/// Returns a neighbour advertisement of `target`.
pub(crate) fn advertisement(target: Ipv6Addr, mac: MacAddr, answers: Answers) -> Vec<u8> {
    let flags = AdvertFlags::OVERRIDE
        | match answers {
            Answers::Solicitor => AdvertFlags::SOLICITED,
            Answers::AllNodes => 0,
        };
    let mut bytes = Vec::from([NEIGHBOUR_ADVERTISEMENT, 0, 0, 0, flags, 0, 0, 0]);
    bytes.extend_from_slice(&target.octets());
    push_link(&mut bytes, TARGET_LINK, Some(mac));
    bytes
}

/// The recipients of an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Solicitor,
    AllNodes,
}

/// Returns a router solicitation.
pub(crate) fn router_solicitation(sender: Option<MacAddr>) -> Vec<u8> {
    let mut bytes = Vec::from([ROUTER_SOLICITATION, 0, 0, 0, 0, 0, 0, 0]);
    push_link(&mut bytes, SOURCE_LINK, sender);
    bytes
}

fn push_link(bytes: &mut Vec<u8>, option: u8, mac: Option<MacAddr>) {
    if let Some(MacAddr(mac)) = mac {
        bytes.extend_from_slice(&[option, 1]);
        bytes.extend_from_slice(&mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_proves::proves;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
    const TARGET: Ipv6Addr = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 9);

    #[test]
    fn written_messages_parse_to_the_same_messages() {
        let asked = Message::Solicitation { target: TARGET, sender: Some(MAC) };
        assert_eq!(parse(&solicitation(TARGET, Some(MAC))), Some(asked));
        let Some(Message::Advertisement { target, mac, flags }) =
            parse(&advertisement(TARGET, MAC, Answers::Solicitor))
        else {
            panic!("an advertisement")
        };
        assert_eq!((target, mac), (TARGET, Some(MAC)));
        assert!(flags.is_solicited() && flags.overrides() && !flags.is_router());
    }

    #[proves(
        "RFC 4861 7.1.2",
        "a code other than zero, a multicast target or an option without length is refused."
    )]
    #[test]
    fn malformed_messages_are_rejected() {
        let good = solicitation(TARGET, Some(MAC));
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]).is_some(), len == 24, "{len}");
        }
        for (at, value) in [(1, 1), (8, 0xff), (25, 0)] {
            let mut bad = good.clone();
            bad[at] = value;
            assert_eq!(parse(&bad), None, "{at}");
        }
        let mut endless = good[..24].to_vec();
        (0..40).for_each(|_| endless.extend_from_slice(&[77, 1, 0, 0, 0, 0, 0, 0]));
        assert_eq!(parse(&endless), None);
    }
}
