//! Requests of `NETLINK_ROUTE` (rtnetlink(7)).

use super::reply::{Body, Reply, Request, attribute};
use crate::Errno;
use crate::interfaces::{
    InterfaceAddress, InterfaceKind, NetworkInterface, NetworkInterfaces, Route, interface_flags,
};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use isola_linux_abi::net::{AF_INET, AF_INET6, AF_UNSPEC};

/// Flags of requests.
const NLM_F_REQUEST: u16 = 1;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;

/// The first type that is no control message, and types of messages, from Linux's `linux/rtnetlink.h`.
const FIRST_KIND: u16 = 16;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
/// Types come in fours: new, delete, get, set.
const KIND_BITS: u16 = 3;
const GET: u16 = 2;

/// Attributes of links (`IFLA_*`).
const IFLA_ADDRESS: u16 = 1;
const IFLA_BROADCAST: u16 = 2;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFLA_QDISC: u16 = 6;
const IFLA_TXQLEN: u16 = 13;
const IFLA_OPERSTATE: u16 = 16;
const IFLA_LINKMODE: u16 = 17;
const IFLA_STATS64: u16 = 23;
const IFLA_GROUP: u16 = 27;
/// The number of counters of `struct rtnl_link_stats64` up to `rx_nohandler`.
const COUNTERS: usize = 24;
/// Operational states.
const OPERATION_UNKNOWN: u8 = 0;
const OPERATION_DOWN: u8 = 2;
const OPERATION_UP: u8 = 6;

/// Attributes of addresses (`IFA_*`).
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_LABEL: u16 = 3;
const IFA_BROADCAST: u16 = 4;
const IFA_CACHEINFO: u16 = 6;
const IFA_FLAGS: u16 = 8;
/// `IFA_F_PERMANENT`.
const PERMANENT: u8 = 0x80;

/// Attributes of routes (`RTA_*`), the main table, and the protocol of routes from the start.
const RTA_DST: u16 = 1;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PREFSRC: u16 = 7;
const RTA_TABLE: u16 = 15;
const TABLE_MAIN: u8 = 254;
const PROTOCOL_BOOT: u8 = 3;
const UNICAST: u8 = 1;

/// Scopes of addresses and routes.
const SCOPE_GLOBAL: u8 = 0;
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;

/// The options of a socket that change answers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RequestOptions {
    /// The headers of requests for several messages are filters (`NETLINK_GET_STRICT_CHK`).
    pub is_strict: bool,
    /// Whether the sender may administrate the network.
    pub is_admin: bool,
}

