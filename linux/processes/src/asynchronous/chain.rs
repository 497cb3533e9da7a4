//! Chains of linked entries, which a task executes one after the other.

use super::entry::{ASYNC, Entry, HARDLINK, LINK, Request, SKIP_SUCCESS, Timeout};
use super::in_flight::{End, InFlight};
use super::once;
use super::operation::{Operation, Submitter};
use super::ring::Ring;
use crate::Errno;
use alloc::collections::VecDeque;
use alloc::sync::Arc;

/// Entries that are executed one after the other.
pub struct Chain {
    pub ring: Arc<Ring>,
    pub submitter: Arc<Submitter>,
    /// Whether it begins after all earlier chains, and later ones after it.
    pub drains: bool,
    links: VecDeque<LinkedEntry>,
    /// Whether an entry has failed, so that the others are cancelled.
    has_failed: bool,
}

/// An entry of a chain, with its time limit.
struct LinkedEntry {
    entry: Entry,
    in_flight: Arc<InFlight>,
    limit: Option<(Entry, Arc<InFlight>)>,
}

impl Chain {
    pub fn new(ring: Arc<Ring>, submitter: Arc<Submitter>) -> Self {
        Self { ring, submitter, drains: false, links: VecDeque::new(), has_failed: false }
    }

    /// Adds an entry, or the time limit of the last one. Returns its state.
    pub fn add(&mut self, mut entry: Entry) -> Arc<InFlight> {
        let in_flight = Arc::new(InFlight::new(entry.user_data, entry.descriptor, entry.is_timeout()));
        // As in Linux, an invalid entry cancels its whole chain.
        self.has_failed |= entry.request.is_err() && !self.links.is_empty();
        self.drains |= entry.flags & super::entry::DRAIN != 0;
        match self.links.back_mut() {
            Some(last) if entry.is_link_timeout && last.limit.is_none() && entry.request.is_ok() => {
                last.limit = Some((entry, in_flight.clone()));
            }
            _ => {
                if entry.is_link_timeout {
                    entry.request = Err(Errno::EINVAL);
                }
                self.links.push_back(LinkedEntry { entry, in_flight: in_flight.clone(), limit: None });
            }
        }
        in_flight
    }

    /// Returns whether the first entry may be attempted at its submission.
    pub fn begins_at_once(&self) -> bool {
        self.links.front().is_some_and(|link| link.entry.flags & ASYNC == 0)
    }

    /// Executes all entries. If the future is dropped, the next call continues.
    pub async fn run(&mut self) {
        while let Some(link) = self.links.front_mut() {
            let is_failed = self.has_failed;
            let (result, timed_out) = link.execute(&self.ring, &self.submitter, is_failed).await;
            let Some(link) = self.links.pop_front() else { break };
            let is_failure = match (&link.entry.request, result) {
                (Ok(Request::Timeout(timeout)), Err(Errno::ETIME)) => !timeout.is_success,
                (Ok(Request::Operation(operation)), Ok(moved)) => operation.is_short(moved),
                (_, result) => result.is_err(),
            };
            let is_soft = |entry: &Entry| entry.flags & LINK != 0 && entry.flags & HARDLINK == 0;
            self.has_failed |= is_failure && is_soft(&link.entry);
            let skips = link.entry.flags & SKIP_SUCCESS != 0 && result.is_ok();
            self.ring.complete(&link.in_flight, result, skips);
            if let Some((entry, in_flight)) = link.limit {
                let result = if timed_out { Err(Errno::ETIME) } else { Err(Errno::ECANCELED) };
                self.ring.complete(&in_flight, result, entry.flags & SKIP_SUCCESS != 0 && !timed_out);
            }
        }
    }
}

impl LinkedEntry {
    /// Executes the entry. Returns its result, and whether its time limit ended it.
    async fn execute(
        &mut self,
        ring: &Arc<Ring>,
        submitter: &Arc<Submitter>,
        is_failed: bool,
    ) -> (Result<u64, Errno>, bool) {
        let limit = self.limit.as_ref().and_then(|(entry, _)| match &entry.request {
            Ok(Request::Timeout(Timeout { until_ns, .. })) => Some(*until_ns),
            _ => None,
        });
        let in_flight = &self.in_flight;
        let request = match &mut self.entry.request {
            Err(error) => return (Err(*error), false),
            Ok(_) if is_failed || in_flight.is_cancelled() => return (Err(Errno::ECANCELED), false),
            Ok(request) => request,
        };
        let system = &submitter.system;
        match request {
            Request::Cancel(request) => (ring.cancel(*request, in_flight), false),
            Request::Timeout(timeout) => {
                let end = *timeout.end.get_or_insert_with(|| ring.completed_after(timeout.count));
                let count = ring.wait_for_completed(end);
                (
                    match in_flight.bounded(system, Some(timeout.until_ns), count).await {
                        End::Done(()) => Ok(0),
                        End::Cancelled => Err(Errno::ECANCELED),
                        End::TimedOut => Err(Errno::ETIME),
                    },
                    false,
                )
            }
            Request::Operation(operation) if operation.is_nowait() => {
                let result = once(operation.attempt(submitter, Some(ring))).await;
                (result.unwrap_or(Err(Errno::EAGAIN)), false)
            }
            Request::Operation(operation) => {
                let attempt = operation.attempt(submitter, Some(ring));
                match in_flight.bounded(system, limit, attempt).await {
                    End::Done(result) => (result, false),
                    End::Cancelled => (cancelled(operation), false),
                    End::TimedOut => (cancelled(operation), true),
                }
            }
        }
    }
}

/// Returns the result of a cancelled operation: bytes that have moved count.
fn cancelled(operation: &Operation) -> Result<u64, Errno> {
    match operation.moved() {
        0 => Err(Errno::ECANCELED),
        moved => Ok(moved),
    }
}
