//! The load in an interval, from the samples at its start and its end: by cell and by core.
//!
//! The module `grid_load` has the load by activity and by resource.

use super::grid_load::{ActivityLoad, ResourceLoad, activities, resources, served};
use super::sample::{CellSample, Sample};
use crate::cli::inspect::cycles_ns;
use isola_abi::histogram::Distribution;
use isola_abi::management::CoreUsage;
use isola_abi::report::CorePhase;
use serde::Serialize;

/// What the load is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum LoadDivision {
    /// By cell
    #[default]
    Cell,
    /// By activity of each cell
    Activity,
    /// By resource of each cell's grid, and the activities that compete for it
    Resource,
    /// By core
    Core,
}

/// The load of all shown cells in an interval.
#[derive(Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(super) enum Load {
    /// By cell.
    Cells(Vec<CellLoad>),
    /// By activity.
    Activities(Vec<ActivityLoad>),
    /// By resource.
    Resources(Vec<ResourceLoad>),
    /// By core.
    Cores(Vec<CoreLoad>),
}

/// A cell's load in an interval: the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CellLoad {
    /// The cell.
    pub name: String,
    /// The number of its cores.
    pub cores: usize,
    /// The share of their time in which it did not halt.
    pub use_percent: f64,
    /// Answered requests per second.
    pub requests_per_second: f64,
    /// The median latency of requests.
    pub p50_ns: Option<u64>,
    /// The 99th percentile of their latency.
    pub p99_ns: Option<u64>,
    /// The 99th percentile of the queueing delay, on the core with the longest.
    pub wait_p99_ns: Option<u64>,
    /// Memory in use.
    pub used_bytes: u64,
    /// The memory that it has.
    pub memory_bytes: u64,
}

/// A core's load in an interval: the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct CoreLoad {
    /// The cell that has the core.
    pub cell: String,
    /// The core's number on the machine.
    pub core: u32,
    /// `asleep`, `halted` or `running`.
    pub phase: &'static str,
    /// The share of its time in which it did not halt: the sum of the following three.
    pub use_percent: f64,
    /// The share of events.
    pub event_percent: f64,
    /// The share of interrupt handlers.
    pub interrupt_percent: f64,
    /// The share of the event loop itself: scheduling and accounting included.
    pub loop_percent: f64,
    /// Interrupts per second.
    pub interrupts_per_second: f64,
    /// The median queueing delay of events.
    pub wait_p50_ns: Option<u64>,
    /// The 99th percentile of their queueing delay.
    pub wait_p99_ns: Option<u64>,
    /// The number of events that ran for longer than the core's limit.
    pub long_events: u64,
}

/// The time between two samples.
#[derive(Clone, Copy, Debug)]
pub(super) struct Interval {
    /// Its length.
    pub seconds: f64,
    /// The cycles per second.
    pub tsc_hz: u64,
}

impl Interval {
    /// Returns a rate per second.
    pub fn rate(&self, count: u64) -> f64 {
        (count as f64 / self.seconds.max(1e-9)).round()
    }

    fn ns(&self, cycles: Option<u64>) -> Option<u64> {
        cycles.and_then(|cycles| cycles_ns(cycles, self.tsc_hz))
    }
}

/// Returns the load between two samples. `cell` is the only cell to show.
pub(super) fn load(by: LoadDivision, now: &Sample, before: &Sample, cell: Option<&str>) -> Load {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let interval = Interval { seconds, tsc_hz: now.tsc_hz };
    let shown = now.cells.iter().filter(|(_, sample)| cell.is_none_or(|name| sample.info.spec.name == name));
    // The first interval of a new cell is empty: its counters may have begun long ago, as those of a restart.
    let pairs = shown.map(|(id, sample)| (sample, before.cells.get(id).unwrap_or(sample)));
    match by {
        LoadDivision::Cell => {
            Load::Cells(pairs.map(|(now, before)| cell_load(now, before, interval)).collect())
        }
        LoadDivision::Activity => {
            let loads = pairs.flat_map(|(sample, earlier)| {
                let own = activities(sample, earlier, interval);
                own.into_iter().chain(served(sample, |cell| activities_of(cell, now, before, interval)))
            });
            Load::Activities(loads.collect())
        }
        LoadDivision::Resource => {
            Load::Resources(pairs.flat_map(|(now, before)| resources(now, before, interval)).collect())
        }
        LoadDivision::Core => {
            Load::Cores(pairs.flat_map(|(now, before)| core_loads(now, before, interval)).collect())
        }
    }
}

/// Returns the load of the activities of the cell with that name; none if it does not run.
fn activities_of(cell: &str, now: &Sample, before: &Sample, interval: Interval) -> Vec<ActivityLoad> {
    let found = now.cells.iter().find(|(_, sample)| sample.info.spec.name == cell);
    found.map_or_else(Vec::new, |(id, sample)| {
        activities(sample, before.cells.get(id).unwrap_or(sample), interval)
    })
}

/// The cycles of an interval, on one or several cores.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cycles {
    event: u64,
    interrupt: u64,
    of_loop: u64,
    idle: u64,
}

impl Cycles {
    fn between(now: &CoreUsage, before: Option<&CoreUsage>) -> Self {
        let spent = |of: fn(&CoreUsage) -> u64| of(now).saturating_sub(before.map_or(0, of));
        Self {
            event: spent(|core| core.event_cycles),
            interrupt: spent(|core| core.interrupt_cycles),
            of_loop: spent(|core| core.loop_cycles),
            idle: spent(|core| core.idle_cycles),
        }
    }

