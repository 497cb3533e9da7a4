//! Forwarding, the ownership of addresses, and hostile clients.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use isola_switch::frame::Mac;
use isola_switch::{
    AGE, DropReason, MOST_ADDRESSES, MOST_UPLINK_ADDRESSES, PortId, PortRefusal, Recipients, Source, Switch,
    Targets, port_mac,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

const OWN: Mac = [2, 0, 0, 0, 0, 1];
const ROUTER: Mac = [0x52, 0x55, 10, 0, 2, 2];
const BROADCAST: Mac = [0xff; 6];
const OWN_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 16);
const ROUTER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
const WEB_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 17);
const KV_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 18);
const START: Duration = Duration::ZERO;

/// A switch with two clients.
struct Rig {
    switch: Switch,
    web: PortId,
    kv: PortId,
    web_mac: Mac,
    kv_mac: Mac,
    now: Duration,
}

impl Rig {
    fn new() -> Self {
        let mut switch = Switch::new(OWN);
        let [web_mac, kv_mac] = ["web", "kv"].map(|name| port_mac(OWN, name));
        let web = switch.add_port(web_mac, START).unwrap();
        let kv = switch.add_port(kv_mac, START).unwrap();
        Self { switch, web, kv, web_mac, kv_mac, now: START }
    }

    fn send(&mut self, from: Source, frame: &[u8]) -> Result<Targets, DropReason> {
        self.switch.forward(from, frame, self.now)
    }

    fn web(&mut self, frame: &[u8]) -> Result<Targets, DropReason> {
        self.send(Source::Port(self.web), frame)
    }

    fn kv(&mut self, frame: &[u8]) -> Result<Targets, DropReason> {
        self.send(Source::Port(self.kv), frame)
    }
}

fn ethernet(to: Mac, from: Mac, kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &from, &kind.to_be_bytes(), payload].concat()
}

fn arp(to: Mac, from: Mac, sender_mac: Mac, sender: Ipv4Addr) -> Vec<u8> {
    let head = [0, 1, 8, 0, 6, 4, 0, 1];
    ethernet(to, from, 0x806, &[&head[..], &sender_mac, &sender.octets(), &[0; 10]].concat())
}

/// An ARP request by the owner of `sender` for the hardware address of `target`.
fn request(from: Mac, sender: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let mut frame = arp(BROADCAST, from, from, sender);
    frame[38..42].copy_from_slice(&target.octets());
    frame
}

/// A neighbour solicitation to the group of the target's last bytes.
fn solicitation(from: Mac, source: Ipv6Addr, target: Ipv6Addr) -> Vec<u8> {
    let [.., a, b, c] = target.octets();
    let data = [&[135, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
    ipv6([0x33, 0x33, 0xff, a, b, c], from, source, 58, &data)
}

fn ipv4(to: Mac, from: Mac, source: Ipv4Addr, protocol: u8, data: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + data.len() as u16).to_be_bytes();
    let head = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0];
    ethernet(to, from, 0x800, &[&head[..], &source.octets(), &[192, 0, 2, 1], data].concat())
}

fn udp(to: Mac, from: Mac, source: Ipv4Addr, ports: (u16, u16)) -> Vec<u8> {
    let data = [&ports.0.to_be_bytes()[..], &ports.1.to_be_bytes(), &[0, 8, 0, 0]].concat();
    ipv4(to, from, source, 17, &data)
}

fn ipv6(to: Mac, from: Mac, source: Ipv6Addr, protocol: u8, data: &[u8]) -> Vec<u8> {
    let [high, low] = (data.len() as u16).to_be_bytes();
    let head = [0x60, 0, 0, 0, high, low, protocol, 255];
    ethernet(to, from, 0x86dd, &[&head[..], &source.octets(), &[0xff; 16], data].concat())
}

fn one(port: PortId) -> Result<Targets, DropReason> {
    Ok(Targets { uplink: false, own: false, ports: Recipients::One(port) })
}

const UPLINK: Result<Targets, DropReason> = Ok(Targets { uplink: true, own: false, ports: Recipients::None });
const HERE: Result<Targets, DropReason> = Ok(Targets { uplink: false, own: true, ports: Recipients::None });
const FOREIGN: Result<Targets, DropReason> = Err(DropReason::ForeignAddress);

