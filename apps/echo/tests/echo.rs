//! The server in one cell of this process, a client in another, on a link in memory.

use isola_abi::descriptor::NetworkAddress;
use isola_ebbs::current_core;
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_hosted::{Loss, Settings, link};
use isola_iobuf::{Chain, IoBuf};
use isola_net::{TcpStream, connect, listen, start};
use isola_platform::CoreIndex;
use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
const PORT: u16 = 7;

fn settings(ip: Ipv4Addr, cores: usize) -> Settings {
    let address = Some(NetworkAddress { ip, prefix_len: 24, gateway: None });
    Settings { cores, address, ..Settings::default() }
}

/// Runs the server on two cores until `client` has come to its end on a cell of its own.
fn with_server<C: Future<Output = ()> + 'static>(client: fn() -> C) {
    let (server_port, client_port) = link(Loss::Never);
    let done = Arc::new(AtomicBool::new(false));
    let client_done = done.clone();
    let server = thread::spawn(move || {
        isola_hosted::run(settings(SERVER, 2), vec![server_port], move |_| {
            if current_core() == CoreIndex(0) {
                start().unwrap();
                let done = done.clone();
                let listening = listen(PORT, 16, isola_echo::serve).unwrap();
                spawn_task(async move {
                    while !done.load(Ordering::Acquire) {
                        sleep(Duration::from_millis(2)).await;
                    }
                    drop(listening);
                    exit(0);
                })
                .detach();
            }
            run()
        })
    });
    isola_hosted::run(settings(CLIENT, 1), vec![client_port], move |_| {
        start().unwrap();
        spawn_task(async move {
            let outcome = timeout(Duration::from_secs(60), client()).await;
            exit(if outcome.is_ok() { 0 } else { 1 });
        })
        .detach();
        assert_eq!(run(), 0, "the client took too long");
    });
    client_done.store(true, Ordering::Release);
    server.join().unwrap();
}

/// Connects to the server, which begins to listen at its own pace.
async fn dial() -> TcpStream {
    loop {
        if let Ok(stream) = connect((SERVER, PORT).into()).await {
            return stream;
        }
        sleep(Duration::from_millis(5)).await;
    }
}

async fn read_exactly(stream: &mut TcpStream, len: usize) -> Vec<u8> {
    let mut all = Chain::new();
    while all.len() < len {
        all.append(stream.read().await.unwrap().expect("more data"));
    }
    all.to_vec()
}

#[test]
fn what_comes_in_goes_back() {
    with_server(|| async {
        let mut stream = dial().await;
        for turn in 0..100_u8 {
            stream.write(IoBuf::copy_from_slice(&[turn; 64]).into()).await.unwrap();
            assert_eq!(read_exactly(&mut stream, 64).await, [turn; 64]);
        }
    });
}

#[test]
fn a_client_that_has_sent_its_last_gets_all_of_it_back_and_then_the_end() {
    with_server(|| async {
        let sent: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 % 251) as u8).collect();
        let mut stream = dial().await;
        stream.write(IoBuf::copy_from_slice(&sent).into()).await.unwrap();
        stream.shutdown();
        let mut back = Chain::new();
        while let Some(data) = stream.read().await.unwrap() {
            back.append(data);
        }
        assert!(back.to_vec() == sent);
    });
}

#[test]
fn a_client_that_leaves_in_the_middle_takes_nobody_along() {
    with_server(|| async {
        let mut leaver = dial().await;
        let mut stayer = dial().await;
        leaver.write(IoBuf::from_static(b"half a wo").into()).await.unwrap();
        leaver.abort();
        stayer.write(IoBuf::from_static(b"hello").into()).await.unwrap();
        assert_eq!(read_exactly(&mut stayer, 5).await, b"hello");
    });
}
