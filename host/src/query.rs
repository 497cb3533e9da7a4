//! Queries to running cells: the question, and the answer put together. What a cell says is taken for what it is: bounded,
//! and of its own making.

use crate::client::{Client, ClientError};
use isola_abi::query::{Connection, CounterName, Fact, Line, Query, RecordError, Records, Standing};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a cell may take to answer. An emulated one on a loaded host is slow.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long to wait for more of an answer.
const INTERVAL: Duration = Duration::from_millis(2);

/// Most records of an answer.
const MAX_FACTS: usize = 100_000;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// It cannot be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// What it says makes no sense.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// Another command asked it something else meanwhile.
    #[error("another command has asked the cell meanwhile: ask again")]
    Replaced,
}

/// What a cell has answered.
#[derive(Debug, Default)]
pub struct Told {
    /// The counters, over all cores.
    pub counters: Vec<(CounterName, u64)>,
    /// The connections that were told.
    pub connections: Vec<Connection>,
    /// How many connections were meant, those that were not told included.
    pub connections_meant: u64,
    /// Handshakes that lack their last segment.
    pub half_open: u64,
    /// Connections that have ended, and whose last segments may still be on their way.
    pub time_wait: u64,
    /// Whether all has come that was to come.
    pub extent: Extent,
}

/// How much of an answer has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// Nothing: the cell does not answer.
    #[default]
    Nothing,
    /// All but what so many cores should have told.
    Without(u32),
    /// All.
    Whole,
}

/// Asks a running cell for facts, and waits for them, but not for ever.
///
/// # Errors
/// [`QueryError`].
pub fn facts(client: &mut Client, name: &str, query: &Query) -> Result<Told, QueryError> {
    let number = client.query(name, Line::Facts, query)?;
    let (mut records, mut answer) = (Records::default(), Answer::default());
    let end = Instant::now() + PATIENCE;
    loop {
        let piece = client.answers(name, Line::Facts, number, records.end())?;
        match piece.standing {
            Standing::Replaced => return Err(QueryError::Replaced),
            Standing::Answered => {
                records.add(&piece)?;
                while let Some(record) = records.next_record()? {
                    answer.take(Fact::decode(record)?)?;
                }
            }
            Standing::Open => {}
        }
        if answer.is_whole() || Instant::now() >= end {
            return Ok(answer.told());
        }
        if piece.bytes.is_empty() {
            sleep(INTERVAL);
        }
    }
}

/// An answer as far as it has come.
#[derive(Debug, Default)]
struct Answer {
    cores: Option<u32>,
    done: u32,
    names: Vec<CounterName>,
    counts: Vec<u64>,
    connections: Vec<Connection>,
    meant: u64,
    half_open: u64,
    time_wait: u64,
    taken: usize,
}

impl Answer {
    fn take(&mut self, fact: Fact) -> Result<(), RecordError> {
        self.taken += 1;
        if self.taken > MAX_FACTS {
            return Err(RecordError::Malformed);
        }
        match fact {
            Fact::Begin { cores } => self.cores = Some(cores),
            Fact::Names(names) => self.names = names,
            Fact::Counters(counts) => {
                self.counts.resize(self.counts.len().max(counts.len()), 0);
                for (sum, count) in self.counts.iter_mut().zip(counts) {
                    *sum = sum.wrapping_add(count);
                }
            }
            Fact::Connection(connection) => self.connections.push(*connection),
            Fact::Done { core: _, connections, half_open, time_wait } => {
                self.done = self.done.saturating_add(1);
                self.meant = self.meant.saturating_add(connections.into());
                self.half_open = self.half_open.saturating_add(half_open.into());
                self.time_wait = self.time_wait.saturating_add(time_wait.into());
            }
        }
        Ok(())
    }

    fn is_whole(&self) -> bool {
        self.cores.is_some_and(|cores| self.done >= cores)
    }

    fn told(self) -> Told {
        let extent = match self.cores {
            None => Extent::Nothing,
            Some(cores) if self.done < cores => Extent::Without(cores - self.done),
            Some(_) => Extent::Whole,
        };
        let counts = self.counts.into_iter().chain(std::iter::repeat(0));
        Told {
            counters: self.names.into_iter().zip(counts).collect(),
            connections: self.connections,
            connections_meant: self.meant,
            half_open: self.half_open,
            time_wait: self.time_wait,
            extent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> CounterName {
        CounterName { layer: "tcp".into(), name: name.into() }
    }

    fn done(core: u32, connections: u32) -> Fact {
        Fact::Done { core, connections, half_open: 1, time_wait: 2 }
    }

    fn answer(facts: impl IntoIterator<Item = Fact>) -> Answer {
        let mut answer = Answer::default();
        facts.into_iter().for_each(|fact| answer.take(fact).unwrap());
        answer
    }

    #[test]
    fn counters_of_all_cores_are_summed_whatever_lengths_they_claim() {
        let told = answer([
            Fact::Begin { cores: 2 },
            Fact::Names(vec![name("a"), name("b"), name("c")]),
            Fact::Counters(vec![1]),
            done(0, 0),
            Fact::Counters(vec![2, u64::MAX, 0, 7]),
            done(1, 0),
        ]);
        assert!(told.is_whole());
        let told = told.told();
        assert_eq!(told.counters, [(name("a"), 3), (name("b"), u64::MAX), (name("c"), 0)]);
        assert_eq!((told.half_open, told.time_wait), (2, 4));
        assert_eq!(told.extent, Extent::Whole);
    }

    #[test]
    fn what_is_missing_is_said() {
        assert_eq!(answer([]).told().extent, Extent::Nothing);
        let some = answer([Fact::Begin { cores: 3 }, done(2, 0)]);
        assert!(!some.is_whole());
        assert_eq!(some.told().extent, Extent::Without(2));
        assert_eq!(answer([Fact::Begin { cores: 0 }]).told().extent, Extent::Whole);
    }

    #[test]
    fn an_answer_without_end_is_broken_off() {
        let mut answer = answer([]);
        let refused = (0..=MAX_FACTS).map(|_| answer.take(done(0, u32::MAX))).find(Result::is_err);
        assert_eq!(refused, Some(Err(RecordError::Malformed)));
    }
}
