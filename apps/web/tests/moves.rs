//! Connections that migrate between cores during requests: the server in one cell of this process, clients in another,
//! connected by an in-memory link.

mod common;

use common::{large, responses, site};
use isola_events::{sleep, spawn_task};
use isola_hosted::Loss;
use isola_iobuf::{Chain, IoBuf};
use isola_net::{TcpStream, listen_with};
use isola_test_cells::{dial, rotate_flows, run_server_and_client};
use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PORT: u16 = 80;

async fn send(stream: &mut TcpStream, text: &str) {
    stream.write(IoBuf::copy_from_slice(text.as_bytes()).into()).await.unwrap();
}

/// Returns the bodies of the next responses to GETs, one per length.
async fn bodies(stream: &mut TcpStream, lens: &[usize]) -> Vec<Vec<u8>> {
    let mut all = Chain::new();
    // All responses have the same fields except for lengths, so parsing finds whether all are complete.
    let whole = |bytes: &[u8]| {
        let (mut rest, mut left) = (bytes, lens);
        while let [len, behind @ ..] = left {
            let head = rest.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
            rest = rest.get(head + len..)?;
            left = behind;
        }
        Some(())
    };
    loop {
        let bytes = all.to_vec();
        if whole(&bytes).is_some() {
            return responses(&bytes, &vec!["GET"; lens.len()])
                .into_iter()
                .map(|response| response.body)
                .collect();
        }
        all.append(stream.read().await.expect("the connection failed").expect("the stream ended early"));
    }
}

/// Sends many requests at once, for files of all sizes.
async fn pipeline(stream: &mut TcpStream) {
    let paths = ["/letters.txt", "/empty", "/", "/large.bin", "/sub/", "/a%20name"];
    send(stream, &paths.map(|path| format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")).concat()).await;
    let large = large();
    let expected: [&[u8]; 6] =
        [b"abcdefghijklmnopqrstuvwxyz", b"", b"<h1>index</h1>", &large, b"<h1>sub</h1>", b"text"];
    assert!(bodies(stream, &expected.map(<[u8]>::len)).await == expected);
}

/// Sends a request in pieces, with pauses.
async fn halves(stream: &mut TcpStream) {
    for piece in
        ["GET /lett", "ers.txt HTT", "P/1.1\r\nHost: x\r", "\nRange: bytes=1-3\r\n", "\r\nGET / HTTP/1"]
    {
        send(stream, piece).await;
        sleep(Duration::from_millis(2)).await;
    }
    send(stream, ".1\r\nHost: x\r\n\r\n").await;
    assert_eq!(bodies(stream, &[3, 14]).await, [&b"bcd"[..], b"<h1>index</h1>"]);
}

/// Requests much data and reads it late, so that the server waits for room to send.
async fn late(stream: &mut TcpStream) {
    send(stream, &"GET /large.bin HTTP/1.1\r\nHost: x\r\n\r\n".repeat(4)).await;
    sleep(Duration::from_millis(20)).await;
    let large = large();
    assert!(bodies(stream, &[large.len(); 4]).await.iter().all(|body| *body == large));
}

/// Runs clients over such a link while all flows migrate round the server's cores `times` times.
fn go_on_while_flows_go_round(loss: Loss, times: usize, on: &'static AtomicBool) {
    let server = move || async move {
        let listening = listen_with(PORT, 64, |connection| isola_web::serve(connection, site()));
        let moved = rotate_flows(times).await;
        assert!(moved.staying == 0 && moved.buckets > 100 * times, "{moved:?}");
        on.store(false, Ordering::Relaxed);
        pending::<()>().await;
        drop(listening);
    };
    run_server_and_client(3, loss, server, move || async move {
        let talks: Vec<_> = (0..9)
            .map(|me| {
                spawn_task(async move {
                    let mut stream = dial(PORT).await;
                    let mut rounds = 0;
                    while rounds < 2 || on.load(Ordering::Relaxed) {
                        match me % 3 {
                            0 => pipeline(&mut stream).await,
                            1 => halves(&mut stream).await,
                            _ => late(&mut stream).await,
                        }
                        rounds += 1;
                    }
                    send(&mut stream, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
                    bodies(&mut stream, &[14]).await;
                    assert!(matches!(stream.read().await, Ok(None)), "the stream did not end in order");
                })
            })
            .collect();
        for talk in talks {
            talk.await;
        }
    });
}

#[test]
fn requests_are_served_while_connections_migrate_between_cores() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::Never, 100, &ON);
}

#[test]
fn lost_segments_are_retransmitted_after_migrations() {
    static ON: AtomicBool = AtomicBool::new(true);
    go_on_while_flows_go_round(Loss::EveryNth(97), 20, &ON);
}
