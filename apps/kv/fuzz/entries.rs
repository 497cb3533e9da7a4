//! What the fuzz targets do with their bytes. The property tests of the crate run the same.

use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{
    Config, KeyHasher, Response, Server, Session, SessionLimits, Shard, ShardId, Ticket, UnixTime,
};

const NOW: UnixTime = UnixTime(1_800_000_000);
const MAX_VALUE_LEN: usize = 4_000;
const MAX_IN_FLIGHT: usize = 8;
const MAX_OUTPUT_BYTES: usize = 10_000;
const MEMORY_BYTES: usize = 200_000;

/// The longest answer to one request: a value with its head, or a list of statistics.
const LONGEST_ANSWER: usize = 8_000;

struct Machine {
    shards: Vec<Shard>,
    session: Session,
    /// The shard on the session's core, where there is one.
    own_shard: Option<usize>,
    /// Responses on their way back.
    under_way: Vec<(Ticket, Response)>,
}

impl Machine {
    fn new(own_shard: Option<usize>) -> Self {
        let limits = SessionLimits { max_in_flight: MAX_IN_FLIGHT, max_output_bytes: MAX_OUTPUT_BYTES };
        let config = Config::new(MEMORY_BYTES, 3)
            .and_then(|config| config.with_max_value_len(MAX_VALUE_LEN))
            .and_then(|config| config.with_session_limits(limits))
            .expect("the limits are sensible");
        let shards = (0..3).map(|id| Shard::new(ShardId(id), &config)).collect();
        let hasher = KeyHasher::new(3);
        let server = Server { config, hasher, pid: 1, port: 1, max_connections: 1, started: NOW };
        Self { shards, session: Session::new(Arc::new(server)), own_shard, under_way: Vec::new() }
    }

    /// Lets `bytes` arrive in a frame that is `slack` bytes longer.
    fn receive(&mut self, bytes: &[u8], slack: usize) {
        let mut frame = bytes.to_vec();
        frame.resize(bytes.len() + slack, 0);
        let mut frame = IoBuf::from(frame);
        frame.truncate(bytes.len());
        self.session.receive(Chain::from(frame));
    }

    /// Lets the shards do what there is to do: each works in order. The session's own shard answers at once.
    fn start_work(&mut self) {
        loop {
            let work = match self.own_shard {
                Some(shard) => self.session.serve(&mut self.shards[shard], NOW),
                None => self.session.next_work(),
            };
            let Some(work) = work else { return };
            let response = self.shards[usize::from(work.shard.0)].execute(NOW, work.request);
            self.under_way.push((work.ticket, response));
        }
    }

    /// Lets one of the responses arrive: they come in any order.
    fn finish(&mut self, choice: usize) {
        if self.under_way.is_empty() {
            return;
        }
        let (ticket, response) = self.under_way.swap_remove(choice % self.under_way.len());
        self.session.complete(ticket, response);
        self.start_work();
    }

    fn check(&self, unread_input: usize) {
        assert!(self.session.in_flight() <= MAX_IN_FLIGHT);
        assert!(self.session.output_len() <= MAX_OUTPUT_BYTES + (MAX_IN_FLIGHT + 1) * LONGEST_ANSWER);
        let held = self.session.held_bytes() - self.session.output_len();
        assert!(held <= 3 * unread_input + (64 << 10), "{held} bytes are held for {unread_input}");
        assert!(self.shards.iter().all(|shard| shard.bytes() <= MEMORY_BYTES / 3));
    }

    /// Finishes and reads everything.
    fn drain(&mut self) -> Vec<u8> {
        let mut answer = Vec::new();
        loop {
            self.start_work();
            while !self.under_way.is_empty() {
                self.finish(0);
            }
            let output = self.session.take_output(usize::MAX);
            if output.is_empty() {
                return answer;
            }
            answer.extend(output.to_vec());
        }
    }
}

