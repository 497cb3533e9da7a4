//! A varying load, and windows of its outcome.

use super::histogram;
use hdrhistogram::Histogram;
use std::time::Duration;

/// A load that varies as a cosine between two rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Profile {
    /// The lowest and first rate, in requests/s.
    pub least: f64,
    /// The highest rate, in requests/s.
    pub most: f64,
    /// The time from one lowest rate to the next.
    pub period: Duration,
}

impl Profile {
    /// Returns the rate at a time since the start, in requests/s.
    pub fn rate(&self, at: Duration) -> f64 {
        let turns = at.as_secs_f64() / self.period.as_secs_f64();
        let height = (1.0 - (turns * core::f64::consts::TAU).cos()) / 2.0;
        self.least + (self.most - self.least) * height
    }
}

/// The outcome of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LoadWindow {
    /// Answers per second.
    pub rate: f64,
    /// The 99th percentile of their latencies, in us; 0 without answers.
    pub p99_us: f64,
}

/// Consecutive windows of equal length since the start of a load.
#[derive(Debug)]
pub struct LoadWindows {
    length: Duration,
    closed: Vec<LoadWindow>,
    latency_ns: Histogram<u64>,
}

impl LoadWindows {
    /// Creates windows of this length.
    pub fn of(length: Duration) -> Self {
        Self { length, closed: Vec::new(), latency_ns: histogram() }
    }

    /// Records an answer at the time `at` since the start. Calls must be in order of time.
    pub fn answered(&mut self, at: Duration, latency: Duration) {
        self.advance(at);
        self.latency_ns.saturating_record(latency.as_nanos() as u64);
    }

    /// Closes the windows that end by `at`.
    pub fn advance(&mut self, at: Duration) {
        while at >= self.length * (self.closed.len() as u32 + 1) {
            self.closed.push(LoadWindow {
                rate: self.latency_ns.len() as f64 / self.length.as_secs_f64(),
                p99_us: self.latency_ns.value_at_quantile(0.99) as f64 / 1e3,
            });
            self.latency_ns.reset();
        }
    }

    /// Returns the closed windows.
    pub fn closed(&self) -> &[LoadWindow] {
        &self.closed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_rises_to_its_highest_rate_and_falls_back() {
        let profile = Profile { least: 100.0, most: 500.0, period: Duration::from_secs(8) };
        let rates = [0, 2, 4, 6, 8].map(|at| profile.rate(Duration::from_secs(at)).round());
        assert_eq!(rates, [100.0, 300.0, 500.0, 300.0, 100.0]);
    }

    #[test]
    fn an_answer_counts_in_the_window_of_its_arrival() {
        let mut windows = LoadWindows::of(Duration::from_millis(500));
        for (at, latency) in [(10, 4), (499, 2), (1_600, 30)] {
            windows.answered(Duration::from_millis(at), Duration::from_millis(latency));
        }
        windows.advance(Duration::from_secs(2));
        let rates: Vec<f64> = windows.closed().iter().map(|window| window.rate).collect();
        assert_eq!(rates, [4.0, 0.0, 0.0, 2.0]);
        let p99 = windows.closed()[0].p99_us;
        assert!((3_990.0..4_010.0).contains(&p99), "{p99}");
        assert!(windows.closed()[1].p99_us < 1.0);
    }
}
