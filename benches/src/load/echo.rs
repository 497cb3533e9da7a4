//! Ping-pong with an echo service: one message at a time.

use super::{Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The length of a message.
pub const MESSAGE_BYTES: usize = 64;

/// Exchanges messages for `duration`, each after the echo of the one before.
///
/// # Errors
/// [`BenchError::Connection`], [`BenchError::WrongAnswer`], [`BenchError::Interrupted`].
pub fn ping_pong(stream: &mut TcpStream, duration: Duration) -> Result<Outcome, BenchError> {
    let start = Instant::now();
    let mut latency_ns = histogram();
    let mut last = start;
    let mut number = 0_u8;
    while last - start < duration {
        interrupt::check()?;
        number = number.wrapping_add(1);
        let (message, mut back) = ([number; MESSAGE_BYTES], [0; MESSAGE_BYTES]);
        let before = Instant::now();
        let done = stream.write_all(&message).and_then(|()| stream.read_exact(&mut back));
        done.map_err(BenchError::connection("the echo service"))?;
        last = Instant::now();
        if back != message {
            return Err(BenchError::WrongAnswer {
                service: "the echo service".into(),
                request: format!("{message:?}"),
                answer: format!("{back:?}"),
            });
        }
        latency_ns.saturating_record((last - before).as_nanos() as u64);
    }
    Ok(Outcome { requests: latency_ns.len(), elapsed: last - start, latency_ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Connects to an echo service that adds `change` to each byte.
    fn connect(change: u8) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; MESSAGE_BYTES];
            while stream.read_exact(&mut buffer).is_ok() {
                buffer.iter_mut().for_each(|byte| *byte = byte.wrapping_add(change));
                stream.write_all(&buffer).unwrap();
            }
        });
        TcpStream::connect(address).unwrap()
    }

    #[test]
    fn round_trips_are_counted() {
        let outcome = ping_pong(&mut connect(0), Duration::from_millis(50)).unwrap();
        assert!(outcome.requests > 0 && outcome.elapsed >= Duration::from_millis(50));
    }

    #[test]
    fn an_altered_echo_is_a_wrong_answer() {
        let error = ping_pong(&mut connect(1), Duration::from_secs(10)).unwrap_err();
        assert!(matches!(error, BenchError::WrongAnswer { .. }), "{error}");
    }
}
