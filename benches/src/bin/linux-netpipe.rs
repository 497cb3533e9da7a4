//! The answering end of NetPIPE (`apps/netpipe`) in the Linux guest: one thread for each connection, blocking I/O, a
//! buffer for a whole message. `linux-netpipe PORT [sendfile]`; with `sendfile` it sends from a file in memory, without
//! a copy. `linux-netpipe connect PORT DIRECTION:SIZE:COUNT` is the client of another process of the guest: it prints the
//! time of a message in one direction (`to`) or of a round trip (`both`), in ns.

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

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
        ["connect", port, round] => measure(port, round),
        [port] => serve(port, || Ok(SendMethod::Write)),
        [port, "sendfile"] => serve(port, || Ok(SendMethod::Sendfile(Arc::new(file()?)))),
        _ => {
            eprintln!("usage: linux-netpipe PORT [sendfile] | connect PORT to|both:SIZE:COUNT");
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

/// Measures a round twice, and prints the result of the second time.
fn measure(port: &str, round: &str) -> io::Result<()> {
    let invalid = || io::Error::from(ErrorKind::InvalidInput);
    let port = port.parse().map_err(|_| invalid())?;
    let words: Vec<&str> = round.split(':').collect();
    let &[name, size, count] = words.as_slice() else { return Err(invalid()) };
    let [size, count] = [size, count].map(|word| word.parse::<u32>().map_err(|_| invalid()));
    let (size, count) = (size?, count?);
    let direction = u8::from(name == "to");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_nodelay(true)?;
    let mut message = vec![b'n'; size as usize];
    let mut header = vec![direction];
    header.extend([size, count].map(u32::to_be_bytes).as_flattened());
    let mut took_ns = 0;
    for _ in 0..2 {
        let began = Instant::now();
        stream.write_all(&header)?;
        for _ in 0..count {
            stream.write_all(&message)?;
            if direction == 0 {
                stream.read_exact(&mut message)?;
            }
        }
        if direction == 1 {
            stream.read_exact(&mut [0])?;
        }
        took_ns = began.elapsed().as_nanos();
    }
    println!("loop {name} {}", took_ns / u128::from(count.max(1)));
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
