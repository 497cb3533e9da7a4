//! A stack with DHCP, against a small DHCP server on the simulated network.

use isola_iobuf::IoBuf;
use isola_net_sim::{App, Link, Sim, host_config, host_ip};
use isola_net_stack::{Addressing, Duration, Event, Instant, Stack, UdpId};
use isola_proves::proves;
use std::net::Ipv4Addr;

/// A server that grants 10.0.0.50, refuses, or does not answer, according to its mood; and a client that records
/// changes of its address.
enum Node {
    Server { socket: Option<UdpId>, mood: Mood, heard: Vec<u8> },
    Client { changes: Vec<Option<Ipv4Addr>> },
}

#[derive(Clone, Copy, PartialEq)]
enum Mood {
    Grant,
    Refuse,
    Silent,
}

impl App for Node {
    fn start(&mut self, stack: &mut Stack, _now: Instant) {
        if let Self::Server { socket, .. } = self {
            *socket = Some(stack.udp_bind(67).unwrap());
        }
    }

    fn on_event(&mut self, stack: &mut Stack, now: Instant, event: Event) {
        match (self, event) {
            (Self::Client { changes }, Event::AddressChanged(ipv4)) => {
                changes.push(ipv4.map(|ipv4| ipv4.address));
            }
            (Self::Server { mood, heard, .. }, Event::Datagram(socket)) => {
                while let Some(datagram) = stack.udp_receive(socket) {
                    let kind = datagram.payload[242];
                    heard.push(kind);
                    let answer = match (*mood, kind) {
                        (Mood::Silent, _) => continue,
                        (_, 1) => 2,
                        (Mood::Grant, _) => 5,
                        (Mood::Refuse, _) => 6,
                    };
                    let mut bytes = vec![0; 236];
                    bytes[..3].copy_from_slice(&[2, 1, 6]);
                    bytes[4..8].copy_from_slice(&datagram.payload[4..8]);
                    bytes[16..20].copy_from_slice(&[10, 0, 0, 50]);
                    bytes[28..34].copy_from_slice(&datagram.payload[28..34]);
                    bytes.extend_from_slice(&[99, 130, 83, 99, 53, 1, answer, 54, 4, 10, 0, 0, 1]);
                    bytes.extend_from_slice(&[1, 4, 255, 255, 0, 0, 51, 4, 0, 0, 3, 232, 255]);
                    let to = if datagram.remote.ip() == Ipv4Addr::UNSPECIFIED {
                        Ipv4Addr::BROADCAST.into()
                    } else {
                        datagram.remote.ip()
                    };
                    stack.udp_send_to(now, socket, (to, 68).into(), IoBuf::from(bytes)).unwrap();
                }
            }
            _ => {}
        }
    }
}

fn network() -> Sim<Node> {
    let mut sim = Sim::new(1);
    let server = Node::Server { socket: None, mood: Mood::Grant, heard: Vec::new() };
    sim.add(host_config(1), server, Link::good());
    let mut config = host_config(2);
    config.addressing = Addressing::Dhcp;
    sim.add(config, Node::Client { changes: Vec::new() }, Link::good());
    sim
}

fn changes(sim: &Sim<Node>) -> Vec<Option<Ipv4Addr>> {
    match &sim.hosts[1].app {
        Node::Client { changes } => changes.clone(),
        Node::Server { .. } => unreachable!(),
    }
}

fn server(sim: &mut Sim<Node>) -> (&mut Mood, &mut Vec<u8>) {
    match &mut sim.hosts[0].app {
        Node::Server { mood, heard, .. } => (mood, heard),
        Node::Client { .. } => unreachable!(),
    }
}

const GRANTED: Option<Ipv4Addr> = Some(Ipv4Addr::new(10, 0, 0, 50));

#[proves("RFC 2131 4.4.5", "a lease is renewed after half of its time")]
#[test]
fn an_address_is_obtained_within_milliseconds_and_renewed_in_time() {
    let mut sim = network();
    sim.pass(Duration::from_millis(5));
    assert_eq!(changes(&sim), [GRANTED]);
    assert_eq!(*server(&mut sim).1, [1, 3]);
    sim.pass(Duration::from_secs(1600));
    assert_eq!(*server(&mut sim).1, [1, 3, 3, 3, 3], "renewals at 500, 1,000 and 1,500 s");
    assert_eq!(changes(&sim), [GRANTED]);
}

#[proves("RFC 2131 4.4.5", "the address is removed at the end of its lease")]
#[test]
fn the_address_is_lost_at_the_end_of_the_lease_and_can_be_obtained_again() {
    let mut sim = network();
    sim.pass(Duration::from_secs(1));
    *server(&mut sim).0 = Mood::Silent;
    sim.pass(Duration::from_secs(1100));
    assert_eq!(changes(&sim), [GRANTED, None]);
    assert_eq!(sim.hosts[1].stack.ipv4(), None);
    *server(&mut sim).0 = Mood::Grant;
    sim.pass(Duration::from_secs(70));
    assert_eq!(changes(&sim), [GRANTED, None, GRANTED]);
}

#[proves("RFC 2131 3.2", "DHCPNAK removes the address, and the client starts again")]
#[test]
fn a_refused_renewal_removes_the_address_and_retries_are_slow() {
    let mut sim = network();
    sim.pass(Duration::from_secs(1));
    *server(&mut sim).0 = Mood::Refuse;
    sim.pass(Duration::from_secs(510));
    assert_eq!(changes(&sim), [GRANTED, None]);
    let heard = server(&mut sim).1.len();
    assert!(heard < 40, "{heard} messages: a refusing server is not flooded");
}

#[test]
fn a_new_address_is_reachable_for_its_neighbours() {
    let mut sim = network();
    sim.pass(Duration::from_millis(5));
    let client_mac = sim.hosts[1].stack.mac();
    // The announcement updates the server only if it had an entry for the address; a datagram reaches the client in any
    // case.
    let now = sim.now;
    let Node::Server { socket: Some(socket), .. } = sim.hosts[0].app else { unreachable!() };
    let to = (GRANTED.unwrap(), 9).into();
    sim.hosts[0].stack.udp_send_to(now, socket, to, IoBuf::from_static(b"hello")).unwrap();
    let mut reached = false;
    sim.run(Duration::from_millis(10), |sim| {
        reached |= sim.hosts[1].stack.counters().get(isola_net_stack::Counter::DropUdpPort) > 0;
        reached
    });
    assert!(reached);
    assert!(client_mac.is_unicast());
    assert_ne!(GRANTED, Some(host_ip(2)));
}

#[proves(
    "RFC 2131 3.1",
    "a leased address that a neighbour has is declined, and a new one is requested later."
)]
#[proves("RFC 5227 2.4", "the owner of the address defends it.")]
#[test]
fn a_leased_address_of_a_neighbour_is_declined() {
    let mut sim = network();
    sim.add(host_config(50), Node::Client { changes: Vec::new() }, Link::good());
    assert_eq!(GRANTED, Some(host_ip(50)));
    sim.pass(Duration::from_secs(5));
    assert_eq!(*server(&mut sim).1, [1, 3, 4]);
    assert_eq!(changes(&sim), [GRANTED, None]);
    sim.pass(Duration::from_secs(6));
    assert_eq!(*server(&mut sim).1, [1, 3, 4, 1, 3, 4]);
    assert_eq!(sim.hosts[2].stack.ipv4().map(|own| own.address), GRANTED);
}
