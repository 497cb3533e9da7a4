//! The server in a hosted cell, with independent clients: `ureq`, and plain sockets for input that no client sends.

mod common;

use common::{large, responses, site};
use isola_abi::hosted::{Forward, Transport};
use isola_events::{exit, run, sleep, spawn_task, timeout};
use isola_hosted::Settings;
use isola_net::listen_with;
use isola_platform::CoreIndex;
use isola_tests::ports;
use isola_tests::wait::TIMEOUT;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpStream};
use std::thread;
use std::time::Duration;

const PORT: u16 = 80;

/// Runs the server on two cores, published at a port of the host, until `client` has finished on a thread.
fn with_server(client: impl FnOnce(SocketAddr) + Send + 'static) {
    let host = SocketAddrV4::new(Ipv4Addr::LOCALHOST, ports::free());
    let forward = Forward { transport: Transport::Tcp, host, cell_port: PORT };
    let (port, address) = isola_gateway::start(&[forward]).expect("the port is in use");
    let settings = Settings { cores: 2, address: Some(address), ..Settings::default() };
    let client = std::sync::Mutex::new(Some(client));
    let codes = isola_hosted::run(settings, vec![port], |_| {
        if isola_ebbs::current_core() == CoreIndex(0) {
            isola_net::start().unwrap();
            let client = client.lock().unwrap().take().unwrap();
            spawn_task(async move {
                let served = timeout(2 * TIMEOUT, serve(host, client)).await;
                exit(i32::from(served != Ok(true)));
            })
            .detach();
        }
        run()
    });
    assert_eq!(codes[0], 0, "the client panicked, or the cell took too long");
}

/// Serves until the client has finished; returns whether it finished without a panic.
///
/// A panic here would end only one core, and the test would wait for the other.
async fn serve(host: SocketAddrV4, client: impl FnOnce(SocketAddr) + Send + 'static) -> bool {
    let _listening = listen_with(PORT, 64, |connection| isola_web::serve(connection, site())).unwrap();
    let client = thread::spawn(move || client(host.into()));
    while !client.is_finished() {
        sleep(Duration::from_millis(2)).await;
    }
    client.join().is_ok()
}

/// Sends these bytes, and returns all data until the server closes the connection.
fn talk(host: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.write_all(bytes).unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).unwrap();
    all
}

#[test]
fn ureq_gets_its_responses() {
    with_server(|host| {
        let agent = ureq::Agent::new_with_config(
            ureq::Agent::config_builder().http_status_as_error(false).max_redirects(3).build(),
        );
        let url = |path: &str| format!("http://{host}{path}");
        let mut response = agent.get(url("/sub")).call().unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.body_mut().read_to_string().unwrap(), "<h1>sub</h1>");
        let tag = response.headers()["etag"].clone();
        let again = agent.get(url("/sub/")).header("If-None-Match", tag).call().unwrap();
        assert_eq!(again.status(), 304);
        for _ in 0..20 {
            let mut response = agent.get(url("/large.bin")).call().unwrap();
            assert!(response.body_mut().read_to_vec().unwrap() == large());
        }
        let mut part = agent.get(url("/large.bin")).header("Range", "bytes=1000-200000").call().unwrap();
        assert_eq!(part.status(), 206);
        assert!(part.body_mut().read_to_vec().unwrap() == large()[1000..=200_000]);
        assert_eq!(agent.get(url("/none")).call().unwrap().status(), 404);
        let head = agent.head(url("/large.bin")).call().unwrap();
        assert_eq!(head.headers()["content-length"], large().len().to_string());
        assert_eq!(agent.post(url("/")).send("a body").unwrap().status(), 405);
    });
}

#[test]
fn concurrent_clients_are_served_over_persistent_connections() {
    with_server(|host| {
        let clients: Vec<_> = (0..16)
            .map(|_| {
                thread::spawn(move || {
                    let mut stream = TcpStream::connect(host).unwrap();
                    let mut sent = Vec::new();
                    for turn in 0..20 {
                        let path = if turn % 5 == 0 { "/large.bin" } else { "/letters.txt" };
                        sent.extend(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").bytes());
                    }
                    sent.extend(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
                    let mut writer = stream.try_clone().unwrap();
                    let writing = thread::spawn(move || writer.write_all(&sent).unwrap());
                    let mut all = Vec::new();
                    stream.read_to_end(&mut all).unwrap();
                    writing.join().unwrap();
                    assert_eq!(responses(&all, &["GET"; 21]).len(), 21);
                })
            })
            .collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
}

#[test]
fn malformed_requests_are_answered_and_do_not_affect_others() {
    with_server(|host| {
        let mut stayer = TcpStream::connect(host).unwrap();
        for (bytes, status) in [
            (&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], 400),
            (b"GET / HTTP/1.1\r\n\r\n", 400),
            (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
            (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 501),
            (b"GET /../../etc/passwd HTTP/1.0\r\n\r\n", 404),
        ] {
            assert_eq!(responses(&talk(host, bytes), &["GET"])[0].status, status, "{bytes:?}");
        }
        // A body that the server does not read must not prevent the response.
        let mut upload = b"PUT /f HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n".to_vec();
        upload.resize(upload.len() + 1_000_000, b'x');
        assert_eq!(responses(&talk(host, &upload), &["PUT"])[0].status, 405);
        // Aborted and half-closed connections must not affect others.
        TcpStream::connect(host).unwrap().write_all(b"GET / HT").unwrap();
        let mut half = TcpStream::connect(host).unwrap();
        half.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        half.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        half.read_to_end(&mut all).unwrap();
        assert_eq!(responses(&all, &["GET"])[0].status, 200);
        stayer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut all = Vec::new();
        stayer.read_to_end(&mut all).unwrap();
        assert_eq!(responses(&all, &["GET"])[0].body, b"<h1>index</h1>");
    });
}
