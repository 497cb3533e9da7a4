//! Queries to running cells: sends a question and assembles the answer. The module bounds each answer and does not
//! trust its content.
//!
//! | module | contents |
//! |---|---|
//! | this | one query, and its answer |
//! | `many` | one query to several cells at the same time |
//! | `tree` | the order of activities in a tree |

mod many;
mod tree;

pub use many::{facts_of_many, unless_refused};
pub use tree::in_tree_order;

use crate::client::{Client, ClientError};
use isola_abi::grid::ActivityRule;
use isola_abi::query::{
    ActivityUsage, AnswerRecord, ConnectedMachine, Connection, CounterName, GridClient, GridEntitlement,
    GridSettings, Line, MemoryPart, MemoryUse, ProcessUsage, Query, QueryState, RecordError, Records,
};
use std::thread::sleep;
use std::time::{Duration, Instant};
use thiserror::Error;

/// How long a cell may take to answer. An emulated cell on a loaded host is slow.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// The pause between two polls for more of an answer.
const INTERVAL: Duration = Duration::from_millis(2);

/// The maximum number of records in an answer.
const MAX_FACTS: usize = 100_000;

/// The reasons why a query has no answer.
#[derive(Debug, Error)]
pub enum QueryError {
    /// The supervisor cannot be reached, or rejected the query.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The cell's answer is malformed.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The cell refuses the query.
    #[error("{0}")]
    Refused(String),
    /// Another command sent the cell a query meanwhile.
    #[error("another command has asked the cell meanwhile: ask again")]
    Replaced,
}

/// The assembled answer of a cell.
#[derive(Debug, Default)]
pub struct QueryAnswer {
    /// The counters, summed over all cores.
    pub counters: Vec<(CounterName, u64)>,
    /// The connections that the answer lists.
    pub connections: Vec<Connection>,
    /// The connected machines of the application that the answer lists.
    pub machines: Vec<ConnectedMachine>,
    /// The number of connections that match the query, including those that the answer does not list.
    pub connections_meant: u64,
    /// Handshakes that lack their last segment.
    pub half_open: u64,
    /// Connections that have ended but may still have segments in flight.
    pub time_wait: u64,
    /// The settings of each resource of the grid.
    pub grid_settings: Vec<GridSettings>,
    /// What activities have received of resources, by scheduler.
    pub grid_clients: Vec<GridClient>,
    /// The memory of activities.
    pub memory: Vec<MemoryUse>,
    /// The entitlements that were set.
    pub entitlements: Vec<GridEntitlement>,
    /// The rules that attribute connections, in their order.
    pub rules: Vec<ActivityRule>,
    /// The listed activities, parents before their children.
    pub activities: Vec<ActivityUsage>,
    /// The number of all activities.
    pub activity_count: u64,
    /// The cycles that all activities have used.
    pub activity_cycles: u64,
    /// The port of the session that the query asked for.
    pub session_port: Option<u16>,
    /// The listed processes.
    pub processes: Vec<ProcessUsage>,
    /// The number of all processes; `None` if the query did not ask for them.
    pub process_count: Option<u64>,
    /// The parts of the cell's memory.
    pub memory_parts: Vec<MemoryPart>,
    /// The extent of the answer.
    pub extent: Extent,
}

/// The extent of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    /// None: the cell does not answer.
    #[default]
    Nothing,
    /// Incomplete: this number of cores have not answered.
    Without(u32),
    /// Complete.
    Whole,
}

/// Sends a query for facts to a running cell and returns the answer, complete or as far as it has arrived within 3 s.
///
/// # Errors
/// [`QueryError`].
pub fn facts(client: &mut Client, name: &str, query: &Query) -> Result<QueryAnswer, QueryError> {
    let mut pending = PendingAnswer::send(client, name, query)?;
    let end = Instant::now() + ANSWER_TIMEOUT;
    loop {
        let received = pending.receive(client)?;
        if pending.is_whole() || Instant::now() >= end {
            return pending.finish();
        }
        if received == 0 {
            sleep(INTERVAL);
        }
    }
}

