//! The parser of binary requests.

use isola_iobuf::Chain;

use crate::input::contiguous;
use crate::key::{Key, MAX_KEY_LEN};
use crate::protocol::{Action, Parsed, Reply, swallow};
use crate::request::{Broadcast, Count, ExistingItem, OlderVersion, Operation, Payload, Store, StoreMode};
use crate::server::Server;
use crate::stats::StatsKind;
use crate::time::Exptime;

use super::command::{Command, Quiet, command};
use super::reply::{BinaryReply, Form, Status};
use super::{HEADER_LEN, REQUEST_MAGIC};

/// The expiration time with which a count states that it creates no item.
const NO_INITIAL: u32 = u32::MAX;

/// The length of the longest extras, those of a count, in bytes.
const LONGEST_EXTRAS: usize = 20;

/// The parser of a stream of binary requests. It stores the number of bytes of a rejected body that remain to be
/// skipped.
#[derive(Debug, Default)]
pub(crate) struct BinaryParser {
    swallow: u64,
}

/// The header of a request, without the unused fields.
#[derive(Clone, Copy, Debug)]
struct Header {
    magic: u8,
    opcode: u8,
    key_len: usize,
    extras_len: usize,
    body_len: usize,
    opaque: [u8; 4],
    cas: u64,
}

impl Header {
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let [magic, opcode] = fields.take()?;
        let key_len = u16::from_be_bytes(fields.take()?).into();
        let [extras_len, _data_type, _, _] = fields.take()?;
        let body_len = u32::from_be_bytes(fields.take()?) as usize;
        let opaque = fields.take()?;
        let cas = u64::from_be_bytes(fields.take()?);
        Some(Self { magic, opcode, key_len, extras_len: extras_len.into(), body_len, opaque, cas })
    }
}

/// A reader of consecutive fixed-size fields.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn exptime(&mut self) -> Option<Exptime> {
        self.take().map(|field| Exptime(u32::from_be_bytes(field).into()))
    }
}

