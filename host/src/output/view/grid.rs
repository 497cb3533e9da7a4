//! The JSON forms of a cell's resource grid and its activities.

use crate::query::{Extent, QueryAnswer};
use isola_abi::grid::ActivityRule;
use isola_abi::grid::Entitlement;
use isola_abi::query::{
    ActivityMemory, ActivityTraffic, ActivityUsage, GridClient, GridEntitlement, GridSettings, MemoryUse,
};
use serde::Serialize;

/// The grid of a cell: `grid show`, `grid set`.
#[derive(Clone, Debug, Serialize)]
pub struct GridView {
    /// The cell.
    pub cell: String,
    /// The resources.
    pub resources: Vec<GridResourceView>,
    /// The rules that attribute connections, in their order.
    pub rules: Vec<ActivityRuleView>,
    /// What activities have received, by resource and core.
    pub activities: Vec<GridClientView>,
    /// The memory of activities that have no activity above them.
    pub memory: Vec<MemoryUseView>,
    /// The entitlements that were set, whether their activities compete or not.
    pub entitlements: Vec<EntitlementView>,
    /// Whether all cores of the cell have answered.
    pub complete: bool,
}

/// The settings of a resource.
#[derive(Clone, Debug, Serialize)]
pub struct GridResourceView {
    /// The resource's name.
    pub resource: String,
    /// The unit of costs; rates have that unit per second.
    pub metric: String,
    /// The policy; `direct` without a scheduler.
    pub policy: String,
    /// The most requests of an activity per decision.
    pub batch: u32,
    /// The most that each core or queue serves.
    pub limit: Option<u64>,
    /// The most that each core or queue can serve.
    pub capacity: Option<u64>,
    /// The number of entitlements that were set: more than are listed, if there are many.
    pub entitlements: u32,
}

/// An entitlement that was set at a resource.
#[derive(Clone, Debug, Serialize)]
pub struct EntitlementView {
    /// The resource's name.
    pub resource: String,
    /// The name of the activities that have it.
    pub name: String,
    /// The weight.
    pub weight: u32,
    /// The priority.
    pub priority: u8,
    /// The time from a request's arrival to its deadline.
    pub deadline_ns: u64,
    /// The least service.
    pub reservation: Option<u64>,
    /// The most service.
    pub limit: Option<u64>,
    /// The memory that the activity does not lose to others, of the resource `memory`.
    pub soft_bytes: Option<u64>,
    /// The most memory.
    pub hard_bytes: Option<u64>,
}

impl EntitlementView {
    fn new(set: &GridEntitlement) -> Self {
        let Entitlement { weight, priority, deadline_ns, reservation, limit, memory } = set.entitlement;
        Self {
            resource: set.resource.to_string(),
            name: set.name.clone(),
            weight: weight.get(),
            priority: priority.0,
            deadline_ns,
            reservation: reservation.map(|rate| rate.units()),
            limit: limit.map(|rate| rate.units()),
            soft_bytes: memory.soft,
            hard_bytes: memory.hard,
        }
    }
}

/// An activity at a core or queue.
#[derive(Clone, Debug, Serialize)]
pub struct GridClientView {
    /// The resource's name.
    pub resource: String,
    /// The index of the core, among the cell's.
    pub core: u32,
    /// The activity's number.
    pub activity: u32,
    /// The number of the activity above it.
    pub parent: Option<u32>,
    /// The activity's name.
    pub name: String,
    /// The weight.
    pub weight: u32,
    /// The priority.
    pub priority: u8,
    /// The time from a request's arrival to its deadline.
    pub deadline_ns: u64,
    /// The least service.
    pub reservation: Option<u64>,
    /// The most service.
    pub limit: Option<u64>,
    /// The number of requests that wait now.
    pub waiting: u64,
    /// The number of requests served in competition with others.
    pub served: u64,
    /// Their cost, in the resource's metric.
    pub cost: u64,
    /// The sum of their waiting times.
    pub waited_ns: u64,
    /// The longest waiting time.
    pub longest_wait_ns: u64,
}

/// An activity at the resource `memory`.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryUseView {
    /// The activity's number.
    pub activity: u32,
    /// The activity's name.
    pub name: String,
    /// The memory.
    #[serde(flatten)]
    pub memory: ActivityMemoryView,
    /// The weight of its requests that wait.
    pub weight: u32,
    /// Their priority.
    pub priority: u8,
    /// The time from a request's arrival to its deadline.
    pub deadline_ns: u64,
    /// The number of its requests that wait for memory.
    pub waiting: u64,
}

/// The memory of an activity that has no activity above it, those below it included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct ActivityMemoryView {
    /// The memory that is charged to the activity.
    pub charged_bytes: u64,
    /// The memory that it does not lose to others.
    pub soft_bytes: Option<u64>,
    /// The most that it may have.
    pub hard_bytes: Option<u64>,
    /// The memory that it has lost so far.
    pub reclaimed_bytes: u64,
}

impl ActivityMemoryView {
    /// Creates the JSON form.
    pub fn new(memory: &ActivityMemory) -> Self {
        Self {
            charged_bytes: memory.charged_bytes,
            soft_bytes: memory.budget.soft,
            hard_bytes: memory.budget.hard,
            reclaimed_bytes: memory.reclaimed_bytes,
        }
    }
}

