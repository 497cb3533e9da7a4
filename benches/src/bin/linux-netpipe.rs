//! The answering end of NetPIPE (`apps/netpipe`) in the Linux guest: one thread for each connection, blocking I/O, a
//! buffer for a whole message. `linux-netpipe PORT [sendfile]`; with `sendfile` it sends from a file in memory, without
//! a copy.

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;

/// The longest message, in bytes.
const MAX_SIZE: usize = 8 << 20;

/// The length of a round's header: a byte for the direction, then size and number of messages in four bytes each.
const ROUND_BYTES: usize = 9;

/// The system call for sending.
#[derive(Clone)]
enum SendMethod {
    Write,
    Sendfile(Arc<File>),
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        [port] => serve(port, || Ok(SendMethod::Write)),
        [port, "sendfile"] => serve(port, || Ok(SendMethod::Sendfile(Arc::new(file()?)))),
        _ => {
            eprintln!("usage: linux-netpipe PORT [sendfile]");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("linux-netpipe: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Creates a file in memory, as long as the longest message.
fn file() -> io::Result<File> {
    let mut file = File::from(memfd_create("messages", MemfdFlags::CLOEXEC)?);
    file.write_all(&vec![b'n'; MAX_SIZE])?;
    Ok(file)
}

fn serve(port: &str, sending: impl FnOnce() -> io::Result<SendMethod>) -> io::Result<()> {
    let port = port.parse().map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let sending = sending()?;
    for stream in listener.incoming().flatten() {
        let sending = sending.clone();
        // A disconnect or a malformed header ends this connection only.
        thread::spawn(move || answer(stream, &sending));
    }
    Ok(())
}

/// Answers rounds until the client closes the connection.
fn answer(mut stream: TcpStream, sending: &SendMethod) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let mut header = [0; ROUND_BYTES];
    loop {
        stream.read_exact(&mut header)?;
        let [size, count] = [&header[1..5], &header[5..]]
            .map(|word| word.iter().fold(0_usize, |sum, byte| sum << 8 | usize::from(*byte)));
        if size == 0 || size > MAX_SIZE {
            return Ok(());
        }
        if buffer.len() < size {
            buffer.resize(size, b'n');
        }
        let message = &mut buffer[..size];
        match header[0] {
            0 => {
                for _ in 0..count {
                    stream.read_exact(message)?;
                    send(&mut stream, message, sending)?;
                }
            }
            1 => {
                for _ in 0..count {
                    stream.read_exact(message)?;
                }
                stream.write_all(b"n")?;
            }
            2 => {
                for _ in 0..count {
                    send(&mut stream, message, sending)?;
                }
            }
            _ => return Ok(()),
        }
    }
}

fn send(stream: &mut TcpStream, message: &[u8], sending: &SendMethod) -> io::Result<()> {
    match sending {
        SendMethod::Write => stream.write_all(message),
        SendMethod::Sendfile(file) => {
            let mut offset = 0;
            while offset < message.len() as u64 {
                let left = message.len() - offset as usize;
                sendfile(&*stream, file, Some(&mut offset), left)?;
            }
            Ok(())
        }
    }
}