impl BinaryParser {
    /// Removes the next request from `input`, or returns `None` if no complete request has arrived.
    pub fn next(&mut self, input: &mut Chain, server: &Server) -> Option<Parsed> {
        if self.swallow > 0 {
            self.swallow = swallow(input, self.swallow);
        }
        let view = match input.front()? {
            view if view.len() >= HEADER_LEN => view,
            _ => contiguous(input, HEADER_LEN)?,
        };
        let header = Header::of(view)?;
        let Header { opcode, opaque, .. } = header;
        let reply = |form| Reply::Binary(BinaryReply { opcode, opaque, form });
        let close = |form| Some(Parsed { action: Action::Close, reply: reply(form) });
        if header.magic != REQUEST_MAGIC {
            return close(Form::Silent);
        }
        let Some((command, quiet)) = command(opcode) else {
            input.advance(HEADER_LEN);
            self.swallow = swallow(input, header.body_len as u64);
            return Some(Parsed {
                action: Action::Answer,
                reply: reply(Form::Error(Status::UnknownCommand)),
            });
        };
        let head_len = header.extras_len + header.key_len;
        let Some(value_len) = header.body_len.checked_sub(head_len) else {
            return close(Form::Error(Status::InvalidArguments));
        };
        if header.key_len > MAX_KEY_LEN || !command.accepts(header.extras_len, header.key_len, value_len) {
            return close(Form::Error(Status::InvalidArguments));
        }
        let is_too_large = value_len > server.config.max_value_len();
        let awaited_len = HEADER_LEN + if is_too_large { head_len } else { header.body_len };
        if input.len() < awaited_len {
            return None;
        }
        let view = contiguous(input, HEADER_LEN + head_len)?;
        let mut extras = [0; LONGEST_EXTRAS];
        extras
            .get_mut(..header.extras_len)?
            .copy_from_slice(view.get(HEADER_LEN..)?.get(..header.extras_len)?);
        let mut extras = Fields(extras.get(..header.extras_len)?);
        let key_start = HEADER_LEN + header.extras_len;
        let key_view = view.slice(key_start..key_start + header.key_len)?;
        let parsed = match command {
            Command::Quit if quiet == Quiet::Yes => {
                Parsed { action: Action::Close, reply: reply(Form::Silent) }
            }
            Command::Quit => Parsed { action: Action::Close, reply: reply(Form::Success) },
            Command::NoOp | Command::Verbosity => {
                Parsed { action: Action::Answer, reply: reply(Form::Success) }
            }
            Command::Version => Parsed { action: Action::Answer, reply: reply(Form::Version) },
            Command::Flush => {
                let exptime = extras.exptime().unwrap_or_default();
                let form = Form::Outcome(command, quiet);
                Parsed { action: Action::All(Broadcast::Flush(exptime)), reply: reply(form) }
            }
            Command::Stat => match (&*key_view, StatsKind::of(&key_view)) {
                (word @ (b"detail on" | b"detail off"), _) => Parsed {
                    action: Action::All(Broadcast::CountPrefixes(word == b"detail on")),
                    reply: reply(Form::Success),
                },
                (b"detail dump", _) => {
                    Parsed { action: Action::All(Broadcast::PrefixStats), reply: reply(Form::Prefixes) }
                }
                (b"reset", _) => {
                    Parsed { action: Action::All(Broadcast::ResetStats), reply: reply(Form::Success) }
                }
                (_, Some(kind)) => {
                    Parsed { action: Action::All(Broadcast::Stats), reply: reply(Form::Stats(kind)) }
                }
                (_, None) => Parsed { action: Action::Answer, reply: reply(Form::Error(Status::NotFound)) },
            },
            command => {
                let key = Key::new(key_view, &server.hasher)?;
                input.advance(HEADER_LEN + head_len);
                let operation = match command {
                    Command::Store(mode) if is_too_large => {
                        self.swallow = swallow(input, value_len as u64);
                        // Independent of the version, as in memcached's binary protocol.
                        let overwrites = mode == StoreMode::Set;
                        Operation::RejectStore(if overwrites {
                            ExistingItem::Removed
                        } else {
                            ExistingItem::Kept
                        })
                    }
                    Command::Store(mode) => {
                        Operation::Store(store(mode, extras, header.cas, Payload::take(input, value_len)?)?)
                    }
                    command => item_operation(command, extras, header.cas)?,
                };
                return Some(Parsed {
                    action: Action::Run(key, operation),
                    reply: reply(Form::Outcome(command, quiet)),
                });
            }
        };
        input.advance(HEADER_LEN + header.body_len);
        Some(parsed)
    }
}

fn version(cas: u64) -> Option<u64> {
    (cas != 0).then_some(cas)
}

fn store(mode: StoreMode, mut extras: Fields<'_>, cas: u64, value: Payload) -> Option<Store> {
    let (flags, exptime) = match mode {
        StoreMode::Append | StoreMode::Prepend => (0, Exptime::default()),
        _ => (u32::from_be_bytes(extras.take()?), extras.exptime()?),
    };
    Some(Store { mode, flags, exptime, cas: version(cas), older: OlderVersion::Refused, value })
}

/// Returns the operation of a command on an item that carries no value.
fn item_operation(command: Command, mut extras: Fields<'_>, cas: u64) -> Option<Operation> {
    Some(match command {
        Command::GetAndTouch | Command::GetAndTouchWithKey => Operation::GetAndTouch(extras.exptime()?),
        Command::Touch => Operation::Touch(extras.exptime()?),
        Command::Delete => Operation::Delete { cas: version(cas) },
        Command::Count(direction) => {
            let delta = u64::from_be_bytes(extras.take()?);
            let initial = u64::from_be_bytes(extras.take()?);
            let exptime = extras.exptime()?;
            let initial = (exptime != Exptime(NO_INITIAL.into())).then_some((initial, exptime));
            Operation::Count(Count { direction, delta, initial, cas: version(cas), exptime: None })
        }
        _ => Operation::Get,
    })
}