/// A query whose answer has not arrived completely. Several cells can be queried at the same time.
#[derive(Debug)]
pub struct PendingAnswer {
    name: String,
    number: u32,
    records: Records,
    answer: PartialAnswer,
}

impl PendingAnswer {
    /// Sends a query for facts to a running cell.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn send(client: &mut Client, name: &str, query: &Query) -> Result<Self, QueryError> {
        let number = client.query(name, Line::Facts, query)?;
        let (name, records, answer) = (name.to_owned(), Records::default(), PartialAnswer::default());
        Ok(Self { name, number, records, answer })
    }

    /// Receives the next part, without waiting for the cell. Returns the length of the part, in bytes.
    ///
    /// # Errors
    /// [`QueryError`].
    pub fn receive(&mut self, client: &mut Client) -> Result<usize, QueryError> {
        let piece = client.answers(&self.name, Line::Facts, self.number, self.records.end())?;
        match piece.state {
            QueryState::Replaced => return Err(QueryError::Replaced),
            QueryState::Answered => {
                self.records.add(&piece)?;
                while let Some(record) = self.records.next_record()? {
                    self.answer.take(AnswerRecord::decode(record)?)?;
                }
            }
            QueryState::Open => {}
        }
        Ok(piece.bytes.len())
    }

    /// Returns whether all cores have answered.
    pub fn is_whole(&self) -> bool {
        self.answer.is_whole()
    }

    /// Returns the answer as far as it has arrived.
    ///
    /// # Errors
    /// [`QueryError::Refused`].
    pub fn finish(self) -> Result<QueryAnswer, QueryError> {
        self.answer.finish()
    }
}

/// A partly assembled answer.
#[derive(Debug, Default)]
struct PartialAnswer {
    cores: Option<u32>,
    done: u32,
    names: Vec<CounterName>,
    counts: Vec<u64>,
    connections: Vec<Connection>,
    machines: Vec<ConnectedMachine>,
    meant: u64,
    half_open: u64,
    time_wait: u64,
    grid_settings: Vec<GridSettings>,
    grid_clients: Vec<GridClient>,
    memory: Vec<MemoryUse>,
    entitlements: Vec<GridEntitlement>,
    rules: Vec<ActivityRule>,
    activities: Vec<ActivityUsage>,
    activity_count: u64,
    activity_cycles: u64,
    session_port: Option<u16>,
    processes: Vec<ProcessUsage>,
    process_count: Option<u64>,
    memory_parts: Vec<MemoryPart>,
    refused: Option<String>,
    taken: usize,
}

