//! Sends the same bytes to this server and to memcached, and compares the answers.
//!
//! The tests leave out intended differences, and behaviour of memcached that depends on chance:
//!
//! - versions and statistics, which describe the server, and remaining times, which change;
//! - intended differences of the meta commands (`protocol::text::meta` in the crate), and `md` and `ma` with invalid
//!   flags, whose answer names the error of the flag here;
//! - values between the largest of memcached (1 MiB with the item's header) and the largest of this server (1 MiB);
//! - numbers beyond 32 bits where memcached takes the lower 32 bits, and, except in the fixed list, numbers above 2^63,
//!   for which it looks for a minus sign beyond the value;
//! - numbers that become shorter, whose padding depends on concurrent readers (the fixed list has some without
//!   readers), and counts on an empty value with another version;
//! - lines of more than 2,048 bytes, whose answers depend on their segmentation.

mod common;

use std::fmt;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use common::Engine;
use common::lines::{FIXED_META, FIXED_TEXT};
use common::packet::{Request, count_extras, store_extras};
use isola_need::{Need, need};
use isola_tests::ports;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// A memcached process with one thread. It ends when this is dropped.
struct Memcached {
    process: Child,
    port: u16,
}

impl Drop for Memcached {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Memcached {
    /// Starts memcached. Returns `None` if the tests that need it are skipped.
    #[track_caller]
    fn start() -> Option<Self> {
        if !need(Need::Memcached) {
            return None;
        }
        let port = ports::free();
        let process = Command::new("memcached")
            .args(["-l", "127.0.0.1", "-t", "1", "-m", "64", "-u", "nobody", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .spawn();
        let server = Self { process: process.expect("memcached can be started"), port };
        for _ in 0..200 {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Some(server);
            }
            thread::sleep(Duration::from_millis(25));
        }
        panic!("memcached does not listen on port {port}");
    }

    /// Returns the answer of a connection to `input` and the end of the stream.
    fn execute(&self, input: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(input).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        // memcached may reset a connection that it closes; the bytes received before count.
        let _ = stream.read_to_end(&mut answer);
        answer
    }
}

/// Creates a server with one shard. The versions of items increase in one sequence for all items of memcached, but in
/// one sequence per shard here.
fn engine() -> Engine {
    Engine::new(1)
}

#[test]
fn memcached_answers_text_commands_identically() {
    let Some(memcached) = Memcached::start() else { return };
    let long = "k".repeat(251);
    let with_long_keys = [
        format!("get {long}"),
        format!("get a {long} b"),
        format!("set {long} 0 0 1\r\nb"),
        format!("delete {long}"),
        format!("incr {long} 1"),
        format!("incr {long} x"),
        format!("touch {long} 0"),
        format!("touch {long} x"),
        format!("gat 0 {long}"),
        format!("set {} 0 0 1\r\nb\r\nget {}", &long[1..], &long[1..]),
        format!("set big 0 0 1\r\n1\r\nset big 0 0 1048577\r\n{}\r\nget big", "v".repeat(1_048_577)),
        format!("set big 0 0 1\r\n1\r\nadd big 0 0 1048577\r\n{}\r\nget big", "v".repeat(1_048_577)),
        format!("set big 0 0 1048577 noreply\r\n{}\r\nget big", "v".repeat(1_048_577)),
        format!("set big 0 0 1000000\r\n{}\r\nget big", "v".repeat(1_000_000)),
    ];
    let mut engine = engine();
    for line in FIXED_TEXT.iter().copied().chain(with_long_keys.iter().map(String::as_str)) {
        let input = format!("{line}\r\n");
        let (theirs, ours) = (memcached.execute(input.as_bytes()), engine.execute(input.as_bytes()));
        let shown: String = line.chars().take(200).collect();
        assert!(theirs == ours, "to {shown:?}: {} but {}", lossy(&theirs), lossy(&ours));
    }
}

#[test]
fn memcached_answers_meta_commands_and_lists_identically() {
    let Some(memcached) = Memcached::start() else { return };
    let (mut engine, mut differences) = (engine(), String::new());
    for line in FIXED_META {
        let input = format!("{line}\r\n");
        let theirs = without_versions(&memcached.execute(input.as_bytes()));
        let ours = without_versions(&engine.execute(input.as_bytes()));
        if theirs != ours {
            differences += &format!("to {line:?}: {} but {}\n", lossy(&theirs), lossy(&ours));
        }
    }
    assert!(differences.is_empty(), "{differences}");
}

/// A request of a generated conversation, with a readable `Debug` format.
#[derive(Clone)]
struct Bytes(Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&lossy(&self.0))
    }
}

