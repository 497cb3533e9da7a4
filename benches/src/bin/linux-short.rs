//! The TCP echo server of the Linux guest for short connections: one thread, which waits for all connections with
//! epoll, as servers with many connections do. `linux-short PORT`.

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::{self, SocketFlags};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::ExitCode;

/// The most bytes of one read.
const PIECE_BYTES: usize = 4 << 10;

/// The most events of one wait.
const EVENTS: usize = 64;

fn main() -> ExitCode {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let Some(port) = port else {
        eprintln!("usage: linux-short PORT");
        return ExitCode::from(2);
    };
    match serve(port) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linux-short: port {port}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    listener.set_nonblocking(true)?;
    let queue = epoll::create(CreateFlags::CLOEXEC)?;
    let key = |fd: &dyn AsRawFd| EventData::new_u64(fd.as_raw_fd() as u64);
    let listening = key(&listener);
    epoll::add(&queue, &listener, listening, EventFlags::IN)?;
    let mut streams: HashMap<u64, TcpStream> = HashMap::new();
    let mut events = Vec::with_capacity(EVENTS);
    let mut piece = [0; PIECE_BYTES];
    loop {
        events.clear();
        epoll::wait(&queue, spare_capacity(&mut events), None)?;
        for event in &events {
            let data = event.data;
            if data.u64() == listening.u64() {
                while let Ok(stream) =
                    net::accept_with(&listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
                {
                    let stream = TcpStream::from(stream);
                    epoll::add(&queue, &stream, key(&stream), EventFlags::IN)?;
                    streams.insert(key(&stream).u64(), stream);
                }
            } else if streams.get_mut(&data.u64()).is_some_and(|stream| !echo(stream, &mut piece)) {
                // Closing the stream also removes it from the epoll set.
                streams.remove(&data.u64());
            }
        }
    }
}

/// Echoes the available input. Returns whether the connection stays open.
fn echo(stream: &mut TcpStream, piece: &mut [u8]) -> bool {
    match stream.read(piece) {
        Ok(0) => false,
        // The short message fits in the socket's send buffer.
        Ok(len) => stream.write_all(&piece[..len]).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
