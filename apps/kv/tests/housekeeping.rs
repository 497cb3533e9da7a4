//! The work that a core does for all of its clients: the removal of dead items, and the relief of memory pressure.

use isola_abi::report::MemoryPressure;
use isola_ebbs::platform;
use isola_events::sleep;
use isola_hosted::Loss;
use isola_iobuf::IoBuf;
use isola_kv::{
    Config, Exptime, Key, KeyHasher, OlderVersion, Operation, Payload, Request, Server, Store, StoreMode,
    unix_time,
};
use isola_net::{FailReason, StreamError, TcpStream, listen_with};
use isola_test_cells::{dial, read_exactly, run_server_and_client};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const PORT: u16 = 11211;

/// Runs a server cell of one core with `memory` bytes, and a client cell. `server` runs in the server cell.
fn serve<S, C>(
    memory: fn() -> usize,
    server: impl FnOnce(Arc<Server>) -> S + Send + 'static,
    client: impl FnOnce() -> C + Send,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let serve = move || async move {
        let config = Config::for_memory(16 << 20, 1 << 20).unwrap();
        let started = isola_kv::prepare(Server::new(config, KeyHasher::new(5), unix_time()), memory);
        let _listening = listen_with(PORT, 64, isola_kv::serve).unwrap();
        server(started).await;
        std::future::pending::<()>().await;
    };
    run_server_and_client(1, Loss::Never, serve, client);
}

/// Sends text, and checks the answer.
async fn exchange(stream: &mut TcpStream, text: &str, answer: &str) {
    send(stream, text.as_bytes()).await;
    assert_eq!(String::from_utf8(read_exactly(stream, answer.len()).await).unwrap(), answer);
}

async fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write(IoBuf::copy_from_slice(bytes).into()).await.unwrap();
}

/// The next step of a test whose cells take turns.
struct Step(AtomicUsize);

impl Step {
    const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    fn reach(&self, step: usize) {
        self.0.store(step, Ordering::Release);
    }

    async fn is_reached(&self, step: usize) {
        while self.0.load(Ordering::Acquire) < step {
            sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Stores an expired item, without a request of a client. Returns the number of items in its shard.
fn store_dead_item(server: &Server) -> usize {
    let key = Key::new(IoBuf::from_static(b"dead"), &server.hasher).unwrap();
    let shard = key.shard(server.config.shard_count());
    let store = Store {
        mode: StoreMode::Set,
        flags: 0,
        exptime: Exptime(-1),
        cas: None,
        older: OlderVersion::Refused,
        value: Payload::One(IoBuf::from_static(b"value")),
    };
    let mut shard = server.shards.lock(shard).unwrap();
    shard.execute(unix_time(), Request::Item { key, operation: Operation::Store(store) });
    shard.len()
}

fn items(server: &Server) -> usize {
    server.shards.ids().map(|id| server.shards.lock(id).unwrap().len()).sum()
}

/// The search for dead items runs once a second.
const TWO_SEARCHES: Duration = Duration::from_millis(2500);

#[test]
fn a_server_without_requests_stops_its_search_for_dead_items_until_the_next_request() {
    static STEP: Step = Step::new();
    let server = |server: Arc<Server>| async move {
        STEP.is_reached(1).await;
        // A search that still runs removes the item, and searches on.
        let mut tries = 0;
        loop {
            assert_eq!(store_dead_item(&server), 1);
            sleep(TWO_SEARCHES).await;
            if items(&server) == 1 {
                break;
            }
            tries += 1;
            assert!(tries < 4, "the search for dead items does not stop");
        }
        STEP.reach(2);
        while items(&server) == 1 {
            sleep(Duration::from_millis(20)).await;
        }
        STEP.reach(3);
    };
    serve(
        || 64 << 20,
        server,
        || async {
            let mut client = dial(PORT).await;
            exchange(&mut client, "set a 0 0 1\r\n1\r\ndelete a\r\n", "STORED\r\nDELETED\r\n").await;
            STEP.reach(1);
            STEP.is_reached(2).await;
            exchange(&mut client, "get a\r\n", "END\r\n").await;
            STEP.is_reached(3).await;
        },
    );
}

fn set_pressure(pressure: MemoryPressure) {
    platform().report().memory.pressure.store(pressure as u32, Ordering::Relaxed);
}

/// Waits until the server has reset the connection.
async fn is_reset(stream: &mut TcpStream) {
    loop {
        match stream.read().await {
            Ok(Some(_)) => {}
            ended => return assert_eq!(ended, Err(StreamError::Failed(FailReason::Reset))),
        }
    }
}

#[test]
fn memory_pressure_resets_the_connections_that_hold_more_than_their_share_and_no_other() {
    static STEP: Step = Step::new();
    static OPEN: Mutex<Vec<u64>> = Mutex::new(Vec::new());
    let server = |server: Arc<Server>| async move {
        STEP.is_reached(1).await;
        let open = || OPEN.lock().unwrap().push(server.tallies.connections());
        open();
        set_pressure(MemoryPressure::Low);
        sleep(Duration::from_millis(20)).await;
        open();
        set_pressure(MemoryPressure::None);
        STEP.reach(2);
    };
    // Each of the four connections may hold 128 KiB while memory is short.
    serve(
        || 8 << 20,
        server,
        || async {
            let mut idle = dial(PORT).await;
            exchange(&mut idle, "get a\r\n", "END\r\n").await;
            // Less than a share of a value that is not complete.
            let mut modest = dial(PORT).await;
            exchange(&mut modest, "get a\r\nset m 0 0 200000\r\n", "END\r\n").await;
            send(&mut modest, &[b'm'; 60_000]).await;
            // More than a share of such a value.
            let mut greedy = dial(PORT).await;
            exchange(&mut greedy, "get a\r\nset g 0 0 1000000\r\n", "END\r\n").await;
            send(&mut greedy, &[b'g'; 400_000]).await;
            // More than a share of answers that the client does not read.
            let mut deaf = dial(PORT).await;
            deaf.set_receive_window(1000);
            let value = "d".repeat(100_000);
            send(&mut deaf, format!("set d 0 0 100000\r\n{value}\r\n").as_bytes()).await;
            send(&mut deaf, "get d\r\n".repeat(8).as_bytes()).await;
            // The server has received everything, as all have been answered since.
            sleep(Duration::from_millis(100)).await;
            exchange(&mut idle, "get a\r\n", "END\r\n").await;
            STEP.reach(1);
            STEP.is_reached(2).await;
            is_reset(&mut greedy).await;
            is_reset(&mut deaf).await;
            exchange(&mut idle, "get a\r\n", "END\r\n").await;
            send(&mut modest, &[b'm'; 140_000]).await;
            exchange(&mut modest, "\r\nget none\r\n", "STORED\r\nEND\r\n").await;
        },
    );
    assert_eq!(*OPEN.lock().unwrap(), [4, 2]);
}