#[test]
fn a_unicast_frame_goes_to_its_receiver_only() {
    let mut rig = Rig::new();
    let (web_mac, kv_mac, web, kv) = (rig.web_mac, rig.kv_mac, rig.web, rig.kv);
    assert_eq!(rig.web(&udp(kv_mac, web_mac, WEB_IP, (1, 2))), one(kv));
    assert_eq!(rig.web(&udp(OWN, web_mac, WEB_IP, (1, 2))), HERE);
    assert_eq!(rig.web(&udp(ROUTER, web_mac, WEB_IP, (1, 2))), UPLINK);
    assert_eq!(rig.send(Source::Uplink, &udp(web_mac, ROUTER, ROUTER_IP, (1, 2))), one(web));
    assert_eq!(rig.send(Source::Uplink, &udp(OWN, ROUTER, ROUTER_IP, (1, 2))), HERE);
    assert_eq!(rig.send(Source::Own, &udp(kv_mac, OWN, OWN_IP, (1, 2))), one(kv));
    assert_eq!(rig.send(Source::Own, &udp(ROUTER, OWN, OWN_IP, (1, 2))), UPLINK);
    // The device delivers all frames of its network.
    let elsewhere = udp([2, 9, 9, 9, 9, 9], ROUTER, ROUTER_IP, (1, 2));
    assert_eq!(rig.send(Source::Uplink, &elsewhere), Err(DropReason::NoReceiver));
    assert_eq!(rig.web(&udp(web_mac, web_mac, WEB_IP, (1, 2))), Err(DropReason::NoReceiver));
    rig.switch.remove_port(kv);
    assert_eq!(rig.web(&udp(kv_mac, web_mac, WEB_IP, (1, 2))), UPLINK);
    assert_eq!(rig.kv(&udp(web_mac, kv_mac, KV_IP, (1, 2))), FOREIGN, "a removed port sends nothing");
}

#[test]
fn a_broadcast_goes_to_all_others() {
    let mut rig = Rig::new();
    let all = |uplink, own| Ok(Targets { uplink, own, ports: Recipients::All });
    let (web_mac, group) = (rig.web_mac, [0x33, 0x33, 0, 0, 0, 1]);
    assert_eq!(rig.web(&arp(BROADCAST, web_mac, web_mac, WEB_IP)), all(true, true));
    assert_eq!(rig.web(&udp(group, web_mac, WEB_IP, (1, 2))), all(true, true));
    assert_eq!(rig.send(Source::Uplink, &arp(BROADCAST, ROUTER, ROUTER, ROUTER_IP)), all(false, true));
    assert_eq!(rig.send(Source::Own, &arp(BROADCAST, OWN, OWN, OWN_IP)), all(true, false));
}

#[test]
fn a_frame_for_all_routers_goes_to_no_client() {
    let mut rig = Rig::new();
    let (web, ip6) = (rig.web_mac, Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7));
    let to6 = |last: u8, data: &[u8], next: u8| {
        let mut frame = ipv6([0x33, 0x33, 0, 0, 0, last], web, ip6, next, data);
        frame[38..54].copy_from_slice(&Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, last.into()).octets());
        frame
    };
    let to4 = |group: [u8; 4]| {
        let mut frame = ipv4([1, 0, 0x5e, group[1] & 0x7f, group[2], group[3]], web, WEB_IP, 2, &[0; 8]);
        frame[30..34].copy_from_slice(&group);
        frame
    };
    let solicitation = to6(2, &[133, 0, 0, 0, 0, 0, 0, 0], 58);
    // Behind a hop-by-hop header with the router alert option.
    let report = to6(0x16, &[58, 0, 5, 2, 0, 0, 1, 0, 143, 0, 0, 0], 0);
    for frame in [solicitation, report, to4([224, 0, 0, 22]), to4([224, 0, 0, 2])] {
        assert_eq!(rig.web(&frame), Ok(Targets { uplink: true, own: true, ports: Recipients::None }));
    }
    let all = Ok(Targets { uplink: true, own: true, ports: Recipients::All });
    // All nodes, multicast DNS, and another group with the hardware address of all routers.
    for frame in [to6(1, &[128, 0, 0, 0], 58), to4([224, 0, 0, 251]), to4([239, 0, 0, 2])] {
        assert_eq!(rig.web(&frame), all);
    }
}

