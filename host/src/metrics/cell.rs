//! The values of a cell, its cores and its activities.

use super::catalogue as families;
use super::grid;
use super::histogram::{Histogram, queueing_bounds, request_bounds};
use super::series::{Metrics, Value, cycle_seconds, seconds};
use crate::output::view::{is_running, most_memory};
use crate::query::QueryAnswer;
use isola_abi::management::{ActivityUsage, CellInfo, CellState, CoreUsage};
use isola_abi::query::CounterName;

/// The maximum number of activities that are shown of a cell.
pub const MAX_ACTIVITIES: usize = 256;

/// The maximum number of counters of the protocol stack that are shown of a cell.
const MAX_COUNTERS: usize = 512;

/// All states of a cell.
const STATES: [CellState; 6] = [
    CellState::Created,
    CellState::Running,
    CellState::Stopping,
    CellState::Exited,
    CellState::Crashed,
    CellState::Killed,
];

/// The state of a cell.
#[derive(Debug)]
pub struct CellReading {
    /// The supervisor's record of the cell, with at most about [`MAX_ACTIVITIES`] activities.
    pub info: CellInfo,
    /// The counters of the protocol stack, if all cores have answered.
    pub counters: Option<Vec<(CounterName, u64)>>,
    /// The grid, if all cores have answered.
    pub grid: Option<QueryAnswer>,
}

impl CellReading {
    /// Adds the cell's values. `hz` cycles are a second; 0 if that is unknown.
    pub(super) fn add_to(&self, metrics: &mut Metrics, hz: u64) {
        let cell = &self.info;
        let name = cell.spec.name.as_str();
        self.add_state(metrics, name);
        add_network(metrics, name, cell);
        if hz > 0 {
            let histogram = Histogram::new(&cell.service, &request_bounds(), hz);
            metrics.add(&families::CELL_REQUEST_DURATION, &[name], Value::Histogram(histogram));
        }
        let bounds = queueing_bounds();
        for core in &cell.cores {
            add_core(metrics, name, core, &bounds, hz);
        }
        let activities = &cell.activities.activities;
        for activity in activities.iter().take(MAX_ACTIVITIES) {
            add_activity(metrics, name, &activity.name, activity, hz);
        }
        // The total of ended activities is complete only with all pages.
        let activities_cut = cell.activities.next.is_some() || activities.len() > MAX_ACTIVITIES;
        if cell.activities.next.is_none() {
            add_activity(metrics, name, "(ended)", &cell.activities.ended, hz);
        }
        let mut cut = vec![("activities", activities_cut)];
        if let Some(counters) = &self.counters {
            cut.push(("counters", counters.len() > MAX_COUNTERS));
            for (counter, count) in counters.iter().take(MAX_COUNTERS) {
                let labels = [name, &counter.layer, &counter.name];
                metrics.count(&families::CELL_NETWORK_EVENTS, &labels, *count);
            }
        }
        if let Some(answer) = &self.grid {
            cut.push(("grid", grid::add(metrics, cell, answer, hz).is_cut()));
        }
        for (kind, is_cut) in cut {
            metrics.number(&families::CELL_CUT, &[name, kind], f64::from(is_cut));
        }
    }

    fn add_state(&self, metrics: &mut Metrics, name: &str) {
        let cell = &self.info;
        let labels = [name, &cell.id.to_string(), &cell.spec.image_name];
        metrics.add(&families::CELL, &labels, Value::Info);
        for state in STATES {
            let is_in_it = f64::from(cell.state == state);
            metrics.number(&families::CELL_STATE, &[name, &state.to_string()], is_in_it);
        }
        let borrowed: u64 = cell.memory_loans.iter().map(|loan| loan.memory.0).sum();
        for (family, value) in [
            (&families::CELL_CORES, cell.core_count().into()),
            (&families::CELL_BORROWED_CORES, cell.loans.len() as u64),
            (&families::CELL_BORROWED_MEMORY, borrowed),
            (&families::CELL_LENT_MEMORY, cell.memory_lent.0),
            (&families::CELL_MEMORY, cell.memory.0),
            (&families::CELL_MEMORY_LIMIT, most_memory(cell).0),
            (&families::CELL_POOL, cell.memory_usage.total.0),
            (&families::CELL_POOL_USED, cell.memory_usage.used.0),
            (&families::CELL_POOL_PEAK, cell.memory_usage.peak.0),
        ] {
            metrics.number(family, &[name], value as f64);
        }
        metrics.count(&families::CELL_RESTARTS, &[name], cell.restarts.count.into());
        if let Some(started) = cell.started_unix_ns {
            metrics.number(&families::CELL_START_TIME, &[name], seconds(started));
        }
        if is_running(cell) {
            let answered = self.counters.is_some() && self.grid.is_some();
            metrics.number(&families::CELL_ANSWERED, &[name], f64::from(answered));
        }
    }
}

