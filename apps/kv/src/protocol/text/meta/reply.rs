//! The answers of the meta commands: a code of two letters, then the fields that the flags request, in the order of the
//! flags.

use isola_iobuf::IoBuf;

use crate::output::{Output, is_copied};
use crate::response::{Body, Description, Details, Response, TimeLeft};

use super::super::command::Words;
use super::super::reply::status;

/// The form of the reply to a meta command.
#[derive(Debug)]
pub(crate) struct MetaReply {
    pub(super) form: Form,
    /// Whether to omit the answer that the client expects.
    pub is_quiet: bool,
    /// Whether the key was base64.
    pub is_base64: bool,
    /// The key as the client wrote it.
    pub key: IoBuf,
    /// The flags as the client wrote them.
    pub flags: IoBuf,
}

/// The command of the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Get,
    GetValue,
    Store,
    Delete,
    Count,
    CountValue,
    Inspect,
}

/// A buffer for one line. The longest line has 28 bytes of code and length, 252 bytes of a key, 34 bytes of an opaque
/// token and less than 100 bytes of numbers.
struct LineOut {
    bytes: [u8; 512],
    len: usize,
}

impl LineOut {
    fn new(code: &[u8]) -> Self {
        let mut line = Self { bytes: [0; 512], len: 0 };
        line.put(code);
        line
    }

    fn put(&mut self, piece: &[u8]) {
        if let Some(room) = self.bytes.get_mut(self.len..self.len + piece.len()) {
            room.copy_from_slice(piece);
            self.len += piece.len();
        } else {
            debug_assert!(false, "the line is longer than the longest");
        }
    }

    fn number(&mut self, name: &[u8], value: u64) {
        self.put(name);
        self.put(itoa::Buffer::new().format(value).as_bytes());
    }

    /// Writes a time, or -1 for an item that never expires.
    fn seconds(&mut self, name: &[u8], seconds: Option<u32>) {
        match seconds {
            Some(seconds) => self.number(name, seconds.into()),
            None => {
                self.put(name);
                self.put(b"-1");
            }
        }
    }

    fn end(mut self, out: &mut Output) {
        self.put(b"\r\n");
        out.write_slice(self.bytes.get(..self.len).unwrap_or(&self.bytes));
    }
}

/// The sources of the numbers that flags request.
#[derive(Default)]
struct Facts<'a> {
    description: Option<&'a Description>,
    cas: Option<u64>,
    time_left: Option<TimeLeft>,
}

impl MetaReply {
    pub fn encode(&self, response: &Response, out: &mut Output) {
        match response {
            Response::Details(details) => match &**details {
                Details::Item(item) if self.form == Form::Inspect => self.inspected(item, out),
                Details::Item(item) => self.hit(item, out),
                // No meta command has such a response.
                Details::Report(_) | Details::Prefixes(_) | Details::List(_) => {}
            },
            Response::Number { value, cas, time_left } => {
                if self.is_quiet {
                    return;
                }
                let facts = Facts { cas: Some(*cas), time_left: Some(*time_left), ..Facts::default() };
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(*value).as_bytes();
                if self.form != Form::CountValue {
                    return self.line(b"HD", &facts, out);
                }
                let mut line = LineOut::new(b"VA ");
                line.number(b"", digits.len() as u64);
                self.flags(&mut line, &facts);
                line.end(out);
                out.write_slice(digits);
                out.write_slice(b"\r\n");
            }
            Response::Stored { .. } | Response::Deleted if self.is_quiet => {}
            Response::Stored { cas } => self.line(b"HD", &Facts { cas: Some(*cas), ..Facts::default() }, out),
            Response::Deleted => self.line(b"HD", &Facts::default(), out),
            Response::Miss(_) => match self.form {
                Form::Inspect => out.write_slice(b"EN\r\n"),
                Form::Get | Form::GetValue if self.is_quiet => {}
                Form::Get | Form::GetValue => self.line(b"EN", &Facts::default(), out),
                _ => self.refused(b"NF", out),
            },
            Response::NotStored(_) => self.refused(b"NS", out),
            Response::Exists => self.refused(b"EX", out),
            error => status(error, out),
        }
    }

    fn refused(&self, code: &[u8], out: &mut Output) {
        // A rejected store has created no version.
        let cas = (self.form == Form::Store).then_some(0);
        self.line(code, &Facts { cas, ..Facts::default() }, out);
    }

    fn line(&self, code: &[u8], facts: &Facts<'_>, out: &mut Output) {
        let mut line = LineOut::new(code);
        self.flags(&mut line, facts);
        line.end(out);
    }

    fn hit(&self, description: &Description, out: &mut Output) {
        let facts = Facts {
            description: Some(description),
            cas: Some(description.hit.cas),
            time_left: Some(description.time_left),
        };
        let has_value = self.form == Form::GetValue;
        let mut line = LineOut::new(if has_value { b"VA " } else { b"HD" });
        if has_value {
            line.number(b"", description.hit.body.value_len() as u64);
        }
        self.flags(&mut line, &facts);
        for (is_set, flag) in
            [(description.is_promised, b" Z"), (description.is_stale, b" X"), (description.is_won, b" W")]
        {
            if is_set {
                line.put(flag);
            }
        }
        line.end(out);
        if has_value {
            value(&description.hit.body, out);
        }
    }

    /// Writes the field of each flag whose value is known.
    fn flags(&self, line: &mut LineOut, facts: &Facts<'_>) {
        let Facts { description, cas, time_left } = facts;
        let mut is_touched = false;
        for word in (Words { line: &self.flags, at: 0 }) {
            match (word.text.first(), description) {
                (Some(b'O'), _) => {
                    line.put(b" ");
                    line.put(word.text);
                }
                (Some(b'k'), _) => {
                    line.put(b" k");
                    line.put(&self.key);
                    if self.is_base64 {
                        line.put(b" b");
                    }
                }
                // A time that is requested before it is set is the old one.
                (Some(b'T'), _) => is_touched = true,
                (Some(b't'), _) => {
                    if let Some(left) = time_left {
                        line.seconds(b" t", if is_touched { left.after } else { left.before });
                    }
                }
                (Some(b'c'), _) => {
                    if let Some(cas) = cas {
                        line.number(b" c", *cas);
                    }
                }
                (Some(b's'), Some(item)) => line.number(b" s", item.hit.body.value_len() as u64),
                (Some(b'f'), Some(item)) => line.number(b" f", item.hit.flags.into()),
                (Some(b'l'), Some(item)) => line.number(b" l", item.idle_s.into()),
                (Some(b'h'), Some(item)) => line.number(b" h", item.was_read.into()),
                _ => {}
            }
        }
    }

    fn inspected(&self, item: &Description, out: &mut Output) {
        let mut line = LineOut::new(b"ME ");
        line.put(&self.key);
        line.seconds(b" exp=", item.time_left.after);
        line.number(b" la=", item.idle_s.into());
        line.number(b" cas=", item.hit.cas);
        line.put(if item.was_read { b" fetch=yes" } else { b" fetch=no" });
        // All items are of one class.
        line.number(b" cls=1 size=", item.item_bytes as u64);
        line.end(out);
    }
}

fn value(body: &Body, out: &mut Output) {
    match body.slices() {
        Some((_, value)) if is_copied(value.len()) => out.write_slice(value),
        _ => out.push(body.value()),
    }
    out.write_slice(b"\r\n");
}
