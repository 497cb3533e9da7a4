//! A connection to a key-value service, with its pending requests.

use super::mix::{Mix, Request};
use super::reply::{ParseResult, Reply, parse};
use crate::error::BenchError;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// The most bytes of one read.
const PIECE_BYTES: usize = 64 << 10;

/// A nonblocking connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    output: Vec<u8>,
    /// The length of the sent part of `output`.
    sent: usize,
    input: Vec<u8>,
    pending: VecDeque<PendingRequest>,
}

/// A pending request.
#[derive(Clone, Copy, Debug)]
struct PendingRequest {
    request: Request,
    /// The time at which it was due.
    due: Instant,
}

impl Connection {
    /// Connects to `peer`.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn open(peer: SocketAddr) -> Result<Self, BenchError> {
        let stream = TcpStream::connect(peer).and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            Ok(stream)
        });
        let stream = stream.map_err(BenchError::connection(peer))?;
        let (output, input, pending) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { stream, peer, output, sent: 0, input, pending })
    }

    /// Sends a request that was due at `due`.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn ask(&mut self, mix: &Mix, request: Request, due: Instant) -> Result<(), BenchError> {
        self.queue(mix, request, due);
        self.send()
    }

    /// Queues a request that was due at `due` for the next [`Self::send`].
    pub fn queue(&mut self, mix: &Mix, request: Request, due: Instant) {
        mix.write(request, &mut self.output);
        self.pending.push_back(PendingRequest { request, due });
    }

    /// Returns the number of pending requests.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Returns the events to wait for.
    pub fn interest(&self) -> PollFd<'_> {
        let writing = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&self.stream, PollFlags::IN | writing)
    }

    /// Sends as much as the socket has room for.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn send(&mut self) -> Result<(), BenchError> {
        while self.sent < self.output.len() {
            match self.stream.write(&self.output[self.sent..]) {
                Ok(len) => self.sent += len,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(BenchError::connection(self.peer)(error)),
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(())
    }

    /// Receives available answers; calls `answered` with the due time of each request.
    ///
    /// # Errors
    /// [`BenchError::Connection`], [`BenchError::WrongAnswer`].
    pub fn receive(&mut self, mix: &Mix, mut answered: impl FnMut(Instant)) -> Result<(), BenchError> {
        let mut piece = [0; PIECE_BYTES];
        match self.stream.read(&mut piece) {
            Ok(0) => return Err(BenchError::connection(self.peer)(ErrorKind::UnexpectedEof.into())),
            Ok(len) => self.input.extend(&piece[..len]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {
                return Ok(());
            }
            Err(error) => return Err(BenchError::connection(self.peer)(error)),
        }
        let mut taken = 0;
        loop {
            match parse(&self.input[taken..]) {
                ParseResult::Incomplete => break,
                ParseResult::Unexpected => return Err(self.wrong(taken)),
                ParseResult::Reply(reply, len) => {
                    match self.pending.front() {
                        Some(pending) if fits(mix, pending.request, reply) => answered(pending.due),
                        _ => return Err(self.wrong(taken)),
                    }
                    self.pending.pop_front();
                    taken += len;
                }
            }
        }
        self.input.drain(..taken);
        Ok(())
    }

    fn wrong(&self, at: usize) -> BenchError {
        let shown = &self.input[at..self.input.len().min(at + 80)];
        BenchError::WrongAnswer {
            service: self.peer.to_string(),
            request: format!("{:?}", self.pending.front().map(|pending| pending.request)),
            answer: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}

/// Returns whether `reply` is correct for `request`: every get must hit, with the length of the stored value.
fn fits(mix: &Mix, request: Request, reply: Reply) -> bool {
    match (request, reply) {
        (Request::Set(_), Reply::Stored) => true,
        (Request::Get(record), Reply::Hit { len }) => len == mix.value_len(record),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_or_another_value_is_a_wrong_answer() {
        let mix = Mix::etc();
        let len = mix.value_len(3);
        assert!(fits(&mix, Request::Get(3), Reply::Hit { len }));
        assert!(fits(&mix, Request::Set(3), Reply::Stored));
        for reply in [Reply::Hit { len: len + 1 }, Reply::Miss, Reply::Stored] {
            assert!(!fits(&mix, Request::Get(3), reply));
        }
        assert!(!fits(&mix, Request::Set(3), Reply::Miss));
    }
}
