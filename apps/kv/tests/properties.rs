//! Properties of the whole server: any input, any segmentation and any order, compared with a model.

mod common;
#[path = "../../../fuzz/src/kv.rs"]
mod entries;

use std::collections::BTreeMap;

use common::{Engine, START};
use isola_iobuf::{Chain, IoBuf};
use isola_kv::ServeOutcome;
use proptest::prelude::*;

/// An item of the model.
#[derive(Clone)]
struct Item {
    value: Vec<u8>,
    flags: u32,
    ends: Option<u32>,
}

/// A simple model of memcached without limits.
#[derive(Default)]
struct Model {
    items: BTreeMap<u8, Item>,
    now: u32,
}

#[derive(Clone, Debug)]
enum Step {
    Store { mode: &'static str, key: u8, flags: u32, exptime: i64, value: Vec<u8> },
    Get { keys: Vec<u8> },
    Gat { key: u8, exptime: i64 },
    Touch { key: u8, exptime: i64 },
    Delete { key: u8 },
    Count { word: &'static str, key: u8, delta: u64 },
    Flush,
    Wait { seconds: u32 },
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..20),
        (0u64..2_000).prop_map(|number| number.to_string().into_bytes()),
        proptest::collection::vec(any::<u8>(), 500..2_000),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let mode = prop::sample::select(vec!["set", "set", "add", "replace", "append", "prepend"]);
    let exptime = prop_oneof![Just(0i64), -1..5i64];
    let count = prop::sample::select(vec!["incr", "decr"]);
    let key = 0..6u8;
    prop_oneof![
        6 => (mode, key.clone(), any::<u32>(), exptime.clone(), value())
            .prop_map(|(mode, key, flags, exptime, value)| Step::Store { mode, key, flags, exptime, value }),
        6 => proptest::collection::vec(key.clone(), 1..5).prop_map(|keys| Step::Get { keys }),
        1 => (key.clone(), exptime.clone()).prop_map(|(key, exptime)| Step::Gat { key, exptime }),
        1 => (key.clone(), exptime).prop_map(|(key, exptime)| Step::Touch { key, exptime }),
        1 => key.clone().prop_map(|key| Step::Delete { key }),
        3 => (count, key, prop_oneof![0..300u64, Just(u64::MAX)])
            .prop_map(|(word, key, delta)| Step::Count { word, key, delta }),
        1 => Just(Step::Flush),
        2 => (1..3u32).prop_map(|seconds| Step::Wait { seconds }),
    ]
}

impl Step {
    /// Returns the step as a client sends it.
    fn text(&self) -> Vec<u8> {
        match self {
            Self::Store { mode, key, flags, exptime, value } => {
                let head = format!("{mode} k{key} {flags} {exptime} {}\r\n", value.len());
                [head.as_bytes(), value, b"\r\n"].concat()
            }
            Self::Get { keys } => {
                let keys: String = keys.iter().map(|key| format!(" k{key}")).collect();
                format!("get{keys}\r\n").into_bytes()
            }
            Self::Gat { key, exptime } => format!("gat {exptime} k{key}\r\n").into_bytes(),
            Self::Touch { key, exptime } => format!("touch k{key} {exptime}\r\n").into_bytes(),
            Self::Delete { key } => format!("delete k{key}\r\n").into_bytes(),
            Self::Count { word, key, delta } => format!("{word} k{key} {delta}\r\n").into_bytes(),
            Self::Flush => b"flush_all\r\n".to_vec(),
            Self::Wait { .. } => Vec::new(),
        }
    }
}

impl Model {
    fn ends(&self, exptime: i64) -> Option<u32> {
        match exptime {
            0 => None,
            seconds if seconds < 0 => Some(0),
            seconds => Some(self.now + seconds as u32),
        }
    }

    fn shown(&self, key: u8) -> Vec<u8> {
        self.items.get(&key).map_or_else(Vec::new, |item| {
            let head = format!("VALUE k{key} {} {}\r\n", item.flags, item.value.len());
            [head.as_bytes(), &item.value, b"\r\n"].concat()
        })
    }

