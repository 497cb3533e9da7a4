//! A reading of a machine: requests to the supervisor, and queries to all running cells at once.
//!
//! The supervisor reads most values from memory that cells write as they run. Only the protocol stack's counters and
//! the grid need a query. A cell that does not answer in time costs a reading [`ANSWER_TIMEOUT`] per query, regardless
//! of the number of such cells, and has fewer series.

use super::cell::{CellReading, MAX_ACTIVITIES};
use super::machine::Reading;
use crate::client::{Client, ClientError};
use crate::output::view::is_running;
use crate::query::{Extent, QueryAnswer, facts_of_many, unless_refused};
use isola_abi::management::{CellInfo, RequestBody, ResponseBody};
use isola_abi::query::Query;
use std::time::{Duration, Instant};

/// How long cells may take to answer a query.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads the state of a machine and of all its cells.
///
/// # Errors
/// [`ClientError`] if the supervisor does not answer. A cell without an answer is no error.
pub fn read(client: &mut Client, machine_name: &str) -> Result<Reading, ClientError> {
    let begun = Instant::now();
    let machine = client.machine()?;
    let mut cells = Vec::new();
    for listed in client.list()? {
        // The list omits details if there are too many. A cell may be removed meanwhile.
        if let Some(info) = unless_refused(inspect(client, &listed.spec.name))? {
            cells.push(CellReading { info, counters: None, grid: None });
        }
    }
    let asked = cells.iter_mut().filter(|cell| is_running(&cell.info));
    let mut asked: Vec<&mut CellReading> = asked.collect();
    let answers = ask(client, &asked, &Query::Counters)?;
    for (cell, answer) in asked.iter_mut().zip(answers) {
        cell.counters = answer.map(|answer| answer.counters);
    }
    // A cell that has not answered one query would not answer the next.
    asked.retain(|cell| cell.counters.is_some());
    let answers = ask(client, &asked, &Query::Grid)?;
    for (cell, answer) in asked.iter_mut().zip(answers) {
        cell.grid = answer;
    }
    Ok(Reading { name: machine_name.to_owned(), machine, cells, duration: begun.elapsed() })
}

/// Returns a cell with its first activities.
fn inspect(client: &mut Client, name: &str) -> Result<CellInfo, ClientError> {
    let mut cell = client.inspect(name)?;
    let all = &mut cell.activities;
    while let Some(from) = all.next.filter(|_| all.activities.len() < MAX_ACTIVITIES) {
        let page = match client.ask(RequestBody::Activities { name: name.to_owned(), from })? {
            ResponseBody::Activities(page) => page,
            _ => return Err(ClientError::Unexpected),
        };
        all.activities.extend(page.activities);
        all.ended.cycles = all.ended.cycles.saturating_add(page.ended.cycles);
        all.ended.events = all.ended.events.saturating_add(page.ended.events);
        all.ended.memory_bytes = all.ended.memory_bytes.saturating_add(page.ended.memory_bytes);
        // Pages that do not advance would have no end.
        all.next = page.next.filter(|next| *next > from);
    }
    Ok(cell)
}

/// Sends a query to several cells, and returns the complete answers.
fn ask(
    client: &mut Client,
    cells: &[&mut CellReading],
    query: &Query,
) -> Result<Vec<Option<QueryAnswer>>, ClientError> {
    let names: Vec<&str> = cells.iter().map(|cell| cell.info.spec.name.as_str()).collect();
    let answers = facts_of_many(client, &names, query, ANSWER_TIMEOUT)?;
    // A sum over some of the cores would be lower than the one before, and count as a restart.
    let whole = |answer: &QueryAnswer| answer.extent == Extent::Whole;
    Ok(answers.into_iter().map(|answer| answer.filter(whole)).collect())
}
