//! Limits and timeouts of flows.

use crate::packets::*;
use crate::*;
use isola_nat::{IDLE, MOST_HELD, MOST_NEIGHBOURS, timeouts};

impl Rig {
    /// Opens a connection, in both directions.
    fn connect(&mut self, client: Client, port: u16) -> Result<(), DropReason> {
        let sent = self.out(client, &tcp((client.ip, port), (HOST, 443), SYN, &[]))?;
        let own = read(&sent, true).from;
        self.receive(&tcp((HOST, 443), own, SYN_ACK, &[])).unwrap().unwrap();
        Ok(())
    }
}

#[test]
fn a_flood_replaces_flows_of_its_client_only() {
    let mut rig = Rig::new();
    rig.out(rig.kv, &udp((rig.kv.ip, 40_000), (HOST, 53), b"x")).unwrap();
    rig.connect(rig.web, 40_000).unwrap();
    for port in 1..2000 {
        rig.out(rig.web, &udp((rig.web.ip, 50_000), (HOST, port), b"x")).unwrap();
        rig.now += Duration::from_millis(1);
        assert!(rig.gateway.flows_of(rig.web.ip) <= FLOWS);
    }
    // The other client's flow, and the client's own connection, are still there.
    assert!(rig.receive(&udp((HOST, 53), (OWN, 40_000), b"x")).unwrap().is_some());
    assert!(rig.receive(&tcp((HOST, 443), (OWN, 40_000), ACK, b"x")).unwrap().is_some());
    assert_eq!(rig.receive(&udp((HOST, 1), (OWN, 50_000), b"x")), Ok(None), "the first of the flood");
    assert!(rig.receive(&udp((HOST, 1999), (OWN, 50_000), b"x")).unwrap().is_some());
}

#[test]
fn a_flood_at_a_published_port_replaces_flows_of_its_client_only() {
    let mut rig = Rig::new();
    rig.connect(rig.kv, 40_000).unwrap();
    rig.connect(rig.web, 40_001).unwrap();
    for port in 1..2000 {
        rig.receive(&tcp((HOST, port), (OWN, 8080), SYN, &[])).unwrap().unwrap();
        assert!(rig.gateway.flows_of(rig.web.ip) <= FLOWS);
    }
    for (client, port) in [(rig.kv, 40_000), (rig.web, 40_001)] {
        let (mac, _) = rig.receive(&tcp((HOST, 443), (OWN, port), ACK, b"x")).unwrap().unwrap();
        assert_eq!(mac, client.mac);
    }
}

#[test]
fn connections_in_use_are_not_replaced_and_idle_ones_are() {
    let mut rig = Rig::new();
    for port in 0..FLOWS as u16 {
        rig.connect(rig.web, 40_000 + port).unwrap();
    }
    assert_eq!(rig.connect(rig.web, 50_000), Err(DropReason::Full));
    rig.now += IDLE;
    // All but the first are used.
    for port in 1..FLOWS as u16 {
        rig.out(rig.web, &tcp((rig.web.ip, 40_000 + port), (HOST, 443), ACK, b"x")).unwrap();
    }
    rig.connect(rig.web, 50_000).unwrap();
    assert_eq!(rig.receive(&tcp((HOST, 443), (OWN, 40_000), ACK, b"x")), Err(DropReason::NoFlow));
    assert_eq!(rig.connect(rig.web, 50_001), Err(DropReason::Full));
    // Ended ones make room at once.
    for direction in [true, false] {
        let (web, host) = ((rig.web.ip, 40_001), (HOST, 443));
        if direction {
            rig.out(rig.web, &tcp(web, host, FIN_ACK, &[])).unwrap();
        } else {
            rig.receive(&tcp(host, (OWN, 40_001), FIN_ACK, &[])).unwrap().unwrap();
        }
    }
    rig.connect(rig.web, 50_001).unwrap();
    rig.receive(&tcp((HOST, 443), (OWN, 40_002), RST, &[])).unwrap().unwrap();
    rig.connect(rig.web, 50_002).unwrap();
    assert_eq!(rig.connect(rig.web, 50_003), Err(DropReason::Full));
}

#[test]
fn an_ended_connection_makes_room_before_older_ones() {
    let mut rig = Rig::new();
    rig.now += timeouts::ECHOES;
    for port in 0..FLOWS as u16 {
        rig.connect(rig.web, 40_000 + port).unwrap();
        rig.now += Duration::from_secs(1);
    }
    // This orders them by their ends as connections.
    assert_eq!(rig.connect(rig.web, 50_000), Err(DropReason::Full));
    let newest = 40_000 + FLOWS as u16 - 1;
    rig.receive(&tcp((HOST, 443), (OWN, newest), RST, &[])).unwrap().unwrap();
    rig.connect(rig.web, 50_000).unwrap();
    assert_eq!(rig.connect(rig.web, 50_001), Err(DropReason::Full));
}

