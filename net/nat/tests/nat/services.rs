//! Addresses of clients, DHCP, ARP and pings of the gateway; options.

use crate::packets::*;
use crate::*;
use isola_nat::{ForwardError, PrefixError, Protocol};

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
const BROADCAST: Mac = [0xff; 6];

/// A message of a DHCP client.
fn dhcp(mac: Mac, current: Ipv4Addr, options: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 236];
    message[..4].copy_from_slice(&[1, 1, 6, 0]);
    message[4..8].copy_from_slice(b"xid!");
    message[12..16].copy_from_slice(&current.octets());
    message[28..34].copy_from_slice(&mac);
    message.extend_from_slice(&[99, 130, 83, 99]);
    message.extend_from_slice(options);
    message.push(255);
    let packet = udp((current, 68), (Ipv4Addr::BROADCAST, 67), &message);
    frame(BROADCAST, mac, &packet)
}

/// The kind, the address and the options of the server's answer, whose headers are checked.
fn answer(rig: &mut Rig, client: Client, mut sent: Vec<u8>) -> Option<(u8, Ipv4Addr, Vec<u8>)> {
    rig.gateway.check(client.ip, &sent).unwrap();
    let Ok(ClientFrame::Answer(frame)) = rig.gateway.from_client(client.ip, &mut sent, rig.now) else {
        return None;
    };
    assert_eq!((&frame[..6], &frame[6..12]), (&client.mac[..], &OWN_MAC[..]));
    let ends = read(&frame[14..], true);
    assert_eq!(ends, Ends { from: (SERVER, 67), to: (Ipv4Addr::BROADCAST, 68) });
    let message = &frame[42..];
    assert_eq!((message[0], &message[4..8], &message[28..34]), (2, &b"xid!"[..], &client.mac[..]));
    assert_eq!(message[240..242], [53, 1]);
    Some((message[242], address(message, 16), message[243..].to_vec()))
}

#[test]
fn clients_get_their_addresses_by_dhcp() {
    let mut rig = Rig::new();
    let (web, kv) = (rig.web, rig.kv);
    let none = Ipv4Addr::UNSPECIFIED;
    let (kind, ip, options) = answer(&mut rig, web, dhcp(web.mac, none, &[53, 1, 1])).unwrap();
    assert_eq!((kind, ip), (2, web.ip));
    for option in [&[1, 4, 255, 255, 0, 0][..], &[3, 4, 10, 77, 0, 1], &[6, 4, 10, 0, 2, 3], &[51, 4]] {
        assert!(options.windows(option.len()).any(|part| part == option), "{option:?} in {options:?}");
    }
    let requested = |ip: Ipv4Addr| [&[53, 1, 3, 0, 50, 4][..], &ip.octets(), &[54, 4, 10, 77, 0, 1]].concat();
    let (kind, ip, _) = answer(&mut rig, web, dhcp(web.mac, none, &requested(web.ip))).unwrap();
    assert_eq!((kind, ip), (5, web.ip));
    let renewed = answer(&mut rig, web, dhcp(web.mac, web.ip, &[53, 1, 3])).unwrap();
    assert_eq!((renewed.0, renewed.1), (5, web.ip));
    let (kind, ip, _) = answer(&mut rig, web, dhcp(web.mac, none, &requested(kv.ip))).unwrap();
    assert_eq!((kind, ip), (6, none), "the address of another client");
    let (kind, ip, options) = answer(&mut rig, web, dhcp(web.mac, web.ip, &[53, 1, 8])).unwrap();
    assert_eq!((kind, ip), (5, none));
    assert!(!options.windows(2).any(|part| part == [51, 4]), "no lease: {options:?}");
}

