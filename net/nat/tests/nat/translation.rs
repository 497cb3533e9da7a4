//! Flows of all protocols, and errors about them.

use crate::packets::*;
use crate::*;

#[test]
fn a_connection_has_the_address_of_the_service_cell_and_its_own_port() {
    let mut rig = Rig::new();
    let (web, host) = ((rig.web.ip, 40_000), (HOST, 443));
    let sent = rig.out(rig.web, &tcp(web, host, SYN, &[])).unwrap();
    assert_eq!(read(&sent, true), Ends { from: (OWN, 40_000), to: host });
    assert_eq!(sent[8], 63, "one hop less");
    let (mac, received) = rig.receive(&tcp(host, (OWN, 40_000), SYN_ACK, &[])).unwrap().unwrap();
    assert_eq!((mac, read(&received, true)), (rig.web.mac, Ends { from: host, to: web }));
    for len in [0, 1, 2, 1460] {
        let data = vec![0xa5; len];
        assert_eq!(read(&rig.out(rig.web, &tcp(web, host, ACK, &data)).unwrap(), true).to, host);
        let (_, received) = rig.receive(&tcp(host, (OWN, 40_000), ACK, &data)).unwrap().unwrap();
        assert_eq!(&received[40..], data);
        read(&received, true);
    }
}

#[test]
fn clients_with_one_port_number_get_ports_that_differ() {
    let mut rig = Rig::new();
    let host = (HOST, 53);
    let first = read(&rig.out(rig.web, &udp((rig.web.ip, 40_000), host, b"a")).unwrap(), true);
    let second = read(&rig.out(rig.kv, &udp((rig.kv.ip, 40_000), host, b"b")).unwrap(), true);
    assert_eq!(first.from, (OWN, 40_000));
    assert_ne!(second.from.1, 40_000);
    assert!(second.from.1 >= isola_nat::LEAST_PORT);
    // Another remote port: the number is free there.
    let third = rig.out(rig.kv, &udp((rig.kv.ip, 40_000), (HOST, 54), b"b")).unwrap();
    assert_eq!(read(&third, true).from, (OWN, 40_000));
    for (client, ends) in [(rig.web, first), (rig.kv, second)] {
        let (mac, received) = rig.receive(&udp(host, ends.from, b"answer")).unwrap().unwrap();
        assert_eq!((mac, read(&received, true).to), (client.mac, (client.ip, 40_000)));
    }
}

#[test]
fn ports_of_the_service_cell_are_not_for_clients() {
    let mut rig = Rig::new();
    for (protocol, port) in [(17, 68), (17, 5353), (6, 8080)] {
        let kv = (rig.kv.ip, port);
        let packet = if protocol == 6 { tcp(kv, (HOST, 9), SYN, &[]) } else { udp(kv, (HOST, 9), b"x") };
        let sent = read(&rig.out(rig.kv, &packet).unwrap(), true);
        assert_ne!(sent.from.1, port);
        assert!(sent.from.1 >= isola_nat::LEAST_PORT);
    }
}

#[test]
fn a_datagram_without_a_checksum_stays_without() {
    let mut rig = Rig::new();
    let mut packet = udp((rig.web.ip, 40_000), (HOST, 53), b"query");
    packet[26..28].fill(0);
    let sent = rig.out(rig.web, &packet).unwrap();
    assert_eq!(sent[26..28], [0, 0]);
    assert_eq!(read(&sent, true).from, (OWN, 40_000));
}

#[test]
fn a_wrong_checksum_stays_wrong() {
    let mut rig = Rig::new();
    let mut packet = tcp((rig.web.ip, 40_000), (HOST, 443), SYN, b"data");
    packet[36] ^= 1;
    let sent = rig.out(rig.web, &packet).unwrap();
    let right = tcp((OWN, 40_000), (HOST, 443), SYN, b"data");
    assert_ne!(sent[36..38], right[36..38]);
}

#[test]
fn echoes_are_told_apart_by_their_identifier() {
    let mut rig = Rig::new();
    let first = read(&rig.out(rig.web, &echo(rig.web.ip, HOST, ECHO, 5)).unwrap(), true);
    let second = read(&rig.out(rig.kv, &echo(rig.kv.ip, HOST, ECHO, 5)).unwrap(), true);
    assert_eq!(first.from, (OWN, 5));
    assert_ne!(second.from.1, 5);
    let (mac, received) = rig.receive(&echo(HOST, OWN, ECHO_REPLY, second.from.1)).unwrap().unwrap();
    assert_eq!((mac, read(&received, true).to), (rig.kv.mac, (rig.kv.ip, 5)));
    // A ping from outside is for the service cell, and an answer without a request, too.
    assert_eq!(rig.receive(&echo(HOST, OWN, ECHO, 5)), Ok(None));
    assert_eq!(rig.receive(&echo(OTHER_HOST, OWN, ECHO_REPLY, 5)), Ok(None));
    assert_eq!(rig.out(rig.web, &echo(rig.web.ip, HOST, ECHO_REPLY, 5)), Err(DropReason::NoFlow));
}