/// One connection's bytes as they are: all at once, and in small pieces with a shard on the session's core. The
/// answer is the same.
pub fn stream(data: &[u8]) {
    let mut whole = Machine::new(None);
    whole.receive(data, 0);
    whole.start_work();
    whole.check(data.len());
    let expected = whole.drain();
    whole.check(data.len());

    let mut pieces = Machine::new(Some(1));
    let mut answer = Vec::new();
    // Byte for byte, where that does not take forever.
    for piece in data.chunks(1 + data.len() / 1_000) {
        pieces.receive(piece, 100);
        answer.extend(pieces.drain());
        pieces.check(data.len());
    }
    assert!(answer == expected, "{} and {}", lossy(&answer), lossy(&expected));
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Text commands out of a small vocabulary: each byte of `data` is a word.
pub fn text(data: &[u8]) {
    stream(&words(data, TEXT_WORDS));
}

/// Binary requests out of bytes that take turns as fields.
pub fn binary(data: &[u8]) {
    let mut bytes = Vec::new();
    for request in data.chunks(8) {
        let field = |index: usize| request.get(index).copied().unwrap_or(0);
        let (key_len, value_len) = (field(1) % 4, usize::from(field(2)) * 20);
        let extras_len = match field(3) % 6 {
            0 => [0, 8, 8, 8, 0, 20, 20, 0][usize::from(field(0) % 8)],
            length => [0, 4, 8, 20, field(4)][usize::from(length) - 1],
        };
        let body_len = u32::from(key_len) + u32::from(extras_len) + value_len as u32;
        bytes.extend([
            if field(5) == 1 { 0x81 } else { 0x80 },
            field(0) % 0x28,
            0,
            key_len,
            extras_len,
            0,
            0,
            0,
        ]);
        bytes.extend((body_len + u32::from(field(6) == 1)).to_be_bytes());
        bytes.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, field(7) % 4]);
        bytes.extend(std::iter::repeat_n(field(4) % 3, extras_len.into()));
        bytes.extend([b'a', b'b', b'c'].iter().cycle().take(key_len.into()));
        bytes.extend(std::iter::repeat_n(b'1', value_len));
    }
    stream(&bytes);
}

/// Arrivals, completions in any order, a client that reads now and then, and an end at any time.
pub fn session(data: &[u8]) {
    let mut machine = Machine::new(data.first().map(|step| usize::from(step % 3)));
    let mut sent = 0;
    let mut steps = data.iter().copied();
    while let Some(step) = steps.next() {
        match step % 8 {
            0..=2 if machine.session.wants_input() => {
                let len = usize::from(steps.next().unwrap_or(0));
                let bytes = words(&steps.by_ref().take(len).collect::<Vec<u8>>(), TEXT_WORDS);
                machine.receive(&bytes, usize::from(step) * 8);
                sent += bytes.len();
                machine.start_work();
            }
            3 | 4 => machine.finish(usize::from(steps.next().unwrap_or(0))),
            5 => {
                let limit = usize::from(step) * 4;
                assert!(machine.session.take_output(limit).len() <= limit);
                machine.start_work();
            }
            6 if step > 250 => machine.session.end_of_input(),
            _ => {}
        }
        machine.check(sent);
    }
    machine.session.end_of_input();
    machine.drain();
    assert!(machine.session.is_finished(), "an ended connection with nothing under way is finished");
}

/// Whole commands, and pieces that make bad ones.
#[rustfmt::skip]
const TEXT_WORDS: &[&str] = &[
    "set a 0 0 10\r\n1234567890\r\n", "set b 5 10 3\r\nxyz\r\n", "set c 1 0 3000\r\n", "VALUE", "\r\n",
    "add a 0 0 1\r\n1\r\n", "replace b 0 0 2\r\n22\r\n", "append a 0 0 1\r\n5\r\n", "prepend b 0 0 1\r\n7\r\n",
    "get a b c d\r\n", "gets a\r\n", "gat 5 a b\r\n", "gats 0 c\r\n", "cas a 0 0 1 1\r\n9\r\n", "delete a\r\n",
    "incr a 5\r\n", "decr b 5\r\n", "touch a -1\r\n", "flush_all\r\n", "stats\r\n", "stats items\r\n", "version\r\n",
    "set a 0 0 1 noreply\r\n1\r\n", "delete b noreply\r\n", "set a 0 0 4001\r\n", "set a 0 0 4000\r\n", "get ",
    "set ", "a ", "b ", "0 ", "-1 ", "99999999999999999999 ", "\n", "\r", " ", "x", "noreply", "LONG", "quit",
    "\u{80}", "set d 0 0 2\r\n", "gat 0 ", "get a\r\n", "incr ", "delete ", "stats ",
];

/// A text of one word for each byte. Two words stand for many bytes.
fn words(data: &[u8], vocabulary: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in data {
        // The first words, whole commands, come more often.
        let byte = if *byte >= 128 { byte % 32 } else { *byte };
        match vocabulary[usize::from(byte) % vocabulary.len()] {
            "LONG" => out.extend([b'k'; 249]),
            "VALUE" => out.extend([b'v'; 3_000]),
            word => out.extend(word.bytes()),
        }
    }
    out
}
