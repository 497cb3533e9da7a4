//! Several stacks that share an interface, one for each core, with common steering.

use crate::link6::*;
use isola_iobuf::IoBuf;
use isola_net_sim::{Peer, Segment, host_config, host_config6, host_ip, host_ip6, host_mac, share, steering};
use isola_net_stack::{
    Addressing, Config, CoreShare, Duration, Event, Instant, Ipv6Addressing, RxChecksum, Stack, Steering,
};
use isola_proves::proves;
use std::sync::Arc;

const CORES: u16 = 3;

/// A machine with one interface: its stacks, and a layer above that passes instance 0's events to the others.
struct Machine {
    steering: Arc<Steering>,
    stacks: Vec<Stack>,
    accepted: Vec<usize>,
    connected: usize,
}

impl Machine {
    fn new() -> Self {
        let steering = steering(CORES);
        let stacks = (0..CORES).map(|index| {
            let mut config = host_config(1);
            config.core = CoreShare { index, steering: steering.clone() };
            if index > 0 {
                config.addressing = Addressing::Unset;
            }
            let mut stack = Stack::new(config, Instant::ZERO).unwrap();
            stack.listen(80, 1000).unwrap();
            stack
        });
        let stacks = stacks.collect();
        let mut machine = Self { steering, stacks, accepted: vec![0; usize::from(CORES)], connected: 0 };
        machine.settle();
        machine
    }

    fn receive(&mut self, frame: Vec<u8>) {
        let core = usize::from(self.steering.core_of_frame(&frame));
        self.stacks[core].receive(Instant::ZERO, IoBuf::from(frame), RxChecksum::Unverified);
    }

    fn settle(&mut self) {
        let mut news = Vec::new();
        for (core, stack) in self.stacks.iter_mut().enumerate() {
            while let Some(event) = stack.next_event() {
                match event {
                    Event::Accepted { .. } => self.accepted[core] += 1,
                    Event::Connected(_) => self.connected += 1,
                    Event::AddressChanged(_) | Event::Neighbour { .. } if core == 0 => news.push(event),
                    _ => {}
                }
            }
        }
        for stack in &mut self.stacks[1..] {
            for event in &news {
                match *event {
                    Event::AddressChanged(ipv4) => stack.set_ipv4(Instant::ZERO, ipv4),
                    Event::Neighbour { ip, mac, .. } => stack.learn(Instant::ZERO, ip, mac),
                    _ => {}
                }
            }
        }
    }

    fn frames(&mut self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for stack in &mut self.stacks {
            while let Some(frame) = stack.poll_transmit(Instant::ZERO) {
                frames.push(frame.to_vec());
            }
        }
        frames
    }
}

fn arp_reply() -> Vec<u8> {
    let mut frame = Vec::new();
    frame.extend_from_slice(&host_mac(1).0);
    frame.extend_from_slice(&host_mac(2).0);
    frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    frame.extend_from_slice(&host_mac(2).0);
    frame.extend_from_slice(&host_ip(2).octets());
    frame.extend_from_slice(&host_mac(1).0);
    frame.extend_from_slice(&host_ip(1).octets());
    frame
}

#[test]
fn connections_are_accepted_on_the_core_to_which_their_frames_are_steered() {
    let mut machine = Machine::new();
    machine.frames();
    for port in 0..300 {
        machine.receive(Segment::new(5000 + port, 80, 9, None).flags("S").frame(host_ip(2), host_ip(1)));
    }
    // Every core sends an ARP request; only instance 0 receives the reply, and the others learn it from instance 0.
    machine.frames();
    machine.receive(arp_reply());
    machine.settle();
    let mut answers = 0;
    for frame in machine.frames() {
        let Some((_, _, answer)) = Segment::read(&frame) else { continue };
        answers += 1;
        let last = Segment::new(answer.to, 80, 10, Some(answer.seq.wrapping_add(1)));
        machine.receive(last.frame(host_ip(2), host_ip(1)));
    }
    machine.settle();
    // On each core, sixteen packets wait for a neighbour; the other answers are sent by the timer.
    assert_eq!(answers, 3 * 16);
    assert_eq!(machine.accepted.iter().sum::<usize>(), answers);
    assert!(machine.accepted.iter().all(|&count| count == 16), "{:?}", machine.accepted);
}

