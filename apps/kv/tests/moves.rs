//! Connections that go from core to core while their clients talk: the server in one cell of this process, clients in
//! another, on a link in memory. Also how the server counts connections that are reset, and removes what has expired.

use isola_events::{sleep, spawn_task};
use isola_gateway::test_cells::{TestCell, dial, go_round, run_cells, talk};
use isola_hosted::{Hosted, Loss, link};
use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, Server};
use isola_net::steering::shares;
use isola_net::tcp::Listening;
use isola_net::{TcpStream, listen_with};
use isola_platform::CoreIndex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

const PORT: u16 = 11211;
const MEMORY: usize = 64 << 20;

/// Prepares the server and listens.
fn listen() -> (Arc<Server>, Listening) {
    let config = Config::for_memory(MEMORY / 2, 1 << 20).unwrap();
    let server = Server::new(config, KeyHasher::new(5), isola_kv::unix_time());
    (isola_kv::prepare(server, || MEMORY), listen_with(PORT, 64, isola_kv::serve).unwrap())
}

/// A client's side of a connection.
struct Client {
    stream: TcpStream,
    /// What came and was not looked at.
    unread: Chain,
}

impl Client {
    async fn dial() -> Self {
        Self { stream: dial(PORT).await, unread: Chain::new() }
    }

    async fn say(&mut self, bytes: impl Into<Vec<u8>>) {
        self.stream.write(IoBuf::from(bytes.into()).into()).await.unwrap();
    }

    async fn expect(&mut self, answer: &str) {
        while self.unread.len() < answer.len() {
            let more = self.stream.read().await.expect("the connection holds").expect("there is more");
            self.unread.append(more);
        }
        let came = self.unread.split_to(answer.len()).unwrap().to_vec();
        let place = came.iter().zip(answer.bytes()).position(|(came, answer)| *came != answer);
        assert!(place.is_none(), "{:?} came in place {place:?}", String::from_utf8_lossy(&came[..100]));
    }
}

/// A value that no other round has.
fn value(me: usize, round: usize, len: usize) -> String {
    format!("{me}.{round}:").chars().cycle().take(len).collect()
}

/// Asks many things at once, whose answers lie on all shards.
async fn pipeline(client: &mut Client, me: usize, round: usize) {
    let (mut questions, mut answers) = (String::new(), String::new());
    for number in 0..30 {
        let value = value(me, round, number * 40);
        let len = value.len();
        questions += &format!("set k{me}-{number} 3 0 {len}\r\n{value}\r\nget k{me}-{number} none\r\n");
        answers += &format!("STORED\r\nVALUE k{me}-{number} 3 {len}\r\n{value}\r\nEND\r\n");
    }
    client.say(questions).await;
    client.expect(&answers).await;
}

/// Sends a value in pieces, far apart.
async fn halves(client: &mut Client, me: usize, round: usize) {
    let value = value(me, round, 40_000);
    let request = format!("set h{me} 0 0 {}\r\n{value}\r\nincr none 1\r\n", value.len());
    for piece in request.as_bytes().chunks(9_000) {
        client.say(piece).await;
        sleep(Duration::from_millis(2)).await;
    }
    client.expect("STORED\r\nNOT_FOUND\r\n").await;
    client.say(format!("get h{me}\r\n")).await;
    client.expect(&format!("VALUE h{me} 0 {}\r\n{value}\r\nEND\r\n", value.len())).await;
}

/// Asks for much and reads it late: the server waits for room to send, and for the client to be read again.
async fn late(client: &mut Client, me: usize, round: usize) {
    let value = value(me, round, 50_000);
    client.say(format!("set l{me} 0 0 {}\r\n{value}\r\n", value.len())).await;
    client.expect("STORED\r\n").await;
    client.say(format!("get l{me}\r\n").repeat(12)).await;
    sleep(Duration::from_millis(20)).await;
    client.say("version\r\n").await;
    let answer = format!("VALUE l{me} 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for _ in 0..12 {
        client.expect(&answer).await;
    }
    client.expect(&format!("VERSION {}\r\n", Server::VERSION)).await;
}

/// Talks in one of the ways for as long as `on` says, and ends the connection.
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
    client.say("quit\r\n").await;
    assert!(matches!(client.stream.read().await, Ok(None)), "it ends in good order");
}

/// The server's figures of these names.
async fn stats<const N: usize>(client: &mut Client, names: [&str; N]) -> [u64; N] {
    client.say("stats\r\n").await;
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

/// Has all clients talk for as long as `on` says.
async fn converse_all(on: &'static AtomicBool) {
    let talks: Vec<_> = (0..TALKS).map(|me| spawn_task(converse(me, on))).collect();
    for talk in talks {
        talk.await;
    }
    let mut client = Client::dial().await;
    let names = ["curr_connections", "total_connections", "rejected_connections"];
    assert_eq!(stats(&mut client, names).await, [1, TALKS as u64 + 1, 0]);
    // Every conversation stores and reads values of some kilobytes at least twice.
    let [read, written] = stats(&mut client, ["bytes_read", "bytes_written"]).await;
    assert!(read.min(written) > 10_000 * TALKS as u64, "{read} bytes read, {written} written");
}

/// Has clients talk over such a link while all flows go round the server's cores so many times.
fn go_on_while_flows_go_round(loss: Loss, times: usize, on: &'static AtomicBool) {
    static MOVED: AtomicUsize = AtomicUsize::new(0);
    let serve = move || async move {
        let listening = listen();
        let moved = go_round(times).await;
        assert_eq!(moved.staying, 0, "every connection can go");
        MOVED.fetch_max(moved.buckets, Ordering::Relaxed);
        on.store(false, Ordering::Relaxed);
        std::future::pending::<()>().await;
        drop(listening);
    };
    talk(3, loss, serve, move || converse_all(on));
    assert!(MOVED.load(Ordering::Relaxed) > 100 * times);
}

#[test]
fn conversations_go_on_undisturbed_while_their_connections_go_round_the_cores() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::Never, 100, &ON);
}

