//! The JSON form of a snapshot of a cell: `stats`.

use super::{
    ActivityMemoryView, ActivityView, CellView, CoreView, GridClientView, GridView, LatencyView, TrafficView,
};
use crate::output::human::rfc3339;
use crate::query::{Extent, QueryAnswer, in_tree_order};
use isola_abi::histogram::Distribution;
use isola_abi::management::{ActivityUsage, CellInfo};
use serde::Serialize;
use serde_json::{Map, Value};

/// All counts of a cell since its start, read at one time. Counts that need a query are missing if the cell does not
/// answer.
#[derive(Clone, Debug, Serialize)]
pub struct StatsView {
    /// The machine of the cell.
    pub machine: String,
    /// The name.
    pub name: String,
    /// `created`, `running`, `stopping`, `exited`, `crashed` or `killed`.
    pub state: String,
    /// The time of the snapshot.
    pub taken: String,
    /// The time since the cell's latest start.
    pub uptime_ms: Option<u64>,
    /// The cycles per second.
    pub clock_hz: u64,
    /// Whether the cell answered all queries completely; null if it does not run.
    pub answered: Option<bool>,
    /// The number of cores that did not answer in time; null if the cell did not answer at all, or does not run.
    pub cores_without_answer: Option<u32>,
    /// The cycles of all cores.
    pub cycles: CycleSums,
    /// The part of all cycles that are not idle that the loop, scheduling and accounting took, in percent; null without
    /// such cycles.
    pub overhead_percent: Option<f64>,
    /// The number of events of all activities.
    pub events: u64,
    /// Interrupts taken.
    pub interrupts: u64,
    /// The latency of the cell's requests.
    pub service: LatencyView,
    /// The queueing delay of events, of all cores together.
    pub queueing: LatencyView,
    /// The cores, those that have left included.
    pub cores: Vec<CoreView>,
    /// The activities without a parent: what they and the activities below them used.
    pub activities: Vec<ActivityView>,
    /// The usage of ended activities without a parent, summed.
    pub ended_activities: ActivityView,
    /// The number of activities at any level; null without an answer.
    pub activity_count: Option<u64>,
    /// The activities that have used most, parents before their children; empty without an answer.
    pub activity_tree: Vec<ActivityNodeView>,
    /// The resources of the grid; empty without an answer.
    pub resources: Vec<ResourceStatsView>,
    /// The memory.
    pub memory: MemoryStatsView,
    /// The traffic at the network device.
    pub traffic: TrafficView,
    /// The counters of the protocol stack, summed over all cores; null without an answer.
    pub counters: Option<Map<String, Value>>,
}

/// Cycles of all cores by account. Each cycle of a core has one account: `activities`, `loop`, `interrupt` or `idle`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CycleSums {
    /// The sum over all activities, ended ones included.
    pub activities: u64,
    /// The cycles of events by the accounts of the cores: the same as `activities`, except for the cycles of events that
    /// end while the snapshot is taken.
    pub events: u64,
    /// The event loop itself: scheduling and accounting included.
    #[serde(rename = "loop")]
    pub of_loop: u64,
    /// Interrupt handlers.
    pub interrupt: u64,
    /// Halted.
    pub idle: u64,
    /// All but `idle`.
    pub non_idle: u64,
}

/// An activity in the tree.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityNodeView {
    /// The activity's number.
    pub activity: u32,
    /// The number of the activity above it.
    pub parent: Option<u32>,
    /// The number of activities above it.
    pub level: usize,
    /// The activity's name.
    pub name: String,
    /// The cycles that it and the activities below it have used.
    pub cycles: u64,
    /// The number of their events.
    pub events: u64,
    /// Their memory; null if there is an activity above it.
    pub memory: Option<ActivityMemoryView>,
}

/// A resource of the grid.
#[derive(Clone, Debug, Serialize)]
pub struct ResourceStatsView {
    /// The resource's name.
    pub resource: String,
    /// The unit of costs.
    pub metric: String,
    /// The policy; `direct` without a scheduler.
    pub policy: String,
    /// The number of requests that wait now.
    pub waiting: u64,
    /// The number of requests served in competition with others.
    pub served: u64,
    /// Their cost.
    pub cost: u64,
    /// The mean of their waiting times.
    pub mean_wait_ns: Option<u64>,
    /// The longest waiting time.
    pub longest_wait_ns: u64,
    /// The activities at each of the resource's schedulers.
    pub activities: Vec<GridClientView>,
}