#[test]
fn messages_that_are_not_for_the_server_have_no_answer() {
    let mut rig = Rig::new();
    let (web, none) = (rig.web, Ipv4Addr::UNSPECIFIED);
    let other_server = [53, 1, 3, 54, 4, 10, 77, 0, 9];
    let refused: [Vec<u8>; 6] = [
        dhcp(rig.kv.mac, none, &[53, 1, 1]),
        dhcp(web.mac, none, &other_server),
        dhcp(web.mac, none, &[53, 1, 7]),
        dhcp(web.mac, none, &[53, 9, 1]),
        dhcp(web.mac, none, &[]),
        dhcp(web.mac, none, &[53, 1, 1])[..100].to_vec(),
    ];
    for sent in refused {
        assert!(answer(&mut rig, web, sent).is_none());
    }
    rig.gateway = rig.gateway.with_name_server(Some(HOST));
    let (_, _, options) = answer(&mut rig, web, dhcp(web.mac, none, &[53, 1, 1])).unwrap();
    assert!(options.windows(6).any(|part| part == [6, 4, 192, 0, 2, 1]), "{options:?}");
    // Without an address of its own, the gateway has no name servers to offer, and serves later.
    rig.gateway.set_outside(None);
    assert!(answer(&mut rig, web, dhcp(web.mac, none, &[53, 1, 1])).is_none());
}

#[test]
fn an_address_follows_from_the_name() {
    let mut rig = Rig::new();
    let mut later = Gateway::new(OWN_MAC, PREFIX.parse().unwrap(), vec![], Limits { flows: 1, clients: 4 });
    assert_eq!(later.connect("kv", rig.kv.mac), Some(rig.kv.ip), "in another order");
    assert_eq!(later.connect("web", rig.web.mac), Some(rig.web.ip));
    let prefix: Prefix = PREFIX.parse().unwrap();
    assert!(prefix.contains(rig.web.ip) && rig.web.ip != rig.kv.ip && rig.web.ip != SERVER);
    // Four clients at once; a former client's address is free when it is needed.
    let [a, b] = ["a", "b"].map(|name| rig.gateway.connect(name, [2; 6]).unwrap());
    assert_eq!(rig.gateway.connect("c", [2; 6]), None);
    rig.gateway.disconnect(a);
    rig.gateway.disconnect(b);
    assert_eq!(rig.gateway.connect("a", [2; 6]), Some(a));
    rig.gateway.disconnect(a);
    assert!(rig.gateway.connect("c", [2; 6]).is_some());
    assert_eq!(rig.gateway.connect("a", [2; 6]), Some(a), "that of b was taken");
}

#[test]
fn all_addresses_of_a_small_network_are_used() {
    let limits = Limits { flows: 1, clients: 100 };
    let mut gateway = Gateway::new(OWN_MAC, "192.168.9.0/28".parse().unwrap(), vec![], limits);
    let mut all: Vec<_> = (0..13).map(|n| gateway.connect(&format!("c{n}"), [2; 6]).unwrap()).collect();
    assert_eq!(gateway.connect("more", [2; 6]), None);
    all.sort();
    let expected: Vec<_> = (2..15).map(|last| Ipv4Addr::new(192, 168, 9, last)).collect();
    assert_eq!(all, expected);
}

#[test]
fn the_gateway_answers_arp_and_pings() {
    let mut rig = Rig::new();
    let web = rig.web;
    let mut request = arp(BROADCAST, web.mac, 1, (web.mac, web.ip), SERVER);
    assert_eq!(rig.gateway.check(web.ip, &request), Ok(()));
    let answer = rig.gateway.from_client(web.ip, &mut request, rig.now).unwrap();
    let expected = arp(web.mac, OWN_MAC, 2, (OWN_MAC, SERVER), web.ip);
    let ClientFrame::Answer(answer) = answer else { panic!("{answer:?}") };
    assert_eq!((&answer[..32], &answer[38..]), (&expected[..32], &expected[38..]));
    let mut other = arp(BROADCAST, web.mac, 1, (web.mac, web.ip), rig.kv.ip);
    assert_eq!(rig.gateway.from_client(web.ip, &mut other, rig.now), Ok(ClientFrame::Inside));
    let mut ping = frame(OWN_MAC, web.mac, &echo(web.ip, SERVER, ECHO, 3));
    let Ok(ClientFrame::Answer(pong)) = rig.gateway.from_client(web.ip, &mut ping, rig.now) else { panic!() };
    assert_eq!(pong[14..], echo(SERVER, web.ip, ECHO_REPLY, 3));
}

