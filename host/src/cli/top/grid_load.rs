//! The load in an interval by activity and by resource of the grid.

use super::load::{Cycles, Interval, percent};
use super::sample::CellSample;
use crate::query::in_tree_order;
use isola_abi::grid::Resource;
use isola_abi::query::{GridClient, GridSettings};
use isola_abi::service::ServedVolume;
use serde::Serialize;
use std::collections::BTreeMap;

/// An activity's load in an interval: the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ActivityLoad {
    /// The cell.
    pub cell: String,
    /// The activity's number; null if the cell does not answer queries.
    pub activity: Option<u32>,
    /// The number of the activity above it.
    pub parent: Option<u32>,
    /// The activity's name.
    pub name: String,
    /// The number of activities above it.
    pub level: usize,
    /// The share of the time of the cell's cores that it and the activities below it used.
    pub use_percent: f64,
    /// Their share of the cycles of all activities.
    pub share_percent: f64,
    /// Their events per second.
    pub events_per_second: f64,
    /// The memory that is charged to them; null below the top of the tree. An activity can free memory of others.
    pub memory_bytes: Option<i64>,
    /// The memory that they do not lose to others.
    pub soft_bytes: Option<u64>,
    /// The most memory that they may have.
    pub hard_bytes: Option<u64>,
    /// The memory that they lost per second; null below the top of the tree, or without an answer of the cell.
    pub reclaimed_bytes_per_second: Option<f64>,
    /// Whether the cell answers queries; otherwise its report gives the load, of activities without a parent only.
    pub answered: bool,
    /// The service cell that works for a volume of this cell; null for an activity of the cell's own. The shares are those
    /// of the service cell's cores and activities.
    pub served_by: Option<String>,
}

/// The load of a resource of a cell, or of an activity at one of its schedulers: the JSON form.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct ResourceLoad {
    /// The cell.
    pub cell: String,
    /// The resource's name; null if the cell does not answer queries.
    pub resource: Option<String>,
    /// The unit of costs.
    pub metric: Option<String>,
    /// The policy; `direct` without a scheduler.
    pub policy: Option<String>,
    /// The index of the scheduler's core, among the cell's; null for the whole resource.
    pub core: Option<u32>,
    /// The activity's number; null for the whole resource.
    pub activity: Option<u32>,
    /// The activity's name.
    pub name: Option<String>,
    /// The activity's weight.
    pub weight: Option<u32>,
    /// The number of requests that wait now.
    pub waiting: u64,
    /// Requests served in competition with others, per second.
    pub served_per_second: f64,
    /// Their cost per second, in the resource's metric.
    pub cost_per_second: f64,
    /// The share of the resource's cost.
    pub share_percent: f64,
    /// The mean waiting time of the requests served.
    pub mean_wait_ns: Option<u64>,
    /// The longest waiting time since the policy began.
    pub longest_wait_ns: u64,
}

/// Returns the load of a cell's activities, parents before their children.
pub(super) fn activities(now: &CellSample, before: &CellSample, interval: Interval) -> Vec<ActivityLoad> {
    let all = Cycles::of_cell(now, before).all();
    let cell = &now.info.spec.name;
    let Some(answer) = &now.activities else {
        return reported(now, before, interval, all);
    };
    // Before the first answer there is no load to compare with.
    let earlier = before.activities.as_ref().unwrap_or(answer);
    let sum = answer.activity_cycles.saturating_sub(earlier.activity_cycles);
    let by_id: BTreeMap<u32, _> = earlier.activities.iter().map(|usage| (usage.activity, usage)).collect();
    let ordered = in_tree_order(&answer.activities, |usage| Some(usage.activity), |usage| usage.parent);
    let loads = ordered.into_iter().map(|(level, usage)| {
        let was = by_id.get(&usage.activity).filter(|was| was.name == usage.name);
        let cycles = usage.cycles.saturating_sub(was.map_or(0, |was| was.cycles));
        let events = usage.events.saturating_sub(was.map_or(0, |was| was.events));
        let (memory, old) = (usage.memory, was.and_then(|was| was.memory).unwrap_or_default());
        let lost = memory.map(|memory| memory.reclaimed_bytes.saturating_sub(old.reclaimed_bytes));
        ActivityLoad {
            cell: cell.clone(),
            activity: Some(usage.activity),
            parent: usage.parent,
            name: usage.name.clone(),
            level,
            // The answer is some microseconds younger than the report.
            use_percent: percent(cycles, all).min(100.0),
            share_percent: percent(cycles, sum).min(100.0),
            events_per_second: interval.rate(events),
            memory_bytes: memory.map(|memory| i64::try_from(memory.charged_bytes).unwrap_or(i64::MAX)),
            soft_bytes: memory.and_then(|memory| memory.budget.soft),
            hard_bytes: memory.and_then(|memory| memory.budget.hard),
            reclaimed_bytes_per_second: lost.map(|bytes| interval.rate(bytes)),
            answered: true,
            served_by: None,
        }
    });
    loads.collect()
}

