//! The JSON form of a cell's resource grid.

use crate::query::{Extent, QueryAnswer};
use isola_abi::query::{GridClient, GridSettings};
use serde::Serialize;

/// The grid of a cell: `grid show`, `grid set`.
#[derive(Clone, Debug, Serialize)]
pub struct GridView {
    /// The cell.
    pub cell: String,
    /// The resources.
    pub resources: Vec<GridResourceView>,
    /// What activities have received, by resource and core.
    pub activities: Vec<GridClientView>,
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
}

/// An activity at a core or queue.
#[derive(Clone, Debug, Serialize)]
pub struct GridClientView {
    /// The resource's name.
    pub resource: String,
    /// The index of the core, among the cell's.
    pub core: u32,
    /// The activity's number.
    pub activity: u16,
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

impl GridView {
    /// Creates the JSON form of a cell's answer.
    pub fn new(cell: &str, answer: &QueryAnswer) -> Self {
        Self {
            cell: cell.to_owned(),
            resources: answer.grid_settings.iter().map(GridResourceView::new).collect(),
            activities: answer.grid_clients.iter().map(GridClientView::new).collect(),
            complete: answer.extent == Extent::Whole,
        }
    }
}

impl GridResourceView {
    fn new(settings: &GridSettings) -> Self {
        let GridSettings { resource, policy, batch, limit, capacity } = settings;
        Self {
            resource: resource.to_string(),
            metric: resource.metric().to_string(),
            policy: policy.map_or("direct", |policy| policy.name()).to_owned(),
            batch: batch.get(),
            limit: limit.map(|rate| rate.units()),
            capacity: capacity.map(|rate| rate.units()),
        }
    }
}

impl GridClientView {
    fn new(client: &GridClient) -> Self {
        Self {
            resource: client.resource.to_string(),
            core: client.core,
            activity: client.activity,
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
