//! The work, done by the kernel over its loopback interface.

use crate::{MESSAGE, Outcome, Work};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Instant;

/// Bytes that are handed to the kernel at once.
const CHUNK: usize = 64 << 10;

/// Does the work: one host is this thread, the other one of its own.
///
/// # Errors
/// Where Linux refuses a socket, or a connection ends early.
pub fn run(work: Work) -> io::Result<Outcome> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    let server = thread::spawn(move || serve(&listener, work));
    let mut stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    let began = Instant::now();
    let units = match work {
        Work::Bulk(mib) => {
            let chunk = vec![7; CHUNK];
            for _ in 0..(u64::from(mib) << 20) / CHUNK as u64 {
                stream.write_all(&chunk)?;
            }
            stream.shutdown(std::net::Shutdown::Write)?;
            // The server says when it has all.
            stream.read_exact(&mut [0])?;
            mib
        }
        Work::Echo(count) => {
            let mut message = [7; MESSAGE];
            for _ in 0..count {
                stream.write_all(&message)?;
                stream.read_exact(&mut message)?;
            }
            count
        }
        Work::Connect(count) => {
            for _ in 0..count {
                let mut further = TcpStream::connect(to)?;
                // Until the server has closed it.
                let _ = further.read(&mut [0])?;
            }
            count
        }
    };
    let elapsed = began.elapsed();
    drop(stream);
    match server.join() {
        Ok(served) => served?,
        Err(_) => return Err(io::Error::other("the server panicked")),
    }
    Ok(Outcome { units, frames: 0, elapsed })
}

fn serve(listener: &TcpListener, work: Work) -> io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    match work {
        Work::Bulk(_) => {
            let mut chunk = vec![0; CHUNK];
            while stream.read(&mut chunk)? > 0 {}
            stream.write_all(&[1])
        }
        Work::Echo(count) => {
            let mut message = [0; MESSAGE];
            for _ in 0..count {
                stream.read_exact(&mut message)?;
                stream.write_all(&message)?;
            }
            Ok(())
        }
        Work::Connect(count) => {
            for _ in 0..count {
                drop(listener.accept()?);
            }
            Ok(())
        }
    }
}
