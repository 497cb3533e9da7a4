//! A connection to a key-value service, and the requests that are under way on it.

use super::mix::{Mix, Request};
use super::reply::{Parsed, Reply, parse};
use crate::error::BenchError;
use rustix::event::{PollFd, PollFlags};
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

/// Received at once.
const PIECE_BYTES: usize = 64 << 10;

/// A connection that never waits.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    peer: SocketAddr,
    output: Vec<u8>,
    /// Bytes of `output` that are sent.
    sent: usize,
    input: Vec<u8>,
    asked: VecDeque<Asked>,
}

/// A request that is under way.
#[derive(Clone, Copy, Debug)]
struct Asked {
    request: Request,
    /// When it was to be made.
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
        let (output, input, asked) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { stream, peer, output, sent: 0, input, asked })
    }

    /// Makes a request that was due at `due`.
    ///
    /// # Errors
    /// [`BenchError::Connection`].
    pub fn ask(&mut self, mix: &Mix, request: Request, due: Instant) -> Result<(), BenchError> {
        self.queue(mix, request, due);
        self.send()
    }

    /// Puts a request that was due at `due` behind those that [`Self::send`] sends next.
    pub fn queue(&mut self, mix: &Mix, request: Request, due: Instant) {
        mix.write(request, &mut self.output);
        self.asked.push_back(Asked { request, due });
    }

    /// How many requests are under way.
    pub fn under_way(&self) -> usize {
        self.asked.len()
    }

    /// What to wait for.
    pub fn interest(&self) -> PollFd<'_> {
        let writing = if self.output.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
        PollFd::new(&self.stream, PollFlags::IN | writing)
    }

    /// Sends what there is room for.
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

    /// Takes the answers that have come; `answered` is told when each was due.
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
                Parsed::Incomplete => break,
                Parsed::Unexpected => return Err(self.wrong(taken)),
                Parsed::Reply(reply, len) => {
                    match self.asked.front() {
                        Some(asked) if fits(mix, asked.request, reply) => answered(asked.due),
                        _ => return Err(self.wrong(taken)),
                    }
                    self.asked.pop_front();
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
            asked: format!("{:?}", self.asked.front().map(|asked| asked.request)),
            answer: String::from_utf8_lossy(shown).into_owned(),
        }
    }
}

/// Whether `request` can be answered so: every get hits, and finds what was stored.
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
    fn a_get_that_finds_nothing_or_something_else_is_wrong() {
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
