//! The room of link and IP: Ethernet, ARP and neighbour discovery, IPv4 and IPv6 with fragments and ICMP, and the
//! sending side of an interface ([`Interface`]).
//!
//! Transports pass a [`Packet`], or request the [`Path`] to a peer and build frames themselves. Received packets leave
//! this room as [`IpPacket`]. The room depends on `base` only.

mod arp;
mod ethernet;
mod fragments;
mod heads;
mod icmp;
mod icmp6;
mod interface;
mod ipv4;
mod ipv6;
mod mld;
mod ndp;
mod neighbour;
mod packet;
mod path_mtu;

pub(crate) use arp::ArpPacket;
pub(crate) use ethernet::{
    HEADER_LEN as ETHERNET_HEADER_LEN, header as ethernet_header, parse as parse_ethernet,
    prepend as prepend_ethernet,
};
pub(crate) use fragments::{Fragment, Reassembler};
pub(crate) use icmp::{
    ErrorKind, HEADER_LEN as ICMP_HEADER_LEN, IcmpError, Message as IcmpMessage, echo_reply,
    is_error as is_icmp_error, parse as parse_icmp, port_unreachable,
};
pub(crate) use icmp6::{
    Icmp6ErrorKind, Message as Icmp6Message, error_packet as icmp6_error, is_about_neighbours,
    is_error as is_icmp6_error, may_cause_error, parse as parse_icmp6,
};
pub(crate) use interface::{Interface, InterfaceConfig, LinkMessage, LinkMessageKind, Path, SilentNeighbour};
pub(crate) use ipv4::{
    HEADER_LEN as IPV4_HEADER_LEN, Parsed as ParsedIpv4, header as ipv4_header, parse as parse_ipv4,
};
pub(crate) use ipv6::{
    HEADER_LEN as IPV6_HEADER_LEN, MIN_LINK_MTU, PROBLEM_NEXT_HEADER, Parsed as ParsedIpv6,
    find_transport as find_transport_v6, header as ipv6_header, parse as parse_ipv6,
};
pub(crate) use mld::{Reason as ReportReason, delay_ms as report_delay_ms, report as listener_report};
pub(crate) use ndp::{
    Answers, Dhcp6Offer, Flag, Message as NdpMessage, PrefixInfo, RouterAdvert,
    advertisement as neighbour_advertisement, router_solicitation, solicitation as neighbour_solicitation,
};
pub(crate) use neighbour::{
    Advert, KnownNeighbour, LearnOutcome, MakeEntry, REACHABLE_V6, Strength, Waiting,
};
pub(crate) use packet::{Fragmentation, IpPacket, Mark, Packet, Refusal, mark_capable};
pub(crate) use path_mtu::{PathUser, least_mtu};
