//! Conditions under which the congestion window grows (RFC 5681, RFC 6928).

use crate::common::{Role, Transfers};
use isola_net_sim::{Link, Peer, PeerConnection, Sim, host_config, host_ip};
use isola_net_stack::{Algorithm, Duration};
use isola_proves::proves;

const MSS: usize = 1000;

/// The initial window of RFC 6928, in segments.
const INITIAL: usize = 10;

fn connected() -> (Peer, PeerConnection) {
    let mut peer = Peer::listening();
    let connection = peer.connect(4000, Some(MSS as u16), Some(7));
    (peer, connection)
}

/// Queues more data than the window allows. Returns the number of segments sent.
fn burst(peer: &mut Peer, connection: &PeerConnection) -> usize {
    peer.write(connection.conn, &vec![7; 100 * MSS]);
    peer.segments().len()
}

/// Acknowledges this many segments one by one. Returns the number of segments sent in response.
fn acknowledge(peer: &mut Peer, connection: &mut PeerConnection, segments: usize) -> usize {
    let mut sent = 0;
    for _ in 0..segments {
        connection.ack += MSS as u32;
        peer.send(connection.segment().window(u16::MAX));
        sent += peer.segments().len();
    }
    sent
}

#[proves("RFC 5681 3.1", "slow start adds a segment for each one acknowledged")]
#[proves("RFC 6928 2", "the initial window is ten segments")]
#[test]
fn slow_start_doubles_the_window_each_round_trip() {
    let (mut peer, mut connection) = connected();
    assert_eq!(burst(&mut peer, &connection), INITIAL);
    assert_eq!(acknowledge(&mut peer, &mut connection, INITIAL), 2 * INITIAL);
    assert_eq!(acknowledge(&mut peer, &mut connection, 2 * INITIAL), 4 * INITIAL);
}

#[proves("RFC 5681 3.1", "the window grows only by acknowledgements of data that filled it")]
#[test]
fn an_unused_window_does_not_grow() {
    let (mut peer, mut connection) = connected();
    for _ in 0..100 {
        peer.write(connection.conn, &[7; MSS]);
        assert_eq!(peer.segments().len(), 1);
        acknowledge(&mut peer, &mut connection, 1);
    }
    assert_eq!(burst(&mut peer, &connection), INITIAL);
}

#[proves("RFC 5681 4.1", "after idleness longer than a timeout the window restarts")]
#[test]
fn a_grown_window_restarts_after_idleness() {
    let (mut peer, mut connection) = connected();
    let mut in_flight = burst(&mut peer, &connection);
    while in_flight > 0 {
        in_flight = acknowledge(&mut peer, &mut connection, in_flight);
    }
    // Shorter than a timeout, so the window is kept.
    peer.pass(Duration::from_millis(50));
    let mut in_flight = burst(&mut peer, &connection);
    assert!(in_flight > 2 * INITIAL, "{in_flight} segments");
    while in_flight > 0 {
        in_flight = acknowledge(&mut peer, &mut connection, in_flight);
    }
    peer.pass(Duration::from_secs(10));
    assert_eq!(burst(&mut peer, &connection), INITIAL);
}

#[proves("RFC 9438 5.2", "on a long path with few losses CUBIC is much faster than NewReno.")]
#[test]
fn cubic_is_faster_than_new_reno_on_a_long_path_with_losses() {
    let took = |algorithm: Algorithm| -> u64 {
        let link = Link { latency: Duration::from_millis(300), loss: 1, ..Link::good() };
        (0..4).map(|seed| stream(seed, &link, algorithm, 3 << 20)).sum()
    };
    let (cubic, reno) = (took(Algorithm::Cubic), took(Algorithm::NewReno));
    assert!(cubic * 5 < reno * 4, "{cubic} ms, NewReno {reno} ms");
}

/// Returns the duration of a stream of `amount` bytes in each direction, in milliseconds.
fn stream(seed: u64, link: &Link, algorithm: Algorithm, amount: usize) -> u64 {
    let mut sim = Sim::new(seed);
    for number in 1..=2 {
        let mut config = host_config(number);
        config.tcp.congestion = algorithm;
        config.tcp.receive_window = 4 << 20;
        config.tcp.send_limit = 4 << 20;
        let role = match number {
            1 => Role::Listen(80),
            _ => Role::Connect((host_ip(1), 80).into(), 1),
        };
        sim.add(config, Transfers::new(role, amount), link.clone());
    }
    let done = sim.run(Duration::from_secs(3600), |sim| sim.hosts.iter().all(|h| h.app.closed == [amount]));
    assert!(done, "{} connections are open", sim.hosts[0].app.open());
    sim.now.as_nanos() / 1_000_000
}
