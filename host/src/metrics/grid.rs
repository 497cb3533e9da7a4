//! The values of a cell's resource grid.

use super::catalogue as families;
use super::series::{Metrics, Value, cycle_seconds, seconds};
use crate::query::QueryAnswer;
use isola_abi::grid::Metric;
use isola_abi::management::CellInfo;
use isola_abi::query::{GridClient, MemoryUse};

/// The maximum number of clients that are shown of a cell's grid.
const MAX_CLIENTS: usize = 1024;

/// Whether a cell's clients are all shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownClients {
    /// All.
    All,
    /// The first of them.
    First,
}

impl ShownClients {
    /// Returns whether clients are missing.
    pub fn is_cut(self) -> bool {
        self == Self::First
    }
}

/// Adds the grid of a cell. `hz` cycles are a second; 0 if that is unknown.
pub fn add(metrics: &mut Metrics, cell: &CellInfo, answer: &QueryAnswer, hz: u64) -> ShownClients {
    let name = cell.spec.name.as_str();
    for settings in &answer.grid_settings {
        let policy = settings.policy.map_or("direct", |policy| policy.name());
        let labels = [name, settings.resource.name(), policy];
        metrics.add(&families::GRID_POLICY, &labels, Value::Info);
    }
    for usage in &answer.memory {
        add_memory(metrics, name, usage);
    }
    // The order is the same in each reading, so that the same clients are shown.
    let mut clients: Vec<&GridClient> = answer.grid_clients.iter().collect();
    clients.sort_by_key(|client| (client.activity, client.resource, client.core));
    for client in clients.iter().take(MAX_CLIENTS) {
        add_client(metrics, cell, client, hz);
    }
    if clients.len() > MAX_CLIENTS { ShownClients::First } else { ShownClients::All }
}

/// Adds the budgets of an activity, and the memory that it has lost. The memory that it has is in the report.
fn add_memory(metrics: &mut Metrics, cell: &str, usage: &MemoryUse) {
    let labels = [cell, usage.name.as_str()];
    let budget = usage.memory.budget;
    for (family, bytes) in
        [(&families::ACTIVITY_MEMORY_SOFT, budget.soft), (&families::ACTIVITY_MEMORY_HARD, budget.hard)]
    {
        if let Some(bytes) = bytes {
            metrics.number(family, &labels, bytes as f64);
        }
    }
    metrics.count(&families::ACTIVITY_MEMORY_RECLAIMED, &labels, usage.memory.reclaimed_bytes);
    metrics.number(&families::ACTIVITY_MEMORY_WAITING, &labels, usage.waiting as f64);
}

fn add_client(metrics: &mut Metrics, cell: &CellInfo, client: &GridClient, hz: u64) {
    // The answer has the core slot; all other series have the core's number on the machine.
    let core = cell.cores.get(client.core as usize);
    let core = core.map_or_else(|| format!("slot {}", client.core), |core| core.id.to_string());
    let labels = [&cell.spec.name, client.resource.name(), &core, &client.name];
    metrics.count(&families::GRID_REQUESTS, &labels, client.dispatched);
    match client.resource.metric() {
        Metric::Cycles => {
            metrics.count(&families::GRID_CYCLES, &labels, client.cost);
            if let Some(seconds) = cycle_seconds(client.cost, hz) {
                metrics.number(&families::GRID_TIME, &labels, seconds);
            }
        }
        Metric::Bytes => metrics.count(&families::GRID_BYTES, &labels, client.cost),
        Metric::Nanoseconds => metrics.number(&families::GRID_TIME, &labels, seconds(client.cost)),
    }
    metrics.number(&families::GRID_WAITING, &labels, client.waiting as f64);
    metrics.number(&families::GRID_WAIT, &labels, seconds(client.waited_ns));
    metrics.number(&families::GRID_LONGEST_WAIT, &labels, seconds(client.longest_wait_ns));
}
