//! Queries: the host tool asks what the network does, see [`isola_abi::query`].
//!
//! The first core takes the question, in the interrupt that comes with it, and has an event run on each core that has a
//! stack. Each tells of itself: no core waits for another, and what a core does in between is not disturbed. Who does not
//! ask pays nothing. The answers' ring is behind a lock that answers alone take.

mod capture;
mod facts;

use alloc::vec::Vec;
use capture::Capturing;
use isola_abi::query::{Answers, Line, Query};
use isola_ebbs::{CellEbb, Representative, platform};
use spin::Mutex;

static QUERIES: CellEbb<Queries> = CellEbb::new();

/// What is being answered.
struct Queries {
    /// The number of the question, 0 before the first. Who holds it may write answers.
    facts: Mutex<u32>,
    frames: Mutex<Capturing>,
}

impl Representative for Queries {
    fn create() -> Self {
        Self { facts: Mutex::new(0), frames: Mutex::default() }
    }
}

/// Answers what was asked since the last time. To be called on the first core when the supervisor, or who stands in for it,
/// has interrupted it.
pub fn attend() {
    let last = *QUERIES.facts.lock();
    if let Some((number, query)) = new_question(Line::Facts, last) {
        facts::answer(number, query);
    }
    let last = QUERIES.frames.lock().number;
    if let Some((number, query)) = new_question(Line::Frames, last) {
        capture::answer(number, &query);
    }
}

/// The question of a line that comes behind that of number `last`. One that makes no sense is not answered.
fn new_question(line: Line, last: u32) -> Option<(u32, Query)> {
    let (number, bytes): (u32, Vec<u8>) = platform().questions().get(line)?;
    let query = (number != last).then(|| Query::decode(&bytes))?;
    Some((number, query?))
}

fn answers() -> &'static Answers {
    &platform().report().answers
}