impl MemoryUseView {
    fn new(usage: &MemoryUse) -> Self {
        Self {
            activity: usage.activity,
            name: usage.name.clone(),
            memory: ActivityMemoryView::new(&usage.memory),
            weight: usage.entitlement.weight.get(),
            priority: usage.entitlement.priority.0,
            deadline_ns: usage.entitlement.deadline_ns,
            waiting: usage.waiting,
        }
    }
}

/// A rule that attributes accepted connections to an activity.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityRuleView {
    /// The port that connections are made to; all ports if null.
    pub port: Option<u16>,
    /// The peers' network, as an address and the length of its prefix; all peers if null.
    pub peer: Option<String>,
    /// The name of the activity.
    pub activity: String,
    /// Whether each connection has an activity of its own below that one.
    pub each_connection: bool,
}

impl ActivityRuleView {
    fn new(rule: &ActivityRule) -> Self {
        Self {
            port: rule.port,
            peer: rule.peer.map(|network| network.to_string()),
            activity: rule.activity.clone(),
            each_connection: rule.each_connection,
        }
    }
}

/// The activities of a cell: `grid activities`.
#[derive(Clone, Debug, Serialize)]
pub struct ActivitiesView {
    /// The cell.
    pub cell: String,
    /// The number of activities, listed here or not.
    pub count: u64,
    /// The cycles of all activities since the cell's start, ended ones included.
    pub cycles: u64,
    /// Parents before their children.
    pub activities: Vec<ActivityUsageView>,
}

/// An activity and its usage.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityUsageView {
    /// The activity's number.
    pub activity: u32,
    /// The number of the activity above it.
    pub parent: Option<u32>,
    /// The activity's name.
    pub name: String,
    /// The cycles that it and the activities below it have used.
    pub cycles: u64,
    /// The number of their events.
    pub events: u64,
    /// What devices have moved for them.
    #[serde(flatten)]
    pub traffic: ActivityTrafficView,
    /// Their memory; null if there is an activity above it.
    pub memory: Option<ActivityMemoryView>,
}

/// What devices have moved for an activity.
#[derive(Clone, Debug, Serialize)]
pub struct ActivityTrafficView {
    /// The bytes of received frames.
    pub received_bytes: u64,
    /// The bytes of sent frames.
    pub sent_bytes: u64,
    /// The number of completed reads of block devices.
    pub reads: u64,
    /// The bytes of these.
    pub read_bytes: u64,
    /// The number of completed writes to block devices.
    pub writes: u64,
    /// The bytes of these.
    pub written_bytes: u64,
}

impl ActivityTrafficView {
    fn new(traffic: &ActivityTraffic) -> Self {
        let &ActivityTraffic { received_bytes, sent_bytes, reads, read_bytes, writes, written_bytes } =
            traffic;
        Self { received_bytes, sent_bytes, reads, read_bytes, writes, written_bytes }
    }
}

impl ActivitiesView {
    /// Creates the JSON form of a cell's answer.
    pub fn new(cell: &str, answer: &QueryAnswer) -> Self {
        let activities = answer.activities.iter().map(|usage| {
            let ActivityUsage { activity, parent, name, cycles, events, traffic, memory } = usage.clone();
            let memory = memory.as_ref().map(ActivityMemoryView::new);
            let traffic = ActivityTrafficView::new(&traffic);
            ActivityUsageView { activity, parent, name, cycles, events, traffic, memory }
        });
        Self {
            cell: cell.to_owned(),
            count: answer.activity_count,
            cycles: answer.activity_cycles,
            activities: activities.collect(),
        }
    }
}

impl GridView {
    /// Creates the JSON form of a cell's answer.
    pub fn new(cell: &str, answer: &QueryAnswer) -> Self {
        Self {
            cell: cell.to_owned(),
            resources: answer.grid_settings.iter().map(GridResourceView::new).collect(),
            rules: answer.rules.iter().map(ActivityRuleView::new).collect(),
            activities: answer.grid_clients.iter().map(GridClientView::new).collect(),
            memory: answer.memory.iter().map(MemoryUseView::new).collect(),
            entitlements: answer.entitlements.iter().map(EntitlementView::new).collect(),
            complete: answer.extent == Extent::Whole,
        }
    }
}

impl GridResourceView {
    fn new(settings: &GridSettings) -> Self {
        let GridSettings { resource, policy, batch, limit, capacity, entitlements } = settings;
        Self {
            resource: resource.to_string(),
            metric: resource.metric().to_string(),
            policy: policy.map_or("direct", |policy| policy.name()).to_owned(),
            batch: batch.get(),
            limit: limit.map(|rate| rate.units()),
            capacity: capacity.map(|rate| rate.units()),
            entitlements: *entitlements,
        }
    }
}

impl GridClientView {
    fn new(client: &GridClient) -> Self {
        Self {
            resource: client.resource.to_string(),
            core: client.core,
            activity: client.activity,
            parent: client.parent,
            name: client.name.clone(),
            weight: client.entitlement.weight.get(),
            priority: client.entitlement.priority.0,
            deadline_ns: client.entitlement.deadline_ns,
            reservation: client.entitlement.reservation.map(|rate| rate.units()),
            limit: client.entitlement.limit.map(|rate| rate.units()),
            waiting: client.waiting,
            served: client.dispatched,
            cost: client.cost,
            waited_ns: client.waited_ns,
            longest_wait_ns: client.longest_wait_ns,
        }
    }
}
