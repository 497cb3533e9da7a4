//! Short connections: made, a byte there and back, closed.

use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use hdrhistogram::Histogram;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Connects for so long to the echo service at `address`, from so many threads, each of which has one connection at a time.
///
/// # Errors
/// [`BenchError::Connection`], [`BenchError::Interrupted`].
pub fn connections(address: SocketAddr, threads: usize, duration: Duration) -> Result<Outcome, BenchError> {
    let start = Instant::now();
    let all: Vec<Result<Histogram<u64>, BenchError>> = thread::scope(|scope| {
        let one = || one_after_the_other(address, start + duration);
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        // A thread that panics has a defect, which is to be seen.
        threads.into_iter().map(|thread| thread.join().expect("a thread of the client's")).collect()
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

/// One connection. This side closes first, and waits for the other.
fn connection(address: SocketAddr) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    let mut back = [0; 2];
    stream.write_all(b"x")?;
    stream.read_exact(&mut back[..1])?;
    stream.shutdown(Shutdown::Write)?;
    // Nothing else comes.
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
                // The client may have left.
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
    fn an_answer_that_is_no_echo_is_told() {
        for wrong in [&b"y"[..], b"xx"] {
            let error = connections(serve(wrong), 1, Duration::from_millis(30)).unwrap_err();
            assert!(matches!(error, BenchError::Connection { .. }), "{error}");
        }
    }
}
