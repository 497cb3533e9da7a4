//! Queries: the host tool requests information about the network, see [`isola_abi::query`].
//!
//! The first core reads the query, after the interrupt that comes with it, and spawns an event on each core that has a
//! stack. Each core reports its own state: no core waits for another, and other events run in between. Without queries
//! there is no cost. The periods of a trace come from the event loops ([`isola_events::trace`]). A lock protects the ring of answers, and only answers take it.

mod capture;
mod facts;

pub use facts::Answer;

use alloc::vec::Vec;
use capture::CaptureState;
use isola_abi::query::{Answers, ConnectedMachine, Line, Query};
use isola_ebbs::{CellEbb, Representative, platform};
use spin::Mutex;

/// Returns the connected machines of the application.
pub type ListMachines = fn() -> Vec<ConnectedMachine>;

static QUERIES: CellEbb<Queries> = CellEbb::new();

/// The state of the current queries.
struct Queries {
    /// The number of the current query, 0 before the first. The holder of the lock may write answers.
    facts: Mutex<u32>,
    frames: Mutex<CaptureState>,
    /// `None` in a cell without a messenger.
    machines: Mutex<Option<ListMachines>>,
}

impl Representative for Queries {
    fn create() -> Self {
        Self { facts: Mutex::new(0), frames: Mutex::default(), machines: Mutex::default() }
    }
}

/// Sets the function that returns the connected machines of the application, for answers about connections. The first core
/// calls it.
pub fn list_machines_by(machines: ListMachines) {
    *QUERIES.machines.lock() = Some(machines);
}

/// Answers new queries about the network, and passes others to `others`. Must be called on the first core after an
/// interrupt by the supervisor, or by its substitute.
pub fn answer_new(others: impl FnOnce(Answer, Query)) {
    let last = *QUERIES.facts.lock();
    if let Some((number, query)) = new_query(Line::Facts, last) {
        let answer = Answer { number };
        match query {
            Query::Counters | Query::Connections { .. } => facts::answer(answer, query),
            query => others(answer, query),
        }
    }
    let last = QUERIES.frames.lock().number;
    if let Some((number, query)) = new_query(Line::Frames, last) {
        // A trace or a profile that runs writes nothing after this.
        isola_events::trace::end();
        isola_events::profile::end();
        capture::answer(number, &query);
        if let Query::Trace(spec) = query {
            isola_events::trace::begin(number, spec);
        } else if let Query::Profile(spec) = query {
            isola_events::profile::begin(number, spec);
        }
    }
}

/// Returns the query of a line if its number is not `last`. An invalid query is not answered.
fn new_query(line: Line, last: u32) -> Option<(u32, Query)> {
    let (number, bytes): (u32, Vec<u8>) = platform().queries().get(line)?;
    let query = (number != last).then(|| Query::decode(&bytes))?;
    Some((number, query?))
}

fn answers() -> &'static Answers {
    &platform().report().answers
}
