//! The server, which answers rounds.

use crate::message::message;
use crate::round::{Direction, Round};
use alloc::boxed::Box;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, TcpConnection};

/// The maximum number of bytes passed to the connection at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Answers a client's rounds, until the client ends the session. Closes the connection after a malformed request.
#[derive(Debug, Default)]
pub struct Server {
    /// Received data that was not processed yet.
    input: Chain,
    /// Data for which the send queue had no room.
    unsent: Chain,
    /// Bytes to receive before the next message is sent.
    to_receive: u64,
    /// Bytes to send after that, not counting `unsent`.
    to_send: u64,
    /// The number of remaining messages in the round, and the size of each.
    turns: u32,
    size: u64,
    direction: Direction,
    client: Client,
}

/// Whether the client may send more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Client {
    #[default]
    Open,
    Closed,
}

/// The event that a server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Input,
    SendSpace,
    /// None: the client has ended the session, or sent a malformed request.
    Nothing,
}

impl Server {
    /// Makes progress as far as possible.
    fn advance(&mut self, connection: &TcpConnection) -> Wait {
        loop {
            let count = self.to_receive.min(self.input.len() as u64);
            self.input.advance(count as usize);
            self.to_receive -= count;
            if self.to_receive > 0 {
                return Wait::Input;
            }
            while self.to_send > 0 || !self.unsent.is_empty() {
                if self.unsent.is_empty() {
                    let piece = self.to_send.min(PIECE_BYTES);
                    self.unsent = message(piece as usize);
                    self.to_send -= piece;
                }
                if connection.send_some(&mut self.unsent).is_err() {
                    return Wait::Nothing;
                }
                if !self.unsent.is_empty() {
                    return Wait::SendSpace;
                }
            }
            if self.turns > 0 {
                self.turns -= 1;
                self.to_send = self.size;
                self.to_receive = if self.direction == Direction::Both { self.size } else { 0 };
                continue;
            }
            let mut request = [0; Round::LEN];
            if self.input.copy_to_slice(&mut request).is_none() {
                return Wait::Input;
            }
            self.input.advance(Round::LEN);
            match Round::from_bytes(request) {
                Some(round) if round.size > 0 => self.begin(round),
                _ => return Wait::Nothing,
            }
        }
    }

    fn begin(&mut self, round: Round) {
        match round.direction {
            Direction::ToServer => (self.to_receive, self.to_send) = (round.bytes(), 1),
            direction => {
                (self.turns, self.size, self.direction) = (round.count, round.size as u64, direction)
            }
        }
    }

    /// Makes progress. Pauses reception while the send queue is full.
    fn serve(&mut self, connection: &TcpConnection) {
        match self.advance(connection) {
            // The client has closed its side, so the rest of an unfinished round will never arrive.
            Wait::Input if self.client == Client::Closed => connection.close(),
            Wait::Input => connection.resume(),
            Wait::SendSpace => connection.pause(),
            Wait::Nothing => connection.close(),
        }
    }
}

impl ConnectionHandler for Server {
    fn received(&mut self, connection: &TcpConnection, data: Chain) {
        self.input.append(data);
        self.serve(connection);
    }

    fn send_space(&mut self, connection: &TcpConnection) {
        self.serve(connection);
    }

    fn peer_closed(&mut self, connection: &TcpConnection) {
        self.client = Client::Closed;
        self.serve(connection);
    }

    fn moving(&mut self) -> Option<Box<dyn ConnectionHandler + Send>> {
        Some(Box::new(core::mem::take(self)))
    }
}
