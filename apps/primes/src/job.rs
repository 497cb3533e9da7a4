//! A job: counts all primes below a number, with a variable number of workers. Each worker repeatedly takes a piece and
//! counts it. A new worker finds work, and one that leaves first finishes its piece.

use crate::count::Counter;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};

/// The numbers of one piece: so few that workers finish at about the same time.
const PIECE: u64 = 1 << 12;

/// A running job.
#[derive(Debug)]
pub struct Job {
    number: u64,
    next: AtomicU64,
    found: AtomicU64,
}

impl Job {
    /// Creates a job that counts primes below `number`.
    pub const fn new(number: u64) -> Self {
        Self { number, next: AtomicU64::new(0), found: AtomicU64::new(0) }
    }

    /// Returns a counter for one worker.
    pub fn counter(&self) -> Counter {
        Counter::new(self.number)
    }

    /// Takes the next piece and counts it; returns `false` if none is left.
    pub fn step(&self, counter: &mut Counter) -> bool {
        let Some(piece) = self.take() else { return false };
        self.found.fetch_add(counter.count(piece), Ordering::Relaxed);
        true
    }

    /// Does the same, and awaits `pause` every two thousand instructions, so that other work of the core can run.
    pub async fn step_with(&self, counter: &mut Counter, pause: impl AsyncFnMut()) -> bool {
        let Some(piece) = self.take() else { return false };
        self.found.fetch_add(counter.count_in_steps(piece, pause).await, Ordering::Relaxed);
        true
    }

    fn take(&self) -> Option<Range<u64>> {
        // The pieces are disjoint and the counts are added, so no order between workers matters.
        let start = self.next.fetch_add(PIECE, Ordering::Relaxed);
        (start < self.number).then(|| start..self.number.min(start + PIECE))
    }

    /// Returns whether all pieces are taken.
    pub fn is_dealt(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.number
    }

    /// Returns the primes found so far: all of them after the last step of every worker has returned `false`.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_come_and_go_count_each_prime_once() {
        let job = Job::new(1_000_000);
        let mut early = job.counter();
        (0..17).for_each(|_| assert!(job.step(&mut early)));
        assert!(!job.is_dealt());
        let mut workers = [job.counter(), job.counter(), job.counter()];
        while workers.iter_mut().any(|worker| job.step(worker)) {}
        assert!(job.is_dealt());
        assert_eq!(job.found(), 78_498);
    }

    #[test]
    fn a_job_without_numbers_is_done() {
        let job = Job::new(0);
        assert!(job.is_dealt() && !job.step(&mut job.counter()) && job.found() == 0);
    }
}