fn lossy(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}

/// Generates any bytes except those that begin with white space, which memcached takes for the number 0.
fn random_value(shortest: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), shortest..40)
        .prop_filter("begins with white space", |value| !matches!(value.first(), Some(b' ' | 9..=13)))
}

/// Generates a line of a text conversation with a few keys.
fn text_line() -> impl Strategy<Value = Vec<u8>> {
    let word = |words: &[&'static str]| prop::sample::select(words.to_vec());
    let key = || prop::sample::select(vec!["a", "b", "c", "longer-key"]);
    let exptime = || prop::sample::select(vec!["0", "0", "-1", "1000", "2592001", "x", ""]);
    let value = prop_oneof![
        random_value(0),
        (0u64..3_000).prop_map(|number| number.to_string().into_bytes()),
        (0..1_500usize).prop_map(|len| vec![b'7'; len]),
    ];
    let stores = ["set", "set", "add", "replace", "append", "prepend", "cas"];
    let noreply = || word(&["", "", "", " noreply", " x"]);
    let delta = word(&["0", "1", "999", "9999999999", "-1", "x", ""]);
    let store = (
        word(&stores),
        key(),
        word(&["0", "7", "4294967295", "-1", "x"]),
        exptime(),
        value,
        prop::sample::select(vec![0u64, 1_000_000_000]),
        noreply(),
    )
        .prop_map(|(mode, key, flags, exptime, value, cas, noreply)| {
            let cas = if mode == "cas" { format!(" {cas}") } else { String::new() };
            let head = format!("{mode} {key} {flags} {exptime} {}{cas}{noreply}\r\n", value.len());
            [head.as_bytes(), &value, b"\r\n"].concat()
        });
    let read = (word(&["get", "gets", "gat 0", "gats 100", "gat x"]), proptest::collection::vec(key(), 0..4))
        .prop_map(|(word, keys)| format!("{word} {}\r\n", keys.join(" ")).into_bytes());
    let count = (word(&["incr", "decr"]), key(), delta, noreply()).prop_map(|(word, key, delta, noreply)| {
        let delta = if word == "decr" && delta.parse::<u64>().is_ok() { "0" } else { delta };
        format!("{word} {key} {delta}{noreply}\r\n").into_bytes()
    });
    let touch = (key(), exptime(), noreply())
        .prop_map(|(key, exptime, noreply)| format!("touch {key} {exptime}{noreply}\r\n").into_bytes());
    let delete =
        (key(), noreply()).prop_map(|(key, noreply)| format!("delete {key}{noreply}\r\n").into_bytes());
    let other = word(&["flush_all\r\n", "flush_all noreply\r\n", "verbosity 1\r\n", "\r\n", "bogus\r\n"]);
    let meta_store = (
        key(),
        word(&["", " c", " F7", " q", " k", " Ox"]),
        word(&["", " ME", " MA", " MP", " MR", " MS"]),
        word(&["", "", " C0", " C1000000000", " I C0", " I C1000000000"]),
        random_value(0),
    )
        .prop_map(|(key, asked, mode, cas, value)| {
            [format!("ms {key} {}{asked}{mode}{cas}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat()
        });
    let meta = (
        word(&["mg", "mg", "mg", "md", "ma"]),
        key(),
        proptest::collection::btree_set(
            word(&["v", "s", "c", "f", "h", "k", "Ox", "u", "q", "I", "C0", "N0", "R10"]),
            0..6,
        ),
    )
        // memcached answers a quiet command that creates a number; this server does not.
        .prop_filter("is quiet and creates", |(word, _, flags)| {
            *word != "ma" || !flags.contains("q") || !flags.contains("N0")
        })
        .prop_map(|(word, key, flags)| {
            let flags: String = flags.iter().map(|flag| format!(" {flag}")).collect();
            format!("{word} {key}{flags}\r\n").into_bytes()
        });
    prop_oneof![
        6 => store, 6 => read, 3 => count, 2 => touch, 1 => delete, 3 => meta_store, 8 => meta,
        1 => other.prop_map(|line| line.as_bytes().to_vec()),
    ]
}

/// Generates a binary request with a few keys.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = prop_oneof![0..=0x1eu8, prop::sample::select(vec![0u8, 1, 2, 3, 5, 9, 0x0e, 0x23, 0x24])];
    let key = prop::sample::select(vec![&b"a"[..], b"b", b"\r\n c", b"longer-key"]);
    let number = (0u64..3_000).prop_map(|number| number.to_string().into_bytes());
    let value = prop_oneof![random_value(1), number, Just(vec![b'7'; 2_000])];
    let exptime = prop::sample::select(vec![0u32, 0, 1_000, u32::MAX]);
    (opcode, key, value, exptime, prop_oneof![4 => Just(0u64), 1 => Just(1_000_000_000u64)], any::<u32>())
        .prop_filter("ends the connection, or is left out", |(opcode, ..)| {
            !matches!(opcode, 0x07 | 0x10 | 0x17 | 0x1b | 0x0b)
        })
        .prop_map(|(opcode, key, value, exptime, cas, flags)| {
            let (extras, key, value) = match opcode {
                0x01..=0x03 | 0x11..=0x13 => (store_extras(flags, exptime), key, value),
                0x05 | 0x15 => (count_extras(flags.into(), 5, exptime), key, vec![]),
                0x06 | 0x16 => (count_extras(0, 5, exptime), key, vec![]),
                0x0e | 0x0f | 0x19 | 0x1a => (vec![], key, value),
                0x1c..=0x1e | 0x23 | 0x24 => (1_000u32.to_be_bytes().to_vec(), key, vec![]),
                0x08 | 0x0a | 0x18 => (vec![], &b""[..], vec![]),
                _ => (vec![], key, vec![]),
            };
            Request { opcode, key, extras: &extras, value: &value, cas }.bytes()
        })
}

/// Compares both servers on conversations of such requests.
#[track_caller]
fn compare(request: impl Strategy<Value = Vec<u8>>, flush: &[u8]) {
    let Some(memcached) = Memcached::start() else { return };
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) };
    // The conversations are the same in every run, because a difference by chance in memcached must not fail a build.
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let result = runner.run(&proptest::collection::vec(request.prop_map(Bytes), 1..60), |requests| {
        let mut engine = engine();
        memcached.execute(flush);
        // One request at a time: memcached's effect on an item depends on the answers that it has not sent yet.
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for Bytes(request) in &requests {
            theirs.extend(without_versions(&memcached.execute(request)));
            ours.extend(without_versions(&engine.execute(request)));
        }
        if theirs != ours {
            let same = theirs.iter().zip(&ours).take_while(|(theirs, ours)| theirs == ours).count();
            let shown =
                |answer: &[u8]| lossy(&answer[same.saturating_sub(100)..answer.len().min(same + 300)]);
            let message = format!("from byte {same} on: {} but {}", shown(&theirs), shown(&ours));
            return Err(TestCaseError::fail(message));
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

/// Removes the versions of items from an answer: memcached's count continues from one conversation to the next.
fn without_versions(answer: &[u8]) -> Vec<u8> {
    if answer.first() == Some(&0x81) {
        return common::packet::answers(answer)
            .into_iter()
            .flat_map(|answer| format!("{:?}\n", common::packet::Answer { cas: 0, ..answer }).into_bytes())
            .collect();
    }
    let mut out = Vec::new();
    for line in answer.split_inclusive(|&byte| byte == b'\n') {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        match &words[..] {
            [b"VALUE", key, flags, len, _cas] => {
                out.extend([&b"VALUE"[..], key, flags, len, b"*\r\n"].join(&b' '))
            }
            [b"HD" | b"VA", ..] => {
                let is_version =
                    |word: &&[u8]| word.starts_with(b"c") && word.get(1).is_some_and(u8::is_ascii_digit);
                let shown = words.iter().map(|word| if is_version(word) { b"c*" } else { *word });
                out.extend(shown.collect::<Vec<_>>().join(&b' '));
            }
            _ => out.extend(line),
        }
    }
    out
}

#[test]
fn memcached_answers_generated_text_conversations_identically() {
    compare(text_line(), b"flush_all\r\n");
}

#[test]
fn memcached_answers_generated_binary_conversations_identically() {
    compare(packet(), &Request { opcode: 0x08, ..Default::default() }.bytes());
}