#[test]
fn errors_from_outside_reach_the_client_with_its_own_packet() {
    let mut rig = Rig::new();
    let web = rig.web.ip;
    let sent: [Vec<u8>; 3] = [
        tcp((web, 40_000), (HOST, 443), SYN, &[]),
        udp((web, 40_001), (HOST, 53), b"query"),
        echo(web, HOST, ECHO, 77),
    ];
    for packet in sent {
        let outer = rig.out(rig.web, &packet).unwrap();
        // With 28 bytes, the checksum of a segment is missing.
        for len in [28, 60] {
            let (mac, error) = rig.receive(&error(OTHER_HOST, OWN, &outer, len)).unwrap().unwrap();
            assert_eq!((mac, read(&error, true).to.0), (rig.web.mac, web));
            let inner = &error[28..];
            assert_eq!(read(inner, len == 60).from, read(&packet, true).from);
            assert_eq!(read(inner, len == 60).to.0, HOST);
        }
    }
    // About a later fragment, whose first bytes are no ports.
    let mut outer = rig.out(rig.web, &udp((web, 40_001), (HOST, 53), b"query")).unwrap();
    outer[7] = 1;
    assert_eq!(rig.receive(&error(OTHER_HOST, OWN, &outer, 28)), Ok(None));
    // About a flow of no client.
    let other = udp((OWN, 50_000), (HOST, 53), b"query");
    assert_eq!(rig.receive(&error(OTHER_HOST, OWN, &other, 28)), Ok(None));
}

#[test]
fn errors_of_clients_leave_for_packets_that_they_received() {
    let mut rig = Rig::new();
    let kv = (rig.kv.ip, 40_000);
    rig.out(rig.web, &udp((rig.web.ip, 40_000), (HOST, 53), b"a")).unwrap();
    let outer = read(&rig.out(rig.kv, &udp(kv, (HOST, 53), b"b")).unwrap(), true).from;
    let (_, received) = rig.receive(&udp((HOST, 53), outer, b"answer")).unwrap().unwrap();
    let left = rig.out(rig.kv, &error(rig.kv.ip, HOST, &received, 60)).unwrap();
    assert_eq!(read(&left, true).from.0, OWN);
    assert_eq!(read(&left[28..], true), Ends { from: (HOST, 53), to: outer });
    // About a packet of another client, to another host, and without a flow.
    let foreign = error(rig.kv.ip, HOST, &udp((HOST, 53), (rig.web.ip, 40_000), b"x"), 60);
    assert_eq!(rig.out(rig.kv, &foreign), Err(DropReason::ForeignAddress));
    let elsewhere = error(rig.kv.ip, OTHER_HOST, &received, 60);
    assert_eq!(rig.out(rig.kv, &elsewhere), Err(DropReason::ForeignAddress));
    let unknown = error(rig.kv.ip, HOST, &udp((HOST, 54), kv, b"x"), 60);
    assert_eq!(rig.out(rig.kv, &unknown), Err(DropReason::NoFlow));
}

#[test]
fn a_published_port_reaches_its_client() {
    let mut rig = Rig::new();
    let host = (HOST, 50_000);
    let (mac, received) = rig.receive(&tcp(host, (OWN, 8080), SYN, &[])).unwrap().unwrap();
    assert_eq!((mac, read(&received, true)), (rig.web.mac, Ends { from: host, to: (rig.web.ip, 80) }));
    let answer = rig.out(rig.web, &tcp((rig.web.ip, 80), host, SYN_ACK, &[])).unwrap();
    assert_eq!(read(&answer, true), Ends { from: (OWN, 8080), to: host });
    let (mac, received) = rig.receive(&udp(host, (OWN, 5353), b"query")).unwrap().unwrap();
    assert_eq!((mac, read(&received, true).to), (rig.kv.mac, (rig.kv.ip, 53)));
    // The same number of the other protocol is the service cell's.
    assert_eq!(rig.receive(&udp(host, (OWN, 8080), b"query")), Ok(None));
    rig.gateway.disconnect(rig.web.ip);
    assert_eq!(rig.receive(&tcp(host, (OWN, 8080), ACK, &[])), Err(DropReason::NoFlow));
}