fn add_network(metrics: &mut Metrics, name: &str, cell: &CellInfo) {
    for (family, count) in [
        (&families::CELL_RECEIVED_FRAMES, cell.network.received_frames),
        (&families::CELL_RECEIVED, cell.network.received_bytes),
        (&families::CELL_SENT_FRAMES, cell.network.sent_frames),
        (&families::CELL_SENT, cell.network.sent_bytes),
        (&families::CELL_DROPPED_FRAMES, cell.network.dropped_frames),
    ] {
        metrics.count(family, &[name], count);
    }
}

fn add_core(metrics: &mut Metrics, name: &str, core: &CoreUsage, bounds: &[f64], hz: u64) {
    let id = core.id.to_string();
    for (account, cycles) in [
        ("activity", core.event_cycles),
        ("loop", core.loop_cycles),
        ("interrupt", core.interrupt_cycles),
        ("idle", core.idle_cycles),
    ] {
        let labels = [name, &id, account];
        metrics.count(&families::CORE_CYCLES, &labels, cycles);
        if let Some(seconds) = cycle_seconds(cycles, hz) {
            metrics.number(&families::CORE_TIME, &labels, seconds);
        }
    }
    let labels = [name, &id];
    metrics.count(&families::CORE_INTERRUPTS, &labels, core.interrupts);
    metrics.count(&families::CORE_LONG_EVENTS, &labels, core.long_events);
    if let Some(seconds) = cycle_seconds(core.longest_event_cycles, hz) {
        metrics.number(&families::CORE_LONGEST_EVENT, &labels, seconds);
        let histogram = Histogram::new(&core.queueing, bounds, hz);
        metrics.add(&families::CORE_QUEUEING_DELAY, &labels, Value::Histogram(histogram));
    }
}

fn add_activity(metrics: &mut Metrics, cell: &str, activity: &str, usage: &ActivityUsage, hz: u64) {
    let labels = [cell, activity];
    metrics.count(&families::ACTIVITY_CYCLES, &labels, usage.cycles);
    if let Some(seconds) = cycle_seconds(usage.cycles, hz) {
        metrics.number(&families::ACTIVITY_TIME, &labels, seconds);
    }
    metrics.count(&families::ACTIVITY_EVENTS, &labels, usage.events);
    metrics.number(&families::ACTIVITY_MEMORY, &labels, usage.memory_bytes as f64);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TextFormat;
    use crate::test_data::cell;
    use std::sync::Arc;

    /// Returns the samples of a cell.
    fn samples(reading: &CellReading, hz: u64) -> Vec<String> {
        let mut metrics = Metrics::default();
        reading.add_to(&mut metrics, hz);
        let text = Arc::new(metrics).text(TextFormat::Openmetrics).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn activities(count: usize) -> CellInfo {
        let usage = |number| ActivityUsage { name: format!("activity {number}"), ..ActivityUsage::default() };
        let mut cell = cell("kv");
        cell.activities.activities = (0..count).map(usage).collect();
        cell
    }

    #[test]
    fn the_number_of_series_of_a_cell_is_bounded() {
        let counter = |number| (CounterName { layer: "tcp".into(), name: format!("counter_{number}") }, 1);
        let reading = CellReading {
            info: activities(3 * MAX_ACTIVITIES),
            counters: Some((0..3 * MAX_COUNTERS).map(counter).collect()),
            grid: None,
        };
        let samples = samples(&reading, 1_000_000_000);
        let count = |prefix: &str| samples.iter().filter(|line| line.starts_with(prefix)).count();
        assert_eq!(count("isola_activity_events_total"), MAX_ACTIVITIES + 1);
        assert_eq!(count("isola_cell_network_events_total"), MAX_COUNTERS);
        for kind in ["activities", "counters"] {
            let line = format!("isola_cell_series_cut{{cell=\"kv\",kind=\"{kind}\"}} 1.0");
            assert!(samples.contains(&line), "{samples:#?}");
        }
    }

    #[test]
    fn a_cell_with_few_series_has_all_of_them() {
        let reading = CellReading { info: activities(3), counters: None, grid: None };
        let samples = samples(&reading, 1_000_000_000);
        assert!(samples.contains(&"isola_cell_series_cut{cell=\"kv\",kind=\"activities\"} 0.0".to_owned()));
        assert!(samples.iter().any(|line| line.contains("activity=\"(ended)\"")), "{samples:#?}");
    }

    #[test]
    fn without_a_known_clock_there_are_cycles_only() {
        let mut info = activities(1);
        info.activities.activities[0].cycles = 3_000;
        let reading = CellReading { info, counters: None, grid: None };
        let has = |samples: &[String], name: &str| samples.iter().any(|line| line.starts_with(name));
        let (known, unknown) = (samples(&reading, 1_000), samples(&reading, 0));
        let seconds = "isola_activity_time_seconds_total{cell=\"kv\",activity=\"activity 0\"} 3.0";
        assert!(has(&known, seconds) && has(&known, "isola_cell_request_duration_seconds"), "{known:#?}");
        assert!(
            !has(&unknown, "isola_activity_time") && !has(&unknown, "isola_cell_request"),
            "{unknown:#?}"
        );
        assert!(has(&unknown, "isola_activity_cycles_total"), "{unknown:#?}");
    }
}
