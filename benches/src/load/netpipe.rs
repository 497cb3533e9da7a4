//! The client of NetPIPE's answering end (`apps/netpipe`; `src/bin/linux-netpipe.rs`).

use super::{ANSWER_LIMIT, Outcome, histogram};
use crate::error::BenchError;
use crate::interrupt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// The most messages of a round in the protocol.
const MAX_COUNT: u32 = 1_000_000;

/// The direction of messages: the first byte of a round's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Each message to the service and back.
    Both = 0,
    /// All messages to the service, which confirms them with one byte.
    ToService = 1,
    /// All messages from the service.
    FromService = 2,
}

/// The client's end.
#[derive(Debug)]
pub struct NetpipeClient {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl NetpipeClient {
    /// Connects to the answering end at `address`, for messages of up to `most` bytes.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn connect(address: SocketAddr, most: usize) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(address).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            Ok(stream)
        });
        let stream = stream.map_err(BenchError::connection(address))?;
        Ok(Self { stream, buffer: vec![b'b'; most] })
    }

    /// Exchanges a round of `count` messages of `size` bytes; returns its duration.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::Interrupted`].
    pub fn round(&mut self, direction: Direction, size: usize, count: u32) -> Result<Duration, BenchError> {
        interrupt::check()?;
        let start = Instant::now();
        self.messages(direction, size, count).map_err(BenchError::connection("the end of NetPIPE"))?;
        Ok(start.elapsed())
    }

    fn messages(&mut self, direction: Direction, size: usize, count: u32) -> io::Result<()> {
        let mut round = vec![direction as u8];
        round.extend((size as u32).to_be_bytes());
        round.extend(count.to_be_bytes());
        self.stream.write_all(&round)?;
        let message = &mut self.buffer[..size];
        for _ in 0..count {
            if direction != Direction::FromService {
                self.stream.write_all(message)?;
            }
            if direction != Direction::ToService {
                self.stream.read_exact(message)?;
            }
        }
        if direction == Direction::ToService {
            self.stream.read_exact(&mut [0])?;
        }
        Ok(())
    }

    /// Repeats rounds of `count` messages for `duration`. The outcome counts messages; the latency is a round's
    /// duration divided by `count`.
    ///
    /// # Errors
    /// As [`Self::round`].
    pub fn repeat_for(
        &mut self,
        direction: Direction,
        size: usize,
        count: u32,
        duration: Duration,
    ) -> Result<Outcome, BenchError> {
        self.repeat(direction, size, count, |_, elapsed| elapsed < duration)
    }

    /// Performs `rounds` rounds of `count` messages.
    ///
    /// # Errors
    /// As [`Self::round`].
    pub fn repeat_times(
        &mut self,
        direction: Direction,
        size: usize,
        count: u32,
        rounds: u32,
    ) -> Result<Outcome, BenchError> {
        self.repeat(direction, size, count, |done, _| done < rounds)
    }

    /// Repeats rounds while `more` returns true; it gets the number of rounds and the time since the start.
    fn repeat(
        &mut self,
        direction: Direction,
        size: usize,
        count: u32,
        more: impl Fn(u32, Duration) -> bool,
    ) -> Result<Outcome, BenchError> {
        let (start, mut latency_ns, mut rounds) = (Instant::now(), histogram(), 0);
        while more(rounds, start.elapsed()) {
            let taken = self.round(direction, size, count)?;
            latency_ns.saturating_record(taken.as_nanos() as u64 / u64::from(count));
            rounds += 1;
        }
        let requests = u64::from(rounds) * u64::from(count);
        Ok(Outcome { requests, elapsed: start.elapsed(), latency_ns })
    }

    /// Returns the number of messages whose round trips take about `duration`.
    ///
    /// # Errors
    /// As [`Self::round`].
    pub fn count_for(&mut self, size: usize, duration: Duration) -> Result<u32, BenchError> {
        let one = self.round(Direction::Both, size, 1)?.min(self.round(Direction::Both, size, 1)?);
        let count = duration.as_nanos() / one.as_nanos().max(1);
        Ok(u32::try_from(count).unwrap_or(MAX_COUNT).clamp(2, MAX_COUNT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread;

    /// Starts an answering end.
    fn serve() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut header = [0; 9];
            while stream.read_exact(&mut header).is_ok() {
                let number = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
                let mut message = vec![0; number(1) as usize];
                for _ in 0..number(5) {
                    if header[0] != 2 {
                        stream.read_exact(&mut message).unwrap();
                    }
                    if header[0] != 1 {
                        stream.write_all(&message).unwrap();
                    }
                }
                if header[0] == 1 {
                    stream.write_all(b"n").unwrap();
                }
            }
        });
        address
    }

    #[test]
    fn messages_pass_in_each_direction() {
        let mut client = NetpipeClient::connect(serve(), 70_000).unwrap();
        for direction in [Direction::Both, Direction::ToService, Direction::FromService] {
            for (size, count) in [(1, 9), (70_000, 2)] {
                assert!(client.round(direction, size, count).unwrap() > Duration::ZERO);
            }
        }
        let outcome = client.repeat_for(Direction::Both, 64, 3, Duration::from_millis(10)).unwrap();
        assert!(outcome.requests >= 3 && outcome.requests.is_multiple_of(3));
        let outcome = client.repeat_times(Direction::Both, 64, 3, 2).unwrap();
        assert_eq!(outcome.requests, 6, "turns performs the given number of rounds");
        assert!(client.count_for(1, Duration::from_millis(10)).unwrap() >= 2);
    }
}
