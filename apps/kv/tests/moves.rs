//! Connections that migrate between cores while their clients send requests. The server runs in one cell of this
//! process, the clients in another, connected by an in-memory link. Also tests the counts of reset connections and the
//! removal of expired items.

use isola_events::{sleep, spawn_task};
use isola_hosted::{Hosted, Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, Server};
use isola_net::steering::buckets_per_core;
use isola_net::tcp::PortListener;
use isola_net::{TcpStream, listen_with};
use isola_platform::CoreIndex;
use isola_test_cells::{TestCell, dial, rotate_flows, run_cells, run_server_and_client};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PORT: u16 = 11211;
const MEMORY: usize = 64 << 20;

/// Sets up the server and listens.
fn listen() -> (Arc<Server>, PortListener) {
    let config = Config::for_memory(MEMORY / 2, 1 << 20).unwrap();
    let server = Server::new(config, KeyHasher::new(5), isola_kv::unix_time());
    (isola_kv::prepare(server, || MEMORY), listen_with(PORT, 64, isola_kv::serve).unwrap())
}

/// The client's end of a connection.
struct Client {
    stream: TcpStream,
    /// The received bytes that the test has not compared yet.
    unread: Chain,
}

impl Client {
    async fn dial() -> Self {
        Self { stream: dial(PORT).await, unread: Chain::new() }
    }

    async fn send(&mut self, bytes: impl Into<Vec<u8>>) {
        self.stream.write(IoBuf::from(bytes.into()).into()).await.unwrap();
    }

    async fn expect(&mut self, answer: &str) {
        while self.unread.len() < answer.len() {
            let more =
                self.stream.read().await.expect("the connection is open").expect("the stream has more data");
            self.unread.append(more);
        }
        let received = self.unread.split_to(answer.len()).unwrap().to_vec();
        let offset = received.iter().zip(answer.bytes()).position(|(received, answer)| *received != answer);
        assert!(
            offset.is_none(),
            "{:?} differs at offset {offset:?}",
            String::from_utf8_lossy(&received[..100])
        );
    }
}

/// Returns a value that is different in each round.
fn value(me: usize, round: usize, len: usize) -> String {
    format!("{me}.{round}:").chars().cycle().take(len).collect()
}

/// Sends many requests at once, for items in all shards.
async fn pipeline(client: &mut Client, me: usize, round: usize) {
    let (mut questions, mut answers) = (String::new(), String::new());
    for number in 0..30 {
        let value = value(me, round, number * 40);
        let len = value.len();
        questions += &format!("set k{me}-{number} 3 0 {len}\r\n{value}\r\nget k{me}-{number} none\r\n");
        answers += &format!("STORED\r\nVALUE k{me}-{number} 3 {len}\r\n{value}\r\nEND\r\n");
    }
    client.send(questions).await;
    client.expect(&answers).await;
}

/// Sends a value in pieces with pauses between them.
async fn halves(client: &mut Client, me: usize, round: usize) {
    let value = value(me, round, 40_000);
    let request = format!("set h{me} 0 0 {}\r\n{value}\r\nincr none 1\r\n", value.len());
    for piece in request.as_bytes().chunks(9_000) {
        client.send(piece).await;
        sleep(Duration::from_millis(2)).await;
    }
    client.expect("STORED\r\nNOT_FOUND\r\n").await;
    client.send(format!("get h{me}\r\n")).await;
    client.expect(&format!("VALUE h{me} 0 {}\r\n{value}\r\nEND\r\n", value.len())).await;
}

/// Requests large answers and reads them late: the server waits for space to send, and stops reading the client
/// meanwhile.
async fn late(client: &mut Client, me: usize, round: usize) {
    let value = value(me, round, 50_000);
    client.send(format!("set l{me} 0 0 {}\r\n{value}\r\n", value.len())).await;
    client.expect("STORED\r\n").await;
    client.send(format!("get l{me}\r\n").repeat(12)).await;
    sleep(Duration::from_millis(20)).await;
    client.send("version\r\n").await;
    let answer = format!("VALUE l{me} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for _ in 0..12 {
        client.expect(&answer).await;
    }
    client.expect(&format!("VERSION {}\r\n", Server::VERSION)).await;
}

