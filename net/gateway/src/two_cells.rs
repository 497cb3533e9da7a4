//! Two cells of this process on a link in memory: a server and its client, as tests of what talks over a network need
//! them.

use isola_abi::descriptor::NetworkAddress;
use isola_ebbs::current_core;
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_hosted::{Loss, Settings, link};
use isola_net::{FailReason, StreamError, TcpStream, connect, start};
use isola_platform::CoreIndex;
use isola_platform::network::NetworkPort;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The server's address.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// The client's address.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);

/// A client that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Runs a server cell of `cores` cores and a client cell of one. Each begins with a task of its first core; both end with
/// the client's.
///
/// # Panics
/// Where either of them does, or the client does not end.
pub fn talk<S, C>(
    cores: usize,
    loss: Loss,
    server: impl Fn() -> S + Send + Sync + 'static,
    client: impl Fn() -> C + Sync,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    talk_over(link(loss), cores, server, client);
}

/// As [`talk`], over these network devices: the server's and the client's.
///
/// # Panics
/// As [`talk`].
pub fn talk_over<S, C>(
    (server_port, client_port): (NetworkPort, NetworkPort),
    cores: usize,
    server: impl Fn() -> S + Send + Sync + 'static,
    client: impl Fn() -> C + Sync,
) where
    S: Future<Output = ()> + 'static,
    C: Future<Output = ()> + 'static,
{
    let done = Arc::new(AtomicBool::new(false));
    let client_done = done.clone();
    let server = thread::spawn(move || {
        isola_hosted::run(settings(SERVER, cores), vec![server_port], move |_| {
            if current_core() == CoreIndex(0) {
                start().expect("the cell has a device and an address");
                let (serving, done) = (server(), done.clone());
                spawn_task(async move {
                    spawn_task(serving).detach();
                    while !done.load(Ordering::Acquire) {
                        sleep(Duration::from_millis(2)).await;
                    }
                    exit(0);
                })
                .detach();
            }
            run()
        })
    });
    isola_hosted::run(settings(CLIENT, 1), vec![client_port], move |_| {
        start().expect("the cell has a device and an address");
        let asking = client();
        spawn_task(async move {
            let outcome = timeout(LIMIT, asking).await;
            exit(if outcome.is_ok() { 0 } else { 1 });
        })
        .detach();
        assert_eq!(run(), 0, "the client takes too long");
    });
    client_done.store(true, Ordering::Release);
    server.join().expect("the server ends in good order");
}

fn settings(ip: Ipv4Addr, cores: usize) -> Settings {
    let address = Some(NetworkAddress { ip, prefix_len: 24, gateway: None });
    Settings { cores, address, ..Settings::default() }
}

/// Connects the client to a port of the server, which begins to listen at its own pace.
///
/// # Panics
/// Where the connection fails for any other reason than that nobody listens.
pub async fn dial(port: u16) -> TcpStream {
    loop {
        match connect((SERVER, port).into()).await {
            Ok(stream) => return stream,
            Err(StreamError::Failed(FailReason::Refused)) => sleep(Duration::from_millis(5)).await,
            Err(error) => panic!("{error}"),
        }
    }
}

/// The next so many bytes of a connection.
///
/// # Panics
/// Where it ends before.
pub async fn read_exactly(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut all = isola_iobuf::Chain::new();
    while all.len() < len {
        all.append(stream.read().await.expect("the connection holds").expect("there is more"));
    }
    all.to_vec()
}
