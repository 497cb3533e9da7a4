//! The TCP echo server of the Linux guest: a thread a connection, blocking, without delay. `linux-echo PORT`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;

/// Received at once.
const PIECE_BYTES: usize = 16 << 10;

fn main() -> ExitCode {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let Some(port) = port else {
        eprintln!("usage: linux-echo PORT");
        return ExitCode::from(2);
    };
    let listener = match TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("linux-echo: port {port}: {error}");
            return ExitCode::FAILURE;
        }
    };
    for stream in listener.incoming().flatten() {
        thread::spawn(move || echo(stream));
    }
    ExitCode::SUCCESS
}

/// Sends back what comes, until there is nothing more.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; PIECE_BYTES];
    // A connection that cannot be set up or has broken concerns its client alone.
    let _ = stream.set_nodelay(true);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}