#[test]
fn a_request_for_a_known_address_goes_to_no_client_but_its_owner() {
    let mut rig = Rig::new();
    let (web, web_mac, kv, kv_mac) = (rig.web, rig.web_mac, rig.kv, rig.kv_mac);
    let group = |uplink, own, ports| Ok(Targets { uplink, own, ports });
    let all = group(true, true, Recipients::All);
    let asks_for_kv = request(web_mac, WEB_IP, KV_IP);
    assert_eq!(rig.web(&asks_for_kv), all, "the address is unknown");
    assert!(rig.kv(&udp(ROUTER, kv_mac, KV_IP, (1, 2))).is_ok());
    assert_eq!(rig.web(&asks_for_kv), group(true, true, Recipients::One(kv)));
    let probe = request(web_mac, Ipv4Addr::UNSPECIFIED, KV_IP);
    assert_eq!(rig.web(&probe), group(true, true, Recipients::One(kv)));
    let from_router = request(ROUTER, ROUTER_IP, KV_IP);
    assert_eq!(rig.send(Source::Uplink, &from_router), group(false, true, Recipients::One(kv)));
    let from_own = request(OWN, OWN_IP, KV_IP);
    assert_eq!(rig.send(Source::Own, &from_own), group(true, false, Recipients::One(kv)));
    for known in [ROUTER_IP, OWN_IP, WEB_IP] {
        let outside = group(true, true, Recipients::None);
        assert_eq!(rig.web(&request(web_mac, WEB_IP, known)), if known == WEB_IP { all } else { outside });
    }
    // An owner that asks for its own address as another: no other client may have it.
    let own_probe = request(web_mac, Ipv4Addr::UNSPECIFIED, WEB_IP);
    assert_eq!(rig.web(&own_probe), group(true, true, Recipients::None));
    // An announcement is for all caches, also when a router takes over another's address.
    let takeover = request([2, 7, 7, 7, 7, 7], ROUTER_IP, ROUTER_IP);
    assert_eq!(rig.send(Source::Uplink, &takeover), group(false, true, Recipients::All));
    let mut answer = asks_for_kv.clone();
    answer[21] = 2;
    assert_eq!(rig.web(&answer), all, "a broadcast answer");
    rig.switch.remove_port(kv);
    assert_eq!(rig.web(&asks_for_kv), group(true, true, Recipients::None), "it keeps its address");
    rig.now = AGE;
    assert_eq!(rig.web(&asks_for_kv), all, "it was unused");
    assert_eq!(rig.send(Source::Port(web), &asks_for_kv[..41]), Err(DropReason::Malformed));
}

#[test]
fn a_solicitation_of_a_known_neighbour_goes_to_no_client_but_it() {
    let mut rig = Rig::new();
    let (web_mac, kv, kv_mac) = (rig.web_mac, rig.kv, rig.kv_mac);
    let [web_ip, kv_ip, router] = [7, 8, 1].map(|last| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, last));
    let to = |ports| Ok(Targets { uplink: true, own: true, ports });
    let asks_for_kv = solicitation(web_mac, web_ip, kv_ip);
    assert_eq!(rig.web(&asks_for_kv), to(Recipients::All));
    assert!(rig.kv(&solicitation(kv_mac, kv_ip, web_ip)).is_ok());
    assert_eq!(rig.web(&asks_for_kv), to(Recipients::One(kv)));
    let duplicate = solicitation(web_mac, Ipv6Addr::UNSPECIFIED, kv_ip);
    assert_eq!(rig.web(&duplicate), to(Recipients::One(kv)));
    assert!(rig.send(Source::Uplink, &solicitation(ROUTER, router, web_ip)).is_ok());
    assert_eq!(rig.web(&solicitation(web_mac, web_ip, router)), to(Recipients::None));
    // Without a whole target.
    let mut short = asks_for_kv.clone();
    short[19] -= 1;
    assert_eq!(rig.web(&short), to(Recipients::All));
}