#[test]
fn a_client_sends_from_its_own_address_only() {
    let rig = Rig::new();
    let foreign = udp((rig.kv.ip, 1), (HOST, 2), b"x");
    let foreign_arp = arp(BROADCAST, rig.web.mac, 1, (rig.web.mac, rig.kv.ip), SERVER);
    for frame in [frame(OWN_MAC, rig.web.mac, &foreign), foreign_arp] {
        assert_eq!(rig.gateway.check(rig.web.ip, &frame), Err(DropReason::ForeignAddress));
    }
    let probe = arp(BROADCAST, rig.web.mac, 1, (rig.web.mac, Ipv4Addr::UNSPECIFIED), rig.web.ip);
    assert_eq!(rig.gateway.check(rig.web.ip, &probe), Ok(()));
    assert_eq!(rig.gateway.check(rig.web.ip, &[0; 13]), Err(DropReason::Malformed));
}

#[test]
fn another_address_of_the_device_ends_the_flows() {
    let mut rig = Rig::new();
    let outside = Outside { address: OWN, prefix_len: 24, router: Some(ROUTER), dns: [None; 2] };
    rig.gateway.set_outside(Some(outside));
    assert_eq!(rig.gateway.flows_of(rig.web.ip), 1, "other name servers change no flow");
    rig.gateway.set_outside(Some(Outside { address: Ipv4Addr::new(10, 0, 2, 17), ..outside }));
    assert_eq!(rig.gateway.flows_of(rig.web.ip), 0);
    // Hosts outside and clients would have the same addresses.
    rig.gateway.set_outside(Some(Outside { prefix_len: 8, ..outside }));
    let sent = rig.out(rig.web, &udp((rig.web.ip, 40_000), (HOST, 53), b"x"));
    assert_eq!(sent, Err(DropReason::Unreachable));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let prefix = |text: &str| text.parse::<Prefix>();
    assert_eq!(prefix("10.77.3.4/16").unwrap().to_string(), "10.77.0.0/16");
    for good in ["10.0.0.0/8", "172.16.0.0/12", "172.31.255.0/28", "192.168.0.0/16", "100.64.0.0/10"] {
        assert_eq!(prefix(good).unwrap().to_string(), good);
    }
    for public in ["8.8.8.0/24", "172.32.0.0/16", "192.0.2.0/24", "172.16.0.0/11", "100.128.0.0/16"] {
        assert_eq!(prefix(public), Err(PrefixError::Public), "{public}");
    }
    for (bad, len) in [("10.0.0.0/7", 7), ("10.0.0.0/29", 29), ("10.0.0.0/200", 200)] {
        assert_eq!(prefix(bad), Err(PrefixError::Len(len)));
    }
    for bad in ["", "10.0.0.0", "10.0.0/8", "10.0.0.0/x", "10.0.0.0/300"] {
        assert_eq!(prefix(bad), Err(PrefixError::Malformed), "{bad}");
    }
    let nat = prefix(PREFIX).unwrap();
    assert!(nat.overlaps(Ipv4Addr::new(10, 77, 9, 9), 24) && nat.overlaps(Ipv4Addr::new(10, 1, 1, 1), 8));
    assert!(!nat.overlaps(OWN, 24));
    let forward: Forward = "53:dns:5353/udp".parse().unwrap();
    let expected = Forward { protocol: Protocol::Udp, port: 53, client: "dns".into(), client_port: 5353 };
    assert_eq!(forward, expected);
    assert_eq!("80:a:80/tcp".parse::<Forward>().unwrap().protocol, Protocol::Tcp);
    for bad in
        ["", "80", "80:web", "0:web:80", "80:web:0", "80::80", "80:web:80/sctp", "80:web:99999", "a:b:c"]
    {
        assert_eq!(bad.parse::<Forward>(), Err(ForwardError), "{bad}");
    }
}
