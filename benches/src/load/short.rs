//! Short connections: opened, one byte in each direction, closed.

use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use hdrhistogram::Histogram;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Opens connections to the echo service at `address` for `duration`, on `threads` threads with one connection at a
/// time each.
///
/// # Errors
/// [`BenchError::Connection`], [`BenchError::Interrupted`].
pub fn connections(address: SocketAddr, threads: usize, duration: Duration) -> Result<Outcome, BenchError> {
    let start = Instant::now();
    let all: Vec<Result<Histogram<u64>, BenchError>> = thread::scope(|scope| {
        let one = || one_after_the_other(address, start + duration);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        // A panic of a thread is a defect and must surface.
        threads.into_iter().map(|thread| thread.join().expect("a thread of the client")).collect()
    });
    let mut latency_ns = histogram();
    for latencies in all {
        latency_ns += latencies?;
    }
    Ok(Outcome { requests: latency_ns.len(), elapsed: start.elapsed(), latency_ns })
}

fn one_after_the_other(address: SocketAddr, end: Instant) -> Result<Histogram<u64>, BenchError> {
    let mut latency_ns = histogram();
    loop {
        interrupt::check()?;
        let before = Instant::now();
        if before >= end {
            return Ok(latency_ns);
        }
        connection(address).map_err(BenchError::connection(address))?;
        latency_ns.saturating_record(before.elapsed().as_nanos() as u64);
    }
}

/// Opens and closes one connection. The client closes first, and waits for the server's close.
fn connection(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut back = [0; 2];
    stream.write_all(b"x")?;
    stream.read_exact(&mut back[..1])?;
    stream.shutdown(Shutdown::Write)?;
    // The server sends only the echo.
    if back[0] == b'x' && stream.read(&mut back)? == 0 { Ok(()) } else { Err(ErrorKind::InvalidData.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn serve(answer: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let done = stream.read_exact(&mut [0]).and_then(|()| stream.write_all(answer));
                // The client may have closed the connection.
                let _ = done.and_then(|()| stream.read(&mut [0]));
            }
        });
        address
    }

    #[test]
    fn connections_of_all_threads_are_counted() {
        let address = serve(b"x");
        let outcome = connections(address, 3, Duration::from_millis(30)).unwrap();
        assert!(outcome.requests >= 3);
    }

    #[test]
    fn a_wrong_echo_is_an_error() {
        for wrong in [&b"y"[..], b"xx"] {
            let error = connections(serve(wrong), 1, Duration::from_millis(30)).unwrap_err();
            assert!(matches!(error, BenchError::Connection { .. }), "{error}");
        }
    }
}
