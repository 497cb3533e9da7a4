//! Migration of flow buckets between cores while their connections are in use; the peers notice nothing.

use crate::common::{Role, Transfers};
use isola_net_sim::{Link, Peer, Random, Segment, Sim, host_config, host_ip, host_mac, steering};
use isola_net_stack::{
    Addressing, Bucket, Buckets, Config, ConnId, ConnectError, CoreShare, Counter, Duration, Event, Flow,
    KeepAlive, Steering, TcpConfig,
};
use proptest::prelude::*;
use std::net::SocketAddr;
use std::sync::Arc;

const CORES: usize = 3;

/// Returns a server of several cores, and a client.
fn machine(seed: u64, link: &Link, amount: usize, connections: usize) -> (Sim<Transfers>, Arc<Steering>) {
    let mut sim = Sim::new(seed);
    let steering = steering(CORES as u16);
    let server = 1 + (seed % 2) as u8;
    for index in 0..CORES as u16 {
        let mut config = host_config(server);
        config.core = CoreShare { index, steering: steering.clone() };
        if index > 0 {
            config.addressing = Addressing::Unset;
        }
        sim.add(config, Transfers::new(Role::Listen(80), amount), link.clone());
    }
    let address = sim.hosts[0].stack.ipv4();
    for core in 1..CORES {
        sim.hosts[core].stack.set_ipv4(sim.now, address);
    }
    let remote = SocketAddr::from((host_ip(server), 80));
    sim.add(host_config(3), Transfers::new(Role::Connect(remote, connections), amount), link.clone());
    sim.hosts[CORES].stack.listen(80, 1000).unwrap();
    (sim, steering)
}

/// Moves a bucket to another core, except for randomly chosen connections.
fn give(sim: &mut Sim<Transfers>, steering: &Steering, bucket: Bucket, to: usize, random: &mut Random) {
    let (from, now) = (usize::from(steering.owner(bucket)), sim.now);
    if from == to {
        return;
    }
    let buckets = Buckets::from_iter([bucket]);
    let mut staying = sim.hosts[from].stack.connections_of(buckets);
    staying.retain(|_| random.happens(200));
    let moved = sim.hosts[from].stack.extract(now, buckets, &staying);
    let names = sim.hosts[to].stack.insert(now, moved);
    let [giver, taker] = sim.hosts.get_disjoint_mut([from, to]).unwrap();
    for (before, name) in names {
        let progress = giver.app.connections.remove(&before);
        taker.app.connections.extend(progress.map(|progress| (name, progress)));
    }
    steering.give([bucket], to as u16);
}

