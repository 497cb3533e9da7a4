//! Several schedulers of a core in one report.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use isola_abi::query::GridClient;

/// Returns one entry for each activity, resource and core, with the sums: a core may have several schedulers of a
/// resource, one for each device, volume or machine.
pub fn merged(clients: impl IntoIterator<Item = GridClient>) -> Vec<GridClient> {
    let mut all: Vec<GridClient> = Vec::new();
    let mut positions = BTreeMap::new();
    for client in clients {
        let key = (client.resource, client.core, client.activity);
        let Some(position) = positions.get(&key).copied() else {
            positions.insert(key, all.len());
            all.push(client);
            continue;
        };
        let sum: &mut GridClient = &mut all[position];
        sum.waiting = sum.waiting.saturating_add(client.waiting);
        sum.dispatched = sum.dispatched.saturating_add(client.dispatched);
        sum.cost = sum.cost.saturating_add(client.cost);
        sum.waited_ns = sum.waited_ns.saturating_add(client.waited_ns);
        sum.longest_wait_ns = sum.longest_wait_ns.max(client.longest_wait_ns);
    }
    all
}
