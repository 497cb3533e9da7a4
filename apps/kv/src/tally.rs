//! The counts of connections and bytes: one tally per core. Only that core adds to it, and all cores may read it.
//!
//! A request therefore takes no lock and does no atomic read-modify-write for its counts. A reader that races with an
//! update sees the old or the new count. A reset does not write the tallies: it records the current sums, and later
//! reads subtract them.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::shard::Report;

/// The largest number of cores that flows are spread over (docs/decisions/0028-flow-steering.md); no other core serves
/// a connection.
const MOST_CORES: usize = 64;

/// The counts of one core. Only events of that core add to them.
#[derive(Debug, Default)]
pub struct Tally {
    received_bytes: Count,
    sent_bytes: Count,
    accepted: Count,
    rejected: Count,
    /// The connections that ended on this core; they may have begun on another core.
    ended: Count,
}

/// A number that one core adds to.
#[derive(Debug, Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, more: u64) {
        self.0.store(self.get().wrapping_add(more), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Tally {
    /// Counts bytes received from clients.
    pub fn received(&self, bytes: usize) {
        self.received_bytes.add(bytes as u64);
    }

    /// Counts bytes sent to clients.
    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.add(bytes as u64);
    }

    /// Counts an accepted connection.
    pub fn accepted(&self) {
        self.accepted.add(1);
    }

    /// Counts a rejected connection.
    pub fn rejected(&self) {
        self.rejected.add(1);
    }

    /// Counts the end of a connection that this core or, before a migration, another core has accepted.
    pub fn ended(&self) {
        self.ended.add(1);
    }
}

/// The tallies of all cores.
#[derive(Debug)]
pub struct Tallies {
    cores: Box<[CachePadded<Tally>]>,
    /// The sums at the last reset.
    zero: Tally,
}

impl Default for Tallies {
    fn default() -> Self {
        let cores = (0..MOST_CORES).map(|_| CachePadded::default()).collect();
        Self { cores, zero: Tally::default() }
    }
}

impl Tallies {
    /// Returns the tally of the core with that number, for the events of that core.
    pub fn of(&self, core: usize) -> &Tally {
        &self.cores[core.min(MOST_CORES - 1)]
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> u64 {
        self.sum(|tally| &tally.accepted).saturating_sub(self.sum(|tally| &tally.ended))
    }

    /// Returns the bytes received from clients since the start.
    pub fn received_bytes(&self) -> u64 {
        self.sum(|tally| &tally.received_bytes)
    }

    fn sum(&self, count: impl Fn(&Tally) -> &Count) -> u64 {
        self.cores.iter().fold(0, |sum, tally| sum.wrapping_add(count(tally).get()))
    }

    /// Adds the counts since the last [`Self::reset`] to a report.
    pub(crate) fn add_to(&self, report: &mut Report) {
        let since = |count: fn(&Tally) -> &Count| self.sum(count).saturating_sub(count(&self.zero).get());
        let counters = &mut report.counters;
        counters.bytes_read += since(|tally| &tally.received_bytes);
        counters.bytes_written += since(|tally| &tally.sent_bytes);
        counters.total_connections += since(|tally| &tally.accepted);
        counters.rejected_connections += since(|tally| &tally.rejected);
        report.curr_connections += self.connections();
        report.cores += self.cores.iter().filter(|tally| tally.accepted.get() > 0).count() as u64;
    }

    /// Starts the counts again from zero. The number of open connections does not change.
    pub(crate) fn reset(&self) {
        let counts: [fn(&Tally) -> &Count; 4] = [
            |tally| &tally.received_bytes,
            |tally| &tally.sent_bytes,
            |tally| &tally.accepted,
            |tally| &tally.rejected,
        ];
        for count in counts {
            count(&self.zero).0.store(self.sum(count), Ordering::Relaxed);
        }
    }
}