#[test]
fn a_client_sends_with_its_own_addresses_only() {
    let mut rig = Rig::new();
    let (web, kv) = (rig.web_mac, rig.kv_mac);
    let [web_ip6, kv_ip6] =
        [Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 7), Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 8)];
    let advertisement = |from, source: Ipv6Addr, target: Ipv6Addr| {
        let data = [&[136, 0, 0, 0, 0, 0, 0, 0][..], &target.octets()].concat();
        ipv6(BROADCAST, from, source, 58, &data)
    };
    assert!(rig.web(&arp(BROADCAST, web, web, WEB_IP)).is_ok());
    assert!(rig.web(&advertisement(web, web_ip6, web_ip6)).is_ok());
    assert!(rig.send(Source::Own, &arp(BROADCAST, OWN, OWN, OWN_IP)).is_ok());
    assert!(rig.send(Source::Uplink, &arp(BROADCAST, ROUTER, ROUTER, ROUTER_IP)).is_ok());
    for (name, frame) in [
        ("another's hardware address", udp(ROUTER, web, WEB_IP, (1, 2))),
        ("the serving cell's", udp(ROUTER, OWN, KV_IP, (1, 2))),
        ("a group address", udp(ROUTER, [3, 0, 0, 0, 0, 0], KV_IP, (1, 2))),
        ("another's address", udp(ROUTER, kv, WEB_IP, (1, 2))),
        ("the serving cell's address", udp(ROUTER, kv, OWN_IP, (1, 2))),
        ("the router's address", udp(web, kv, ROUTER_IP, (1, 2))),
        ("ARP for another's address", arp(BROADCAST, kv, kv, WEB_IP)),
        ("ARP for the router", arp(BROADCAST, kv, kv, ROUTER_IP)),
        ("ARP with another's hardware address", arp(BROADCAST, kv, web, KV_IP)),
        ("no address", udp(ROUTER, kv, Ipv4Addr::UNSPECIFIED, (1, 2))),
        ("a broadcast address", udp(ROUTER, kv, Ipv4Addr::BROADCAST, (1, 2))),
        ("a DHCP server's answer", udp(web, kv, KV_IP, (67, 68))),
        ("a redirect", ipv4(web, kv, KV_IP, 1, &[5, 0, 0, 0])),
        ("a router advertisement", ipv6(BROADCAST, kv, kv_ip6, 58, &[134, 0, 0, 0])),
        ("an IPv6 redirect", ipv6(web, kv, kv_ip6, 58, &[137, 0, 0, 0])),
        ("another's IPv6 address", ipv6(ROUTER, kv, web_ip6, 6, &[0; 20])),
        ("an advertisement of another's", advertisement(kv, kv_ip6, web_ip6)),
        ("an advertisement by another", advertisement(kv, web_ip6, kv_ip6)),
    ] {
        assert_eq!(rig.kv(&frame), FOREIGN, "{name}");
    }
    assert!(
        rig.kv(&udp(BROADCAST, kv, Ipv4Addr::UNSPECIFIED, (68, 67))).is_ok(),
        "a DHCP client's first request"
    );
    assert!(rig.kv(&arp(BROADCAST, kv, kv, Ipv4Addr::UNSPECIFIED)).is_ok(), "a probe");
    assert!(rig.kv(&udp(ROUTER, kv, KV_IP, (1, 2))).is_ok());
    for malformed in
        [ethernet(ROUTER, kv, 0x88cc, &[0; 50]), ethernet(ROUTER, kv, 0x800, &[0x45; 10]), vec![0; 13]]
    {
        assert_eq!(rig.kv(&malformed), Err(DropReason::Malformed));
    }
}

#[test]
fn frames_that_the_uplink_returns_make_no_loop() {
    let mut rig = Rig::new();
    let web_mac = rig.web_mac;
    for frame in [arp(BROADCAST, web_mac, web_mac, WEB_IP), arp(BROADCAST, OWN, OWN, OWN_IP)] {
        assert_eq!(rig.send(Source::Uplink, &frame), Err(DropReason::NoReceiver));
    }
}

