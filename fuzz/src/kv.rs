//! The memcached protocols of `kv`. The property tests of that crate run the same targets.

use std::sync::Arc;

use isola_iobuf::{Chain, IoBuf};
use isola_kv::{Config, KeyHasher, ServeOutcome, Server, Session, SessionLimits, ShardId, UnixTime};

const NOW: UnixTime = UnixTime(1_800_000_000);
const MAX_VALUE_LEN: usize = 4_000;
const MAX_OUTPUT_BYTES: usize = 10_000;
const MEMORY_BYTES: usize = 200_000;

/// The maximum length of one answer: a value with its header, or a list of statistics.
const LONGEST_ANSWER: usize = 8_000;

struct Machine {
    server: Arc<Server>,
    session: Session,
    /// A shard that another session has locked.
    taken: Option<ShardId>,
}

impl Machine {
    fn new() -> Self {
        let limits = SessionLimits { max_output_bytes: MAX_OUTPUT_BYTES };
        let config = Config::new(MEMORY_BYTES, 3)
            .and_then(|config| config.with_max_value_len(MAX_VALUE_LEN))
            .and_then(|config| config.with_session_limits(limits))
            .expect("the limits are sensible");
        let server = Arc::new(Server::new(config, KeyHasher::new(3), NOW));
        Self { session: Session::new(server.clone()), server, taken: None }
    }

    /// Delivers `bytes` in a frame with `slack` further bytes of capacity.
    fn receive(&mut self, bytes: &[u8], slack: usize) {
        let mut frame = bytes.to_vec();
        frame.resize(bytes.len() + slack, 0);
        let mut frame = IoBuf::from(frame);
        frame.truncate(bytes.len());
        self.session.receive(Chain::from(frame));
    }

    /// Serves all requests that can be served.
    fn work(&mut self) {
        let taken = self.taken.map(|id| self.server.shards.lock(id).expect("nobody else is there"));
        let served = self.session.serve(NOW);
        assert!(served == ServeOutcome::All || taken.is_some());
    }

    fn check(&self, unread_input: usize) {
        assert!(self.session.output_len() <= MAX_OUTPUT_BYTES + LONGEST_ANSWER);
        let held = self.session.held_bytes() - self.session.output_len();
        assert!(held <= 3 * unread_input + (64 << 10), "{held} bytes are held for {unread_input}");
        for id in self.server.shards.ids() {
            assert!(self.server.shards.lock(id).expect("nobody is there").bytes() <= MEMORY_BYTES / 3);
        }
    }

    /// Unlocks all shards, serves all requests and reads all output.
    fn drain(&mut self) -> Vec<u8> {
        self.taken = None;
        let mut answer = Vec::new();
        loop {
            self.work();
            let output = self.session.take_output(usize::MAX);
            if output.is_empty() {
                return answer;
            }
            answer.extend(output.to_vec());
        }
    }
}

/// Delivers the input as one connection's bytes: all at once, and in small pieces with shards locked at times. Both
/// answers must be the same.
pub fn stream(data: &[u8]) {
    let mut whole = Machine::new();
    whole.receive(data, 0);
    whole.work();
    whole.check(data.len());
    let expected = whole.drain();
    whole.check(data.len());

    let mut pieces = Machine::new();
    let mut answer = Vec::new();
    // Byte by byte if the input is short, else in at most 1,000 pieces.
    for (number, piece) in data.chunks(1 + data.len() / 1_000).enumerate() {
        pieces.receive(piece, 100);
        pieces.taken = (number % 3 == 1).then_some(ShardId((number % 9 / 3) as u16));
        pieces.work();
        answer.extend(pieces.drain());
        pieces.check(data.len());
    }
    assert!(answer == expected, "{} and {}", lossy(&answer), lossy(&expected));
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Text commands from a small vocabulary: each byte of `data` selects a word.
pub fn text(data: &[u8]) {
    stream(&words(data, TEXT_WORDS));
}

/// Binary requests: the bytes of `data` become the fields in turn.
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

/// A session with arrivals, locked and unlocked shards, a client that reads at times, and an end at any time.
pub fn session(data: &[u8]) {
    let mut machine = Machine::new();
    let mut sent = 0;
    let mut steps = data.iter().copied();
    while let Some(step) = steps.next() {
        match step % 8 {
            0..=2 if machine.session.wants_input() => {
                let len = usize::from(steps.next().unwrap_or(0));
                let bytes = words(&steps.by_ref().take(len).collect::<Vec<u8>>(), TEXT_WORDS);
                machine.receive(&bytes, usize::from(step) * 8);
                sent += bytes.len();
                machine.work();
            }
            3 => machine.taken = Some(ShardId(u16::from(step / 8 % 3))),
            4 => {
                machine.taken = None;
                machine.work();
            }
            5 => {
                let limit = usize::from(step) * 4;
                assert!(machine.session.take_output(limit).len() <= limit);
                machine.work();
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

/// Whole commands, and fragments that form invalid ones.
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

/// Meta commands and lists: whole ones, and fragments.
#[rustfmt::skip]
const META_WORDS: &[&str] = &[
    "mg a v t s f c h l k Oopaque\r\n", "mg a N30 R100 T50 t v u q\r\n", "mg b v\r\n", "mg c v k\r\n", "mn\r\n",
    "ms a 3 c k T90\r\nabc\r\n", "ms b 2 q MA C1 F5\r\n12\r\n", "ms a 1 ME\r\n1\r\n", "ms a 1 I C1 T9\r\nx\r\n",
    "ms c 3000 c Ox\r\n", "ms c 4001 q\r\n", "ms YQ== 1 b k c\r\n7\r\n", "ms Y 1 b\r\n7\r\n", "ms a 1 Mx\r\n7\r\n",
    "md a\r\n", "md a I T30 q\r\n", "md b C1 k\r\n", "ma a\r\n", "ma a N0 J13 v t c k q\r\n", "ma b MD D9 T5 v\r\n",
    "me a\r\n", "me YQ== b\r\n", "mg YQ== b k v\r\n", "stats detail on\r\n", "stats detail dump\r\n", "set p:q 0 0 1\r\n1\r\n",
    "stats cachedump 1 3\r\n", "GET / HTTP/1.1\r\n", "mg ", "ms ", "ms a 5 ", "ma a ", "md a ", "me ",
    "b ", "v ", "q ", "k ", "O", "T", "N30 ", "C1 ", "C0 ", "I ", "M", "D", "J", "F", "R9 ", "= ", "AAAA",
];

/// Returns a text with one word for each byte. Two of the words expand to a long key and a long value.
fn words(data: &[u8], vocabulary: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for byte in data {
        let word = match usize::from(*byte) {
            number @ 192.. => META_WORDS[(number - 192) % META_WORDS.len()],
            // The first 32 words, mostly whole commands, are more frequent.
            number @ 128.. => vocabulary[number % 32],
            number => vocabulary[number % vocabulary.len()],
        };
        match word {
            "LONG" => out.extend([b'k'; 249]),
            "VALUE" => out.extend([b'v'; 3_000]),
            word => out.extend(word.bytes()),
        }
    }
    out
}