/// Sends requests of one of the kinds until `on` is false, and closes the connection.
async fn converse(me: usize, on: &'static AtomicBool) {
    let mut client = Client::dial().await;
    let mut round = 0;
    while round < 2 || on.load(Ordering::Relaxed) {
        match me % 3 {
            0 => pipeline(&mut client, me, round).await,
            1 => halves(&mut client, me, round).await,
            _ => late(&mut client, me, round).await,
        }
        round += 1;
    }
    client.send("quit\r\n").await;
    assert!(
        matches!(client.stream.read().await, Ok(None)),
        "the server closes the connection without a reset"
    );
}

/// Returns the statistics with these names.
async fn stats<const N: usize>(client: &mut Client, names: [&str; N]) -> [u64; N] {
    client.send("stats\r\n").await;
    let mut answer = Chain::new();
    while !answer.to_vec().ends_with(b"END\r\n") {
        answer.append(client.stream.read().await.unwrap().unwrap());
    }
    let text = String::from_utf8(answer.to_vec()).unwrap();
    names.map(|name| {
        let figure = text.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        figure.unwrap().parse().unwrap()
    })
}

const TALKS: usize = 9;

/// Runs all clients until `on` is false.
async fn converse_all(on: &'static AtomicBool) {
    let talks: Vec<_> = (0..TALKS).map(|me| spawn_task(converse(me, on))).collect();
    for talk in talks {
        talk.await;
    }
    let mut client = Client::dial().await;
    let names = ["curr_connections", "total_connections", "rejected_connections"];
    assert_eq!(stats(&mut client, names).await, [1, TALKS as u64 + 1, 0]);
    // Every client stores and reads values of some kilobytes at least twice.
    let [read, written] = stats(&mut client, ["bytes_read", "bytes_written"]).await;
    assert!(read.min(written) > 10_000 * TALKS as u64, "{read} bytes read, {written} written");
}

/// Runs the clients over a link with this loss while all flows migrate around the server's cores `times` times.
fn go_on_while_flows_go_round(loss: Loss, times: usize, on: &'static AtomicBool) {
    static MOVED: AtomicUsize = AtomicUsize::new(0);
    let serve = move || async move {
        let listening = listen();
        let moved = rotate_flows(times).await;
        assert_eq!(moved.staying, 0, "every connection can migrate");
        MOVED.fetch_max(moved.buckets, Ordering::Relaxed);
        on.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(3, loss, serve, move || converse_all(on));
    assert!(MOVED.load(Ordering::Relaxed) > 100 * times);
}

#[test]
fn connections_migrate_around_the_cores_without_disturbing_their_clients() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::Never, 100, &ON);
}

#[test]
fn connections_that_migrate_recover_from_packet_loss() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::EveryNth(97), 15, &ON);
}

/// Removes a core from the server's cell and adds it again, a thousand times.
fn give_and_take(cell: &'static Hosted, on: &AtomicBool) {
    const TIMES: u32 = 1_000;
    for turn in 0..TIMES {
        // Alternates between two cores, so that different cores take over their work.
        let core = CoreIndex(1 + turn % 2);
        cell.unplug_core(core);
        std::thread::sleep(Duration::from_micros(500));
        cell.plug_core(core);
        // Usually long enough for flows to be redistributed.
        std::thread::sleep(Duration::from_micros(if turn % 5 == 0 { 100 } else { 2_000 }));
    }
    on.store(false, Ordering::Relaxed);
}