#[test]
fn an_address_is_free_after_it_was_unused() {
    let mut rig = Rig::new();
    let (web, kv) = (rig.web_mac, rig.kv_mac);
    let (as_web, as_kv) = (udp(ROUTER, web, WEB_IP, (1, 2)), udp(ROUTER, kv, WEB_IP, (1, 2)));
    assert_eq!(rig.web(&as_web), UPLINK);
    rig.now = AGE - Duration::from_secs(1);
    assert_eq!(rig.kv(&as_kv), FOREIGN);
    assert_eq!(rig.web(&as_web), UPLINK);
    // A client whose link is opened again keeps its address.
    rig.switch.remove_port(rig.web);
    rig.web = rig.switch.add_port(web, rig.now).unwrap();
    rig.now += AGE - Duration::from_secs(1);
    assert_eq!(rig.kv(&as_kv), FOREIGN);
    rig.now += Duration::from_secs(1);
    assert_eq!(rig.kv(&as_kv), UPLINK);
    assert_eq!(rig.web(&as_web), FOREIGN);
}

#[test]
fn the_serving_cell_gets_its_address_and_a_reserved_one_stays() {
    let mut rig = Rig::new();
    let kv = rig.kv_mac;
    assert!(rig.kv(&udp(ROUTER, kv, OWN_IP, (1, 2))).is_ok());
    assert!(rig.send(Source::Own, &arp(BROADCAST, OWN, OWN, OWN_IP)).is_ok());
    assert_eq!(rig.kv(&udp(ROUTER, kv, OWN_IP, (1, 2))), FOREIGN);
    assert!(rig.kv(&udp(ROUTER, kv, ROUTER_IP, (1, 2))).is_ok());
    rig.switch.reserve(IpAddr::V4(ROUTER_IP));
    assert!(rig.send(Source::Uplink, &arp(BROADCAST, ROUTER, ROUTER, ROUTER_IP)).is_ok());
    rig.now = 10 * AGE;
    assert_eq!(rig.kv(&udp(ROUTER, kv, ROUTER_IP, (1, 2))), FOREIGN);
}

#[test]
fn the_tables_have_limits() {
    let mut rig = Rig::new();
    let kv = rig.kv_mac;
    let ip = |number: u32| Ipv4Addr::from(0x0a01_0000 + number);
    let most = MOST_ADDRESSES as u32;
    for number in 0..most {
        assert_eq!(rig.kv(&udp(ROUTER, kv, ip(number), (1, 2))), UPLINK);
    }
    assert_eq!(rig.kv(&udp(ROUTER, kv, ip(most), (1, 2))), FOREIGN);
    assert_eq!(rig.kv(&udp(ROUTER, kv, ip(0), (1, 2))), UPLINK, "those that it has remain");
    rig.now = AGE;
    assert_eq!(rig.kv(&udp(ROUTER, kv, ip(most), (1, 2))), UPLINK, "unused ones make room");
    for number in 0..2 * MOST_UPLINK_ADDRESSES as u32 {
        let ip = Ipv4Addr::from(0x0a02_0000 + number);
        assert!(rig.send(Source::Uplink, &arp(BROADCAST, ROUTER, ROUTER, ip)).is_ok());
    }
    let web = rig.web_mac;
    let [first, last] =
        [0, 2 * MOST_UPLINK_ADDRESSES as u32 - 1].map(|number| Ipv4Addr::from(0x0a02_0000 + number));
    assert_eq!(rig.web(&udp(ROUTER, web, first, (1, 2))), FOREIGN);
    assert_eq!(rig.web(&udp(ROUTER, web, last, (1, 2))), UPLINK, "beyond the limit none is reserved");
}

#[test]
fn a_hardware_address_has_one_port_and_differs_by_machine_and_name() {
    let mut rig = Rig::new();
    assert_eq!(rig.switch.add_port(rig.web_mac, START), Err(PortRefusal::MacTaken));
    assert_eq!(rig.switch.add_port(OWN, START), Err(PortRefusal::MacTaken));
    let mut all: Vec<Mac> = (0..10_000).map(|number| port_mac(OWN, &format!("c{number}"))).collect();
    all.push(port_mac(ROUTER, "c0"));
    assert!(all.iter().all(|mac| mac[0] & 3 == 2), "locally administered, no group");
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert_eq!(port_mac(OWN, "web"), port_mac(OWN, "web"));
}