/// Answers a request of the socket with this port.
pub(super) fn answer(
    interfaces: &dyn NetworkInterfaces,
    request: Request<'_>,
    port: u32,
    options: RequestOptions,
) -> VecDeque<Vec<u8>> {
    if request.flags & NLM_F_REQUEST == 0 {
        return VecDeque::new();
    }
    let reply = Reply::new(request, port);
    let acknowledges = request.flags & NLM_F_ACK != 0;
    if request.kind < FIRST_KIND {
        return if acknowledges { reply.result(Ok(())) } else { VecDeque::new() };
    }
    if request.kind & KIND_BITS != GET && !options.is_admin {
        return reply.result(Err(Errno::EPERM));
    }
    let is_dump = request.flags & NLM_F_DUMP != 0;
    let family = u32::from(request.payload.first().copied().unwrap_or(0));
    let word = |at: usize| {
        let bytes = request.payload.get(at..at + 4);
        bytes.map_or(0, |bytes| u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    match (request.kind, is_dump) {
        (RTM_GETLINK, true) => links(interfaces, reply),
        (RTM_GETLINK, false) => {
            let name = attribute(request.payload.get(16..).unwrap_or(&[]), IFLA_IFNAME);
            let name = name.map(|name| name.split(|byte| *byte == 0).next().unwrap_or(name));
            let is_asked = |interface: &&NetworkInterface| match (word(4), name) {
                (0, Some(name)) => interface.name.as_bytes() == name,
                (index, _) => interface.index == index,
            };
            match interfaces.interfaces().iter().find(is_asked) {
                Some(interface) => with_result(reply.single(RTM_NEWLINK, &link(interface)), request, port),
                None => reply.result(Err(Errno::ENODEV)),
            }
        }
        (RTM_GETADDR, true) => {
            let index = if options.is_strict { word(4) } else { 0 };
            addresses(interfaces, reply, family, index)
        }
        (RTM_GETROUTE, true) => routes(interfaces, reply, family),
        (RTM_GETROUTE, false) => {
            let target = attribute(request.payload.get(12..).unwrap_or(&[]), RTA_DST).and_then(ip_of_bytes);
            let found = target.and_then(|target| best_route(&interfaces.routes(), target));
            match found {
                Some(found) => with_result(reply.single(RTM_NEWROUTE, &route(&found)), request, port),
                None => reply.result(Err(Errno::ENETUNREACH)),
            }
        }
        _ => reply.result(Err(Errno::EOPNOTSUPP)),
    }
}

/// Adds the confirmation for which a request asks.
fn with_result(mut datagrams: VecDeque<Vec<u8>>, request: Request<'_>, port: u32) -> VecDeque<Vec<u8>> {
    if request.flags & NLM_F_ACK != 0 {
        datagrams.extend(Reply::new(request, port).result(Ok(())));
    }
    datagrams
}

fn links(interfaces: &dyn NetworkInterfaces, mut reply: Reply<'_>) -> VecDeque<Vec<u8>> {
    for interface in interfaces.interfaces() {
        reply.add(RTM_NEWLINK, &link(&interface));
    }
    reply.done()
}

fn link(interface: &NetworkInterface) -> Body {
    /// The length of the queue of packets that programs see.
    const QUEUE_LEN: u32 = 1000;
    let mut body = Body::default();
    // `struct ifinfomsg`.
    body.u8(0).u8(0).u16(interface.kind as u16).u32(interface.index).u32(interface.flags).u32(0);
    let mut name = interface.name.as_bytes().to_vec();
    name.push(0);
    let is_loopback = interface.kind == InterfaceKind::Loopback;
    let state = match () {
        () if is_loopback => OPERATION_UNKNOWN,
        () if interface.flags & interface_flags::RUNNING != 0 => OPERATION_UP,
        () => OPERATION_DOWN,
    };
    let broadcast = if is_loopback { [0; 6] } else { [0xff; 6] };
    let mut counters = [0; COUNTERS];
    let known = &interface.counters;
    counters[..4].copy_from_slice(&[
        known.received_packets,
        known.sent_packets,
        known.received_bytes,
        known.sent_bytes,
    ]);
    let counters: Vec<u8> = counters.iter().flat_map(|counter| counter.to_ne_bytes()).collect();
    body.attribute(IFLA_IFNAME, &name)
        .attribute_u32(IFLA_TXQLEN, QUEUE_LEN)
        .attribute(IFLA_OPERSTATE, &[state])
        .attribute(IFLA_LINKMODE, &[0])
        .attribute_u32(IFLA_MTU, interface.mtu)
        .attribute_u32(IFLA_GROUP, 0)
        .attribute(IFLA_QDISC, b"noqueue\0")
        .attribute(IFLA_ADDRESS, &interface.hardware_address)
        .attribute(IFLA_BROADCAST, &broadcast)
        .attribute(IFLA_STATS64, &counters);
    body
}

fn family_of(address: IpAddr) -> u32 {
    if address.is_ipv4() { AF_INET } else { AF_INET6 }
}

fn bytes_of_ip(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ip_of_bytes(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = bytes.try_into().map(|bytes: [u8; 4]| IpAddr::from(bytes)).ok();
    v4.or_else(|| bytes.try_into().map(|bytes: [u8; 16]| IpAddr::from(bytes)).ok())
}

fn addresses(
    interfaces: &dyn NetworkInterfaces,
    mut reply: Reply<'_>,
    family: u32,
    index: u32,
) -> VecDeque<Vec<u8>> {
    let interfaces = interfaces.interfaces();
    // All addresses of a family, then those of the next, as on Linux.
    for listed in [AF_INET, AF_INET6] {
        if family != AF_UNSPEC && family != listed {
            continue;
        }
        for interface in interfaces.iter().filter(|interface| index == 0 || interface.index == index) {
            for address in interface.addresses.iter().filter(|known| family_of(known.address) == listed) {
                reply.add(RTM_NEWADDR, &address_body(interface, address));
            }
        }
    }
    reply.done()
}

fn address_body(interface: &NetworkInterface, known: &InterfaceAddress) -> Body {
    /// Both times of a permanent address.
    const FOREVER: [u8; 8] = [0xff; 8];
    let scope = match known.address {
        address if address.is_loopback() => SCOPE_HOST,
        IpAddr::V4(address) if address.is_link_local() => SCOPE_LINK,
        IpAddr::V6(address) if address.segments()[0] & 0xffc0 == 0xfe80 => SCOPE_LINK,
        _ => SCOPE_GLOBAL,
    };
    let mut body = Body::default();
    // `struct ifaddrmsg`.
    body.u8(family_of(known.address) as u8).u8(known.prefix_len).u8(PERMANENT).u8(scope).u32(interface.index);
    let bytes = bytes_of_ip(known.address);
    body.attribute(IFA_ADDRESS, &bytes);
    if known.address.is_ipv4() {
        body.attribute(IFA_LOCAL, &bytes);
        if let Some(broadcast) = known.broadcast().filter(|_| !known.address.is_loopback()) {
            body.attribute(IFA_BROADCAST, &broadcast.octets());
        }
        let mut label = interface.name.as_bytes().to_vec();
        label.push(0);
        body.attribute(IFA_LABEL, &label);
    }
    let mut times = FOREVER.to_vec();
    times.extend([0; 8]);
    body.attribute_u32(IFA_FLAGS, PERMANENT.into()).attribute(IFA_CACHEINFO, &times);
    body
}

fn routes(interfaces: &dyn NetworkInterfaces, mut reply: Reply<'_>, family: u32) -> VecDeque<Vec<u8>> {
    for known in interfaces.routes() {
        if family == AF_UNSPEC || family == family_of(known.destination) {
            reply.add(RTM_NEWROUTE, &route(&known));
        }
    }
    reply.done()
}

fn route(known: &Route) -> Body {
    let is_direct = known.gateway.is_none() && known.destination.is_ipv4();
    let scope = if is_direct { SCOPE_LINK } else { SCOPE_GLOBAL };
    let mut body = Body::default();
    // `struct rtmsg`.
    body.u8(family_of(known.destination) as u8).u8(known.prefix_len).u8(0).u8(0);
    body.u8(TABLE_MAIN).u8(PROTOCOL_BOOT).u8(scope).u8(UNICAST).u32(0);
    body.attribute_u32(RTA_TABLE, TABLE_MAIN.into());
    if known.prefix_len > 0 {
        body.attribute(RTA_DST, &bytes_of_ip(known.destination));
    }
    if let Some(gateway) = known.gateway {
        body.attribute(RTA_GATEWAY, &bytes_of_ip(gateway));
    }
    if let Some(source) = known.source {
        body.attribute(RTA_PREFSRC, &bytes_of_ip(source));
    }
    body.attribute_u32(RTA_OIF, known.interface);
    body
}

/// Returns the route to an address: that with the longest prefix.
fn best_route(routes: &[Route], target: IpAddr) -> Option<Route> {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let (target_bits, len) = bits(target);
    let contains = |route: &&Route| {
        let (network, network_len) = bits(route.destination);
        let prefix_len = u32::from(route.prefix_len).min(len);
        let mask = u128::MAX.checked_shl(128 - prefix_len).unwrap_or(0);
        network_len == len && (network ^ target_bits) & mask == 0
    };
    let best = routes.iter().filter(contains).max_by_key(|route| route.prefix_len)?;
    Some(Route { destination: target, prefix_len: len as u8, ..*best })
}
