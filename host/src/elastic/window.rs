//! A measurement window of a cell: the difference of monotonic counters between two reads.

use isola_abi::histogram::Distribution;
use isola_abi::id::CellId;
use isola_abi::management::CellInfo;

/// The quantity to keep between the bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Figure {
    /// The latency of its requests, as the application counts them
    #[default]
    Requests,
    /// The time that events waited until they ran, on any of its cores
    Queueing,
}

/// The minimum number of requests for a 99th percentile: a window with fewer is extended.
const LEAST: u64 = 100;

/// The maximum number of extensions in a row. Then the window uses the few requests that it has, so that a service with
/// hardly any load can give up its cores as well.
const MOST_LOOKS: u32 = 10;

/// The measurement window of a cell.
#[derive(Clone, Debug, Default)]
pub struct LatencyWindow {
    figure: Figure,
    /// The cell and its counters at the beginning of the window.
    begin: Option<(CellId, Distribution)>,
    /// The number of extensions so far.
    looks: u32,
}

/// The result of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowLatency {
    /// There were no requests.
    Nothing,
    /// There were too few: the window is extended.
    Little,
    /// The percentile, in cycles.
    Percentile(u64),
}

impl LatencyWindow {
    /// Creates a window on this figure; it begins at the first read.
    pub fn new(figure: Figure) -> Self {
        Self { figure, begin: None, looks: 0 }
    }

    /// Reads a cell's counters and returns the percentile, per mille (990: the 99th percentile).
    pub fn look(&mut self, cell: &CellInfo, per_mille: u32) -> WindowLatency {
        let now = self.counters(cell);
        let Some((_, begin)) = self.begin.take_if(|(id, _)| *id == cell.id) else {
            self.begin(cell);
            return WindowLatency::Little;
        };
        let seen = now.since(&begin);
        let count = seen.count();
        if (1..LEAST).contains(&count) && self.looks < MOST_LOOKS {
            self.begin = Some((cell.id, begin));
            self.looks += 1;
            return WindowLatency::Little;
        }
        self.begin = Some((cell.id, now));
        self.looks = 0;
        seen.quantile(per_mille).map_or(WindowLatency::Nothing, WindowLatency::Percentile)
    }

    /// Begins a new window at the cell's present counters, for example after a move.
    pub fn begin(&mut self, cell: &CellInfo) {
        self.begin = Some((cell.id, self.counters(cell)));
        self.looks = 0;
    }

    fn counters(&self, cell: &CellInfo) -> Distribution {
        match self.figure {
            Figure::Requests => cell.service.clone(),
            Figure::Queueing => cell.cores.iter().fold(Distribution::default(), |mut all, core| {
                all.add(&core.queueing);
                all
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;
    use isola_abi::histogram::Histogram;

    fn at(histogram: &Histogram) -> CellInfo {
        CellInfo { service: histogram.read(), ..cell("kv") }
    }

    #[test]
    fn a_window_excludes_earlier_requests() {
        let (histogram, mut window) = (Histogram::new(), LatencyWindow::new(Figure::Requests));
        histogram.count(1 << 30, 1_000_000);
        assert_eq!(window.look(&at(&histogram), 990), WindowLatency::Little);
        histogram.count(1 << 20, 1_000);
        let WindowLatency::Percentile(cycles) = window.look(&at(&histogram), 990) else {
            panic!("1000 requests have a percentile")
        };
        assert!(cycles < 2 << 20, "{cycles}");
        assert_eq!(window.look(&at(&histogram), 990), WindowLatency::Nothing);
    }

    #[test]
    fn a_window_with_few_requests_is_extended() {
        let (histogram, mut window) = (Histogram::new(), LatencyWindow::new(Figure::Requests));
        window.begin(&at(&histogram));
        for turn in 0..3 {
            histogram.count(1 << 20, 40);
            assert_eq!(matches!(window.look(&at(&histogram), 990), WindowLatency::Percentile(_)), turn == 2);
        }
    }

    #[test]
    fn an_extended_window_ends_after_its_maximum() {
        let (histogram, mut window) = (Histogram::new(), LatencyWindow::new(Figure::Requests));
        window.begin(&at(&histogram));
        for _ in 0..2 {
            let little = (0..MOST_LOOKS).all(|_| {
                histogram.count(1 << 20, 1);
                window.look(&at(&histogram), 990) == WindowLatency::Little
            });
            histogram.count(1 << 20, 1);
            assert!(little && matches!(window.look(&at(&histogram), 990), WindowLatency::Percentile(_)));
        }
    }

    #[test]
    fn another_cell_of_the_same_name_begins_a_new_window() {
        let (histogram, mut window) = (Histogram::new(), LatencyWindow::new(Figure::Requests));
        window.begin(&at(&histogram));
        histogram.count(1 << 20, 1_000);
        let other = CellInfo { id: CellId(77), ..at(&histogram) };
        assert_eq!(window.look(&other, 990), WindowLatency::Little);
        assert_eq!(window.look(&other, 990), WindowLatency::Nothing);
    }
}
