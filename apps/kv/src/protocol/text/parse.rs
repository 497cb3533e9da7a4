//! The parser of text requests, which keeps its state between the pieces of a request.

use isola_iobuf::{Chain, IoBuf};
use memchr::{memchr, memchr2};

use crate::input::contiguous;
use crate::key::{Key, KeyRef, MAX_KEY_LEN};
use crate::protocol::{Action, Parsed, Reply, swallow};
use crate::request::{ExistingItem, Operation, Payload, Store, StoreMode};
use crate::server::Server;

use super::command::{BAD_FORMAT, KeyRun, Line, Noreply, PendingStore, literal, read_line, read_long_head};
use super::reply::{END, KeyPosition, TextReply};

/// The longest line that is parsed as a whole, in bytes without its line end. A longer line must be a read, whose keys
/// are then parsed one by one as they arrive.
const LONGEST_LINE: usize = 2048;

const TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const LINE_END: &[u8] = b"\r\n";

/// The parser of a stream of text requests.
#[derive(Debug, Default)]
pub(crate) struct TextParser {
    state: State,
}

#[derive(Debug, Default)]
enum State {
    /// The next byte begins a line.
    #[default]
    Line,
    /// The next byte is in the list of keys of a read.
    Keys(KeyRun),
    /// The next byte belongs to the value of a store.
    Value(PendingStore),
    /// The next bytes belong to the value of a rejected store.
    Rejected { left: u64 },
    /// The next byte is in the rest of an invalid line.
    BadLine,
}

impl TextParser {
    /// Removes the next request from `input`, or returns `None` if no complete request has arrived.
    pub fn next(&mut self, input: &mut Chain, server: &Server) -> Option<Parsed> {
        loop {
            match &mut self.state {
                State::Line => {
                    if let Some(parsed) = self.line(input, server)? {
                        return Some(parsed);
                    }
                }
                State::Keys(run) => {
                    let run = *run;
                    if let Some(parsed) = self.key(run, input, server)? {
                        return Some(parsed);
                    }
                }
                State::Value(store) if input.len() < store.len + LINE_END.len() => return None,
                State::Value(_) => {
                    let State::Value(store) = core::mem::take(&mut self.state) else { return None };
                    return value(store, input);
                }
                State::Rejected { left } => {
                    *left = swallow(input, *left);
                    if *left > 0 {
                        return None;
                    }
                    self.state = State::Line;
                }
                State::BadLine => {
                    let end = input.cursor().find(b'\n');
                    input.advance(end.map_or(input.len(), |end| end + 1));
                    end?;
                    self.state = State::Line;
                    return Some(literal(BAD_FORMAT, Noreply::No));
                }
            }
        }
    }

