//! Both sides, each in a cell of this process, connected by an in-memory link.

use isola_events::spawn_task;
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_net::{StreamError, TcpStream, listen_with};
use isola_netpipe::endpoint::Endpoint;
use isola_netpipe::round::{Direction, Round};
use isola_netpipe::{Server, Settings, measure_all};
use isola_test_cells::{dial, rotate_flows, run_server_and_client};
use std::future::{Future, pending};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PORT: u16 = 5002;

fn with_server<C: Future<Output = ()> + 'static>(client: fn() -> C) {
    let server = || async {
        let _listening = listen_with(PORT, 4, |_| Server::default()).unwrap();
        pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, server, client);
}

/// Returns all remaining data of a stream.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    loop {
        match stream.read().await {
            Ok(Some(data)) => rest.extend(data.to_vec()),
            Ok(None) | Err(StreamError::Failed(_)) => return rest,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn all_sizes_are_measured_in_order_in_each_direction() {
    with_server(|| async {
        for direction in [Direction::Both, Direction::ToServer, Direction::ToClient] {
            let mut measurement = Vec::new();
            let (round, rounds, least_count) = (Duration::from_millis(1), 2, 1);
            let settings = Settings { direction, least: 1, most: 100_000, round, rounds, least_count };
            measure_all(dial(PORT).await, settings, |size| measurement.push(size)).await.unwrap();
            let sizes: Vec<usize> = measurement.iter().map(|measurement| measurement.size).collect();
            assert_eq!(sizes, isola_netpipe::sizes::sizes(100_000));
            assert!(
                measurement.iter().all(|measurement| measurement.one_way_ns > 0 && measurement.count > 0)
            );
        }
    });
}

#[test]
fn the_number_of_long_messages_follows_from_their_own_time() {
    with_server(|| async {
        let (round, rounds, least_count) = (Duration::from_millis(50), 1, 1);
        let direction = Direction::ToServer;
        let settings = Settings { direction, least: 1 << 20, most: 1 << 20, round, rounds, least_count };
        let mut found = Vec::new();
        measure_all(dial(PORT).await, settings, |size| found.push(size)).await.unwrap();
        // A message of 1 MiB takes some milliseconds; one of a byte, some microseconds.
        assert!(found.len() == 1 && found[0].count < 1000, "{found:?}");
    });
}

#[test]
fn a_client_that_has_closed_its_side_gets_its_messages() {
    with_server(|| async {
        let mut stream = dial(PORT).await;
        let round = Round { direction: Direction::ToClient, size: 70_000, count: 20 };
        stream.write(IoBuf::copy_from_slice(&round.to_bytes()).into()).await.unwrap();
        stream.shutdown();
        assert_eq!(rest(&mut stream).await.len() as u64, round.bytes());
    });
}

#[test]
fn malformed_and_abandoned_rounds_do_not_affect_others() {
    with_server(|| async {
        let mut greedy = dial(PORT).await;
        let round = Round { direction: Direction::Both, size: 1, count: 1 }.to_bytes();
        let request = [&round[..], b"x", &[0xff; Round::LEN]].concat();
        greedy.write(IoBuf::from(request).into()).await.unwrap();
        assert_eq!(rest(&mut greedy).await, b"n");
        let mut leaver = dial(PORT).await;
        let round = Round { direction: Direction::Both, size: 1_000, count: 9 }.to_bytes();
        leaver.write(IoBuf::copy_from_slice(&round).into()).await.unwrap();
        leaver.write(IoBuf::from_static(b"not all of it").into()).await.unwrap();
        leaver.shutdown();
        assert!(matches!(leaver.read().await, Ok(None)));
        let settings =
            Settings { most: 8, round: Duration::ZERO, rounds: 1, least_count: 1, ..Settings::default() };
        measure_all(dial(PORT).await, settings, |_| ()).await.unwrap();
        let mut endpoint = Endpoint::new(dial(PORT).await);
        endpoint
            .send_bytes(&Round { direction: Direction::ToServer, size: 100, count: 2 }.to_bytes())
            .await
            .unwrap();
        endpoint.send(200).await.unwrap();
        endpoint.receive(1).await.unwrap();
    });
}

#[test]
fn messages_arrive_while_their_connections_migrate_between_cores() {
    static DONE: AtomicBool = AtomicBool::new(false);
    let server = || async {
        let listening = listen_with(PORT, 4, |_| Server::default()).unwrap();
        let moved = rotate_flows(120).await;
        assert!(moved.staying == 0 && moved.buckets > 10_000, "{moved:?}");
        DONE.store(true, Ordering::Release);
        pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(3, Loss::Never, server, || async {
        let directions = [Direction::Both, Direction::ToServer, Direction::ToClient].map(|direction| {
            spawn_task(async move {
                while !DONE.load(Ordering::Acquire) {
                    let (round, rounds, least_count) = (Duration::from_millis(1), 1, 1);
                    let settings =
                        Settings { direction, least: 1, most: 400_000, round, rounds, least_count };
                    measure_all(dial(PORT).await, settings, |_| ()).await.unwrap();
                }
            })
        });
        for direction in directions {
            direction.await;
        }
    });
}