#[test]
fn a_core_removed_and_added_a_thousand_times_loses_no_request_and_resets_no_connection() {
    static ON: AtomicBool = AtomicBool::new(true);
    let (server_port, client_port) = link(Loss::Never);
    static FOLLOWED: AtomicUsize = AtomicUsize::new(0);
    let serve = || async {
        let listening = listen();
        let mut seen = buckets_per_core();
        loop {
            sleep(Duration::from_micros(500)).await;
            let now = buckets_per_core();
            FOLLOWED.fetch_add(usize::from(now != seen), Ordering::Relaxed);
            seen = now;
            // The listening socket must live as long as the server.
            let _ = &listening;
        }
    };
    let server = TestCell::new(1, 3, server_port, serve).managed_by(|cell| give_and_take(cell, &ON));
    let client = TestCell::new(2, 1, client_port, || converse_all(&ON));
    run_cells([server.until_others_end(), client]);
    let followed = FOLLOWED.load(Ordering::Relaxed);
    assert!(followed > 100, "flows were redistributed only {followed} times");
}

#[test]
fn a_request_that_waits_for_a_shard_is_executed_after_its_connection_has_migrated() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    async fn wait_for(step: usize) {
        while STEP.load(Ordering::Acquire) < step {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let serve = || async {
        let (server, listening) = listen();
        wait_for(1).await;
        // Every shard is locked.
        let locks: Vec<_> = server.shards.ids().map(|id| server.shards.lock(id).unwrap()).collect();
        STEP.store(2, Ordering::Release);
        // Long enough for the requests to arrive and wait.
        sleep(Duration::from_millis(50)).await;
        assert_eq!(rotate_flows(3).await.staying, 0);
        drop(locks);
        std::future::pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(3, Loss::Never, serve, || async {
        let mut clients = Vec::new();
        for me in 0..8 {
            let mut client = Client::dial().await;
            client.send(format!("set k{me} 0 0 1\r\n{me}\r\n")).await;
            client.expect("STORED\r\n").await;
            clients.push(client);
        }
        STEP.store(1, Ordering::Release);
        wait_for(2).await;
        for (me, client) in clients.iter_mut().enumerate() {
            client.send(format!("get k{me}\r\nincr k{me} 1\r\nstats reset\r\nget k{me}\r\n")).await;
        }
        for (me, client) in clients.iter_mut().enumerate() {
            let number = me + 1;
            client.expect(&format!("VALUE k{me} 0 1\r\n{me}\r\nEND\r\n{number}\r\nRESET\r\nVALUE k{me} 0 1\r\n{number}\r\nEND\r\n")).await;
        }
    });
}

/// Runs the server on one core with `client`.
fn talk_to_one_core<F: Future<Output = ()> + 'static>(client: impl FnOnce() -> F + Send) {
    let serve = || async {
        let listening = listen();
        std::future::pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(1, Loss::Never, serve, client);
}

/// Waits until the statistic with that name is `expected`.
async fn wait_for_stat(client: &mut Client, name: &str, expected: u64) {
    while stats(client, [name]).await != [expected] {
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn an_expired_item_is_removed_without_a_request_for_it() {
    talk_to_one_core(|| async {
        let mut client = Client::dial().await;
        client.send("set a 0 1 1\r\n1\r\nset b 0 0 1\r\n1\r\n").await;
        client.expect("STORED\r\nSTORED\r\n").await;
        assert_eq!(stats(&mut client, ["curr_items"]).await, [2]);
        wait_for_stat(&mut client, "curr_items", 1).await;
    });
}

#[test]
fn a_connection_that_its_client_resets_is_not_counted_as_open() {
    talk_to_one_core(|| async {
        let mut client = Client::dial().await;
        let mut other = Client::dial().await;
        other.send("set a 0 0 100\r\nhalf").await;
        wait_for_stat(&mut client, "curr_connections", 2).await;
        other.stream.abort();
        wait_for_stat(&mut client, "curr_connections", 1).await;
    });
}