impl PartialAnswer {
    fn take(&mut self, fact: AnswerRecord) -> Result<(), RecordError> {
        self.taken += 1;
        if self.taken > MAX_FACTS {
            return Err(RecordError::Malformed);
        }
        match fact {
            AnswerRecord::Begin { cores } => self.cores = Some(cores),
            AnswerRecord::Names(names) => self.names = names,
            AnswerRecord::Counters(counts) => {
                self.counts.resize(self.counts.len().max(counts.len()), 0);
                for (sum, count) in self.counts.iter_mut().zip(counts) {
                    *sum = sum.wrapping_add(count);
                }
            }
            AnswerRecord::Connection(connection) => self.connections.push(*connection),
            AnswerRecord::ConnectedMachine(machine) => self.machines.push(machine),
            AnswerRecord::GridSettings(settings) => self.grid_settings.push(settings),
            AnswerRecord::GridClient(client) => self.grid_clients.push(*client),
            AnswerRecord::MemoryUse(usage) => self.memory.push(*usage),
            AnswerRecord::GridEntitlement(entitlement) => self.entitlements.push(*entitlement),
            AnswerRecord::ActivityRule(rule) => self.rules.push(*rule),
            AnswerRecord::Activities { count, cycles } => {
                (self.activity_count, self.activity_cycles) = (count, cycles);
            }
            AnswerRecord::Activity(activity) => self.activities.push(*activity),
            AnswerRecord::Refused(reason) => self.refused = Some(reason),
            AnswerRecord::Processes { count } => self.process_count = Some(count),
            AnswerRecord::Process(process) => self.processes.push(*process),
            AnswerRecord::MemoryParts(parts) => self.memory_parts = parts,
            AnswerRecord::SessionPort(port) => self.session_port = Some(port),
            AnswerRecord::Done { core: _, connections, half_open, time_wait } => {
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

    fn finish(self) -> Result<QueryAnswer, QueryError> {
        if let Some(reason) = self.refused {
            return Err(QueryError::Refused(reason));
        }
        let extent = match self.cores {
            None => Extent::Nothing,
            Some(cores) if self.done < cores => Extent::Without(cores - self.done),
            Some(_) => Extent::Whole,
        };
        let counts = self.counts.into_iter().chain(std::iter::repeat(0));
        Ok(QueryAnswer {
            counters: self.names.into_iter().zip(counts).collect(),
            connections: self.connections,
            machines: self.machines,
            connections_meant: self.meant,
            half_open: self.half_open,
            time_wait: self.time_wait,
            grid_settings: self.grid_settings,
            grid_clients: self.grid_clients,
            memory: self.memory,
            entitlements: self.entitlements,
            rules: self.rules,
            activities: self.activities,
            activity_count: self.activity_count,
            activity_cycles: self.activity_cycles,
            session_port: self.session_port,
            processes: self.processes,
            process_count: self.process_count,
            memory_parts: self.memory_parts,
            extent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> CounterName {
        CounterName { layer: "tcp".into(), name: name.into() }
    }

    fn done(core: u32, connections: u32) -> AnswerRecord {
        AnswerRecord::Done { core, connections, half_open: 1, time_wait: 2 }
    }

    fn answer(facts: impl IntoIterator<Item = AnswerRecord>) -> PartialAnswer {
        let mut answer = PartialAnswer::default();
        facts.into_iter().for_each(|fact| answer.take(fact).unwrap());
        answer
    }

    #[test]
    fn counters_of_all_cores_are_summed_despite_different_lengths() {
        let answer = answer([
            AnswerRecord::Begin { cores: 2 },
            AnswerRecord::Names(vec![name("a"), name("b"), name("c")]),
            AnswerRecord::Counters(vec![1]),
            done(0, 0),
            AnswerRecord::Counters(vec![2, u64::MAX, 0, 7]),
            done(1, 0),
        ]);
        assert!(answer.is_whole());
        let answer = answer.finish().unwrap();
        assert_eq!(answer.counters, [(name("a"), 3), (name("b"), u64::MAX), (name("c"), 0)]);
        assert_eq!((answer.half_open, answer.time_wait), (2, 4));
        assert_eq!(answer.extent, Extent::Whole);
    }

    #[test]
    fn an_incomplete_answer_counts_the_missing_cores() {
        assert_eq!(answer([]).finish().unwrap().extent, Extent::Nothing);
        let some = answer([AnswerRecord::Begin { cores: 3 }, done(2, 0)]);
        assert!(!some.is_whole());
        assert_eq!(some.finish().unwrap().extent, Extent::Without(2));
        assert_eq!(answer([AnswerRecord::Begin { cores: 0 }]).finish().unwrap().extent, Extent::Whole);
    }

    #[test]
    fn a_refusal_is_an_error_with_its_reason() {
        let refused = answer([AnswerRecord::Begin { cores: 0 }, AnswerRecord::Refused("not now".into())]);
        assert!(refused.is_whole());
        assert_eq!(refused.finish().unwrap_err().to_string(), "not now");
    }

    #[test]
    fn an_endless_answer_is_rejected() {
        let mut answer = answer([]);
        let refused = (0..=MAX_FACTS).map(|_| answer.take(done(0, u32::MAX))).find(Result::is_err);
        assert_eq!(refused, Some(Err(RecordError::Malformed)));
    }
}
