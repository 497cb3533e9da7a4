//! The parser of one command line.

use alloc::boxed::Box;

use isola_iobuf::IoBuf;
use memchr::memchr;

use crate::key::{Key, MAX_KEY_LEN};
use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::protocol::{Action, Parsed, Reply};
use crate::request::{Broadcast, Count, Direction, OlderVersion, Operation, StoreMode};
use crate::server::Server;
use crate::time::Exptime;

use super::meta::MetaReply;
use super::reply::{Casness, KeyPosition, TextReply};
use super::{meta, stats};

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const SLABS_DISABLED: &[u8] = b"CLIENT_ERROR slab reassignment disabled\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";

/// The longest value that a command may announce, such that its length including the line end fits in 31 bits.
const LONGEST_ANNOUNCED_VALUE: u64 = i32::MAX as u64 - 2;

/// Parses the length of the value that a command announces.
pub(super) fn parse_value_len(word: &[u8]) -> Option<usize> {
    parse_u64(word).filter(|&len| len <= LONGEST_ANNOUNCED_VALUE).map(|len| len as usize)
}

/// A parsed line.
pub(super) enum Line {
    /// A complete request.
    Whole(Parsed),
    /// A read of several keys, which begin at this offset of the line.
    Keys(KeyRun, usize),
    /// A store whose value follows the line.
    Store(PendingStore),
    /// An invalid store whose value of this length follows the line nevertheless.
    BadStore { len: usize, error: &'static [u8] },
}

/// The operation on each key of a line.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyRun {
    pub exptime: Option<Exptime>,
    pub casness: Casness,
}

impl KeyRun {
    /// Returns the request for one of the keys.
    pub fn request(self, key: Key, position: KeyPosition) -> Parsed {
        let operation = self.exptime.map_or(Operation::Get, Operation::GetAndTouch);
        let reply = Reply::Text(TextReply::Value { casness: self.casness, position });
        Parsed { action: Action::Run(key, operation), reply }
    }
}

/// A store that waits for its value.
#[derive(Debug)]
pub(super) struct PendingStore {
    pub key: Key,
    pub mode: StoreMode,
    pub flags: u32,
    pub exptime: Exptime,
    pub cas: Option<u64>,
    pub older: OlderVersion,
    pub len: usize,
    pub noreply: Noreply,
    /// The reply of a meta command.
    pub meta: Option<Box<MetaReply>>,
}

impl PendingStore {
    /// Returns the form of the reply.
    pub fn reply(&mut self) -> Reply {
        match self.meta.take() {
            Some(meta) => Reply::Text(TextReply::Meta(meta)),
            None => self.noreply.reply(TextReply::Status),
        }
    }
}

/// Whether the client wants no answer, not even to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noreply {
    Yes,
    No,
}

impl Noreply {
    fn of(word: Option<&Word<'_>>) -> Self {
        if word.is_some_and(|word| word.text == b"noreply") { Self::Yes } else { Self::No }
    }

    pub fn reply(self, reply: TextReply) -> Reply {
        Reply::Text(if self == Self::Yes { TextReply::Silent } else { reply })
    }
}

/// Returns a request whose answer is constant.
pub(super) fn literal(bytes: &'static [u8], noreply: Noreply) -> Parsed {
    Parsed { action: Action::Answer, reply: noreply.reply(TextReply::Literal(bytes)) }
}

/// A word and its offset in the line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Word<'a> {
    pub text: &'a [u8],
    pub start: usize,
}

/// An iterator over the words of a line, which spaces separate.
#[derive(Clone)]
pub(super) struct Words<'a> {
    pub line: &'a [u8],
    pub at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let start = self.at + self.line.get(self.at..)?.iter().position(|&byte| byte != b' ')?;
        let rest = self.line.get(start..)?;
        let text = rest.get(..memchr(b' ', rest).unwrap_or(rest.len()))?;
        self.at = start + text.len();
        Some(Word { text, start })
    }
}

