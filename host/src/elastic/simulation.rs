//! Figures 10 and 11 of RainForest in small: a service whose load goes up and down, beside a batch job, on eight cores.
//!
//! The service is a queue with as many servers as it has cores; requests come at random, and take a random time. Time is
//! simulated, and the numbers are those of a fixed seed: each run is the same.

use super::*;
use fastrand::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Cores of both cells.
const CORES: u32 = 8;

/// Of the service's percentile.
const BOUNDS: Bounds = Bounds { lower_ns: 5_500_000, upper_ns: 10_000_000 };

/// What a request takes on the mean, in ns.
const WORK_NS: f64 = 1_000_000.0;

const SECOND_NS: u64 = 1_000_000_000;

/// A service of several cores, one queue and a load.
struct Service {
    rng: Rng,
    /// When each core is done with what it does.
    cores: BinaryHeap<Reverse<u64>>,
    now_ns: u64,
}

impl Service {
    fn new(cores: u32) -> Self {
        let cores = (0..cores).map(|_| Reverse(0)).collect();
        Self { rng: Rng::with_seed(7), cores, now_ns: 0 }
    }

    /// A random time of this mean.
    fn exponential(&mut self, mean_ns: f64) -> u64 {
        (-mean_ns * (1.0 - self.rng.f64()).ln()) as u64
    }

    /// Serves `rate` requests a second for a second. Returns what the 99th of a hundred took.
    fn second(&mut self, rate: f64) -> u64 {
        let end = self.now_ns + SECOND_NS;
        let mut took = Vec::new();
        loop {
            self.now_ns += self.exponential(1e9 / rate);
            if self.now_ns >= end {
                break;
            }
            let work = self.exponential(WORK_NS);
            let Some(Reverse(free_at)) = self.cores.pop() else { break };
            let done = free_at.max(self.now_ns) + work;
            self.cores.push(Reverse(done));
            took.push(done - self.now_ns);
        }
        self.now_ns = end;
        took.sort_unstable();
        took.get(took.len() * 99 / 100).copied().unwrap_or(0)
    }

    fn set_cores(&mut self, count: u32) {
        while (self.cores.len() as u32) < count {
            self.cores.push(Reverse(self.now_ns));
        }
        while (self.cores.len() as u32) > count {
            self.cores.pop();
        }
    }
}

/// How a run went.
#[derive(Debug, Default)]
struct Outcome {
    late_seconds: u32,
    moves: u32,
    batch_core_seconds: u32,
    most_cores: u32,
    fewest_cores: u32,
}

/// Ten minutes of a load that swings between a fifth of the machine and three quarters of it, twice.
fn run(mut controller: Option<Controller>, mut cores: u32) -> Outcome {
    let mut service = Service::new(cores);
    let mut outcome = Outcome { fewest_cores: CORES, ..Outcome::default() };
    for second in 0..600 {
        let swing = (f64::from(second) * std::f64::consts::TAU / 300.0).sin();
        let figure = service.second(1_000.0 * (3.8 + 2.2 * swing));
        outcome.late_seconds += u32::from(figure > BOUNDS.upper_ns);
        outcome.batch_core_seconds += CORES - cores;
        let donors = vec![Donor { cores: CORES - cores, least: 1, most: CORES }];
        let look = Look { seen: Seen::Percentile(figure), cores, donors };
        let before = cores;
        match controller.as_mut().map(|controller| controller.decide(&look)) {
            Some(Step::Take(..)) => cores += 1,
            Some(Step::Give(..)) => cores -= 1,
            Some(Step::Stay(_)) | None => {}
        }
        outcome.moves += u32::from(cores != before);
        service.set_cores(cores);
        outcome.most_cores = outcome.most_cores.max(cores);
        outcome.fewest_cores = outcome.fewest_cores.min(cores);
    }
    outcome
}

#[test]
fn a_fluctuating_load_stays_below_the_upper_bound_and_the_batch_job_gets_what_it_leaves() {
    let elastic = run(Some(Controller::new(BOUNDS, 1, CORES - 1, Patience::default())), 4);
    let (half, peak) = (run(None, 4), run(None, 7));
    // Late in at most one second of ten, where half of the machine for good is late all through the peaks.
    assert!(elastic.late_seconds <= 60, "{elastic:?}");
    assert!(half.late_seconds >= 5 * elastic.late_seconds, "{half:?}, {elastic:?}");
    // The batch job gets at least twice of what is left when the service has what its peaks need for good.
    assert!(elastic.batch_core_seconds >= 2 * peak.batch_core_seconds, "{peak:?}, {elastic:?}");
    // Cores follow the load, and do not go to and fro.
    assert!(elastic.most_cores >= 6 && elastic.fewest_cores <= 3, "{elastic:?}");
    assert!(elastic.moves <= 60, "{elastic:?}");
}
