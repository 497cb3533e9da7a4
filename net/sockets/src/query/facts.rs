//! Counters and connections of each core.

use super::{QUERIES, answers};
use crate::core_network::{NETWORK, stack_now};
use crate::drops::dropped;
use crate::interface;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use isola_abi::query::{AnswerRecord, Connection, CounterName, FACTS_BYTES, FrameFilter, Line, Query};
use isola_ebbs::current_core;
use isola_events::spawn_on;
use isola_net_stack::{ConnectionView, Counter, Flow, Occupancy, Stack};
use isola_platform::CoreIndex;

/// Bytes of the ring that are reserved for each core's final record.
const FINAL_RECORDS_BYTES: u64 = 64 * 32;

/// The most reported connections, more than the ring has room for.
const MAX_REPORTED: usize = FACTS_BYTES / 64;

/// The answer to a query for facts, which the cores continue in events of their own.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Answer {
    pub(super) number: u32,
}

impl Answer {
    /// Begins the answer of this number of cores with some records.
    pub fn begin(self, cores: usize, records: impl IntoIterator<Item = AnswerRecord>) {
        let ring = answers().on(Line::Facts);
        let mut answered = QUERIES.facts.lock();
        *answered = self.number;
        ring.begin(self.number);
        let begin = AnswerRecord::Begin { cores: cores as u32 };
        for record in core::iter::once(begin).chain(records) {
            let _ = ring.push(&record.encode());
        }
    }

    /// Writes the calling core's records, unless another query has come. Records without room are left out. `done` is
    /// the final one.
    pub fn end_core(self, records: impl IntoIterator<Item = AnswerRecord>, done: &AnswerRecord) {
        let answered = QUERIES.facts.lock();
        if *answered != self.number {
            return;
        }
        let ring = answers().on(Line::Facts);
        for record in records {
            let bytes = record.encode();
            if ring.room() >= FINAL_RECORDS_BYTES + bytes.len() as u64 {
                let _ = ring.push(&bytes);
            }
        }
        let _ = ring.push(&done.encode());
    }
}

/// Begins the answer, and continues it on each core that has a stack; without a network on the calling core, so that the
/// answer is complete only behind the records of the cell.
pub(super) fn answer(answer: Answer, query: Query) {
    let mut cores: Vec<CoreIndex> = interface::joined_cores().collect();
    if cores.is_empty() {
        cores.push(current_core());
    }
    answer.begin(cores.len(), of_the_cell(&query));
    for core in cores {
        let query = query.clone();
        spawn_on(core, move || report_facts(answer, &query));
    }
}

/// Returns the records that no core answers for itself.
fn of_the_cell(query: &Query) -> Vec<AnswerRecord> {
    match query {
        Query::Counters => {
            let names = Counter::ALL.iter().map(|counter| name(*counter));
            Vec::from([AnswerRecord::Names(names.collect())])
        }
        // A record of a machine is two words: all of them are half of the ring.
        Query::Connections { filter, most } if *filter == FrameFilter::default() => {
            let machines = *QUERIES.machines.lock();
            let machines = machines.map(|machines| machines()).unwrap_or_default();
            machines.into_iter().take(*most as usize).map(AnswerRecord::ConnectedMachine).collect()
        }
        _ => Vec::new(),
    }
}

fn name(counter: Counter) -> CounterName {
    CounterName { layer: counter.layer().to_string(), name: counter.name().to_string() }
}

/// The facts of a core, and the numbers of its final record.
#[derive(Default)]
struct CoreFacts {
    facts: Vec<AnswerRecord>,
    connections: u32,
    occupancy: Occupancy,
}

/// Writes this core's facts. The final record has the number of connections, including those left out.
fn report_facts(answer: Answer, query: &Query) {
    let core = current_core();
    let CoreFacts { facts, connections, occupancy } =
        NETWORK.inspect(|stack| collect(stack, core, query)).unwrap_or_default();
    let Occupancy { connections: _, half_open, time_wait } = occupancy;
    let [half_open, time_wait] = [half_open, time_wait].map(|count| count as u32);
    answer.end_core(facts, &AnswerRecord::Done { core: core.0, connections, half_open, time_wait });
}

fn collect(stack: &Stack, core: CoreIndex, query: &Query) -> CoreFacts {
    match query {
        Query::Counters => {
            let counted = stack.counters().iter().map(|(counter, count)| count + dropped(counter));
            let facts = Vec::from([AnswerRecord::Counters(counted.collect())]);
            CoreFacts { facts, connections: 0, occupancy: stack.occupancy() }
        }
        Query::Connections { filter, most } => {
            // At most as many as the ring has room for: a core may have a million connections.
            let most = (*most as usize).min(MAX_REPORTED);
            let matches = |flow: &Flow| filter.matches(flow.local, flow.remote);
            let mut core_facts = CoreFacts { occupancy: stack.occupancy(), ..CoreFacts::default() };
            for (_, view) in stack.connections(stack_now()).filter(|(flow, _)| matches(flow)) {
                core_facts.connections += 1;
                if core_facts.facts.len() < most {
                    let connection = connection(&view(), core);
                    core_facts.facts.push(AnswerRecord::Connection(Box::new(connection)));
                }
            }
            core_facts
        }
        Query::Capture(_)
        | Query::EndCapture
        | Query::Trace(_)
        | Query::Profile(_)
        | Query::Grid
        | Query::ChangeGrid(_)
        | Query::ChangeRules(_)
        | Query::Activities { .. }
        | Query::Processes { .. }
        | Query::MemoryParts
        | Query::OpenSession(_) => CoreFacts::default(),
    }
}

fn connection(view: &ConnectionView, core: CoreIndex) -> Connection {
    let stats = &view.stats;
    Connection {
        local: view.flow.local,
        remote: view.flow.remote,
        state: view.state.to_string(),
        core: core.0,
        over_link: view.over_link,
        congestion: view.congestion_control.to_string(),
        window: stats.congestion_window,
        in_flight: stats.in_flight,
        send_queue: stats.unacked as u32,
        receive_queue: stats.unread as u32,
        peer_window: stats.peer_window,
        receive_window: stats.receive_window,
        mss: stats.mss,
        round_trip_ns: stats.smoothed_rtt.map(|time| time.as_nanos()),
        timeout_ns: stats.rto.as_nanos(),
        retransmits: stats.retransmits,
        bytes_in: stats.bytes_received,
        bytes_out: stats.bytes_acked,
        idle_ns: view.silence.as_nanos(),
    }
}
