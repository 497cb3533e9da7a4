//! The stack against Linux's, over a TAP interface in a network namespace that a test makes: streams in both
//! directions, on lines that lose, reorder, duplicate and delay. What Linux thinks of its peer is asked of it.
//!
//! Frames go between the interface and the stack through a [`wire::Wire`], which is as bad in both directions
//! as the test says, so that both sides have something to repair. Where no namespace can be made the tests say so and
//! pass. Nothing here depends on how fast the machine is: a test that hangs ends after minutes.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod wire;

use clients::{ask_for_ecn, ask_linux, exchange, give_linux_ipv6, linux_counter};
use common::{Role, Talker};
use isola_net_sim::Link;
use isola_net_stack::{Counter, Duration, TcpConfig};
use isola_proves::proves;
use isola_tests::namespace::{self, SHARED};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use wire::{CELL6, LINUX6, PORT, Wire};

/// Linux's address on the interface.
const LINUX: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);

fn cell() -> SocketAddr {
    (SHARED.cell(), PORT).into()
}

/// A line on which everything goes wrong now and then, in thousandths.
fn bad(loss: u32) -> Link {
    Link {
        latency: Duration::from_millis(1),
        jitter: Duration::from_millis(2),
        loss,
        duplication: 10,
        corruption: 5,
        ..Link::good()
    }
}

/// Linux connects so many times, and both sides send `amount` bytes on each connection at once.
fn linux_connects(link: Link, amount: usize, connections: usize) {
    linux_connects_to(cell(), link, amount, connections);
}

fn linux_connects_to(cell: SocketAddr, link: Link, amount: usize, connections: usize) {
    namespace::run(|| {
        give_linux_ipv6();
        let talker = Talker::new(Role::Listen(PORT), amount);
        let wire = Wire::run(link, talker, connections, |wire| {
            thread::scope(|scope| {
                for _ in 0..connections {
                    scope.spawn(|| exchange(TcpStream::connect(cell).expect("a connection"), amount));
                }
            });
            wire.finished();
        });
        wire.check(amount, connections);
    });
}

#[test]
fn megabytes_flow_in_both_directions_at_once() {
    linux_connects(Link::good(), 8 << 20, 1);
}

#[test]
fn streams_survive_lines_that_lose_one_frame_in_a_hundred() {
    linux_connects(bad(10), 1 << 20, 2);
}

#[test]
fn streams_survive_lines_that_lose_five_frames_in_a_hundred() {
    linux_connects(bad(50), 200_000, 4);
}

#[proves("RFC 4861 7.2", "addresses are resolved with another's stack, in both directions")]
#[proves("RFC 8200 8.1", "segments have the checksum that another's stack wants")]
#[test]
fn streams_survive_bad_lines_over_ipv6() {
    linux_connects_to((CELL6, PORT).into(), bad(10), 300_000, 3);
}

/// Connects to Linux so many times, over a bad line.
fn connects_to_linux(linux: IpAddr) {
    namespace::run(|| {
        give_linux_ipv6();
        let (amount, connections) = (300_000, 4);
        let listener = TcpListener::bind((linux, PORT)).expect("a free port");
        let role = Role::Connect((linux, PORT).into(), connections);
        let wire = Wire::run(bad(10), Talker::new(role, amount), connections, |wire| {
            thread::scope(|scope| {
                for _ in 0..connections {
                    let (stream, _) = listener.accept().expect("a connection");
                    scope.spawn(move || exchange(stream, amount));
                }
            });
            wire.finished();
        });
        wire.check(amount, connections);
    });
}

#[test]
fn connections_made_to_linux_carry_streams_too() {
    connects_to_linux(LINUX.into());
}

#[test]
fn connections_made_to_linux_over_ipv6_carry_streams_too() {
    connects_to_linux(LINUX6.into());
}

#[proves("RFC 7323 2.2", "the window's scale is agreed on with another's stack")]
#[proves("RFC 7323 3.2", "timestamps are agreed on with another's stack")]
#[proves("RFC 2018 2", "selective acknowledgements are agreed on with another's stack")]
#[test]
fn linux_agrees_on_scaled_windows_timestamps_and_selective_acknowledgements() {
    namespace::run(|| {
        let talker = Talker::new(Role::Listen(PORT), 0);
        Wire::run(Link::good(), talker, 1, |wire| {
            let stream = TcpStream::connect(cell()).expect("a connection");
            let said = ask_linux(cell());
            for word in [" ts ", " sack ", " wscale:7,"] {
                assert!(said.contains(word), "{word} is not in what ss says: {said}");
            }
            exchange(stream, 0);
            wire.finished();
        });
    });
}

