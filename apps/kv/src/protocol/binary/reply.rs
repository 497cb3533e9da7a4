//! The answers of the binary protocol.

use alloc::vec::Vec;

use crate::output::{Output, Writer, is_copied};
use crate::response::{Details, Hit, NotStored, Response};
use crate::server::Server;
use crate::stats::{self, StatsKind};

use super::command::{Command, Quiet};
use super::{HEADER_LEN, RESPONSE_MAGIC};

/// The form of the reply to a binary request.
#[derive(Debug)]
pub(crate) struct BinaryReply {
    pub opcode: u8,
    /// The client's identifier of the request, which the reply repeats.
    pub opaque: [u8; 4],
    pub form: Form,
}

/// The content of the reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    /// No reply.
    Silent,
    /// The success of the command.
    Success,
    /// The server's version.
    Version,
    /// An error.
    Error(Status),
    /// The outcome of the operation.
    Outcome(Command, Quiet),
    /// A list of statistics.
    Stats(StatsKind),
    /// The counts by prefix.
    Prefixes,
}

/// The statuses other than success (0), with their codes and texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    NotFound,
    Exists,
    TooLarge,
    InvalidArguments,
    NotStored,
    NotANumber,
    UnknownCommand,
    OutOfMemory,
}

impl Status {
    fn code(self) -> u16 {
        match self {
            Self::NotFound => 0x01,
            Self::Exists => 0x02,
            Self::TooLarge => 0x03,
            Self::InvalidArguments => 0x04,
            Self::NotStored => 0x05,
            Self::NotANumber => 0x06,
            Self::UnknownCommand => 0x81,
            Self::OutOfMemory => 0x82,
        }
    }

    fn text(self) -> &'static [u8] {
        match self {
            Self::NotFound => b"Not found",
            Self::Exists => b"Data exists for key.",
            Self::TooLarge => b"Too large.",
            Self::InvalidArguments => b"Invalid arguments",
            Self::NotStored => b"Not stored.",
            Self::NotANumber => b"Non-numeric server-side value for incr or decr",
            Self::UnknownCommand => b"Unknown command",
            Self::OutOfMemory => b"Out of memory",
        }
    }
}

/// The fields of an answer's header, and the data that precede the value.
#[derive(Default)]
struct Head<'a> {
    status: u16,
    cas: u64,
    extras: &'a [u8],
    key: &'a [u8],
    value_len: usize,
}

impl BinaryReply {
    pub fn encode(&self, response: &Response, server: &Server, out: &mut Output) {
        match self.form {
            Form::Silent => {}
            Form::Success => self.packet(Head::default(), b"", out),
            Form::Version => self.packet(Head::default(), Server::VERSION.as_bytes(), out),
            Form::Error(status) => self.error(status, out),
            Form::Outcome(command, quiet) => self.outcome(command, quiet, response, out),
            Form::Stats(kind) => self.stats(kind, response, server, out),
            Form::Prefixes => self.prefixes(response, out),
        }
    }

    #[cold]
    fn stats(&self, kind: StatsKind, response: &Response, server: &Server, out: &mut Output) {
        if let Response::Details(details) = response
            && let Details::Report(report) = &**details
        {
            stats::for_each(kind, report, server, &mut |name, value| {
                self.packet(Head { key: name, ..Head::default() }, value, out);
            });
        }
        self.packet(Head::default(), b"", out);
    }

    /// Writes one packet whose value contains all lines, as in memcached, and the end of the list.
    #[cold]
    fn prefixes(&self, response: &Response, out: &mut Output) {
        if let Response::Details(details) = response
            && let Details::Prefixes(prefixes) = &**details
        {
            let mut lines = Vec::new();
            prefixes.for_each_line(&mut |line| lines.extend_from_slice(line));
            self.packet(Head { key: b"detailed", ..Head::default() }, &lines, out);
        }
        self.packet(Head::default(), b"", out);
    }

    fn outcome(&self, command: Command, quiet: Quiet, response: &Response, out: &mut Output) {
        match response {
            Response::Hit(hit) => self.hit(command, hit, out),
            Response::Miss(Some(_)) if quiet == Quiet::Yes => {}
            Response::Miss(Some(key)) if command.echoes_key() => {
                self.packet(Head { status: Status::NotFound.code(), key, ..Head::default() }, b"", out);
            }
            Response::Miss(_) | Response::NotStored(NotStored::Absent) => self.error(Status::NotFound, out),
            Response::NotStored(NotStored::Present) | Response::Exists => self.error(Status::Exists, out),
            Response::NotStored(NotStored::NothingToExtend) => self.error(Status::NotStored, out),
            Response::NotANumber => self.error(Status::NotANumber, out),
            Response::TooLarge => self.error(Status::TooLarge, out),
            Response::OutOfMemory => self.error(Status::OutOfMemory, out),
            _ if quiet == Quiet::Yes => {}
            Response::Touched { cas, flags } => {
                self.packet(Head { cas: *cas, extras: &flags.to_be_bytes(), ..Head::default() }, b"", out);
            }
            Response::Number { value, cas, .. } => {
                self.packet(Head { cas: *cas, ..Head::default() }, &value.to_be_bytes(), out);
            }
            Response::Stored { cas } => self.packet(Head { cas: *cas, ..Head::default() }, b"", out),
            Response::Deleted | Response::Done => self.packet(Head::default(), b"", out),
            // No request of this protocol has such a response.
            Response::Details(_) => {}
        }
    }

    fn hit(&self, command: Command, hit: &Hit, out: &mut Output) {
        let head = Head { cas: hit.cas, extras: &hit.flags.to_be_bytes(), ..Head::default() };
        let echoed = |key| if command.echoes_key() { key } else { &b""[..] };
        match hit.body.slices() {
            Some((key, value)) if is_copied(value.len()) => {
                self.packet(Head { key: echoed(key), ..head }, value, out);
            }
            _ => {
                let head = Head { key: echoed(hit.body.key()), value_len: hit.body.value_len(), ..head };
                self.packet(head, b"", out);
                out.push(hit.body.value());
            }
        }
    }

    fn error(&self, status: Status, out: &mut Output) {
        self.packet(Head { status: status.code(), ..Head::default() }, status.text(), out);
    }

    /// Writes a packet with `value`. If `value` is empty, the caller appends the `head.value_len` bytes of the value.
    #[inline(never)]
    fn packet(&self, head: Head<'_>, value: &[u8], out: &mut Output) {
        let value_len = head.value_len.max(value.len());
        let body_len = head.extras.len() + head.key.len() + value_len;
        let written_len = HEADER_LEN + head.extras.len() + head.key.len() + value.len();
        out.write(written_len, |room| {
            let mut writer = Writer::new(room);
            let [key_len_high, key_len_low] = (head.key.len() as u16).to_be_bytes();
            let extras_len = head.extras.len() as u8;
            let [status_high, status_low] = head.status.to_be_bytes();
            writer.put_array(&[RESPONSE_MAGIC, self.opcode, key_len_high, key_len_low]);
            writer.put_array(&[extras_len, 0, status_high, status_low]);
            writer.put_array(&(body_len as u32).to_be_bytes());
            writer.put_array(&self.opaque);
            writer.put_array(&head.cas.to_be_bytes());
            [head.extras, head.key, value].iter().for_each(|piece| writer.put(piece));
        });
    }
}
