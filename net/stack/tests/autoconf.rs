//! IPv6 addresses of a stack: by autoconfiguration, from routers, and from DHCPv6 servers.

use crate::link6::*;
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, host_config, host_ip6, host_mac};
use isola_net_stack::{Counter, Duration, Event, Preference};
use isola_proves::proves;
use std::net::{Ipv6Addr, SocketAddr};

#[proves("RFC 4862 5.4.2", "an address is solicited from the unspecified address before it is used.")]
#[proves(
    "RFC 3810 6.1",
    "membership in the solicited-node group is reported, with a router alert and one hop."
)]
#[proves("RFC 4861 6.3.7", "routers are solicited.")]
#[test]
fn an_address_is_checked_before_it_is_used() {
    let mut peer = Peer::new(host_config(1));
    peer.stack = isola_net_stack::Stack::new(auto(), peer.now).unwrap();
    let frames = peer.frames();
    let messages: Vec<_> = frames.iter().filter_map(|frame| read(frame)).collect();
    let kinds: Vec<u8> = messages.iter().map(|message| message.3[0]).collect();
    assert_eq!(kinds, [143, 135, 133]);
    let (source, destination, hops, report) = &messages[0];
    assert_eq!((source.is_unspecified(), *hops, report[7]), (true, 1, 1));
    assert_eq!(*destination, "ff02::16".parse::<Ipv6Addr>().unwrap());
    let (source, destination, hops, question) = &messages[1];
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&question[8..24]).unwrap());
    assert!(source.is_unspecified() && target.is_unicast_link_local() && *hops == 255);
    assert_eq!((*destination, question.len()), (group(target), 24));
    assert!(addresses(&peer).is_empty());
    peer.pass(Duration::from_secs(1));
    assert_eq!(addresses(&peer), [target]);
    assert!(peer.events().contains(&Event::Ipv6Changed));
}

#[proves("RFC 4862 5.4.3", "an address that another host has, or checks at the same time, is not used.")]
#[proves("RFC 7217 6", "another address is generated, up to three times.")]
#[test]
fn an_address_of_another_host_is_not_used() {
    let mut peer = Peer::new(host_config(1));
    peer.stack = isola_net_stack::Stack::new(auto(), peer.now).unwrap();
    let mut tried = Vec::new();
    for round in 0..4 {
        let question = peer.frames().iter().filter_map(|f| read(f)).find(|m| m.3[0] == 135).unwrap().3;
        let target = Ipv6Addr::from(<[u8; 16]>::try_from(&question[8..24]).unwrap());
        assert!(!tried.contains(&target));
        tried.push(target);
        let frame = if round % 2 == 0 {
            icmp6(target, ALL_NODES, 255, &advertisement(target, 0x20, 9))
        } else {
            let mut frame = icmp6(Ipv6Addr::UNSPECIFIED, group(target), 255, &solicitation(target, None));
            frame[6..12].copy_from_slice(&host_mac(9).0);
            frame
        };
        peer.send_frame(frame);
    }
    peer.pass(Duration::from_secs(60));
    assert!(addresses(&peer).is_empty());
    assert_eq!(peer.stack.counters().get(Counter::AddressConflicts), 4);
}

#[proves("RFC 4862 5.5.3", "an address is formed from an advertised prefix.")]
#[proves("RFC 4861 6.3.4", "the router, the prefix and the MTU are used.")]
#[proves("RFC 8106 5.1", "advertised name servers are used.")]
#[test]
fn a_router_advertisement_gives_an_address_and_a_route() {
    let mut peer = ready(auto());
    let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let options = [
        prefix("2001:db8:1::", 0xc0, 86_400, 3600),
        vec![5, 1, 0, 0, 0, 0, 5, 220],
        [&[25, 3, 0, 0, 0, 0, 4, 0][..], &dns.octets()].concat(),
        [&[1, 1][..], &host_mac(254).0].concat(),
    ];
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &options.concat())));
    assert_eq!(kinds(&mut peer), [143, 135]);
    peer.pass(Duration::from_secs(1));
    let settings = peer.stack.ipv6();
    assert_eq!(settings.routers[0], Some(ROUTER));
    assert_eq!((settings.dns[0], settings.mtu, settings.hop_limit), (Some(dns), Some(1500), 55));
    let made = settings.global().unwrap();
    assert_eq!(made.segments()[..4], [0x2001, 0xdb8, 1, 0]);
    // A packet to another network is sent to the router, whose link-layer address was in the advertisement.
    let socket = peer.stack.udp_bind(1000).unwrap();
    peer.frames();
    let far = SocketAddr::new("2600::1".parse().unwrap(), 9);
    peer.stack.udp_send_to(peer.now, socket, far, IoBuf::from_static(b"x")).unwrap();
    let frame = peer.frames().remove(0);
    assert_eq!(frame[..6], host_mac(254).0);
    assert_eq!((frame[21], &frame[22..38]), (55, &made.octets()[..]));
    // After its preferred lifetime the address is deprecated, and after its valid lifetime it is removed.
    peer.pass(Duration::from_secs(3600));
    let own = peer.stack.ipv6().addresses.into_iter().flatten().find(|own| own.ip == made).unwrap();
    assert_eq!(own.preference, Preference::Deprecated);
    assert_eq!(peer.stack.ipv6().routers, [None; 4]);
    peer.pass(Duration::from_secs(90_000));
    assert_eq!(peer.stack.ipv6().global(), None);
}