    /// Returns the cycles of all cores of a cell in an interval.
    pub fn of_cell(now: &CellSample, before: &CellSample) -> Self {
        now.info.cores.iter().fold(Self::default(), |sum, core| {
            let of = Self::between(core, earlier(core, before));
            Self {
                event: sum.event.saturating_add(of.event),
                interrupt: sum.interrupt.saturating_add(of.interrupt),
                of_loop: sum.of_loop.saturating_add(of.of_loop),
                idle: sum.idle.saturating_add(of.idle),
            }
        })
    }

    fn busy(self) -> u64 {
        self.event.saturating_add(self.interrupt).saturating_add(self.of_loop)
    }

    /// Returns the sum.
    pub fn all(self) -> u64 {
        self.busy().saturating_add(self.idle)
    }
}

/// Returns a part in percent of the whole, with one decimal.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { (part as f64 * 1000.0 / whole as f64).round() / 10.0 }
}

fn earlier<'s>(core: &CoreUsage, before: &'s CellSample) -> Option<&'s CoreUsage> {
    before.info.cores.iter().find(|earlier| earlier.id == core.id)
}

fn waits(core: &CoreUsage, before: &CellSample) -> Distribution {
    let before = earlier(core, before).map_or_else(Distribution::default, |core| core.queueing.clone());
    core.queueing.since(&before)
}

fn cell_load(now: &CellSample, before: &CellSample, interval: Interval) -> CellLoad {
    let cycles = Cycles::of_cell(now, before);
    let waited = now.info.cores.iter().filter_map(|core| waits(core, before).quantile(990));
    let service = now.info.service.since(&before.info.service);
    CellLoad {
        name: now.info.spec.name.clone(),
        cores: now.info.cores.len(),
        use_percent: percent(cycles.busy(), cycles.all()),
        requests_per_second: interval.rate(service.count()),
        p50_ns: interval.ns(service.quantile(500)),
        p99_ns: interval.ns(service.quantile(990)),
        wait_p99_ns: interval.ns(waited.max()),
        used_bytes: now.info.memory_usage.used.0,
        memory_bytes: now.info.memory.0,
    }
}

fn core_loads(now: &CellSample, before: &CellSample, interval: Interval) -> Vec<CoreLoad> {
    let load = |core: &CoreUsage| {
        let was = earlier(core, before);
        let cycles = Cycles::between(core, was);
        let waits = waits(core, before);
        CoreLoad {
            cell: now.info.spec.name.clone(),
            core: core.id.0,
            phase: match core.phase {
                CorePhase::Asleep => "asleep",
                CorePhase::Halted => "halted",
                CorePhase::Running => "running",
            },
            use_percent: percent(cycles.busy(), cycles.all()),
            event_percent: percent(cycles.event, cycles.all()),
            interrupt_percent: percent(cycles.interrupt, cycles.all()),
            loop_percent: percent(cycles.of_loop, cycles.all()),
            interrupts_per_second: interval
                .rate(core.interrupts.saturating_sub(was.map_or(0, |core| core.interrupts))),
            wait_p50_ns: interval.ns(waits.quantile(500)),
            wait_p99_ns: interval.ns(waits.quantile(990)),
            long_events: core.long_events.saturating_sub(was.map_or(0, |core| core.long_events)),
        }
    };
    now.info.cores.iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::test_samples::{core, sample_of};
    use crate::test_data::cell;
    use isola_abi::histogram::Histogram;
    use isola_abi::management::CellInfo;
    use std::time::Duration;

    #[test]
    fn an_interval_has_only_its_own_load_on_present_cores() {
        let (waits, requests) = (Histogram::new(), Histogram::new());
        requests.count(1 << 30, 500);
        let before = CellInfo {
            cores: vec![core(1, 1_000, 9_000, &waits), core(2, 5_000, 0, &waits)],
            service: requests.read(),
            ..cell("kv")
        };
        requests.count(1_000_000, 3_000);
        let first = core(1, 2_000, 12_000, &waits);
        waits.count(500_000, 100);
        // One core has left, and another has come.
        let now = CellInfo {
            cores: vec![first, core(3, 3_000, 1_000, &waits)],
            service: requests.read(),
            ..cell("kv")
        };
        let before = sample_of(vec![before]);
        let now = Sample { at: before.at + Duration::from_secs(2), ..sample_of(vec![now]) };
        let Load::Cells(cells) = load(LoadDivision::Cell, &now, &before, None) else { panic!() };
        let view = &cells[0];
        assert_eq!((view.cores, view.use_percent, view.requests_per_second), (2, 50.0, 1500.0));
        assert!(view.p99_ns.unwrap().abs_diff(1_000_000) < 250_000, "{view:?}");
        assert!(view.wait_p99_ns.unwrap().abs_diff(500_000) < 125_000, "{view:?}");
        let Load::Cores(cores) = load(LoadDivision::Core, &now, &before, None) else { panic!() };
        assert_eq!(cores.iter().map(|core| core.use_percent).collect::<Vec<_>>(), [25.0, 75.0]);
        assert_eq!(load(LoadDivision::Core, &now, &before, Some("web")), Load::Cores(vec![]));
    }

    #[test]
    fn the_first_interval_of_a_cell_and_an_empty_one_have_no_load() {
        let waits = Histogram::new();
        let info = CellInfo { cores: vec![core(1, 1_000, 0, &waits)], ..cell("kv") };
        let now = sample_of(vec![info]);
        let Load::Cells(cells) = load(LoadDivision::Cell, &now, &sample_of(vec![]), None) else { panic!() };
        assert_eq!((cells[0].use_percent, cells[0].requests_per_second), (0.0, 0.0));
        assert_eq!(load(LoadDivision::Cell, &sample_of(vec![]), &now, None), Load::Cells(vec![]));
    }
}
