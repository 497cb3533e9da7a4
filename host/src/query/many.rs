//! One query to several cells at the same time.

use super::{PendingAnswer, QueryAnswer, QueryError};
use crate::client::{Client, ClientError};
use isola_abi::management::ManagementError;
use isola_abi::query::Query;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The pause between two polls for answers.
const INTERVAL: Duration = Duration::from_millis(2);

/// Sends a query to several running cells, and returns their answers as far as they have arrived within `timeout`, in
/// the order of `names`. A cell that refuses the query, has ended or gives a malformed answer has none.
///
/// # Errors
/// [`ClientError`] if the supervisor does not answer.
pub fn facts_of_many(
    client: &mut Client,
    names: &[&str],
    query: &Query,
    timeout: Duration,
) -> Result<Vec<Option<QueryAnswer>>, ClientError> {
    let mut pending = Vec::new();
    for name in names {
        pending.push(answer_of(PendingAnswer::send(client, name, query))?);
    }
    let end = Instant::now() + timeout;
    loop {
        let (mut waits, mut arrived) = (false, 0);
        for entry in &mut pending {
            let Some(answer) = entry.as_mut().filter(|answer| !answer.is_whole()) else { continue };
            match answer_of(answer.receive(client))? {
                Some(bytes) => arrived += bytes,
                None => *entry = None,
            }
            waits |= entry.as_ref().is_some_and(|answer| !answer.is_whole());
        }
        if !waits || Instant::now() >= end {
            break;
        }
        if arrived == 0 {
            sleep(INTERVAL);
        }
    }
    Ok(pending.into_iter().map(|answer| answer.and_then(|answer| answer.finish().ok())).collect())
}

/// Returns the result of a query, or `None` if the cell is the cause of the failure.
fn answer_of<T>(result: Result<T, QueryError>) -> Result<Option<T>, ClientError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(QueryError::Client(error)) => unless_refused(Err(error)),
        Err(QueryError::Record(_) | QueryError::Refused(_) | QueryError::Replaced) => Ok(None),
    }
}

/// Returns `None` for a request that the supervisor rejected: the cell has ended, or is gone.
///
/// # Errors
/// [`ClientError`] if the supervisor does not answer, or has restarted.
pub fn unless_refused<T>(result: Result<T, ClientError>) -> Result<Option<T>, ClientError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error @ ClientError::Refused(ManagementError::Restarted)) => Err(error),
        Err(ClientError::Refused(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