/// The largest number of words of any command that is not a read.
const MOST_WORDS: usize = 7;

/// The words that follow a command's name.
pub(super) struct Arguments<'a> {
    words: [Word<'a>; MOST_WORDS],
    pub count: usize,
}

impl<'a> Arguments<'a> {
    /// Collects the words. The count ends at `MOST_WORDS` + 1.
    fn of(words: Words<'a>) -> Self {
        let mut arguments = Self { words: [Word::default(); MOST_WORDS], count: 0 };
        for word in words.take(MOST_WORDS + 1) {
            if let Some(slot) = arguments.words.get_mut(arguments.count) {
                *slot = word;
            }
            arguments.count += 1;
        }
        arguments
    }

    pub fn get(&self, index: usize) -> &'a [u8] {
        self.words.get(index).map_or(&[], |word| word.text)
    }

    fn last(&self) -> Option<&Word<'a>> {
        self.words.get(self.count.checked_sub(1)?)
    }
}

/// The view that contains a line, and the server.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub view: &'a IoBuf,
    pub server: &'a Server,
}

impl Source<'_> {
    pub fn key(&self, word: &Word<'_>) -> Option<Key> {
        if word.text.len() > MAX_KEY_LEN {
            return None;
        }
        Key::new(self.view.slice(word.start..word.start + word.text.len())?, &self.server.hasher)
    }
}

/// Parses the line in the first `len` bytes of `view`, which exclude the line end.
pub(super) fn read_line(view: &IoBuf, len: usize, server: &Server) -> Line {
    let line = view.get(..len).unwrap_or(view);
    let mut words = Words { line, at: 0 };
    let Some(name) = words.next() else { return Line::Whole(literal(ERROR, Noreply::No)) };
    let source = Source { view, server };
    match name.text {
        b"get" => read_keys(source, words, None, Casness::Without),
        b"gets" => read_keys(source, words, None, Casness::With),
        b"gat" => read_and_touch(source, words, Casness::Without),
        b"gats" => read_and_touch(source, words, Casness::With),
        b"set" => store(source, words, StoreMode::Set),
        b"add" => store(source, words, StoreMode::Add),
        b"replace" => store(source, words, StoreMode::Replace),
        b"append" => store(source, words, StoreMode::Append),
        b"prepend" => store(source, words, StoreMode::Prepend),
        b"cas" => compare_and_store(source, words),
        [b'm', _] => {
            meta::read_line(name.text, source, words).unwrap_or(Line::Whole(literal(ERROR, Noreply::No)))
        }
        name => Line::Whole(match name {
            b"delete" => delete(source, &Arguments::of(words)),
            b"incr" => count(source, &Arguments::of(words), Direction::Up),
            b"decr" => count(source, &Arguments::of(words), Direction::Down),
            b"touch" => touch(source, &Arguments::of(words)),
            b"flush_all" => flush_all(&Arguments::of(words)),
            b"stats" => stats::read_line(&Arguments::of(words)),
            b"slabs" => slabs(&Arguments::of(words)),
            b"verbosity" => verbosity(&Arguments::of(words)),
            b"version" => Parsed { action: Action::Answer, reply: Reply::Text(TextReply::Version) },
            b"quit" => Parsed { action: Action::Close, reply: Reply::Text(TextReply::Silent) },
            b"shutdown" => literal(b"ERROR: shutdown not enabled\r\n", Noreply::No),
            _ if is_http(line) => Parsed { action: Action::Close, reply: Reply::Text(TextReply::Silent) },
            _ => literal(ERROR, Noreply::No),
        }),
    }
}

/// Returns whether a line begins an HTTP request. A web page can make a browser send one to any server, with commands
/// in the lines that follow. As in memcached, the connection therefore ends without an answer before those lines are
/// parsed.
fn is_http(line: &[u8]) -> bool {
    let end = line.iter().rposition(|&byte| byte != b' ').map_or(0, |last| last + 1);
    let line = line.get(..end).unwrap_or(line);
    let last = line.rsplit(|&byte| byte == b' ').next().unwrap_or(line);
    last.starts_with(b"HTTP/")
}