/// Opens connections in both directions and sends data on them, while random buckets move, until all streams are
/// complete.
fn transfer(seed: u64, link: &Link, amount: usize, connections: usize) {
    let (mut sim, steering) = machine(seed, link, amount, connections);
    let mut random = Random::new(seed ^ 0x5eed);
    let all = connections + CORES;
    let client = SocketAddr::from((host_ip(3), 80));
    for core in 0..CORES {
        let (host, now) = (&mut sim.hosts[core], sim.now);
        host.app.connect(&mut host.stack, now, client);
    }
    let is_done = |sim: &Sim<Transfers>| {
        let served: usize = sim.hosts[..CORES].iter().map(|host| host.app.closed.len()).sum();
        (served, sim.hosts[CORES].app.closed.len()) == (all, all)
    };
    let mut steps = 0;
    while !sim.run(Duration::from_micros(100 + random.below(20_000)), is_done) {
        steps += 1;
        assert!(steps < 100_000, "the streams do not complete");
        // Neighbours are announced to all cores, as by the layer above, because corrupted ARP packets are not detected.
        let (now, server) = (sim.now, 1 + (seed % 2) as u8);
        sim.hosts[CORES].stack.learn(now, host_ip(server), host_mac(server));
        sim.hosts[..CORES].iter_mut().for_each(|host| host.stack.learn(now, host_ip(3), host_mac(3)));
        for _ in 0..random.below(8) {
            let bucket = Bucket::all().nth(random.below(128) as usize).unwrap();
            give(&mut sim, &steering, bucket, random.below(CORES as u64) as usize, &mut random);
        }
    }
    for host in &sim.hosts {
        assert_eq!(host.app.failed, [], "no connection may fail");
        assert!(host.app.closed.iter().all(|received| *received == amount));
        // A late duplicate may be reset, because its connection has ended.
        assert!(link.duplication > 0 || host.stack.counters().get(Counter::TcpResetsOut) == 0);
        assert!(host.app.open() == 0);
    }
    // The remaining state ends by itself, on any core, and no left-behind flow remains.
    sim.pass(Duration::from_secs(400));
    for host in &mut sim.hosts {
        let occupancy = host.stack.occupancy();
        assert_eq!((occupancy.connections, occupancy.half_open, occupancy.time_wait), (0, 0, 0));
        assert_eq!(host.stack.next_deadline(), None);
    }
    assert_eq!(steering.left_behind(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn streams_arrive_intact_while_their_flows_migrate(seed: u64, amount in 1usize..60_000, connections in 1usize..12) {
        transfer(seed, &Link::good(), amount, connections);
    }

    #[test]
    fn streams_arrive_intact_over_a_bad_network_while_their_flows_migrate(seed: u64, amount in 1usize..30_000) {
        transfer(seed, &Link::bad(), amount, 6);
    }
}

/// Returns the stacks of two cores without a network. Both listen on port 80, and the first owns all buckets.
fn cores_with(tcp: &TcpConfig) -> (Peer, Peer, Arc<Steering>) {
    let steering = steering(2);
    steering.give(Bucket::all(), 0);
    let config = |index| Config {
        core: CoreShare { index, steering: steering.clone() },
        tcp: tcp.clone(),
        ..host_config(1)
    };
    let first = Peer::new(config(0));
    let mut other = Peer::new(Config { addressing: Addressing::Unset, ..config(1) });
    other.stack.set_ipv4(other.now, first.stack.ipv4());
    let mut cores = [first, other];
    for core in &mut cores {
        core.stack.learn(core.now, host_ip(2), host_mac(2));
        core.stack.listen(80, 16).unwrap();
        core.data_frames();
        core.events();
    }
    let [first, other] = cores;
    (first, other, steering)
}

fn cores() -> (Peer, Peer, Arc<Steering>) {
    cores_with(&TcpConfig::default())
}

fn flow(port: u16) -> Flow {
    Flow::new(host_ip(1).into(), 80, host_ip(2).into(), port)
}

/// Moves the bucket of the flow from the test's port.
fn hand_over(
    from: &mut Peer,
    to: &mut Peer,
    steering: &Steering,
    port: u16,
    staying: &[ConnId],
) -> Vec<(ConnId, ConnId)> {
    let bucket = steering.bucket_of(&flow(port));
    let buckets = Buckets::from_iter([bucket]);
    let owner = usize::from(steering.owner(bucket) == 0);
    to.now = to.now.max(from.now);
    let moved = from.stack.extract(from.now, buckets, staying);
    let names = to.stack.insert(to.now, moved);
    steering.give([bucket], owner as u16);
    names
}

#[test]
fn a_connection_continues_on_another_core() {
    let (mut first, mut other, steering) = cores();
    let mut connection = first.connect(5000, Some(1000), None);
    // Unread data, data beyond a gap, and data in flight.
    first.send_data(&mut connection, b"unread ");
    first.send(Segment { seq: connection.seq + 4, ..connection.segment().payload(b"behind") });
    first.stack.send(connection.conn, &mut isola_iobuf::IoBuf::from_static(b"under way").into()).unwrap();
    assert!(!first.segments().is_empty());
    let buckets = Buckets::from_iter([steering.bucket_of(&flow(5000))]);
    assert_eq!(first.stack.connections_of(buckets), [connection.conn]);
    let names = hand_over(&mut first, &mut other, &steering, 5000, &[]);
    let [(before, name)] = names[..] else { panic!("one connection: {names:?}") };
    assert_eq!((before, steering.core_of(&flow(5000))), (connection.conn, 1));
    // Nothing remains on the old core, and pending events are delivered on the new one.
    assert_eq!((first.stack.next_deadline(), first.stack.remote_addr(before)), (None, None));
    assert_eq!(other.events(), [Event::Readable(name)]);
    assert_eq!(other.read(name), b"unread ");
    other.segments();
    other.send_data(&mut connection, b"gap ");
    assert_eq!(other.read(name), b"gap behind");
    other.segments();
    // The retransmission timer runs on the new core.
    other.next_timer();
    assert_eq!(other.segment().payload, b"under way");
}

#[test]
fn a_connection_whose_address_is_gone_on_the_other_core_fails_there() {
    let (mut first, mut other, steering) = cores();
    first.connect(5000, None, None);
    let address = isola_net_stack::Ipv4Config::new([10, 0, 0, 77].into(), 16, None);
    other.stack.set_ipv4(other.now, Some(address));
    other.events();
    let names = hand_over(&mut first, &mut other, &steering, 5000, &[]);
    assert!(
        matches!(other.events()[..], [Event::Failed(_, isola_net_stack::FailReason::AddressLost)]),
        "{names:?}"
    );
    assert_eq!(other.stack.occupancy().connections, 0);
}

#[test]
fn the_frames_of_a_connection_left_behind_are_forwarded_until_it_ends() {
    let (mut first, mut other, steering) = cores();
    let connection = first.connect(5000, None, None);
    let names = hand_over(&mut first, &mut other, &steering, 5000, &[connection.conn]);
    assert_eq!((names, steering.left_behind()), (vec![], 1));
    assert_eq!(steering.core_of(&flow(5000)), 0);
    first.stack.abort(first.now, connection.conn);
    assert_eq!((steering.left_behind(), steering.core_of(&flow(5000))), (0, 1));
}

#[test]
fn a_flow_is_left_behind_through_time_wait_and_a_new_connection() {
    let (mut first, mut other, steering) = cores();
    let mut connection = first.connect(5000, None, None);
    hand_over(&mut first, &mut other, &steering, 5000, &[connection.conn]);
    first.stack.close(first.now, connection.conn);
    let end = first.segment();
    connection.ack = end.seq + 1;
    first.send(connection.segment().flags("F"));
    first.segment();
    assert_eq!((first.stack.occupancy().time_wait, steering.core_of(&flow(5000))), (1, 0));
    // A new connection opens before TIME-WAIT is over; its handshake takes place on this core.
    let successor = first.connect_with(Segment::new(5000, 80, connection.seq + 1000, None).flags("S"));
    assert_eq!((steering.left_behind(), steering.core_of(&flow(5000))), (1, 0));
    first.stack.abort(first.now, successor.conn);
    assert_eq!((steering.left_behind(), steering.core_of(&flow(5000))), (0, 1));
}

#[test]
fn a_handshake_completes_on_another_core() {
    let (mut first, mut other, steering) = cores();
    first.send(Segment::new(5000, 80, 9, None).flags("S"));
    let answer = first.segment();
    assert_eq!(hand_over(&mut first, &mut other, &steering, 5000, &[]), []);
    // The SYN-ACK is retransmitted on the new core.
    other.next_timer();
    assert_eq!((other.segment().seq, first.stack.next_deadline()), (answer.seq, None));
    other.send(Segment::new(5000, 80, 10, Some(answer.seq + 1)));
    assert!(matches!(other.events()[..], [Event::Accepted { .. }]));
}

#[test]
fn a_waiting_connection_is_accepted_on_the_other_core() {
    let (mut first, mut other, steering) = cores();
    first.send(Segment::new(5000, 80, 9, None).flags("S"));
    let answer = first.segment();
    first.send(Segment::new(5000, 80, 10, Some(answer.seq + 1)).payload(b"hello"));
    assert_eq!(first.stack.connections_of(Bucket::all().collect()), []);
    let names = hand_over(&mut first, &mut other, &steering, 5000, &[]);
    assert_eq!((first.events(), names.len()), (vec![], 1));
    let [Event::Accepted { conn, .. }, Event::Readable(readable)] = other.events()[..] else {
        panic!("the connection is accepted")
    };
    assert_eq!((conn, other.read(readable)), (names[0].1, b"hello".to_vec()));
    // The waiting connection has moved between the backlogs.
    assert_eq!(first.stack.occupancy().connections, 0);
}

#[test]
fn a_waiting_connection_without_a_listener_on_the_new_core_is_reset() {
    let (mut first, _, steering) = cores();
    let mut other = Peer::new(Config {
        core: CoreShare { index: 1, steering: steering.clone() },
        addressing: Addressing::Unset,
        ..host_config(1)
    });
    other.stack.set_ipv4(other.now, first.stack.ipv4());
    other.stack.learn(other.now, host_ip(2), host_mac(2));
    other.data_frames();
    first.send(Segment::new(5000, 80, 9, None).flags("S"));
    let answer = first.segment();
    first.send(Segment::new(5000, 80, 10, Some(answer.seq + 1)));
    assert_eq!(hand_over(&mut first, &mut other, &steering, 5000, &[]), []);
    assert!(other.segment().flags.starts_with("R"));
    assert_eq!(other.stack.occupancy().connections, 0);
}

#[test]
fn a_cookie_is_accepted_on_another_core() {
    let tcp = TcpConfig { max_half_open: 1, ..TcpConfig::default() };
    let (mut first, mut other, steering) = cores_with(&tcp);
    let bucket = steering.bucket_of(&flow(5000));
    let filler = (5001..).find(|port| steering.bucket_of(&flow(*port)) != bucket).unwrap();
    first.send(Segment::new(filler, 80, 9, None).flags("S"));
    first.segment();
    first.send(Segment::new(5000, 80, 9, None).flags("S"));
    let answer = first.segment();
    assert_eq!(first.stack.counters().get(Counter::TcpCookiesOut), 1);
    hand_over(&mut first, &mut other, &steering, 5000, &[]);
    other.send(Segment::new(5000, 80, 10, Some(answer.seq + 1)));
    assert!(matches!(other.events()[..], [Event::Accepted { .. }]));
}

#[test]
fn time_wait_migrates_with_its_bucket() {
    let (mut first, mut other, steering) = cores();
    let mut connection = first.connect(5000, None, None);
    first.stack.close(first.now, connection.conn);
    let end = first.segment();
    connection.ack = end.seq + 1;
    first.send(connection.segment().flags("F"));
    let last = first.segment();
    first.pass(Duration::from_secs(20));
    hand_over(&mut first, &mut other, &steering, 5000, &[]);
    assert_eq!((first.stack.occupancy().time_wait, other.stack.occupancy().time_wait), (0, 1));
    other.send(connection.segment().flags("F"));
    assert_eq!(other.segment().ack, last.ack);
    other.pass(Duration::from_secs(60));
    assert_eq!(other.stack.occupancy().time_wait, 0);
}

#[test]
fn keep_alive_probes_are_sent_by_the_new_core() {
    let idle = Duration::from_secs(60);
    let keep_alive = Some(KeepAlive { idle, interval: Duration::from_secs(5), probes: 2 });
    let (mut first, mut other, steering) = cores();
    let connection = first.connect(5000, None, None);
    first.stack.set_keep_alive(connection.conn, keep_alive);
    first.segments();
    first.pass(Duration::from_secs(40));
    let names = hand_over(&mut first, &mut other, &steering, 5000, &[]);
    other.segments();
    assert_eq!((first.stack.next_deadline(), other.next_timer()), (None, Duration::from_secs(20)));
    assert_eq!((names.len(), other.segment().seq), (1, connection.ack - 1));
}

#[test]
fn a_core_without_buckets_opens_no_connections() {
    let (mut first, mut other, _) = cores();
    let server = SocketAddr::from((host_ip(2), 443));
    assert_eq!(other.stack.connect(other.now, server), Err(ConnectError::NoShare));
    first.stack.connect(first.now, server).unwrap();
}

/// Flows that are being moved to a stack are not used for its new connections.
#[test]
fn connections_opened_during_a_migration_use_no_migrating_flow() {
    let (mut first, mut other, steering) = cores();
    let server = SocketAddr::from((host_ip(2), 443));
    (0..10).for_each(|_| _ = first.stack.connect(first.now, server).unwrap());
    let half: Buckets = Bucket::all().filter(|bucket| bucket.index() % 2 == 0).collect();
    other.stack.expect(half);
    let moved = first.stack.extract(first.now, half, &[]);
    steering.give(half.iter(), 1);
    // The other core has only buckets whose flows are being moved to it.
    assert_eq!(other.stack.connect(other.now, server), Err(ConnectError::NoPorts));
    steering.give(Bucket::all(), 1);
    (0..10).for_each(|_| _ = other.stack.connect(other.now, server).unwrap());
    other.stack.insert(other.now, moved);
    (0..10).for_each(|_| _ = other.stack.connect(other.now, server).unwrap());
    let flows: Vec<Flow> = other.stack.connections(other.now).map(|(flow, _)| flow).collect();
    let different: std::collections::BTreeSet<&Flow> = flows.iter().collect();
    assert!(flows.len() > 20 && different.len() == flows.len(), "{} of {}", different.len(), flows.len());
}

#[test]
fn migrated_time_wait_entries_expire_in_order() {
    let (mut first, mut other, steering) = cores();
    let bucket = steering.bucket_of(&flow(5000));
    let elsewhere = (5001..).find(|port| steering.bucket_of(&flow(*port)) != bucket).unwrap();
    steering.give([steering.bucket_of(&flow(elsewhere))], 1);
    let end = |peer: &mut Peer, port| {
        let mut connection = peer.connect(port, None, None);
        peer.stack.close(peer.now, connection.conn);
        connection.ack = peer.segment().seq + 1;
        peer.send(connection.segment().flags("F"));
        peer.segment();
    };
    end(&mut first, 5000);
    first.pass(Duration::from_secs(50));
    other.pass(Duration::from_secs(50));
    end(&mut other, elsewhere);
    other.pass(Duration::from_secs(30));
    let moved = first.stack.extract(first.now, Buckets::from_iter([bucket]), &[]);
    other.stack.insert(other.now, moved);
    assert_eq!(other.stack.occupancy().time_wait, 2);
    other.pass(Duration::from_secs(31));
    assert_eq!(other.stack.occupancy().time_wait, 1);
    other.pass(Duration::from_secs(30));
    assert_eq!(other.stack.occupancy().time_wait, 0);
}

/// A batch may contain a reset and the next handshake of the same flow, and may have been steered before the reset.
#[test]
fn the_end_of_a_left_behind_flow_changes_the_steering_version() {
    let (mut first, mut other, steering) = cores();
    let connection = first.connect(5000, None, None);
    let bucket = steering.bucket_of(&flow(5000));
    let moved = first.stack.extract(first.now, Buckets::from_iter([bucket]), &[connection.conn]);
    other.stack.insert(other.now, moved);
    steering.give([bucket], 1);
    let version = steering.version();
    assert_eq!(steering.core_of(&flow(5000)), 0);
    first.send(connection.segment().flags("R"));
    assert_eq!(steering.core_of(&flow(5000)), 1);
    assert_ne!(steering.version(), version);
}