#[test]
fn connections_use_ports_whose_answers_are_steered_to_their_core() {
    let mut machine = Machine::new();
    machine.receive(arp_reply());
    machine.settle();
    machine.frames();
    for core in 0..usize::from(CORES) {
        for _ in 0..50 {
            machine.stacks[core].connect(Instant::ZERO, (host_ip(2), 443).into()).unwrap();
        }
        for frame in machine.frames() {
            let (_, _, syn) = Segment::read(&frame).unwrap();
            if syn.flags != "S" {
                continue;
            }
            let answer = Segment::new(443, syn.from, 9, Some(syn.seq.wrapping_add(1))).flags("S");
            let answer = answer.frame(host_ip(2), host_ip(1));
            assert_eq!(usize::from(machine.steering.core_of_frame(&answer)), core);
            machine.receive(answer);
        }
    }
    machine.settle();
    assert_eq!(machine.connected, 150);
}

#[test]
fn a_socket_for_a_peer_receives_answers_on_its_core() {
    let mut machine = Machine::new();
    machine.receive(arp_reply());
    machine.settle();
    machine.frames();
    for core in 0..usize::from(CORES) {
        let remote = (host_ip(2), 53).into();
        let socket = machine.stacks[core].udp_bind_for(remote).unwrap();
        machine.stacks[core].udp_send_to(Instant::ZERO, socket, remote, IoBuf::from_static(b"?")).unwrap();
        let frames = machine.frames();
        assert_eq!(frames.len(), 1);
        let port = machine.stacks[core].udp_port(socket).unwrap();
        let mut answer = Vec::new();
        etherparse::PacketBuilder::ethernet2(host_mac(2).0, host_mac(1).0)
            .ipv4(host_ip(2).octets(), host_ip(1).octets(), 64)
            .udp(53, port)
            .write(&mut answer, b"!")
            .unwrap();
        assert_eq!(usize::from(machine.steering.core_of_frame(&answer)), core);
    }
}

#[test]
fn exhausted_ports_are_an_error_and_become_free_again() {
    let mut config = host_config(1);
    config.tcp.max_connections = 20_000;
    let mut peer = Peer::new(config);
    let remote = (host_ip(2), 80).into();
    let first = peer.stack.connect(peer.now, remote).unwrap();
    for _ in 1..16_384 {
        peer.stack.connect(peer.now, remote).unwrap();
    }
    let error = peer.stack.connect(peer.now, remote).unwrap_err();
    assert_eq!(error, isola_net_stack::ConnectError::NoPorts);
    peer.stack.abort(peer.now, first);
    peer.stack.connect(peer.now, remote).unwrap();
}

/// Returns the first of two instances with IPv6, and the other.
fn pair6() -> (Peer, Peer) {
    let mut first = Peer::new(Config { core: share(0, 2), ..host_config6(1) });
    first.pass(Duration::from_secs(3));
    let (addressing, ipv6) = (Addressing::Unset, Ipv6Addressing::Unset);
    let mut other = Peer::new(Config { core: share(1, 2), addressing, ipv6, ..host_config(1) });
    other.stack.set_ipv6(other.now, first.stack.ipv6());
    for peer in [&mut first, &mut other] {
        peer.frames();
        peer.events();
    }
    (first, other)
}

#[proves(
    "RFC 4861 7.2.5",
    "a solicited advertisement counts whichever core sent the solicitation; an unsolicited one creates no entry."
)]
#[test]
fn an_ipv6_neighbour_solicited_by_another_core_is_learned() {
    let (mut first, mut other) = pair6();
    let socket = other.stack.udp_bind(1000).unwrap();
    other.stack.udp_send_to(other.now, socket, (host_ip6(7), 9).into(), IoBuf::from_static(b"x")).unwrap();
    assert_eq!(kinds(&mut other), [135]);
    let unasked = icmp6(host_ip6(7), host_ip6(1), 255, &advertisement(host_ip6(7), 0x20, 8));
    first.send_frame(unasked);
    assert_eq!(first.events(), []);
    let answer = icmp6(host_ip6(7), host_ip6(1), 255, &advertisement(host_ip6(7), 0x60, 7));
    assert_eq!(steering(2).core_of_frame(&answer), 0);
    first.send_frame(answer);
    let [Event::Neighbour { ip, mac, .. }] = first.events()[..] else { panic!("the neighbour's event") };
    other.stack.learn(other.now, ip, mac);
    let frames = other.frames();
    assert_eq!((frames.len(), &frames[0][..6]), (1, &host_mac(7).0[..]));
}
