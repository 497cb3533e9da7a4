//! The client's load, the same for every system: mostly one thread, which polls all its connections.
//!
//! | module | contents |
//! |---|---|
//! | this | the outcome of a load |
//! | [`mix`] | the requests: the ETC-like mix |
//! | [`reply`] | answers of memcached's text protocol |
//! | [`connection`] | a connection with its pending requests |
//! | [`generator`] | closed loop and open loop |
//! | [`profile`] | a varying load, and windows of its outcome |
//! | [`echo`] | ping-pong |
//! | [`download`] | downloads of a file |
//! | [`page`] | requests for a page |
//! | [`redis`] | requests of redis |
//! | [`netpipe`] | messages of all sizes |
//! | [`short`] | short connections |

pub mod connection;
pub mod download;
pub mod echo;
pub mod generator;
pub mod mix;
pub mod netpipe;
pub mod page;
pub mod profile;
pub mod redis;
pub mod reply;
pub mod short;

use crate::error::BenchError;
use crate::interrupt;
use crate::machine::Machine;
use hdrhistogram::Histogram;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The timeout of a connection attempt: a machine without its network up does not answer.
const CONNECT_LIMIT: Duration = Duration::from_millis(20);

/// The longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// The longest wait for the first answer of a machine.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// The outcome of a load.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The number of answered requests, which is that of all requests.
    pub requests: u64,
    /// The time from the first request to the last answer.
    pub elapsed: Duration,
    /// The latencies, from the due time of a request to its answer, in ns.
    pub latency_ns: Histogram<u64>,
}

impl Outcome {
    /// Returns the answers per second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns a quantile of the latencies, in us.
    pub fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }
}

/// Returns a histogram for latencies of up to a minute, with three significant digits; longer ones count as a minute.
fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("bounds and digits are valid")
}

/// Waits until the service at `address` answers `answer` to `question`; returns the connection.
///
/// # Errors
/// [`BenchError::Ended`] or [`BenchError::TooLate`] of the machine, [`BenchError::Interrupted`].
pub fn first_answer(
    machine: &mut Machine,
    address: SocketAddr,
    question: &[u8],
    answer: &[u8],
) -> Result<TcpStream, BenchError> {
    let deadline = Instant::now() + BOOT_LIMIT;
    let awaited = format!("an answer from port {}", address.port());
    loop {
        interrupt::check()?;
        if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT_LIMIT)
            && answers(&stream, question, answer).unwrap_or(false)
        {
            return Ok(stream);
        }
        if !machine.is_running() {
            return Err(machine.ended(&awaited));
        }
        if Instant::now() >= deadline {
            return Err(machine.late(&awaited));
        }
        sleep(Duration::from_millis(1));
    }
}

/// Returns whether a service at `address` echoes within `limit`.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn echoes_within(address: SocketAddr, limit: Duration) -> Result<bool, BenchError> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        interrupt::check()?;
        if let Ok(stream) = TcpStream::connect_timeout(&address, CONNECT_LIMIT)
            && answers(&stream, b"hello", b"hello").unwrap_or(false)
        {
            return Ok(true);
        }
        sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Returns whether the peer answers `answer`.
fn answers(mut stream: &TcpStream, question: &[u8], answer: &[u8]) -> std::io::Result<bool> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_LIMIT))?;
    stream.write_all(question)?;
    let mut received = vec![0; answer.len()];
    match stream.read_exact(&mut received) {
        Ok(()) => Ok(received == answer),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_of_all_sizes_have_three_significant_digits() {
        let mut latency_ns = histogram();
        for latency in [50_000, 1_000_000, 2_000_000, 3_000_000, 40_000_000_000] {
            latency_ns.saturating_record(latency);
        }
        let outcome = Outcome { requests: 5, elapsed: Duration::from_millis(500), latency_ns };
        let near = |value: f64, wanted: f64| (value - wanted).abs() <= wanted / 1_000.0;
        assert!(near(outcome.latency_us(0.5), 2_000.0), "{}", outcome.latency_us(0.5));
        assert!(near(outcome.latency_us(0.99), 40_000_000.0), "{}", outcome.latency_us(0.99));
        assert!(near(outcome.latency_us(0.01), 50.0), "{}", outcome.latency_us(0.01));
        assert!(near(outcome.rate(), 10.0));
    }
}