/// Returns the work of service cells for the volumes of a cell: that of the activity by the volume's name, in an order that
/// does not change. `loads` returns the load of a cell's activities; none if no such cell runs.
pub(super) fn served(now: &CellSample, loads: impl Fn(&str) -> Vec<ActivityLoad>) -> Vec<ActivityLoad> {
    let mut volumes: Vec<&ServedVolume> = now.info.spec.served_volumes.iter().collect();
    volumes.sort_by_key(|volume| (&volume.cell, &volume.name));
    let work = |volume: &ServedVolume| {
        let of_server = loads(&volume.cell);
        let load = of_server.into_iter().find(|load| load.level == 0 && load.name == volume.name)?;
        Some(ActivityLoad {
            cell: now.info.spec.name.clone(),
            activity: None,
            name: format!("{}@{}", volume.name, volume.cell),
            served_by: Some(volume.cell.clone()),
            ..load
        })
    };
    volumes.into_iter().filter_map(work).collect()
}

/// Returns the load of the activities without a parent, from the cell's report.
fn reported(now: &CellSample, before: &CellSample, interval: Interval, all: u64) -> Vec<ActivityLoad> {
    // Activities of one name are one row: the report has no numbers.
    let by_name = |cell: &CellSample| {
        let mut sums: BTreeMap<String, (u64, u64, i64)> = BTreeMap::new();
        for usage in &cell.info.activities.activities {
            let (cycles, events, memory) = sums.entry(usage.name.clone()).or_default();
            *cycles = cycles.saturating_add(usage.cycles);
            *events = events.saturating_add(usage.events);
            *memory = memory.saturating_add(usage.memory_bytes);
        }
        sums
    };
    let earlier = by_name(before);
    let spent = |(name, (cycles, events, memory)): (String, (u64, u64, i64))| {
        let (was_cycles, was_events, _) = earlier.get(&name).copied().unwrap_or_default();
        (name, cycles.saturating_sub(was_cycles), events.saturating_sub(was_events), memory)
    };
    let spent: Vec<_> = by_name(now).into_iter().map(spent).collect();
    let sum = spent.iter().fold(0_u64, |sum, (_, cycles, ..)| sum.saturating_add(*cycles));
    let load = |(name, cycles, events, memory)| ActivityLoad {
        cell: now.info.spec.name.clone(),
        name,
        use_percent: percent(cycles, all).min(100.0),
        share_percent: percent(cycles, sum),
        events_per_second: interval.rate(events),
        memory_bytes: Some(memory),
        answered: !now.is_silent,
        ..ActivityLoad::default()
    };
    spent.into_iter().map(load).collect()
}

