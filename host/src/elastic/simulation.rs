//! Figures 10 and 11 of RainForest on a small scale: a service with a fluctuating load, beside a batch job, on eight
//! cores.
//!
//! The service is one queue with a server per core; arrivals and service times are random. Time is simulated and the
//! seed is fixed, so every run has the same result.

use super::*;
use fastrand::Rng;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The cores of both cells together.
const CORES: u32 = 8;

/// The bounds of the service's percentile.
const BOUNDS: Bounds = Bounds { lower_ns: 5_500_000, upper_ns: 10_000_000 };

/// The mean service time of a request, in ns.
const WORK_NS: f64 = 1_000_000.0;

const SECOND_NS: u64 = 1_000_000_000;

/// A service of several cores, one queue and a load.
struct Service {
    rng: Rng,
    /// The time at which each core becomes free.
    cores: BinaryHeap<Reverse<u64>>,
    now_ns: u64,
}

impl Service {
    fn new(cores: u32) -> Self {
        let cores = (0..cores).map(|_| Reverse(0)).collect();
        Self { rng: Rng::with_seed(7), cores, now_ns: 0 }
    }

    /// Returns an exponentially distributed time with this mean.
    fn exponential(&mut self, mean_ns: f64) -> u64 {
        (-mean_ns * (1.0 - self.rng.f64()).ln()) as u64
    }

    /// Serves `rate` requests per second for one second. Returns the 99th percentile of their latency.
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

/// The result of a run.
#[derive(Debug, Default)]
struct Outcome {
    late_seconds: u32,
    moves: u32,
    batch_core_seconds: u32,
    most_cores: u32,
    fewest_cores: u32,
}

/// Runs ten minutes of a load that oscillates twice between a fifth and three quarters of the machine. The service owns
/// one core; the batch job owns the others, and lends all but one.
fn run(mut controller: Option<Controller>, mut cores: u32) -> Outcome {
    let mut service = Service::new(cores);
    let mut outcome = Outcome { fewest_cores: CORES, ..Outcome::default() };
    for second in 0..600 {
        let swing = (f64::from(second) * std::f64::consts::TAU / 300.0).sin();
        let figure = service.second(1_000.0 * (3.8 + 2.2 * swing));
        outcome.late_seconds += u32::from(figure > BOUNDS.upper_ns);
        outcome.batch_core_seconds += CORES - cores;
        let look = Observation {
            seen: WindowLatency::Percentile(figure),
            cores,
            borrowed: cores - 1,
            most: CORES - 1,
        };
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
fn a_fluctuating_load_stays_below_the_upper_bound_and_leaves_cores_to_the_batch_job() {
    let elastic = run(Some(Controller::new(BOUNDS)), 4);
    let (half, peak) = (run(None, 4), run(None, 7));
    // Late in at most one second of ten; with a constant half of the machine, it is late during the peaks.
    assert!(elastic.late_seconds <= 60, "{elastic:?}");
    assert!(half.late_seconds >= 5 * elastic.late_seconds, "{half:?}, {elastic:?}");
    // The batch job gets at least twice the core time that a constant peak allocation to the service would leave.
    assert!(elastic.batch_core_seconds >= 2 * peak.batch_core_seconds, "{peak:?}, {elastic:?}");
    // Cores follow the load without oscillation.
    assert!(elastic.most_cores >= 6 && elastic.fewest_cores <= 3, "{elastic:?}");
    assert!(elastic.moves <= 60, "{elastic:?}");
}
