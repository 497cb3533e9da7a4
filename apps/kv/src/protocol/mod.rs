//! The two protocols of memcached: bytes to requests, and responses to bytes.
//!
//! Which one a connection speaks shows in its first byte: 0x80 begins a binary request and no text command.
//! Both parsers are incremental and take only whole requests off the input; keys and values are views of it.
//! Sources: memcached's `protocol.txt` and its binary protocol page ("BinaryProtocolRevamped"); where these
//! leave a behaviour open, what memcached 1.6 does.

pub(crate) mod binary;
pub(crate) mod text;

use isola_iobuf::Chain;

use crate::key::Key;
use crate::output::Output;
use crate::request::{Broadcast, Operation};
use crate::response::Response;
use crate::server::Server;

/// One request as a parser finds it.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub action: Action,
    pub reply: Reply,
}

/// What has to happen before the reply can be written.
#[derive(Debug)]
pub(crate) enum Action {
    /// The shard that owns the key does its part.
    Run(Key, Operation),
    /// Every shard does its part.
    All(Broadcast),
    /// Nothing.
    Answer,
    /// Nothing, and the connection ends with the reply.
    Close,
}

/// How the outcome is to be written.
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
    /// No byte has come yet.
    #[default]
    Undecided,
    Text(text::TextParser),
    Binary(binary::BinaryParser),
}

impl Parser {
    /// Takes the next request off `input`, or returns `None` where no whole one is there.
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

/// Drops up to `left` bytes of `input` and returns how many more are to be dropped.
fn swallow(input: &mut Chain, left: u64) -> u64 {
    let here = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    input.advance(here);
    left - here as u64
}
