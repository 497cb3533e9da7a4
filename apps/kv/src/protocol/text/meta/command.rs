//! The parser of one line of a meta command.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use isola_iobuf::IoBuf;

use crate::key::{Key, MAX_KEY_LEN};
use crate::protocol::{Action, Parsed, Reply};
use crate::request::{Bump, Count, Direction, MetaGet, OlderVersion, Operation, StoreMode};
use crate::time::Exptime;
use alloc::boxed::Box;

use super::super::command::{
    BAD_FORMAT, ERROR, Line, Noreply, PendingStore, Source, Word, Words, literal, parse_value_len,
};
use super::super::reply::TextReply;
use super::flags::Flags;
use super::reply::{Form, MetaReply};

const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
const BAD_STORE_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
const BAD_COUNT_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";

/// Parses the line of the command `name` with the other words `words`. Returns `None` if there is no such command.
pub(in super::super) fn read_line(name: &[u8], source: Source<'_>, words: Words<'_>) -> Option<Line> {
    let answered = |parsed: Result<Parsed, &'static [u8]>| {
        Line::Whole(parsed.unwrap_or_else(|error| literal(error, Noreply::No)))
    };
    Some(match name {
        b"mg" => answered(get(source, words)),
        b"ms" => store(source, words),
        b"md" => answered(delete(source, words)),
        b"ma" => answered(count(source, words)),
        b"me" => answered(inspect(source, words)),
        b"mn" => Line::Whole(literal(b"MN\r\n", Noreply::No)),
        _ => return None,
    })
}

/// The key, the flags, and the parts of both that the answer repeats.
struct Subject {
    key: Key,
    flags: Flags,
    reply: MetaReply,
}

impl Subject {
    /// Parses the flags `words` of a command with the key `word`.
    fn of(form: Form, source: Source<'_>, word: Word<'_>, words: Words<'_>) -> Result<Self, &'static [u8]> {
        let flags = Flags::of(words.clone()).map_err(|error| error.text())?;
        let key = match flags.is_base64 {
            true => decode(source, &word).ok_or(BAD_KEY)?,
            false => source.key(&word).ok_or(BAD_FORMAT)?,
        };
        let view = |start, end| source.view.slice(start..end).unwrap_or_else(|| IoBuf::from_static(b""));
        let reply = MetaReply {
            form,
            is_quiet: flags.is_quiet,
            is_base64: flags.is_base64,
            key: view(word.start, word.start + word.text.len()),
            flags: view(words.at, words.line.len()),
        };
        Ok(Self { key, flags, reply })
    }

    fn run(self, operation: Operation) -> Parsed {
        let reply = Reply::Text(TextReply::Meta(Box::new(self.reply)));
        Parsed { action: Action::Run(self.key, operation), reply }
    }
}

/// Decodes a base64 word to a key.
fn decode(source: Source<'_>, word: &Word<'_>) -> Option<Key> {
    if word.text.len() > MAX_KEY_LEN {
        return None;
    }
    // Base64 encodes three bytes as four letters, so the key is shorter than the word.
    let mut room = [0; MAX_KEY_LEN];
    let len = STANDARD.decode_slice(word.text, &mut room).ok()?;
    Key::new(IoBuf::copy_from_slice(room.get(..len)?), &source.server.hasher)
}

fn subject(form: Form, source: Source<'_>, mut words: Words<'_>) -> Result<Subject, &'static [u8]> {
    let without_key = if form == Form::Inspect { BAD_FORMAT } else { ERROR };
    let word = words.next().ok_or(without_key)?;
    Subject::of(form, source, word, words)
}

fn get(source: Source<'_>, words: Words<'_>) -> Result<Parsed, &'static [u8]> {
    let mut subject = subject(Form::Get, source, words)?;
    let Flags { exptime, vivify, recache, is_unnoticed, has_value, .. } = subject.flags;
    if has_value {
        subject.reply.form = Form::GetValue;
    }
    let bump = if is_unnoticed { Bump::Unnoticed } else { Bump::Used };
    Ok(subject.run(Operation::MetaGet(MetaGet { exptime, vivify, recache, bump })))
}

fn store(source: Source<'_>, mut words: Words<'_>) -> Line {
    let Some(word) = words.next() else { return Line::Whole(literal(ERROR, Noreply::No)) };
    let Some(len) = words.next().and_then(|word| parse_value_len(word.text)) else {
        return Line::Whole(literal(BAD_FORMAT, Noreply::No));
    };
    match pending_store(source, word, len, words) {
        Ok(store) => Line::Store(store),
        Err(error) => Line::BadStore { len, error },
    }
}

fn pending_store(
    source: Source<'_>,
    word: Word<'_>,
    len: usize,
    words: Words<'_>,
) -> Result<PendingStore, &'static [u8]> {
    let Subject { key, flags, reply } = Subject::of(Form::Store, source, word, words)?;
    let mode = match flags.mode {
        None | Some(b'S') => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err(BAD_STORE_MODE),
    };
    let compares_order = matches!(mode, StoreMode::Set | StoreMode::Replace);
    let older = match flags.invalidates && compares_order {
        true => OlderVersion::StoredAsStale,
        false => OlderVersion::Refused,
    };
    Ok(PendingStore {
        key,
        mode,
        flags: flags.client_flags,
        exptime: flags.exptime.unwrap_or_default(),
        cas: match mode {
            StoreMode::Set | StoreMode::Replace => flags.cas,
            StoreMode::Append | StoreMode::Prepend => any_version(flags.cas),
            // The item to add has no version yet.
            StoreMode::Add => None,
        },
        older,
        len,
        noreply: Noreply::No,
        meta: Some(Box::new(reply)),
    })
}

/// Returns the version that the item must have, for a command in which 0 means any version, as in memcached.
fn any_version(cas: Option<u64>) -> Option<u64> {
    cas.filter(|&cas| cas != 0)
}

fn delete(source: Source<'_>, words: Words<'_>) -> Result<Parsed, &'static [u8]> {
    let subject = subject(Form::Delete, source, words)?;
    let Flags { cas, exptime, invalidates, .. } = subject.flags;
    Ok(subject.run(match invalidates {
        true => Operation::Invalidate { cas, exptime },
        false => Operation::Delete { cas },
    }))
}

fn count(source: Source<'_>, words: Words<'_>) -> Result<Parsed, &'static [u8]> {
    let mut subject = subject(Form::Count, source, words)?;
    let Flags { mode, delta, initial, vivify, cas, exptime, has_value, .. } = subject.flags;
    let direction = match mode {
        None | Some(b'I' | b'+') => Direction::Up,
        Some(b'D' | b'-') => Direction::Down,
        Some(_) => return Err(BAD_COUNT_MODE),
    };
    if has_value {
        subject.reply.form = Form::CountValue;
    }
    let initial = vivify.map(|exptime: Exptime| (initial, exptime));
    let count = Count { direction, delta: delta.unwrap_or(1), initial, cas: any_version(cas), exptime };
    Ok(subject.run(Operation::Count(count)))
}

/// Parses `me KEY [b]`. The command uses no other flag.
fn inspect(source: Source<'_>, words: Words<'_>) -> Result<Parsed, &'static [u8]> {
    Ok(subject(Form::Inspect, source, words)?.run(Operation::Inspect))
}
