//! What cores count of connections and of the bytes that pass: a tally a core, which it alone adds to and all may read.
//!
//! So nothing is locked, and no atomic read-modify-write is done, for a request. A count that is read while it grows is
//! the one before or the one after. Setting to zero leaves the tallies alone and remembers what they were.

use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::shard::Report;

/// Cores that flows are spread over at most (docs/decisions/0028-flow-steering.md): no other serves anybody.
const MOST_CORES: usize = 64;

/// What one core has counted. Only events of that core add to it.
#[derive(Debug, Default)]
pub struct Tally {
    received_bytes: Count,
    sent_bytes: Count,
    accepted: Count,
    rejected: Count,
    /// Connections that ended here, wherever they began.
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
    /// Counts bytes that came from clients.
    pub fn received(&self, bytes: usize) {
        self.received_bytes.add(bytes as u64);
    }

    /// Counts bytes that went to clients.
    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.add(bytes as u64);
    }

    /// Counts a connection that was accepted.
    pub fn accepted(&self) {
        self.accepted.add(1);
    }

    /// Counts a connection that was turned down.
    pub fn rejected(&self) {
        self.rejected.add(1);
    }

    /// Counts a connection that is over: one that was accepted, here or on a core that it has come from.
    pub fn ended(&self) {
        self.ended.add(1);
    }
}

/// The tallies of all cores.
#[derive(Debug)]
pub struct Tallies {
    cores: Box<[CachePadded<Tally>]>,
    /// What the sums were when they were last set to zero.
    zero: Tally,
}

impl Default for Tallies {
    fn default() -> Self {
        let cores = (0..MOST_CORES).map(|_| CachePadded::default()).collect();
        Self { cores, zero: Tally::default() }
    }
}

impl Tallies {
    /// The tally of the core of that number, for its own events.
    pub fn of(&self, core: usize) -> &Tally {
        &self.cores[core.min(MOST_CORES - 1)]
    }

    /// Connections now.
    pub fn connections(&self) -> u64 {
        self.sum(|tally| &tally.accepted).saturating_sub(self.sum(|tally| &tally.ended))
    }

    /// Bytes that came from clients since the start.
    pub fn received_bytes(&self) -> u64 {
        self.sum(|tally| &tally.received_bytes)
    }

    fn sum(&self, count: impl Fn(&Tally) -> &Count) -> u64 {
        self.cores.iter().fold(0, |sum, tally| sum.wrapping_add(count(tally).get()))
    }

    /// Adds all that was counted since the last [`Self::reset`] to a report.
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

    /// Counts from zero on. Connections stay what they are.
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