    /// Returns the key and the length of the next line if that line is only a `get` of one key and is contiguous. Does
    /// not remove the line from the input. Most requests of most servers are such lines, and this function finds them
    /// in one pass.
    #[inline]
    pub fn single_get<'a>(&self, input: &'a Chain, server: &Server) -> Option<(KeyRef<'a>, usize)> {
        const GET: &[u8] = b"get ";
        let State::Line = self.state else { return None };
        let rest = input.front()?.strip_prefix(GET)?;
        let rest = rest.get(..MAX_KEY_LEN + LINE_END.len()).unwrap_or(rest);
        let end = memchr2(b' ', b'\n', rest)?;
        let word = match rest.split_at_checked(end)? {
            (_, [b' ', ..]) => return None,
            ([word @ .., b'\r'], _) | (word, _) => word,
        };
        Some((KeyRef::new(word, &server.hasher)?, GET.len() + end + 1))
    }

    /// Removes a command line from the input. Returns `None` if it has not arrived, and `Some(None)` if only the state
    /// has changed.
    fn line(&mut self, input: &mut Chain, server: &Server) -> Option<Option<Parsed>> {
        let find = |view: &IoBuf| memchr(b'\n', view.get(..=LONGEST_LINE).unwrap_or(view));
        let mut view = input.front()?;
        let mut end = find(view);
        if end.is_none() && view.len() <= LONGEST_LINE {
            let count = input.len().min(LONGEST_LINE + 1);
            view = contiguous(input, count)?;
            end = find(view);
        }
        let Some(end) = end else {
            return if view.len() > LONGEST_LINE { Some(self.long_line(input)) } else { None };
        };
        let line = view.get(..end)?;
        let len = if line.last() == Some(&b'\r') { end - 1 } else { end };
        let taken = end + 1;
        match read_line(view, len, server) {
            Line::Whole(parsed) => {
                input.advance(taken);
                Some(Some(parsed))
            }
            Line::Keys(run, offset) => {
                input.advance(offset);
                self.state = State::Keys(run);
                Some(None)
            }
            Line::Store(store) => {
                input.advance(taken);
                Some(self.store(store, server))
            }
            Line::BadStore { len, error } => {
                input.advance(taken);
                self.state = State::Rejected { left: len as u64 + LINE_END.len() as u64 };
                Some(Some(literal(error, Noreply::No)))
            }
        }
    }

    /// Handles a line that is longer than [`LONGEST_LINE`].
    fn long_line(&mut self, input: &mut Chain) -> Option<Parsed> {
        match input.front().and_then(|view| read_long_head(view.get(..LONGEST_LINE)?)) {
            Some((run, offset)) => {
                input.advance(offset);
                self.state = State::Keys(run);
                None
            }
            None => {
                let reply = Reply::Text(TextReply::Literal(TOO_LONG));
                Some(Parsed { action: Action::Close, reply })
            }
        }
    }

    /// Changes to the state that waits for the value of a store, or rejects the store at once.
    fn store(&mut self, mut store: PendingStore, server: &Server) -> Option<Parsed> {
        if store.len <= server.config.max_value_len() {
            self.state = State::Value(store);
            return None;
        }
        self.state = State::Rejected { left: store.len as u64 + LINE_END.len() as u64 };
        let reply = store.reply();
        let overwrites = store.mode == StoreMode::Set && store.cas.is_none();
        let stale = if overwrites { ExistingItem::Removed } else { ExistingItem::Kept };
        Some(Parsed { action: Action::Run(store.key, Operation::RejectStore(stale)), reply })
    }

    /// Removes the next key of a read from the input. Returns `None` if it has not arrived, and `Some(None)` if only
    /// the state has changed.
    fn key(&mut self, run: KeyRun, input: &mut Chain, server: &Server) -> Option<Option<Parsed>> {
        while input.front()?.first() == Some(&b' ') {
            input.advance(1);
        }
        // The longest key and the line end after it.
        let longest = MAX_KEY_LEN + LINE_END.len();
        let find = |view: &IoBuf| memchr2(b' ', b'\n', view.get(..longest).unwrap_or(view));
        let mut view = input.front()?;
        let mut end = find(view);
        if end.is_none() && view.len() < longest {
            let count = input.len().min(longest);
            view = contiguous(input, count)?;
            end = find(view);
        }
        let Some(end) = end else {
            if view.len() < longest {
                return None;
            }
            self.state = State::BadLine;
            return Some(None);
        };
        let is_last = view.get(end) == Some(&b'\n');
        let word = view.get(..end)?;
        let len = if is_last && word.last() == Some(&b'\r') { end - 1 } else { end };
        if len == 0 {
            // Only spaces precede the end of the line.
            input.advance(end + 1);
            self.state = State::Line;
            return Some(Some(literal(END, Noreply::No)));
        }
        let Some(key) = Key::new(view.slice(0..len)?, &server.hasher) else {
            self.state = State::BadLine;
            return Some(None);
        };
        input.advance(end + 1);
        if is_last {
            self.state = State::Line;
        }
        Some(Some(run.request(key, if is_last { KeyPosition::Last } else { KeyPosition::Between })))
    }
}

/// Removes the value of a store from `input`, which contains it.
fn value(mut store: PendingStore, input: &mut Chain) -> Option<Parsed> {
    let value = Payload::take(input, store.len)?;
    let mut end = [0; LINE_END.len()];
    input.copy_to_slice(&mut end)?;
    input.advance(end.len());
    if end != LINE_END {
        return Some(literal(BAD_CHUNK, store.noreply));
    }
    let reply = store.reply();
    let PendingStore { key, mode, flags, exptime, cas, older, .. } = store;
    let operation = Operation::Store(Store { mode, flags, exptime, cas, older, value });
    Some(Parsed { action: Action::Run(key, operation), reply })
}