/// The memory of a cell. After its end, the sizes are those at its end.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemoryStatsView {
    /// The memory that the cell was given.
    pub given_bytes: u64,
    /// The part that it has: 0 after its end.
    pub held_bytes: u64,
    /// The part of its image.
    pub image_bytes: u64,
    /// The memory of its page allocator.
    pub pool_bytes: u64,
    /// The part of the pool that is in use.
    pub used_bytes: u64,
    /// The maximum of `used_bytes` so far.
    pub peak_bytes: u64,
    /// The memory pressure: `none`, `low` or `critical`.
    pub pressure: &'static str,
}

/// The answers of a running cell.
#[derive(Debug, Default)]
pub struct Answers {
    /// To the query for counters.
    pub counters: Option<QueryAnswer>,
    /// To the query for the grid.
    pub grid: Option<QueryAnswer>,
    /// To the query for activities.
    pub activities: Option<QueryAnswer>,
}

impl Answers {
    /// Returns the extent of the least complete answer.
    pub fn extent(&self) -> Extent {
        let all = [&self.counters, &self.grid, &self.activities];
        let extents = all.map(|answer| answer.as_ref().map_or(Extent::Nothing, |answer| answer.extent));
        let missing = |extent: &Extent| match extent {
            Extent::Whole => 0,
            Extent::Without(cores) => u64::from(*cores),
            Extent::Nothing => u64::MAX,
        };
        extents.into_iter().max_by_key(missing).unwrap_or_default()
    }
}

impl CycleSums {
    /// Returns the sums of a cell.
    pub fn new(cell: &CellInfo) -> Self {
        let sum = |of: &dyn Fn(&isola_abi::management::CoreUsage) -> u64| {
            cell.cores.iter().map(of).fold(0, u64::saturating_add)
        };
        let events = sum(&|core| core.event_cycles);
        let of_loop = sum(&|core| core.loop_cycles);
        let interrupt = sum(&|core| core.interrupt_cycles);
        Self {
            activities: all_activities(cell, |usage| usage.cycles),
            events,
            of_loop,
            interrupt,
            idle: sum(&|core| core.idle_cycles),
            non_idle: events.saturating_add(of_loop).saturating_add(interrupt),
        }
    }

    /// Returns the part of the loop, scheduling and accounting in all cycles that are not idle, in percent.
    pub fn overhead_percent(&self) -> Option<f64> {
        (self.non_idle > 0).then(|| self.of_loop as f64 * 100.0 / self.non_idle as f64)
    }
}

fn all_activities(cell: &CellInfo, of: impl Fn(&ActivityUsage) -> u64) -> u64 {
    let page = &cell.activities;
    page.activities.iter().chain([&page.ended]).map(of).fold(0, u64::saturating_add)
}

impl StatsView {
    /// Creates the JSON form of a cell. `answers` are those of a running cell.
    pub fn new(
        machine: &str,
        clock_hz: u64,
        taken_unix_ns: u64,
        cell: &CellInfo,
        answers: Option<&Answers>,
    ) -> Self {
        let all = CellView::new(machine, cell, &[], None);
        let cycles = CycleSums::new(cell);
        let mut queueing = Distribution::default();
        cell.cores.iter().for_each(|core| queueing.add(&core.queueing));
        let extent = answers.map(Answers::extent);
        let activities = answers.and_then(|answers| answers.activities.as_ref());
        let activities = activities.filter(|answer| answer.extent != Extent::Nothing);
        let counters = answers.and_then(|answers| answers.counters.as_ref());
        let counters = counters.filter(|answer| answer.extent != Extent::Nothing);
        let grid = answers.and_then(|answers| answers.grid.as_ref());
        Self {
            machine: machine.to_owned(),
            name: all.name,
            state: all.state,
            taken: rfc3339(taken_unix_ns),
            uptime_ms: all.uptime_ms,
            clock_hz,
            answered: extent.map(|extent| extent == Extent::Whole),
            cores_without_answer: match extent {
                None | Some(Extent::Nothing) => None,
                Some(Extent::Without(cores)) => Some(cores),
                Some(Extent::Whole) => Some(0),
            },
            cycles,
            overhead_percent: cycles.overhead_percent().map(|percent| (percent * 1000.0).round() / 1000.0),
            events: all_activities(cell, |usage| usage.events),
            interrupts: cell.cores.iter().map(|core| core.interrupts).fold(0, u64::saturating_add),
            service: all.service,
            queueing: LatencyView::new(&queueing),
            cores: all.cores,
            activities: all.activities,
            ended_activities: all.ended_activities,
            activity_count: activities.map(|answer| answer.activity_count),
            activity_tree: activities.map(nodes).unwrap_or_default(),
            resources: grid.map(|answer| resources(&cell.spec.name, answer)).unwrap_or_default(),
            memory: MemoryStatsView {
                given_bytes: all.memory_bytes,
                held_bytes: all.held_bytes,
                image_bytes: all.image_bytes,
                pool_bytes: all.pool_bytes,
                used_bytes: all.used_bytes,
                peak_bytes: all.peak_bytes,
                pressure: all.pressure,
            },
            traffic: all.traffic,
            counters: counters.map(|answer| {
                answer.counters.iter().map(|(name, count)| (name.name.clone(), Value::from(*count))).collect()
            }),
        }
    }
}