/// Parses the head of a read whose line is too long to be parsed as a whole, and returns the offset of its first key.
pub(super) fn read_long_head(head: &[u8]) -> Option<(KeyRun, usize)> {
    let mut words = Words { line: head, at: 0 };
    let name = words.next()?.text;
    let (exptime, casness) = match name {
        b"get" => (None, Casness::Without),
        b"gets" => (None, Casness::With),
        b"gat" | b"gats" => {
            let exptime = parse_i64(words.next()?.text).map(Exptime)?;
            (Some(exptime), if name == b"gats" { Casness::With } else { Casness::Without })
        }
        _ => return None,
    };
    // The name or the time may continue after the head.
    (head.get(words.at) == Some(&b' ')).then_some((KeyRun { exptime, casness }, words.at))
}

fn read_keys(source: Source<'_>, mut words: Words<'_>, exptime: Option<Exptime>, casness: Casness) -> Line {
    let run = KeyRun { exptime, casness };
    let Some(first) = words.next() else {
        return Line::Whole(literal(if exptime.is_some() { super::reply::END } else { ERROR }, Noreply::No));
    };
    let Some(key) = source.key(&first) else { return Line::Whole(literal(BAD_FORMAT, Noreply::No)) };
    match words.next() {
        None => Line::Whole(run.request(key, KeyPosition::Last)),
        // A line with an invalid key gets one answer for the whole line.
        Some(word) if core::iter::once(word).chain(words).any(|word| word.text.len() > MAX_KEY_LEN) => {
            Line::Whole(literal(BAD_FORMAT, Noreply::No))
        }
        Some(_) => Line::Keys(run, first.start),
    }
}

fn read_and_touch(source: Source<'_>, mut words: Words<'_>, casness: Casness) -> Line {
    let Some(word) = words.next() else { return Line::Whole(literal(ERROR, Noreply::No)) };
    match parse_i64(word.text) {
        Some(seconds) => read_keys(source, words, Some(Exptime(seconds)), casness),
        None => Line::Whole(literal(BAD_EXPTIME, Noreply::No)),
    }
}

fn store(source: Source<'_>, words: Words<'_>, mode: StoreMode) -> Line {
    let arguments = Arguments::of(words);
    match arguments.count {
        4 | 5 => pending_store(source, &arguments, mode, None),
        _ => Line::Whole(literal(ERROR, Noreply::No)),
    }
}

fn compare_and_store(source: Source<'_>, words: Words<'_>) -> Line {
    let arguments = Arguments::of(words);
    match (arguments.count, parse_u64(arguments.get(4))) {
        (5 | 6, Some(cas)) => pending_store(source, &arguments, StoreMode::Set, Some(cas)),
        (5 | 6, None) => Line::Whole(literal(BAD_FORMAT, Noreply::of(arguments.last()))),
        _ => Line::Whole(literal(ERROR, Noreply::No)),
    }
}

fn pending_store(source: Source<'_>, arguments: &Arguments<'_>, mode: StoreMode, cas: Option<u64>) -> Line {
    let noreply = Noreply::of(arguments.last());
    let store = || {
        Some(PendingStore {
            key: source.key(arguments.words.first()?)?,
            mode,
            flags: parse_u32(arguments.get(1))?,
            exptime: parse_i64(arguments.get(2)).map(Exptime)?,
            cas,
            older: OlderVersion::Refused,
            len: parse_value_len(arguments.get(3))?,
            noreply,
            meta: None,
        })
    };
    store().map_or_else(|| Line::Whole(literal(BAD_FORMAT, noreply)), Line::Store)
}

