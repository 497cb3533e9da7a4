//! Answers of the text protocol.

use crate::answer::ValueLine;
use crate::output::{Output, Writer, is_copied};
use crate::response::{Body, Details, Response};
use crate::server::Server;
use crate::shard::ItemRef;
use crate::stats::{self, StatsKind};
use alloc::boxed::Box;

use super::meta::MetaReply;

pub(super) const END: &[u8; 5] = b"END\r\n";
const LINE_END: &[u8; 2] = b"\r\n";

/// The form of the reply to a text request.
#[derive(Debug)]
pub(crate) enum TextReply {
    /// No reply.
    Silent,
    /// These bytes, for every response.
    Literal(&'static [u8]),
    /// The server's version.
    Version,
    /// A line with the status.
    Status,
    /// The item, if there is one.
    Value { casness: Casness, position: KeyPosition },
    /// A list of statistics.
    Stats(StatsKind),
    /// The counts by prefix.
    Prefixes,
    /// A list of up to this many items.
    List { limit: usize },
    /// The confirmation of a reset of the counters.
    Reset,
    /// The reply of a meta command.
    Meta(Box<MetaReply>),
}

/// Whether the reply includes the item's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Casness {
    With,
    Without,
}

/// The position of a key in its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPosition {
    Last,
    Between,
}

impl TextReply {
    pub fn encode(&self, response: &Response, server: &Server, out: &mut Output) {
        match self {
            Self::Silent => {}
            Self::Literal(bytes) => out.add_static(bytes),
            Self::Version => {
                out.write_slice(b"VERSION ");
                out.write_slice(Server::VERSION.as_bytes());
                out.write_slice(LINE_END);
            }
            Self::Status => status(response, out),
            Self::Value { casness, position } => match response {
                Response::Hit(hit) => value(hit.flags, hit.cas, &hit.body, *casness, *position, out),
                _ if *position == KeyPosition::Last => out.add_static(END),
                _ => {}
            },
            Self::Stats(_) | Self::Prefixes | Self::List { .. } => self.list(response, server, out),
            Self::Reset => out.write_slice(b"RESET\r\n"),
            Self::Meta(reply) => reply.encode(response, out),
        }
    }

    #[cold]
    fn list(&self, response: &Response, server: &Server, out: &mut Output) {
        if let Response::Details(details) = response {
            match (self, &**details) {
                (Self::Stats(kind), Details::Report(report)) => {
                    stats::for_each(*kind, report, server, &mut |name, value| {
                        [b"STAT ", name, b" ", value, LINE_END]
                            .iter()
                            .for_each(|piece| out.write_slice(piece));
                    });
                }
                (Self::Prefixes, Details::Prefixes(prefixes)) => {
                    prefixes.for_each_line(&mut |piece| out.write_slice(piece));
                }
                (Self::List { limit }, Details::List(items)) => {
                    let write = &mut |piece: &[u8]| out.write_slice(piece);
                    items.iter().take(*limit).for_each(|item| stats::listed(item, write));
                }
                _ => {}
            }
        }
        out.write_slice(END);
    }
}

pub(super) fn status(response: &Response, out: &mut Output) {
    let line: &'static [u8] = match response {
        Response::Stored { .. } => b"STORED\r\n",
        Response::NotStored(_) => b"NOT_STORED\r\n",
        Response::Exists => b"EXISTS\r\n",
        Response::Miss(_) => b"NOT_FOUND\r\n",
        Response::Deleted => b"DELETED\r\n",
        Response::Touched { .. } => b"TOUCHED\r\n",
        Response::NotANumber => b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n",
        Response::TooLarge => b"SERVER_ERROR object too large for cache\r\n",
        Response::OutOfMemory => b"SERVER_ERROR out of memory storing object\r\n",
        Response::Number { value, .. } => {
            out.write_slice(itoa::Buffer::new().format(*value).as_bytes());
            LINE_END
        }
        Response::Done | Response::Hit(_) | Response::Details(_) => b"OK\r\n",
    };
    out.add_static(line);
}

/// Writes the whole answer to a `get` of one key.
#[inline]
pub(crate) fn single_get(found: Option<ItemRef<'_>>, out: &mut Output) {
    match found {
        Some(ItemRef { body: Body::Whole(answer), .. }) => out.add(answer.bytes()),
        Some(ItemRef { flags, cas, body }) => {
            value(flags, cas, body, Casness::Without, KeyPosition::Last, out)
        }
        None => out.add_static(END),
    }
}

impl KeyPosition {
    /// Returns the length of the bytes that follow the value.
    fn tail_len(self) -> usize {
        match self {
            Self::Last => LINE_END.len() + END.len(),
            Self::Between => LINE_END.len(),
        }
    }

    fn put_tail(self, writer: &mut Writer<'_>) {
        writer.put_array(LINE_END);
        if self == Self::Last {
            writer.put_array(END);
        }
    }
}

fn value(flags: u32, cas: u64, body: &Body, casness: Casness, position: KeyPosition, out: &mut Output) {
    if let (Body::Whole(answer), Casness::Without) = (body, casness) {
        return match position {
            KeyPosition::Last => out.add(answer.bytes()),
            KeyPosition::Between => out.add(&answer.without_end()),
        };
    }
    let mut digits = [itoa::Buffer::new(); 3];
    let [flags_digits, len_digits, cas_digits] = &mut digits;
    let value_len = body.value_len();
    let line = ValueLine {
        flags: flags_digits.format(flags).as_bytes(),
        value_len: len_digits.format(value_len).as_bytes(),
        cas: (casness == Casness::With).then(|| cas_digits.format(cas).as_bytes()),
    };
    match body.slices() {
        Some((key, value)) if is_copied(value_len) => {
            out.write(line.len(key.len()) + value.len() + position.tail_len(), |room| {
                let mut writer = Writer::new(room);
                line.put(key, &mut writer);
                writer.put(value);
                position.put_tail(&mut writer);
            });
        }
        _ => {
            let key = body.key();
            out.write(line.len(key.len()), |room| line.put(key, &mut Writer::new(room)));
            out.push(body.value());
            out.write(position.tail_len(), |room| position.put_tail(&mut Writer::new(room)));
        }
    }
}