#[test]
fn what_is_lost_on_the_way_comes_again_wherever_the_connection_is() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::EveryNth(97), 15, &ON);
}

/// Gives the server's cell a core and takes one, a thousand times.
fn give_and_take(cell: &'static Hosted, on: &AtomicBool) {
    const TIMES: u32 = 1_000;
    for turn in 0..TIMES {
        // One of two, so that now one, now another takes over what it carried.
        let core = CoreIndex(1 + turn % 2);
        cell.take_core(core);
        std::thread::sleep(Duration::from_micros(500));
        cell.give_core(core);
        // As a rule, long enough for flows to follow.
        std::thread::sleep(Duration::from_micros(if turn % 5 == 0 { 100 } else { 2_000 }));
    }
    on.store(false, Ordering::Relaxed);
}

#[test]
fn no_request_is_lost_and_no_connection_reset_while_a_core_comes_and_goes_a_thousand_times() {
    static ON: AtomicBool = AtomicBool::new(true);
    let (server_port, client_port) = link(Loss::Never);
    static FOLLOWED: AtomicUsize = AtomicUsize::new(0);
    let serve = || async {
        let listening = listen();
        let mut seen = shares();
        loop {
            sleep(Duration::from_micros(500)).await;
            let now = shares();
            FOLLOWED.fetch_add(usize::from(now != seen), Ordering::Relaxed);
            seen = now;
            // They are there for as long.
            let _ = &listening;
        }
    };
    let server = TestCell::new(1, 3, server_port, serve).managed_by(|cell| give_and_take(cell, &ON));
    let client = TestCell::new(2, 1, client_port, || converse_all(&ON));
    run_cells([server.until_others_end(), client]);
    let followed = FOLLOWED.load(Ordering::Relaxed);
    assert!(followed > 100, "flows followed the cores {followed} times only");
}

#[test]
fn a_request_that_waits_for_a_shard_is_carried_out_where_its_connection_has_gone() {
    static STEP: AtomicUsize = AtomicUsize::new(0);
    async fn wait_for(step: usize) {
        while STEP.load(Ordering::Acquire) < step {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let serve = || async {
        let (server, listening) = listen();
        wait_for(1).await;
        // Somebody is at work in every shard.
        let locks: Vec<_> = server.shards.ids().map(|id| server.shards.lock(id).unwrap()).collect();
        STEP.store(2, Ordering::Release);
        // So that the requests are there, and wait.
        sleep(Duration::from_millis(50)).await;
        assert_eq!(go_round(3).await.staying, 0);
        drop(locks);
        std::future::pending::<()>().await;
        drop(listening);
    };
    talk(3, Loss::Never, serve, || async {
        let mut clients = Vec::new();
        for me in 0..8 {
            let mut client = Client::dial().await;
            client.say(format!("set k{me} 0 0 1\r\n{me}\r\n")).await;
            client.expect("STORED\r\n").await;
            clients.push(client);
        }
        STEP.store(1, Ordering::Release);
        wait_for(2).await;
        for (me, client) in clients.iter_mut().enumerate() {
            client.say(format!("get k{me}\r\nincr k{me} 1\r\nstats reset\r\nget k{me}\r\n")).await;
        }
        for (me, client) in clients.iter_mut().enumerate() {
            let number = me + 1;
            client.expect(&format!("VALUE k{me} 0 1\r\n{me}\r\nEND\r\n{number}\r\nRESET\r\nVALUE k{me} 0 1\r\n{number}\r\nEND\r\n")).await;
        }
    });
}

/// Serves, on one core, a client that does what `client` says.
fn talk_to_one_core<F: Future<Output = ()> + 'static>(client: impl FnOnce() -> F + Send) {
    let serve = || async {
        let listening = listen();
        std::future::pending::<()>().await;
        drop(listening);
    };
    talk(1, Loss::Never, serve, client);
}

/// Waits until the server's figure of that name is `expected`.
async fn wait_for_stat(client: &mut Client, name: &str, expected: u64) {
    while stats(client, [name]).await != [expected] {
        sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn an_item_past_its_end_is_removed_without_a_request_for_it() {
    talk_to_one_core(|| async {
        let mut client = Client::dial().await;
        client.say("set a 0 1 1\r\n1\r\nset b 0 0 1\r\n1\r\n").await;
        client.expect("STORED\r\nSTORED\r\n").await;
        assert_eq!(stats(&mut client, ["curr_items"]).await, [2]);
        wait_for_stat(&mut client, "curr_items", 1).await;
    });
}

#[test]
fn a_connection_that_its_client_resets_is_counted_no_longer() {
    talk_to_one_core(|| async {
        let mut client = Client::dial().await;
        let mut other = Client::dial().await;
        other.say("set a 0 0 100\r\nhalf").await;
        wait_for_stat(&mut client, "curr_connections", 2).await;
        other.stream.abort();
        wait_for_stat(&mut client, "curr_connections", 1).await;
    });
}
