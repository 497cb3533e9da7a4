//! The TCP echo server of the Linux guest: one thread for each connection, blocking I/O, TCP_NODELAY.
//! `linux-echo PORT`.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::thread;

/// The most bytes of one read.
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

/// Echoes all input until the client closes the connection.
fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; PIECE_BYTES];
    // An error on one connection affects only its client.
    let _ = stream.set_nodelay(true);
    while let Ok(len @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..len]).is_err() {
            return;
        }
    }
}