fn nodes(answer: &QueryAnswer) -> Vec<ActivityNodeView> {
    let ordered = in_tree_order(&answer.activities, |usage| Some(usage.activity), |usage| usage.parent);
    let node = |(level, usage): (usize, &isola_abi::query::ActivityUsage)| ActivityNodeView {
        activity: usage.activity,
        parent: usage.parent,
        level,
        name: usage.name.clone(),
        cycles: usage.cycles,
        events: usage.events,
        memory: usage.memory.as_ref().map(ActivityMemoryView::new),
    };
    ordered.into_iter().map(node).collect()
}

fn resources(cell: &str, answer: &QueryAnswer) -> Vec<ResourceStatsView> {
    let GridView { resources, mut activities, .. } = GridView::new(cell, answer);
    activities.sort_by_key(|client| (client.core, client.activity));
    let stats = |resource: super::GridResourceView| {
        let own: Vec<GridClientView> =
            activities.iter().filter(|client| client.resource == resource.resource).cloned().collect();
        let sum = |of: fn(&GridClientView) -> u64| own.iter().map(of).fold(0, u64::saturating_add);
        let served = sum(|client| client.served);
        ResourceStatsView {
            resource: resource.resource,
            metric: resource.metric,
            policy: resource.policy,
            waiting: sum(|client| client.waiting),
            served,
            cost: sum(|client| client.cost),
            mean_wait_ns: sum(|client| client.waited_ns).checked_div(served),
            longest_wait_ns: own.iter().map(|client| client.longest_wait_ns).max().unwrap_or(0),
            activities: own,
        }
    };
    resources.into_iter().map(stats).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_data::cell;
    use isola_abi::histogram::Histogram;
    use isola_abi::id::CoreId;
    use isola_abi::management::{CellState, CoreUsage};
    use isola_abi::report::CorePhase;

    fn busy() -> CellInfo {
        let mut info = CellInfo { state: CellState::Running, ..cell("kv") };
        let core = |id, events, of_loop, idle| CoreUsage {
            id: CoreId(id),
            is_present: id == 1,
            phase: CorePhase::Running,
            interrupts: 3,
            idle_cycles: idle,
            loop_cycles: of_loop,
            interrupt_cycles: 10,
            event_cycles: events,
            long_events: 0,
            longest_event_cycles: 0,
            queueing: Histogram::new().read(),
        };
        info.cores = vec![core(1, 600, 40, 10_000), core(2, 300, 40, 5)];
        let usage = |name: &str, cycles| ActivityUsage {
            name: name.into(),
            cycles,
            events: cycles / 10,
            memory_bytes: 5,
        };
        info.activities.activities = vec![usage("infrastructure", 500), usage("web", 300)];
        info.activities.ended = usage("", 100);
        info
    }

    #[test]
    fn the_overhead_is_the_part_of_the_loop_in_all_cycles_that_are_not_idle() {
        let view = StatsView::new("default", 1_000, 0, &busy(), None);
        let expected = CycleSums {
            activities: 900,
            events: 900,
            of_loop: 80,
            interrupt: 20,
            idle: 10_005,
            non_idle: 1_000,
        };
        assert_eq!((view.cycles, view.overhead_percent, view.events), (expected, Some(8.0), 90));
        assert_eq!(view.interrupts, 6);
        let unused = StatsView::new("default", 1_000, 0, &cell("kv"), None);
        assert_eq!((unused.overhead_percent, unused.answered), (None, None));
        let json = serde_json::to_value(&view).unwrap();
        assert_eq!((&json["cycles"]["loop"], &json["counters"]), (&80.into(), &Value::Null));
    }

    #[test]
    fn a_cell_without_an_answer_has_the_counts_of_its_report() {
        let view = StatsView::new("default", 1_000, 0, &busy(), Some(&Answers::default()));
        assert_eq!((view.answered, view.cores_without_answer), (Some(false), None));
        assert_eq!((view.activities.len(), view.resources.len(), view.activity_count), (2, 0, None));
        let answer = |extent| Some(QueryAnswer { extent, ..QueryAnswer::default() });
        let part = Answers {
            counters: answer(Extent::Whole),
            grid: answer(Extent::Without(2)),
            activities: answer(Extent::Without(1)),
        };
        let view = StatsView::new("default", 1_000, 0, &busy(), Some(&part));
        assert_eq!((view.answered, view.cores_without_answer), (Some(false), Some(2)));
    }
}