/// Returns the load of each resource of a cell, followed by that of the activities at its schedulers.
pub(super) fn resources(now: &CellSample, before: &CellSample, interval: Interval) -> Vec<ResourceLoad> {
    let cell = &now.info.spec.name;
    let Some(answer) = &now.grid else {
        return vec![ResourceLoad { cell: cell.clone(), ..ResourceLoad::default() }];
    };
    let earlier = before.grid.as_ref().unwrap_or(answer);
    let mut loads = Vec::new();
    // Memory is kept, and has no use per interval.
    let served = answer.grid_settings.iter().filter(|settings| settings.resource != Resource::Memory);
    for settings in served {
        let mut clients: Vec<&GridClient> =
            answer.grid_clients.iter().filter(|client| client.resource == settings.resource).collect();
        clients.sort_by_key(|client| (client.core, client.activity));
        let spent: Vec<ClientCounts> = clients
            .iter()
            .map(|client| {
                let same = |was: &&GridClient| {
                    (was.resource, was.core, was.activity) == (client.resource, client.core, client.activity)
                };
                ClientCounts::between(client, earlier.grid_clients.iter().find(same))
            })
            .collect();
        let sum = spent.iter().fold(ClientCounts::default(), |sum, of| sum.and(of));
        loads.push(resource_load(cell, settings, &sum, &sum, interval));
        for (client, spent) in clients.into_iter().zip(&spent) {
            loads.push(ResourceLoad {
                core: Some(client.core),
                activity: Some(client.activity),
                name: Some(client.name.clone()),
                weight: Some(client.entitlement.weight.get()),
                ..resource_load(cell, settings, spent, &sum, interval)
            });
        }
    }
    loads
}

/// What activities received in an interval.
#[derive(Default)]
struct ClientCounts {
    waiting: u64,
    served: u64,
    cost: u64,
    waited_ns: u64,
    longest_wait_ns: u64,
}

impl ClientCounts {
    fn between(now: &GridClient, before: Option<&GridClient>) -> Self {
        let spent = |of: fn(&GridClient) -> u64| of(now).saturating_sub(before.map_or(0, of));
        Self {
            waiting: now.waiting,
            served: spent(|client| client.dispatched),
            cost: spent(|client| client.cost),
            waited_ns: spent(|client| client.waited_ns),
            longest_wait_ns: now.longest_wait_ns,
        }
    }

    fn and(&self, other: &Self) -> Self {
        Self {
            waiting: self.waiting.saturating_add(other.waiting),
            served: self.served.saturating_add(other.served),
            cost: self.cost.saturating_add(other.cost),
            waited_ns: self.waited_ns.saturating_add(other.waited_ns),
            longest_wait_ns: self.longest_wait_ns.max(other.longest_wait_ns),
        }
    }
}

