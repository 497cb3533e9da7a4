//! A job: all primes below a number, counted by however many workers there are at the moment. Each takes a piece, counts, and
//! takes the next one, so that a worker that comes finds work, and one that goes leaves none behind but its piece.

use crate::count::Counter;
use core::sync::atomic::{AtomicU64, Ordering};

/// Numbers in one piece: little enough that a core that is asked for comes free soon, also where others take the core in turn.
const PIECE: u64 = 1 << 12;

/// A job that is under way.
#[derive(Debug)]
pub struct Job {
    number: u64,
    next: AtomicU64,
    found: AtomicU64,
}

impl Job {
    /// Counts primes below `number`.
    pub const fn new(number: u64) -> Self {
        Self { number, next: AtomicU64::new(0), found: AtomicU64::new(0) }
    }

    /// What a worker needs for itself.
    pub fn counter(&self) -> Counter {
        Counter::new(self.number)
    }

    /// Counts a piece that nobody has taken yet; `false` where there is none.
    pub fn step(&self, counter: &mut Counter) -> bool {
        // The pieces are disjoint, and what is found is added up: no order between workers matters.
        let start = self.next.fetch_add(PIECE, Ordering::Relaxed);
        if start >= self.number {
            return false;
        }
        let found = counter.count(start..self.number.min(start + PIECE));
        self.found.fetch_add(found, Ordering::Relaxed);
        true
    }

    /// Whether all pieces are taken.
    pub fn is_dealt(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.number
    }

    /// The primes found so far: all of them once every worker has found no piece any more.
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
