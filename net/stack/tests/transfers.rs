//! Streams between stacks arrive intact over networks with various faults.

use crate::common::{Role, Transfers};
use isola_net_sim::{Link, Sim, host_config, host_ip};
use isola_net_stack::{Counter, Duration};
use std::net::SocketAddr;

/// Returns a server and a client that send each other `amount` bytes on each of `connections` connections.
fn pair(seed: u64, link: Link, amount: usize, connections: usize) -> Sim<Transfers> {
    let mut sim = Sim::new(seed);
    sim.add(host_config(1), Transfers::new(Role::Listen(80), amount), link.clone());
    let server = SocketAddr::from((host_ip(1), 80));
    sim.add(host_config(2), Transfers::new(Role::Connect(server, connections), amount), link);
    sim
}

fn finish(sim: &mut Sim<Transfers>, amount: usize, connections: usize, limit: Duration) {
    let done = sim.run(limit, |sim| sim.hosts.iter().all(|host| host.app.closed.len() == connections));
    for host in &sim.hosts {
        assert_eq!(host.app.failed, [], "no connection may fail");
    }
    assert!(
        done,
        "not done at {}: {:?}",
        sim.now,
        sim.hosts.iter().map(|host| (host.app.closed.len(), host.app.open())).collect::<Vec<_>>()
    );
    for host in &sim.hosts {
        assert!(host.app.closed.iter().all(|&received| received == amount));
    }
}

#[test]
fn megabytes_cross_a_good_network_quickly() {
    let mut sim = pair(1, Link::good(), 4 << 20, 1);
    finish(&mut sim, 4 << 20, 1, Duration::from_secs(20));
    for host in &sim.hosts {
        let counters = host.stack.counters();
        assert_eq!(counters.get(Counter::TcpTimeouts), 0);
        assert_eq!(counters.get(Counter::TcpCompactedBytes), 0);
    }
}

#[test]
fn streams_arrive_over_a_bad_network() {
    for seed in 0..20 {
        let mut sim = pair(seed, Link::bad(), 200_000, 1);
        finish(&mut sim, 200_000, 1, Duration::from_secs(600));
    }
}

#[test]
fn streams_arrive_over_a_terrible_network() {
    for seed in 0..10 {
        let link = Link {
            latency: Duration::from_millis(30),
            jitter: Duration::from_millis(40),
            loss: 80,
            duplication: 100,
            corruption: 50,
            ..Link::good()
        };
        let mut sim = pair(seed, link, 30_000, 1);
        finish(&mut sim, 30_000, 1, Duration::from_secs(3600));
    }
}

#[test]
fn a_slow_line_with_a_short_queue_is_well_utilised() {
    let link =
        Link { latency: Duration::from_millis(10), rate: Some(1_250_000), queue: 40_000, ..Link::good() };
    let amount = 3 << 20;
    let mut sim = pair(7, link, amount, 1);
    finish(&mut sim, amount, 1, Duration::from_secs(60));
    let least = amount as f64 / 1_250_000.0;
    let took = sim.now.as_nanos() as f64 / 1e9;
    assert!(took < least * 1.35, "{took:.2} s with a minimum of {least:.2} s");
}

#[test]
fn hundreds_of_connections_at_once_share_a_lossy_line() {
    let link = Link { loss: 10, jitter: Duration::from_micros(300), ..Link::good() };
    let mut sim = pair(3, link, 5_000, 500);
    finish(&mut sim, 5_000, 500, Duration::from_secs(120));
    // The side that closed last has no state left; the other has TIME-WAIT entries for a minute.
    sim.pass(Duration::from_secs(130));
    for host in &mut sim.hosts {
        let occupancy = host.stack.occupancy();
        assert_eq!((occupancy.connections, occupancy.half_open, occupancy.time_wait), (0, 0, 0));
        assert_eq!(host.stack.next_deadline(), None, "an idle stack has no timer");
    }
}

#[test]
fn streams_arrive_with_tiny_pieces_and_tiny_windows() {
    for seed in 0..5 {
        let link = Link { loss: 5, ..Link::good() };
        let mut sim = Sim::new(seed);
        let mut config = host_config(1);
        config.tcp.receive_window = 700;
        config.tcp.max_receive_window = 700;
        config.tcp.send_limit = 900;
        sim.add(config, Transfers::new(Role::Listen(80), 20_000), link.clone());
        let server = SocketAddr::from((host_ip(1), 80));
        let mut client = Transfers::new(Role::Connect(server, 3), 20_000);
        client.piece = 7;
        sim.add(host_config(2), client, link);
        finish(&mut sim, 20_000, 3, Duration::from_secs(600));
    }
}

#[test]
fn losses_are_nearly_always_repaired_without_timeouts() {
    let mut timeouts = 0;
    for seed in 0..10 {
        let link = Link { loss: 20, latency: Duration::from_millis(1), ..Link::good() };
        let mut sim = pair(seed, link, 500_000, 1);
        finish(&mut sim, 500_000, 1, Duration::from_secs(60));
        timeouts += sim.hosts.iter().map(|host| host.stack.counters().get(Counter::TcpTimeouts)).sum::<u64>();
    }
    // Some 150 segments are lost, including SYNs and lone segments.
    assert!(timeouts <= 8, "{timeouts} timeouts");
}

#[test]
fn reordered_segments_are_rarely_retransmitted() {
    let (mut again, mut all) = (0, 0);
    for seed in 0..5 {
        let jitter = Duration::from_micros(500);
        let link = Link { jitter, latency: Duration::from_millis(2), ..Link::good() };
        let mut sim = pair(seed, link, 1 << 20, 1);
        finish(&mut sim, 1 << 20, 1, Duration::from_secs(60));
        for host in &sim.hosts {
            let counters = host.stack.counters();
            assert_eq!(counters.get(Counter::TcpTimeouts), 0);
            assert!(counters.get(Counter::TcpOutOfOrder) > 100, "the line reorders");
            again += counters.get(Counter::TcpFastRetransmits);
            all += counters.get(Counter::TcpOutOfOrder);
        }
    }
    assert!(again * 20 < all, "{again} spurious recoveries, {all} segments out of order");
}
