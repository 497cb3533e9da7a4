//! The two protocols of memcached: the parsers of requests and the encoders of responses.
//!
//! The first byte of a connection selects its protocol: 0x80 begins a binary request and no text command. Both parsers
//! are incremental and consume only complete requests; keys and values are views of the input. The sources are
//! memcached's `protocol.txt` and its binary protocol page ("BinaryProtocolRevamped"). If they leave a behaviour open,
//! this server behaves as memcached 1.6.

pub(crate) mod binary;
pub(crate) mod text;

use isola_iobuf::Chain;

use crate::key::Key;
use crate::output::Output;
use crate::request::{Broadcast, Operation};
use crate::response::Response;
use crate::server::Server;

/// A parsed request.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub action: Action,
    pub reply: Reply,
}

/// The action that precedes the reply.
#[derive(Debug)]
pub(crate) enum Action {
    /// An operation on the shard of the key.
    Run(Key, Operation),
    /// An operation on all shards.
    All(Broadcast),
    /// No action.
    Answer,
    /// No action; the connection ends after the reply.
    Close,
}

/// The form of the reply.
#[derive(Debug)]
pub(crate) enum Reply {
    Text(text::TextReply),
    Binary(binary::BinaryReply),
}

impl Reply {
    /// Writes the reply for `response`.
    pub fn encode(&self, response: &Response, server: &Server, out: &mut Output) {
        match self {
            Self::Text(reply) => reply.encode(response, server, out),
            Self::Binary(reply) => reply.encode(response, server, out),
        }
    }
}

/// The parser of a connection.
#[derive(Debug, Default)]
pub(crate) enum Parser {
    /// No byte has arrived yet.
    #[default]
    Undecided,
    Text(text::TextParser),
    Binary(binary::BinaryParser),
}

impl Parser {
    /// Removes the next request from `input`, or returns `None` if no complete request has arrived.
    pub fn next(&mut self, input: &mut Chain, server: &Server) -> Option<Parsed> {
        loop {
            match self {
                Self::Text(parser) => return parser.next(input, server),
                Self::Binary(parser) => return parser.next(input, server),
                Self::Undecided => {
                    *self = match *input.front()?.first()? {
                        binary::REQUEST_MAGIC => Self::Binary(binary::BinaryParser::default()),
                        _ => Self::Text(text::TextParser::default()),
                    }
                }
            }
        }
    }
}

/// Drops up to `left` bytes of `input`. Returns the number of bytes that remain to be dropped.
fn swallow(input: &mut Chain, left: u64) -> u64 {
    let here = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    input.advance(here);
    left - here as u64
}
