//! Answers the same request repeatedly, to count the instructions per request:
//!
//! ```sh
//! cargo build --release -p isola-kv --example kv-instructions
//! valgrind --tool=callgrind target/release/examples/kv-instructions get 10000
//! ```
//!
//! Each request arrives in a frame of its own, and its answer is taken at once, like that of a client that waits for
//! it.

use std::env::args;
use std::hint::black_box;
use std::process::ExitCode;
use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, ServeOutcome, Server, Session, UnixTime};

const NOW: UnixTime = UnixTime(1_800_000_000);
const KEY: &str = "user:profile:0123456789:name";

fn main() -> ExitCode {
    let value = "v".repeat(100);
    let mut binary_get = vec![0x80, 0, 0, KEY.len() as u8, 0, 0, 0, 0, 0, 0, 0, KEY.len() as u8];
    binary_get.extend([0; 12]);
    binary_get.extend(KEY.bytes());
    let request = match args().nth(1).as_deref() {
        Some("get") => format!("get {KEY}\r\n").into_bytes(),
        Some("set") => format!("set {KEY} 0 0 100\r\n{value}\r\n").into_bytes(),
        Some("binary") => binary_get,
        Some("pipeline") => format!("get {KEY}\r\n").repeat(10).into_bytes(),
        _ => {
            eprintln!("usage: instructions get|set|binary|pipeline COUNT");
            return ExitCode::FAILURE;
        }
    };
    let count = args().nth(2).and_then(|count| count.parse().ok()).unwrap_or(10_000);

    let Ok(config) = Config::new(64 << 20, 1) else { return ExitCode::FAILURE };
    let server = Arc::new(Server::new(config, KeyHasher::new(1), NOW));
    let mut writer = Session::new(server.clone());
    for number in 0..1_000 {
        let set = format!("set other{number} 0 0 1\r\n1\r\nset {KEY} 0 0 100\r\n{value}\r\n");
        answer(&mut writer, &IoBuf::copy_from_slice(set.as_bytes()));
    }
    let mut session = Session::new(server);
    let frame = IoBuf::copy_from_slice(&request);
    for _ in 0..count {
        black_box(answer(&mut session, &frame));
    }
    ExitCode::SUCCESS
}

fn answer(session: &mut Session, frame: &IoBuf) -> Chain {
    session.receive(Chain::from(frame.clone()));
    // No other thread locks a shard.
    while session.serve(NOW) == ServeOutcome::Busy {}
    session.take_output(usize::MAX)
}
