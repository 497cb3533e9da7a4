//! The end that answers.

use crate::message::message;
use crate::round::{Round, Way};
use alloc::boxed::Box;
use isola_iobuf::Chain;
use isola_net::{ConnectionHandler, TcpConnection};

/// Bytes that are handed to the connection at once, at most.
const PIECE_BYTES: u64 = 256 << 10;

/// Answers a client's rounds, until it has had enough. A client that says what it should not is left.
#[derive(Debug, Default)]
pub struct Server {
    /// What came and was not looked at.
    input: Chain,
    /// What there was no room for.
    unsent: Chain,
    /// What is to come before anything is sent, in bytes.
    to_receive: u64,
    /// What is to be sent then, in bytes; `unsent` besides.
    to_send: u64,
    /// Messages there and back that follow, or only back, and the size of each.
    turns: u32,
    size: u64,
    way: Way,
    client: Client,
}

/// Whether the client may say more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Client {
    #[default]
    Open,
    Closed,
}

/// What a server waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Input,
    SendSpace,
    /// Nothing more: the client has had enough, or talks nonsense.
    Nothing,
}

impl Server {
    /// Goes on as far as possible.
    fn go_on(&mut self, connection: &TcpConnection) -> Wait {
        loop {
            let come = self.to_receive.min(self.input.len() as u64);
            self.input.advance(come as usize);
            self.to_receive -= come;
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
                self.to_receive = if self.way == Way::Both { self.size } else { 0 };
                continue;
            }
            let mut said = [0; Round::LEN];
            if self.input.copy_to_slice(&mut said).is_none() {
                return Wait::Input;
            }
            self.input.advance(Round::LEN);
            match Round::from_bytes(said) {
                Some(round) if round.size > 0 => self.begin(round),
                _ => return Wait::Nothing,
            }
        }
    }

    fn begin(&mut self, round: Round) {
        match round.way {
            Way::ToServer => (self.to_receive, self.to_send) = (round.bytes(), 1),
            way => (self.turns, self.size, self.way) = (round.count, round.size as u64, way),
        }
    }

    /// Goes on. While there is no room to send, the client waits.
    fn serve(&mut self, connection: &TcpConnection) {
        match self.go_on(connection) {
            // What it began and did not finish is not waited for.
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
