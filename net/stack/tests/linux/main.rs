//! The stack against Linux, over a TAP interface in a network namespace that each test creates: streams in both
//! directions, on lines with loss, reordering, duplication and delay. Linux's view of its peer is read from its tools.
//!
//! Frames pass between the interface and the stack through a [`wire::Wire`], which has the same faults in both
//! directions, so that both sides must recover. If no namespace can be created, the tests report that and pass. Nothing
//! depends on the machine's speed: a test that hangs ends after minutes.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod wire;

use clients::{ask_for_ecn, ask_linux, exchange, give_linux_ipv6, linux_counter};
use common::{Role, Transfers};
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

/// Returns a line with occasional faults of all kinds. `loss` is in thousandths.
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

/// Opens this many connections from Linux, and sends `amount` bytes on each in both directions at once.
fn linux_connects(link: Link, amount: usize, connections: usize) {
    linux_connects_to(cell(), link, amount, connections);
}

fn linux_connects_to(cell: SocketAddr, link: Link, amount: usize, connections: usize) {
    namespace::run(|| {
        give_linux_ipv6();
        let transfers = Transfers::new(Role::Listen(PORT), amount);
        let wire = Wire::run(link, transfers, connections, |wire| {
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
fn streams_arrive_over_lines_with_one_percent_loss() {
    linux_connects(bad(10), 1 << 20, 2);
}

#[test]
fn streams_arrive_over_lines_with_five_percent_loss() {
    linux_connects(bad(50), 200_000, 4);
}

#[proves("RFC 4861 7.2", "addresses are resolved with another implementation, in both directions")]
#[proves("RFC 8200 8.1", "segments have a checksum that another implementation accepts")]
#[test]
fn streams_arrive_over_bad_lines_with_ipv6() {
    linux_connects_to((CELL6, PORT).into(), bad(10), 300_000, 3);
}

/// Opens several connections to Linux, over a line with faults.
fn connects_to_linux(linux: IpAddr) {
    namespace::run(|| {
        give_linux_ipv6();
        let (amount, connections) = (300_000, 4);
        let listener = TcpListener::bind((linux, PORT)).expect("a free port");
        let role = Role::Connect((linux, PORT).into(), connections);
        let wire = Wire::run(bad(10), Transfers::new(role, amount), connections, |wire| {
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
fn streams_arrive_on_connections_to_linux() {
    connects_to_linux(LINUX.into());
}

#[test]
fn streams_arrive_on_connections_to_linux_over_ipv6() {
    connects_to_linux(LINUX6.into());
}

#[proves("RFC 7323 2.2", "window scaling is negotiated with another implementation")]
#[proves("RFC 7323 3.2", "timestamps are negotiated with another implementation")]
#[proves("RFC 2018 2", "SACK is negotiated with another implementation")]
#[test]
fn linux_negotiates_window_scaling_timestamps_and_sack() {
    namespace::run(|| {
        let transfers = Transfers::new(Role::Listen(PORT), 0);
        Wire::run(Link::good(), transfers, 1, |wire| {
            let stream = TcpStream::connect(cell()).expect("a connection");
            let output = ask_linux(cell());
            for word in [" ts ", " sack ", " wscale:7,"] {
                assert!(output.contains(word), "{word} is not in the output of ss: {output}");
            }
            exchange(stream, 0);
            wire.finished();
        });
    });
}

#[proves("RFC 3168 6.1.1", "ECN is negotiated with another implementation that requests it")]
#[test]
fn linux_negotiates_ecn() {
    namespace::run(|| {
        let amount = 300_000;
        ask_for_ecn();
        let transfers = Transfers::new(Role::Listen(PORT), amount);
        // A retransmitted SYN does not request ECN, so this line loses nothing.
        let wire = Wire::run(Link::good(), transfers, 1, |wire| {
            let stream = TcpStream::connect(cell()).expect("a connection");
            let output = ask_linux(cell());
            assert!(output.contains(" ecn "), "Linux does not use ECN: {output}");
            exchange(stream, amount);
            wire.finished();
        });
        wire.check(amount, 1);
    });
}

#[proves("RFC 2018 4", "SACK blocks make another implementation retransmit only the gap")]
#[test]
fn linux_recovers_by_our_sack_blocks() {
    namespace::run(|| {
        let amount = 2 << 20;
        let before = linux_counter("TCPSackRecovery");
        let transfers = Transfers::new(Role::Listen(PORT), amount);
        let link = Link { loss: 20, latency: Duration::from_millis(1), ..Link::good() };
        Wire::run(link, transfers, 1, |wire| {
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
    "another implementation returns cookies, over IPv4 and IPv6, with its options in their timestamps"
)]
#[test]
fn linux_returns_cookies() {
    namespace::run(|| {
        give_linux_ipv6();
        let (amount, connections) = (50_000, 6);
        // The table of half-open handshakes is always full.
        let tcp = TcpConfig { max_half_open: 0, ..TcpConfig::default() };
        let transfers = Transfers::new(Role::Listen(PORT), amount);
        // A duplicate SYN-ACK makes Linux send an acknowledgement with its current position, which has no cookie and is
        // reset.
        let link = Link { duplication: 0, ..bad(10) };
        let wire = Wire::run_with(tcp, link, transfers, connections, |wire| {
            for address in [cell(), (CELL6, PORT).into()] {
                // With enough faults, Linux may send such an acknowledgement before the one with the cookie.
                let connect = || TcpStream::connect(address).or_else(|_| TcpStream::connect(address));
                let stream = connect().expect("a connection");
                let output = ask_linux(address);
                for word in [" ts ", " sack ", " wscale:7,"] {
                    assert!(output.contains(word), "{word} is not in the output of ss: {output}");
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
fn thousands_of_connections_open_and_close() {
    const CLIENTS: usize = 8;
    const ROUNDS: usize = 400;
    namespace::run(|| {
        let amount = 100;
        let transfers = Transfers::new(Role::Listen(PORT), amount);
        let wire = Wire::run(Link::good(), transfers, CLIENTS * ROUNDS, |wire| {
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