#[proves("RFC 3168 6.1.1", "congestion notification is agreed on with another's stack that asks for it")]
#[test]
fn linux_agrees_on_congestion_notification() {
    namespace::run(|| {
        let amount = 300_000;
        ask_for_ecn();
        let talker = Talker::new(Role::Listen(PORT), amount);
        // A SYN that is sent again asks for nothing.
        let wire = Wire::run(Link::good(), talker, 1, |wire| {
            let stream = TcpStream::connect(cell()).expect("a connection");
            let said = ask_linux(cell());
            assert!(said.contains(" ecn "), "Linux does not use it: {said}");
            exchange(stream, amount);
            wire.finished();
        });
        wire.check(amount, 1);
    });
}

#[proves("RFC 2018 4", "what is reported beyond a gap makes another's stack repair the gap alone")]
#[test]
fn linux_repairs_by_what_is_reported_to_it() {
    namespace::run(|| {
        let amount = 2 << 20;
        let before = linux_counter("TCPSackRecovery");
        let talker = Talker::new(Role::Listen(PORT), amount);
        let link = Link { loss: 20, latency: Duration::from_millis(1), ..Link::good() };
        Wire::run(link, talker, 1, |wire| {
            exchange(TcpStream::connect(cell()).expect("a connection"), amount);
            wire.finished();
        });
        assert!(
            linux_counter("TCPSackRecovery") > before,
            "Linux never recovered by selective acknowledgements"
        );
    });
}

#[proves(
    "RFC 4987 3.6",
    "another's stack brings cookies back, over either family, with its options in their timestamps"
)]
#[test]
fn linux_brings_cookies_back() {
    namespace::run(|| {
        give_linux_ipv6();
        let (amount, connections) = (50_000, 6);
        // The table of half-open handshakes is full from the beginning.
        let tcp = TcpConfig { max_half_open: 0, ..TcpConfig::default() };
        let talker = Talker::new(Role::Listen(PORT), amount);
        // An answer that comes twice makes Linux say where it is by now, which brings no cookie back, and is reset.
        let link = Link { duplication: 0, ..bad(10) };
        let wire = Wire::run_with(tcp, link, talker, connections, |wire| {
            for address in [cell(), (CELL6, PORT).into()] {
                // Where the line is bad enough, Linux says where it is before it has said what brings the cookie back.
                let connect = || TcpStream::connect(address).or_else(|_| TcpStream::connect(address));
                let stream = connect().expect("a connection");
                let said = ask_linux(address);
                for word in [" ts ", " sack ", " wscale:7,"] {
                    assert!(said.contains(word), "{word} is not in what ss says: {said}");
                }
                exchange(stream, amount);
                for _ in 0..2 {
                    exchange(connect().expect("a connection"), amount);
                }
            }
            wire.finished();
        });
        wire.check(amount, connections);
        let counters = wire.stack.counters();
        assert!(counters.get(Counter::TcpCookiesIn) >= connections as u64);
        assert!(counters.get(Counter::TcpAccepted) >= connections as u64);
    });
}

#[test]
fn thousands_of_connections_come_and_go() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 400;
    namespace::run(|| {
        let amount = 100;
        let talker = Talker::new(Role::Listen(PORT), amount);
        let wire = Wire::run(Link::good(), talker, CLIENTS * ROUNDS, |wire| {
            thread::scope(|scope| {
                for _ in 0..CLIENTS {
                    scope.spawn(|| {
                        for _ in 0..ROUNDS {
                            exchange(TcpStream::connect(cell()).expect("a connection"), amount);
                        }
                    });
                }
            });
            wire.finished();
        });
        wire.check(amount, CLIENTS * ROUNDS);
        for counter in [Counter::DropTcpChecksum, Counter::DropTcpMalformed, Counter::DropTcpFlags] {
            assert_eq!(wire.stack.counters().get(counter), 0, "{counter:?}");
        }
    });
}
