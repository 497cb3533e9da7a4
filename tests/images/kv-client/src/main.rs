//! A test image: asks a key-value cell as a web cell does, a key at a time on each of several connections.
//!
//! `kv-client ADDRESS:PORT CONNECTIONS SECONDS` stores a value of 100 bytes, reads it for so long, and prints the requests
//! of a second and the 99th percentile of their latencies.
#![no_std]
#![no_main]

use core::time::Duration;
use isola::events::{Instant, now, spawn_task};
use isola::iobuf::IoBuf;
use isola::net::{TcpStream, wait_for_address};
use isola::prelude::*;
use isola::resolver;

isola::app!(main);

const SET: &[u8] =
    b"set key 0 0 100\r\n0123456789012345678901234567890123456789012345678901234567890123456789\
    012345678901234567890123456789\r\n";

const GET: &[u8] = b"get key\r\n";

const ANSWER: &[u8] =
    b"VALUE key 0 100\r\n0123456789012345678901234567890123456789012345678901234567890123456789\
    012345678901234567890123456789\r\nEND\r\n";

/// The requests before the measurement take so long: meanwhile the cells open a link, if they may.
const WARM_UP: Duration = Duration::from_millis(500);

async fn main(arguments: Arguments) -> ExitCode {
    let words: Vec<&str> = arguments.iter().collect();
    let parsed = match words[..] {
        [there, connections, seconds] => {
            there.split_once(':').zip(connections.parse().ok()).zip(seconds.parse().ok())
        }
        _ => None,
    };
    let Some((((host, port), connections), seconds)) = parsed else {
        println!("usage: kv-client ADDRESS:PORT CONNECTIONS SECONDS");
        return ExitCode::USAGE;
    };
    match ask(host, port.parse().unwrap_or_default(), connections, Duration::from_secs(seconds)).await {
        Ok(latencies_ns) => {
            let rate = latencies_ns.len() as u64 / seconds.max(1);
            let p99_ns = latencies_ns.get(latencies_ns.len() * 99 / 100).copied().unwrap_or_default();
            println!("kv-client: rate {rate} p99 {p99_ns}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("kv-client: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the latencies of all requests in ascending order, in ns.
async fn ask(host: &str, port: u16, connections: usize, duration: Duration) -> Result<Vec<u64>, String> {
    wait_for_address().await;
    let mut streams = Vec::new();
    for _ in 0..connections {
        streams.push(resolver::connect(host, port).await.map_err(|error| error.to_string())?);
    }
    for stream in &mut streams {
        request(stream, SET, b"STORED\r\n").await?;
    }
    let begin = now() + WARM_UP;
    let tasks = streams.into_iter().map(|stream| spawn_task(requests(stream, begin, begin + duration)));
    let mut all = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        all.extend(task.await?);
    }
    all.sort_unstable();
    Ok(all)
}

/// Asks on one connection, one request after the other. Returns the latencies of those from `begin` on.
async fn requests(mut stream: TcpStream, begin: Instant, end: Instant) -> Result<Vec<u64>, String> {
    let mut latencies_ns = Vec::new();
    loop {
        let sent = now();
        if sent >= end {
            return Ok(latencies_ns);
        }
        request(&mut stream, GET, ANSWER).await?;
        if sent >= begin {
            latencies_ns.push(now().since(sent).as_nanos() as u64);
        }
    }
}

/// Sends a request, and reads the answer, which must be the expected one.
async fn request(stream: &mut TcpStream, request: &'static [u8], expected: &[u8]) -> Result<(), String> {
    stream.write(IoBuf::from_static(request).into()).await.map_err(|error| error.to_string())?;
    let mut answer = Vec::new();
    while answer.len() < expected.len() {
        let part = stream.read().await.map_err(|error| error.to_string())?;
        answer.extend(part.ok_or("the connection ended")?.to_vec());
    }
    if answer == expected { Ok(()) } else { Err(format!("{:?}", String::from_utf8_lossy(&answer))) }
}