fn resource_load(
    cell: &str,
    settings: &GridSettings,
    spent: &ClientCounts,
    of: &ClientCounts,
    interval: Interval,
) -> ResourceLoad {
    ResourceLoad {
        cell: cell.to_owned(),
        resource: Some(settings.resource.to_string()),
        metric: Some(settings.resource.metric().to_string()),
        policy: Some(settings.policy.map_or("direct", |policy| policy.name()).to_owned()),
        waiting: spent.waiting,
        served_per_second: interval.rate(spent.served),
        cost_per_second: interval.rate(spent.cost),
        share_percent: percent(spent.cost, of.cost),
        mean_wait_ns: spent.waited_ns.checked_div(spent.served),
        longest_wait_ns: spent.longest_wait_ns,
        ..ResourceLoad::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::load::{Load, LoadDivision, load};
    use crate::cli::top::sample::Sample;
    use crate::cli::top::test_samples::{activities_answer, busy, grid_answer, quiet, sample};
    use crate::query::QueryAnswer;
    use isola_abi::volume::VolumeAccess;
    use std::time::Duration;

    fn samples(is_silent: bool, answer: impl Fn(u64) -> QueryAnswer, from: u64, to: u64) -> (Sample, Sample) {
        let of = |count| {
            let answer = || (!is_silent).then(|| answer(count));
            let (activities, grid) = (answer(), answer());
            sample(vec![CellSample { info: busy(1, "kv", count), activities, grid, is_silent }])
        };
        let before = of(from);
        let now = Sample { at: before.at + Duration::from_secs(2), ..of(to) };
        (before, now)
    }

    #[test]
    fn activities_are_in_a_tree_with_the_use_of_the_interval() {
        let (before, now) = samples(false, activities_answer, 80_000, 160_000);
        let Load::Activities(loads) = load(LoadDivision::Activity, &now, &before, None) else { panic!() };
        let rows: Vec<_> = loads.iter().map(|load| (load.level, &*load.name, load.use_percent)).collect();
        assert_eq!(
            rows,
            [
                (0, "web", 25.0),
                (1, "10.0.2.2:40001", 12.5),
                (1, "10.0.2.2:40002", 6.3),
                (0, "infrastructure", 12.5)
            ]
        );
        assert_eq!((loads[0].share_percent, loads[0].events_per_second), (66.7, 200.0));
        assert_eq!((loads[0].memory_bytes, loads[1].memory_bytes), (Some(4096), None));
        // 40,000 bytes in two seconds.
        assert_eq!(
            (loads[0].soft_bytes, loads[0].hard_bytes, loads[0].reclaimed_bytes_per_second),
            (Some(1 << 20), Some(2 << 20), Some(20_000.0))
        );
        assert_eq!((loads[1].hard_bytes, loads[1].reclaimed_bytes_per_second), (None, None));
    }

    #[test]
    fn the_report_gives_the_activities_of_a_cell_that_does_not_answer() {
        let (before, now) = samples(true, activities_answer, 80_000, 160_000);
        let Load::Activities(loads) = load(LoadDivision::Activity, &now, &before, None) else { panic!() };
        let rows: Vec<_> = loads.iter().map(|load| (&*load.name, load.use_percent, load.answered)).collect();
        assert_eq!(rows, [("infrastructure", 12.5, false), ("web", 25.0, false)]);
        let Load::Resources(loads) = load(LoadDivision::Resource, &now, &before, None) else { panic!() };
        assert_eq!(loads, [ResourceLoad { cell: "kv".into(), ..ResourceLoad::default() }]);
    }

    #[test]
    fn the_work_of_a_service_cell_is_under_its_client() {
        let of = |count| {
            let mut client = busy(2, "shop", count);
            let volume = |name: &str| ServedVolume {
                cell: "store".into(),
                name: name.into(),
                path: "/data".into(),
                access: VolumeAccess::ReadWrite,
            };
            // The service cell has an activity `web`; a cell that does not run has none.
            client.spec.served_volumes = vec![volume("web"), volume("absent")];
            let server = busy(1, "store", count);
            sample(vec![quiet(server), quiet(client)])
        };
        let before = of(80_000);
        let now = Sample { at: before.at + Duration::from_secs(2), ..of(160_000) };
        let Load::Activities(loads) = load(LoadDivision::Activity, &now, &before, None) else { panic!() };
        let served: Vec<_> = loads.iter().filter(|load| load.served_by.is_some()).collect();
        let [row] = served[..] else { panic!("{loads:?}") };
        assert_eq!((&*row.cell, &*row.name, row.use_percent), ("shop", "web@store", 25.0));
        assert_eq!(row.served_by.as_deref(), Some("store"));
        // With the client alone on the screen, too.
        let Load::Activities(alone) = load(LoadDivision::Activity, &now, &before, Some("shop")) else {
            panic!()
        };
        assert!(alone.iter().all(|load| load.cell == "shop") && alone.contains(row), "{alone:?}");
    }

    #[test]
    fn a_resource_precedes_its_activities_with_shares_and_waits_of_the_interval() {
        let (before, now) = samples(false, grid_answer, 10, 30);
        let Load::Resources(loads) = load(LoadDivision::Resource, &now, &before, None) else { panic!() };
        let rows: Vec<_> =
            loads.iter().map(|load| (load.name.as_deref(), load.waiting, load.share_percent)).collect();
        assert_eq!(
            rows,
            [
                (None, 4, 100.0),
                (Some("web"), 3, 75.0),
                (Some("batch"), 1, 25.0),
                // The others but memory.
                (None, 0, 0.0),
                (None, 0, 0.0),
                (None, 0, 0.0),
                (None, 0, 0.0)
            ]
        );
        assert_eq!((loads[1].served_per_second, loads[1].mean_wait_ns), (30.0, Some(2000)));
        assert_eq!((loads[3].policy.as_deref(), loads[3].mean_wait_ns), (Some("direct"), None));
    }
}