#[proves("RFC 4862 5.5.3", "an advertisement reduces a valid lifetime to two hours at least.")]
#[test]
fn a_forged_advertisement_does_not_remove_an_address_at_once() {
    let mut peer = ready(auto());
    let advertise = |peer: &mut Peer, valid, preferred| {
        let options = prefix("2001:db8:1::", 0xc0, valid, preferred);
        peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &options)));
        peer.pass(Duration::from_secs(2));
        peer.frames();
    };
    advertise(&mut peer, 600, 601);
    assert_eq!(peer.stack.ipv6().global(), None, "preferred for longer than valid");
    advertise(&mut peer, 86_400, 3600);
    advertise(&mut peer, 0, 0);
    assert!(peer.stack.ipv6().global().is_some());
    peer.pass(Duration::from_secs(7100));
    assert!(peer.stack.ipv6().global().is_some());
    advertise(&mut peer, 60, 60);
    assert!(peer.stack.ipv6().global().is_some(), "ignored, because less than two hours are left");
    peer.pass(Duration::from_secs(200));
    assert_eq!(peer.stack.ipv6().global(), None);
}

#[proves(
    "RFC 4861 6.1.2",
    "an advertisement that was forwarded, has no link-local source, or is malformed is ignored."
)]
#[proves("RFC 4861 7.1", "the same holds for neighbour messages.")]
#[test]
fn forwarded_and_invalid_messages_are_ignored() {
    let mut peer = ready(auto());
    let good = router(1800, 0, &prefix("2001:db8:1::", 0xc0, 600, 600));
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 254, &good));
    peer.send_frame(icmp6(host_ip6(9), ALL_NODES, 255, &good));
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &[&good[..], &[3, 0, 0, 0, 0, 0, 0, 0]].concat()));
    let own = addresses(&peer)[0];
    peer.send_frame(icmp6(host_ip6(9), own, 64, &solicitation(own, Some(9))));
    // A host that checks an address sends to the address's group and omits its own link-layer address.
    for (to, sender) in [(own, None), (group(own), Some(9))] {
        let mut check = icmp6(Ipv6Addr::UNSPECIFIED, to, 255, &solicitation(own, sender));
        check[6..12].copy_from_slice(&host_mac(9).0);
        peer.send_frame(check);
    }
    peer.pass(Duration::from_secs(5));
    assert_eq!(peer.stack.ipv6().routers, [None; 4]);
    assert_eq!(peer.stack.counters().get(Counter::DropNdpInvalid), 6);
}

#[proves("RFC 6583 7.1", "tables of routers, prefixes and addresses are bounded.")]
#[test]
fn floods_of_routers_and_prefixes_fill_bounded_tables() {
    let mut peer = ready(auto());
    for i in 0..200u16 {
        let from = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 1, i);
        let options = prefix(&format!("2001:db8:{i:x}::"), 0xc0, 600, 600);
        peer.send_frame(icmp6(from, ALL_NODES, 255, &router(1800, 0, &options)));
    }
    peer.frames();
    peer.pass(Duration::from_secs(2));
    assert_eq!(addresses(&peer).len(), 8);
    assert!(peer.stack.ipv6().routers.iter().all(Option::is_some));
    assert!(peer.stack.counters().get(Counter::DropNdpTable) >= 3 * 190);
}