fn delete(source: Source<'_>, arguments: &Arguments<'_>) -> Parsed {
    let noreply = Noreply::of(arguments.last());
    // Old clients send a time of 0.
    let is_valid = match arguments.count {
        1 => true,
        2 => arguments.get(1) == b"0" || arguments.get(1) == b"noreply",
        3 => arguments.get(1) == b"0" && noreply == Noreply::Yes,
        _ => return literal(ERROR, Noreply::No),
    };
    let noreply = if arguments.count == 1 { Noreply::No } else { noreply };
    if !is_valid {
        return literal(BAD_DELETE, noreply);
    }
    run(source, arguments, noreply, Operation::Delete { cas: None })
}

fn count(source: Source<'_>, arguments: &Arguments<'_>, direction: Direction) -> Parsed {
    let (2 | 3) = arguments.count else { return literal(ERROR, Noreply::No) };
    let noreply = Noreply::of(arguments.last());
    match parse_u64(arguments.get(1)) {
        Some(delta) => {
            let count = Count { direction, delta, initial: None, cas: None, exptime: None };
            run(source, arguments, noreply, Operation::Count(count))
        }
        None if arguments.get(0).len() > MAX_KEY_LEN => literal(BAD_FORMAT, noreply),
        None => literal(BAD_DELTA, noreply),
    }
}

fn touch(source: Source<'_>, arguments: &Arguments<'_>) -> Parsed {
    let (2 | 3) = arguments.count else { return literal(ERROR, Noreply::No) };
    let noreply = Noreply::of(arguments.last());
    match parse_i64(arguments.get(1)) {
        Some(seconds) => run(source, arguments, noreply, Operation::Touch(Exptime(seconds))),
        None if arguments.get(0).len() > MAX_KEY_LEN => literal(BAD_FORMAT, noreply),
        None => literal(BAD_EXPTIME, noreply),
    }
}

/// Returns the request of an operation on the key that is the first argument.
fn run(source: Source<'_>, arguments: &Arguments<'_>, noreply: Noreply, operation: Operation) -> Parsed {
    match arguments.words.first().and_then(|word| source.key(word)) {
        Some(key) => Parsed { action: Action::Run(key, operation), reply: noreply.reply(TextReply::Status) },
        None => literal(BAD_FORMAT, noreply),
    }
}

fn flush_all(arguments: &Arguments<'_>) -> Parsed {
    let noreply = Noreply::of(arguments.last());
    let exptime = match (arguments.count, noreply) {
        (0, _) | (1, Noreply::Yes) => Some(0),
        (1 | 2, _) => parse_i64(arguments.get(0)),
        _ => return literal(ERROR, Noreply::No),
    };
    match exptime {
        Some(seconds) => Parsed {
            action: Action::All(Broadcast::Flush(Exptime(seconds))),
            reply: noreply.reply(TextReply::Status),
        },
        None => literal(BAD_EXPTIME, noreply),
    }
}

/// Checks the arguments of `slabs` and rejects it: memory is not divided into slabs by size, so no slab can move.
fn slabs(arguments: &Arguments<'_>) -> Parsed {
    let (name, number) = (arguments.get(0), |index| parse_u32(arguments.get(index)).is_some());
    let is_valid = match (name, arguments.count) {
        (b"automove", 2) => number(1),
        (b"reassign", 3) => number(1) && number(2),
        _ => return literal(ERROR, Noreply::No),
    };
    let error = if is_valid { SLABS_DISABLED } else { BAD_FORMAT };
    literal(error, Noreply::No)
}

/// Checks the arguments of `verbosity`. It has no other effect, because this server writes no log.
fn verbosity(arguments: &Arguments<'_>) -> Parsed {
    let noreply = Noreply::of(arguments.last());
    match arguments.count {
        1 | 2 if parse_u32(arguments.get(0)).is_some() => literal(b"OK\r\n", noreply),
        1 | 2 => literal(BAD_FORMAT, noreply),
        _ => literal(ERROR, Noreply::No),
    }
}