#[test]
fn an_empty_table_learns_connections_again() {
    let mut rig = Rig::new();
    let (web, host) = ((rig.web.ip, 40_000), (HOST, 443));
    rig.out(rig.web, &tcp(web, host, SYN, &[])).unwrap();
    // Another client's flow has another port than its own.
    let kv = (rig.kv.ip, 40_000);
    rig.out(rig.kv, &tcp(kv, host, SYN, &[])).unwrap();
    let changed = read(&rig.out(rig.kv, &tcp(kv, host, ACK, b"x")).unwrap(), true).from;
    let mut rig = Rig::new();
    // No reset for the host outside before the client's next segment.
    assert_eq!(rig.receive(&tcp(host, (OWN, 40_000), ACK, b"data")), Err(DropReason::NoFlow));
    assert_eq!(read(&rig.out(rig.web, &tcp(web, host, ACK, b"x")).unwrap(), true).from, (OWN, 40_000));
    assert_eq!(read(&rig.out(rig.kv, &tcp(kv, host, ACK, b"x")).unwrap(), true).from, changed);
    assert!(rig.receive(&tcp(host, (OWN, 40_000), ACK, b"data")).unwrap().is_some());
    // A published port: either side may send first.
    let visitor = (HOST, 50_000);
    assert!(rig.receive(&tcp(visitor, (OWN, 8080), ACK, b"data")).unwrap().is_some());
    let visitor = (HOST, 50_001);
    let sent = rig.out(rig.web, &tcp((rig.web.ip, 80), visitor, ACK, b"data")).unwrap();
    assert_eq!(read(&sent, true).from, (OWN, 8080));
    // A reset is of no use to an unknown connection.
    let reset = tcp((rig.web.ip, 41_000), host, RST, &[]);
    assert_eq!(rig.out(rig.web, &reset), Err(DropReason::NoFlow));
}

#[test]
fn connections_of_clients_are_not_reset_before_the_gateway_has_an_address() {
    let mut rig = Rig::new();
    rig.gateway.set_outside(None);
    let to_us = |port, flags| tcp((HOST, 80), (OWN, port), flags, b"");
    for flags in [ACK, SYN_ACK, FIN_ACK, RST] {
        assert_eq!(rig.receive(&to_us(40_000, flags)), Err(DropReason::NoFlow));
        assert!(is_of_connection(&frame(OWN_MAC, ROUTER_MAC, &to_us(40_000, flags))));
        assert_eq!(rig.receive(&to_us(22, flags)), Ok(None), "a port of the service cell");
    }
    assert_eq!(rig.receive(&to_us(40_000, SYN)), Ok(None), "no connection");
    let others = [udp((HOST, 53), (OWN, 40_000), b"x"), echo(HOST, OWN, ECHO_REPLY, 7), vec![0x45; 30]];
    assert!(others.iter().all(|packet| !is_of_connection(&frame(OWN_MAC, ROUTER_MAC, packet))));
}

#[test]
fn packets_that_are_not_translated_are_dropped_with_their_reason() {
    let mut rig = Rig::new();
    let web = (rig.web.ip, 40_000);
    let good = udp(web, (HOST, 53), b"query");
    let changed = |at: usize, value: u8| {
        let mut packet = good.clone();
        packet[at] = value;
        packet
    };
    let cases = [
        (changed(0, 0x65), DropReason::Malformed),
        (changed(0, 0x46), DropReason::Protocol),
        (changed(9, 47), DropReason::Protocol),
        (changed(6, 0x20), DropReason::Fragment),
        (changed(7, 1), DropReason::Fragment),
        (changed(8, 1), DropReason::Hops),
        (changed(2, 0xff), DropReason::Malformed),
        (good[..24].to_vec(), DropReason::Malformed),
        (udp((rig.kv.ip, 40_000), (HOST, 53), b""), DropReason::ForeignAddress),
        (udp(web, (OWN, 53), b""), DropReason::Destination),
        (udp(web, (rig.kv.ip, 53), b""), DropReason::Destination),
        (udp(web, ([127, 0, 0, 1].into(), 53), b""), DropReason::Destination),
        (udp(web, ([224, 0, 0, 1].into(), 53), b""), DropReason::Destination),
        (udp(web, ([255; 4].into(), 53), b""), DropReason::Destination),
        (icmp(rig.web.ip, HOST, 5, &[0; 32]), DropReason::Protocol),
    ];
    for (packet, reason) in cases {
        assert_eq!(rig.out(rig.web, &packet), Err(reason), "{packet:?}");
    }
    assert_eq!(rig.gateway.flows_of(rig.web.ip), 1, "that of the rig");
    let foreign = udp((rig.kv.ip, 40_000), (HOST, 53), b"");
    let unchecked = rig.gateway.from_client(rig.web.ip, &mut frame(OWN_MAC, rig.web.mac, &foreign), rig.now);
    assert_eq!(unchecked, Err(DropReason::ForeignAddress));
    // From outside, the same are for the stack, which counts them.
    for at in [0, 6, 9] {
        let mut packet = udp((HOST, 53), (OWN, 40_000), b"x");
        packet[at] ^= 0x21;
        assert_eq!(rig.receive(&packet), Ok(None));
    }
    let elsewhere = udp((HOST, 53), (OTHER_HOST, 40_000), b"x");
    assert_eq!(rig.receive(&elsewhere), Ok(None));
}