#[test]
fn flows_end_by_their_protocols_timeouts() {
    let end = |open: fn(&mut Rig), limit: Duration, answer: Vec<u8>| {
        for (after, is_there) in [(limit - Duration::from_secs(1), true), (limit, false)] {
            let mut rig = Rig::new();
            open(&mut rig);
            rig.now += after;
            assert_eq!(matches!(rig.receive(&answer), Ok(Some(_))), is_there, "{after:?}");
        }
    };
    let open_udp = |rig: &mut Rig| {
        rig.out(rig.web, &udp((rig.web.ip, 40_000), (HOST, 53), b"x")).unwrap();
    };
    end(open_udp, timeouts::DATAGRAMS, udp((HOST, 53), (OWN, 40_000), b"x"));
    let open_echo = |rig: &mut Rig| {
        rig.out(rig.web, &echo(rig.web.ip, HOST, ECHO, 5)).unwrap();
    };
    end(open_echo, timeouts::ECHOES, echo(HOST, OWN, ECHO_REPLY, 5));
    let answer = tcp((HOST, 443), (OWN, 40_000), ACK, b"x");
    let half_open = |rig: &mut Rig| {
        rig.out(rig.web, &tcp((rig.web.ip, 40_000), (HOST, 443), SYN, &[])).unwrap();
    };
    end(half_open, timeouts::TRANSITORY, answer.clone());
    end(|rig| rig.connect(rig.web, 40_000).unwrap(), timeouts::CONNECTION, answer.clone());
    let closed = |rig: &mut Rig| {
        rig.connect(rig.web, 40_000).unwrap();
        rig.out(rig.web, &tcp((rig.web.ip, 40_000), (HOST, 443), FIN_ACK, &[])).unwrap();
        rig.receive(&tcp((HOST, 443), (OWN, 40_000), FIN_ACK, &[])).unwrap();
    };
    end(closed, timeouts::TRANSITORY, answer);
}

#[test]
fn a_new_connection_on_the_ports_of_an_ended_one_is_one() {
    let mut rig = Rig::new();
    rig.connect(rig.web, 40_000).unwrap();
    rig.receive(&tcp((HOST, 443), (OWN, 40_000), RST, &[])).unwrap().unwrap();
    rig.connect(rig.web, 40_000).unwrap();
    rig.now += timeouts::TRANSITORY * 2;
    assert!(rig.receive(&tcp((HOST, 443), (OWN, 40_000), ACK, b"x")).unwrap().is_some());
}

#[test]
fn frames_that_wait_for_a_neighbour_are_few() {
    let mut rig = Rig::new();
    let near = |last: u8| Ipv4Addr::new(10, 0, 2, last);
    let mut results = Vec::new();
    for port in 0..MOST_HELD as u16 + 1 {
        let mut sent = frame(OWN_MAC, rig.web.mac, &udp((rig.web.ip, 40_000 + port), (near(77), 53), b"x"));
        results.push(rig.gateway.from_client(rig.web.ip, &mut sent, rig.now));
    }
    assert!(matches!(results[0], Ok(ClientFrame::Waits(Some(_)))), "one request: {results:?}");
    assert_eq!(results[1], Ok(ClientFrame::Waits(None)));
    assert_eq!(results[MOST_HELD], Err(DropReason::Unreachable));
}

#[test]
fn a_client_that_searches_hosts_without_end_displaces_none_that_answered() {
    let rig = Rig::new();
    let limits = Limits { flows: 4, clients: 1 };
    let mut gateway = Gateway::new(OWN_MAC, "192.168.0.0/16".parse().unwrap(), vec![], limits);
    gateway.set_outside(Some(Outside { address: OWN, prefix_len: 8, router: None, dns: [None; 2] }));
    let ip = gateway.connect("web", rig.web.mac).unwrap();
    let send = |gateway: &mut Gateway, to: Ipv4Addr| {
        let mut sent = frame(OWN_MAC, rig.web.mac, &udp((ip, 40_000), (to, 53), b"x"));
        gateway.from_client(ip, &mut sent, rig.now).unwrap()
    };
    send(&mut gateway, ROUTER);
    let mut answer = arp(OWN_MAC, ROUTER_MAC, 2, (ROUTER_MAC, ROUTER), OWN);
    gateway.from_outside(&mut answer, rig.now).unwrap();
    assert_eq!(send(&mut gateway, ROUTER), ClientFrame::Outside);
    for host in 0..MOST_NEIGHBOURS as u32 * 2 {
        let near = Ipv4Addr::from_bits(Ipv4Addr::new(10, 9, 0, 0).to_bits() + host);
        assert!(matches!(send(&mut gateway, near), ClientFrame::Waits(Some(_))));
    }
    assert_eq!(send(&mut gateway, ROUTER), ClientFrame::Outside);
}