#[proves("RFC 8415 18.2.1", "if routers announce managed addresses, one is requested and checked.")]
#[proves("RFC 4862 5.2", "the managed and other flags select the request.")]
#[test]
fn an_address_is_requested_by_dhcpv6_if_routers_announce_it() {
    let mut peer = Peer::new(host_config(1));
    peer.stack = isola_net_stack::Stack::new(auto(), peer.now).unwrap();
    peer.frames();
    // The router's advertisement arrives before there is a source address.
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0x80, &[])));
    peer.pass(Duration::from_secs(1));
    let ask =
        |peer: &mut Peer| peer.frames().into_iter().find(|frame| frame.get(54..58) == Some(&[2, 34, 2, 35]));
    let solicit = ask(&mut peer).expect("a message to servers");
    assert_eq!(solicit[62], 1);
    let lent: Ipv6Addr = "2001:db8::77".parse().unwrap();
    let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let own = addresses(&peer)[0];
    let answer = |kind: u8, asked: &[u8]| {
        let mut message = vec![kind, asked[63], asked[64], asked[65]];
        message.extend_from_slice(&[&[0, 1, 0, 10, 0, 3, 0, 1][..], &host_mac(1).0].concat());
        message.extend_from_slice(&[0, 2, 0, 3, 9, 9, 9, 0, 7, 0, 1, 255]);
        message.extend_from_slice(&[&[0, 23, 0, 16][..], &dns.octets()].concat());
        message.extend_from_slice(&[0, 3, 0, 40, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24]);
        message.extend_from_slice(&[&lent.octets()[..], &[0, 0, 3, 32, 0, 0, 3, 232]].concat());
        let mut frame = Vec::new();
        let link = etherparse::PacketBuilder::ethernet2(host_mac(9).0, host_mac(1).0);
        let network = link.ipv6(ROUTER.octets(), own.octets(), 64);
        network.udp(547, 546).write(&mut frame, &message).unwrap();
        assert_eq!(isola_net_stack::flow_of(&frame), None, "steered to instance 0");
        frame
    };
    peer.send_frame(answer(2, &solicit));
    let request = ask(&mut peer).expect("a request");
    assert_eq!(request[62], 3);
    peer.send_frame(answer(7, &request));
    assert_eq!(kinds(&mut peer), [143, 135]);
    peer.pass(Duration::from_secs(1));
    assert_eq!((peer.stack.ipv6().global(), peer.stack.ipv6().dns[0]), (Some(lent), Some(dns)));
    peer.pass(Duration::from_secs(399));
    assert_eq!(ask(&mut peer).expect("a renewal")[62], 5);
    peer.pass(Duration::from_secs(600));
    assert_eq!(peer.stack.ipv6().global(), None, "the lease has ended");
    assert!(peer.stack.counters().get(Counter::DropDhcp) == 0);
}

#[proves("RFC 8415 18.2.6", "settings are requested by an information request.")]
#[test]
fn settings_alone_are_requested_by_dhcpv6_if_routers_announce_only_them() {
    let mut peer = ready(auto());
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0x40, &[])));
    let asked = peer.frames().into_iter().find(|frame| frame.get(54..58) == Some(&[2, 34, 2, 35])).unwrap();
    assert_eq!(asked[62], 11);
}

#[test]
fn a_repeated_router_advertisement_keeps_the_router_and_the_name_server() {
    let mut peer = ready(auto());
    let dns: Ipv6Addr = "2001:db8::53".parse().unwrap();
    let options = [&[25, 3, 0, 0, 0, 0, 4, 0][..], &dns.octets()].concat();
    for _ in 0..2 {
        peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &options)));
        peer.pass(Duration::from_secs(2));
        peer.frames();
        let settings = peer.stack.ipv6();
        assert_eq!((settings.routers[0], settings.dns[0]), (Some(ROUTER), Some(dns)));
    }
}

#[proves("RFC 4862 5.5.3", "the link-local prefix in an advertisement is ignored.")]
#[test]
fn an_advertised_link_local_prefix_does_not_limit_the_link_local_address() {
    let mut peer = ready(auto());
    let before = addresses(&peer);
    peer.send_frame(icmp6(ROUTER, ALL_NODES, 255, &router(1800, 0, &prefix("fe80::", 0xc0, 600, 600))));
    peer.pass(Duration::from_secs(10_000));
    assert_eq!(addresses(&peer), before);
}