    fn answer(&mut self, step: &Step) -> Vec<u8> {
        let now = self.now;
        self.items.retain(|_, item| item.ends.is_none_or(|ends| ends > now));
        match step {
            Step::Store { mode, key, flags, exptime, value } => {
                let ends = self.ends(*exptime);
                let new = Item { value: value.clone(), flags: *flags, ends };
                let old = self.items.get(key).cloned();
                let item = match (*mode, old) {
                    ("set", _) | ("add", None) | ("replace", Some(_)) => new,
                    ("append", Some(old)) => Item { value: [&old.value[..], value].concat(), ..old },
                    ("prepend", Some(old)) => Item { value: [value, &old.value[..]].concat(), ..old },
                    _ => return b"NOT_STORED\r\n".to_vec(),
                };
                self.items.insert(*key, item);
                b"STORED\r\n".to_vec()
            }
            Step::Get { keys } => {
                let values: Vec<u8> = keys.iter().flat_map(|key| self.shown(*key)).collect();
                [&values[..], b"END\r\n"].concat()
            }
            Step::Gat { key, exptime } => {
                let shown = self.shown(*key);
                self.touch(*key, *exptime);
                [&shown[..], b"END\r\n"].concat()
            }
            Step::Touch { key, exptime } => {
                if self.touch(*key, *exptime) {
                    b"TOUCHED\r\n".to_vec()
                } else {
                    b"NOT_FOUND\r\n".to_vec()
                }
            }
            Step::Delete { key } => match self.items.remove(key) {
                Some(_) => b"DELETED\r\n".to_vec(),
                None => b"NOT_FOUND\r\n".to_vec(),
            },
            Step::Count { word, key, delta } => self.count(word, *key, *delta),
            Step::Flush => {
                self.items.clear();
                b"OK\r\n".to_vec()
            }
            Step::Wait { seconds } => {
                self.now += seconds;
                Vec::new()
            }
        }
    }

    fn touch(&mut self, key: u8, exptime: i64) -> bool {
        let ends = self.ends(exptime);
        self.items.get_mut(&key).map(|item| item.ends = ends).is_some()
    }

    fn count(&mut self, word: &str, key: u8, delta: u64) -> Vec<u8> {
        let Some(item) = self.items.get_mut(&key) else { return b"NOT_FOUND\r\n".to_vec() };
        let text = String::from_utf8_lossy(&item.value).into_owned();
        let is_space = |letter: char| matches!(letter, ' ' | '\t'..='\r');
        let text = text.trim_start_matches(is_space);
        let number =
            text.split(|letter| is_space(letter) || letter == '\0').next().unwrap_or_default().parse::<u64>();
        let Ok(number) = number else {
            return b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n".to_vec();
        };
        let number = if word == "incr" { number.wrapping_add(delta) } else { number.saturating_sub(delta) };
        item.value = format!("{number:<width$}", width = item.value.len()).into_bytes();
        format!("{number}\r\n").into_bytes()
    }
}

/// Splits `bytes` into frames with the given lengths, used cyclically.
fn frames(bytes: &[u8], cuts: &[usize]) -> Vec<IoBuf> {
    let mut rest = bytes;
    let mut frames = Vec::new();
    for cut in cuts.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (frame, behind) = rest.split_at((*cut).clamp(1, rest.len()));
        frames.push(IoBuf::copy_from_slice(frame));
        rest = behind;
    }
    frames
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The server answers any sequence of commands like the model, for every segmentation of the stream, every sequence
    /// of locked shards, and every number of bytes read at a time.
    #[test]
    fn commands_are_answered_as_by_the_model(
        steps in proptest::collection::vec(step(), 1..120),
        cuts in proptest::collection::vec(prop_oneof![1..4usize, 1..200usize, 1000..3000usize], 1..30),
        choices in proptest::collection::vec(any::<usize>(), 1..50),
    ) {
        let mut model = Model { now: START.0, ..Model::default() };
        let mut engine = Engine::new(3);
        let mut session = engine.session();
        let mut choices = choices.iter().cycle();
        for stretch in steps.split_inclusive(|step| matches!(step, Step::Wait { .. })) {
            let input: Vec<u8> = stretch.iter().flat_map(Step::text).collect();
            let expected: Vec<u8> = stretch.iter().flat_map(|step| model.answer(step)).collect();
            let mut answer = Vec::new();
            for frame in frames(&input, &cuts) {
                session.receive(Chain::from(frame));
                let choice = *choices.next().unwrap();
                let taken = (choice % 2 == 0).then(|| engine.shard(choice as u16 % 3));
                let served = session.serve(engine.now);
                prop_assert!(served == ServeOutcome::All || taken.is_some());
                drop(taken);
                answer.extend(session.take_output(choices.next().unwrap() % 5_000).to_vec());
                engine.work(&mut session);
            }
            answer.extend(session.take_output(usize::MAX).to_vec());
            if answer != expected {
                prop_assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(&expected));
            }
            engine.now.0 = model.now;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_bytes_are_handled_without_panic(data in proptest::collection::vec(any::<u8>(), 0..600)) {
        entries::stream(&data);
    }

    #[test]
    fn any_text_is_handled_without_panic(data in proptest::collection::vec(any::<u8>(), 0..60)) {
        entries::text(&data);
    }

    #[test]
    fn any_packets_are_handled_without_panic(data in proptest::collection::vec(any::<u8>(), 0..100)) {
        entries::binary(&data);
    }

    #[test]
    fn any_connection_events_are_handled_without_panic(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        entries::session(&data);
    }
}