/// A source address that the test chooses of few, so that ports compete for it.
fn address(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 2, 16 + number % 4)
}

proptest! {
    /// For any claims of addresses: the switch would drop the answer of a client that does not get the request.
    #[test]
    fn a_request_reaches_every_client_whose_answer_would_pass(steps in prop::collection::vec((0..4_u8, any::<u8>(), any::<u8>(), any::<bool>(), 0..200_u64), 1..200)) {
        let mut rig = Rig::new();
        for (from, sender, target, is_probe, seconds) in steps {
            rig.now += Duration::from_secs(seconds);
            let clients = [(Source::Port(rig.web), rig.web, rig.web_mac), (Source::Port(rig.kv), rig.kv, rig.kv_mac)];
            let (source, mac) = match from {
                0 => (Source::Uplink, ROUTER),
                1 => (Source::Own, OWN),
                number => (clients[usize::from(number) - 2].0, clients[usize::from(number) - 2].2),
            };
            let sender = if is_probe { Ipv4Addr::UNSPECIFIED } else { address(sender) };
            let Ok(targets) = rig.send(source, &request(mac, sender, address(target))) else { continue };
            prop_assert_eq!((targets.uplink, targets.own), (source != Source::Uplink, source != Source::Own));
            for (client, port, mac) in clients {
                let is_reached = targets.ports == Recipients::All || targets.ports == Recipients::One(port);
                if client != source && !is_reached {
                    let answer = arp(ROUTER, mac, mac, address(target));
                    prop_assert_eq!(rig.send(client, &answer), FOREIGN);
                }
            }
        }
    }

    #[test]
    fn any_bytes_from_any_source_are_forwarded_or_dropped(frames in prop::collection::vec((0..4_u8, prop::collection::vec(any::<u8>(), 0..120), any::<bool>(), 0..400_u64), 1..60)) {
        let mut rig = Rig::new();
        for (from, mut bytes, is_near, seconds) in frames {
            rig.now += Duration::from_secs(seconds);
            let (source, mac) = match from {
                0 => (Source::Uplink, ROUTER),
                1 => (Source::Own, OWN),
                2 => (Source::Port(rig.web), rig.web_mac),
                _ => (Source::Port(rig.kv), rig.kv_mac),
            };
            if is_near && bytes.len() > 14 {
                bytes[6..12].copy_from_slice(&mac);
                let kind = [[8, 0], [8, 6], [0x86, 0xdd]][usize::from(bytes[12]) % 3];
                bytes[12..14].copy_from_slice(&kind);
            }
            if let Ok(targets) = rig.send(source, &bytes) {
                let nowhere = Targets { uplink: false, own: false, ports: Recipients::None };
                prop_assert_ne!(targets, nowhere);
                prop_assert!(!targets.uplink || source != Source::Uplink);
                prop_assert!(!targets.own || source != Source::Own);
                if let (Recipients::One(port), Source::Port(from)) = (targets.ports, source) {
                    prop_assert!(port != from);
                }
                if matches!(source, Source::Port(_)) {
                    prop_assert_eq!(&bytes[6..12], &mac);
                }
            }
        }
    }

    /// An address has one user at a time: the model is a map from address to its user and the time of its last use.
    #[test]
    fn no_two_ports_use_an_address_at_a_time(steps in prop::collection::vec((any::<bool>(), any::<u8>(), 0..200_u64), 1..200)) {
        let mut rig = Rig::new();
        let mut model: BTreeMap<Ipv4Addr, (bool, Duration)> = BTreeMap::new();
        for (is_web, number, seconds) in steps {
            rig.now += Duration::from_secs(seconds);
            let ip = address(number);
            let (mac, port) = if is_web { (rig.web_mac, rig.web) } else { (rig.kv_mac, rig.kv) };
            let is_sent = rig.send(Source::Port(port), &udp(ROUTER, mac, ip, (1, 2))) == UPLINK;
            let may_send = model.get(&ip).is_none_or(|(owner, used)| *owner == is_web || rig.now - *used >= AGE);
            prop_assert_eq!(is_sent, may_send);
            if may_send {
                model.insert(ip, (is_web, rig.now));
            }
        }
    }
}
