//! The grid and the activities of a cell as tables.

use crate::cli::network;
use crate::output::{human, table};
use crate::query::{QueryAnswer, in_tree_order};
use isola_abi::grid::{ActivityRule, Entitlement, Metric, Rate, Resource};
use isola_abi::query::{ActivityMemory, GridClient, GridSettings, MemoryUse};
use isola_abi::size::ByteSize;

/// Formats the tree of activities.
pub(super) fn activities_text(answer: &QueryAnswer) -> String {
    let ordered = in_tree_order(&answer.activities, |usage| Some(usage.activity), |usage| usage.parent);
    let rows = ordered.into_iter().map(|(level, activity)| {
        let share = activity.cycles as f64 * 100.0 / answer.activity_cycles.max(1) as f64;
        vec![
            format!("{}{}", "  ".repeat(level), activity.name),
            human::count(activity.cycles),
            format!("{share:.1}%"),
            human::count(activity.events),
            ByteSize(activity.traffic.received_bytes).to_string(),
            ByteSize(activity.traffic.sent_bytes).to_string(),
            ByteSize(activity.traffic.read_bytes).to_string(),
            ByteSize(activity.traffic.written_bytes).to_string(),
            memory_text(activity.memory.as_ref()),
        ]
    });
    let mut text = table(
        &["ACTIVITY", "CYCLES", "SHARE", "EVENTS", "RECEIVED", "SENT", "READ", "WRITTEN", "MEMORY"],
        rows,
    );
    text.push('\n');
    let more = answer.activity_count.saturating_sub(answer.activities.len() as u64);
    if more > 0 {
        text.push_str(&format!("and {} that have used less: raise --most\n", human::count(more)));
    }
    text.push_str(&network::extent_text(answer.extent));
    text
}

/// Formats settings and activities.
pub(super) fn text(answer: &QueryAnswer) -> String {
    let settings = answer.grid_settings.iter().map(|settings| {
        let GridSettings { resource, policy, batch, limit, capacity, .. } = settings;
        vec![
            resource.to_string(),
            policy.map_or("direct".to_owned(), |policy| policy.to_string()),
            batch.to_string(),
            rate_text(*resource, *limit, *capacity),
        ]
    });
    let mut text = table(&["RESOURCE", "POLICY", "BATCH", "LIMIT"], settings);
    text.push('\n');
    if !answer.rules.is_empty() {
        let all = || "all".to_owned();
        let rows = answer.rules.iter().map(|rule| {
            let ActivityRule { port, peer, activity, each_connection } = rule;
            vec![
                port.map_or_else(all, |port| port.to_string()),
                peer.map_or_else(all, |network| network.to_string()),
                activity.clone(),
                if *each_connection { "each connection" } else { "-" }.to_owned(),
            ]
        });
        text.push('\n');
        text.push_str(&table(&["PORT", "PEER", "ACTIVITY", "BELOW IT"], rows));
        text.push('\n');
    }
    let mut clients: Vec<&GridClient> = answer.grid_clients.iter().collect();
    clients.sort_by_key(|client| (client.resource, client.core, client.activity));
    if !clients.is_empty() {
        let total = |of: &GridClient| -> u64 {
            let same =
                clients.iter().filter(|client| (client.resource, client.core) == (of.resource, of.core));
            same.map(|client| client.cost).fold(0, u64::saturating_add)
        };
        let rows = clients.iter().map(|client| {
            let capacity = answer.grid_settings.iter().find(|settings| settings.resource == client.resource);
            let capacity = capacity.and_then(|settings| settings.capacity);
            let share = client.cost as f64 / total(client).max(1) as f64;
            let entitlement = &client.entitlement;
            vec![
                client.resource.to_string(),
                client.core.to_string(),
                client.name.clone(),
                entitlement.weight.get().to_string(),
                entitlement.priority.0.to_string(),
                rate_text(client.resource, entitlement.reservation, capacity),
                rate_text(client.resource, entitlement.limit, capacity),
                human::count(client.waiting),
                human::count(client.dispatched),
                format!("{:.1}%", share * 100.0),
                human::duration_ns(client.waited_ns / client.dispatched.max(1)),
                human::duration_ns(client.longest_wait_ns),
            ]
        });
        text.push('\n');
        text.push_str(&table(
            &[
                "RESOURCE",
                "CORE",
                "ACTIVITY",
                "WEIGHT",
                "PRIORITY",
                "RESERVED",
                "LIMIT",
                "WAITING",
                "SERVED",
                "SHARE",
                "MEAN WAIT",
                "LONGEST",
            ],
            rows,
        ));
        text.push('\n');
    }
    if !answer.memory.is_empty() {
        let rows = answer.memory.iter().map(|usage| {
            let MemoryUse { name, entitlement, memory, waiting, .. } = usage;
            let ActivityMemory { charged_bytes, budget, reclaimed_bytes } = memory;
            vec![
                name.clone(),
                human::cost(*charged_bytes, "bytes"),
                budget_text(budget.soft),
                budget_text(budget.hard),
                human::cost(*reclaimed_bytes, "bytes"),
                entitlement.weight.get().to_string(),
                entitlement.priority.0.to_string(),
                human::count(*waiting),
            ]
        });
        let headings = ["ACTIVITY", "MEMORY", "SOFT", "HARD", "RECLAIMED", "WEIGHT", "PRIORITY", "WAITING"];
        text.push('\n');
        text.push_str(&table(&headings, rows));
        text.push('\n');
    }
    text.push_str(&entitlements_text(answer));
    text.push_str(&network::extent_text(answer.extent));
    text
}

/// Formats the entitlements that were set.
fn entitlements_text(answer: &QueryAnswer) -> String {
    if answer.entitlements.is_empty() {
        return String::new();
    }
    let rows = answer.entitlements.iter().map(|set| {
        let settings = answer.grid_settings.iter().find(|settings| settings.resource == set.resource);
        let facts =
            set_facts(set.resource, settings.and_then(|settings| settings.capacity), &set.entitlement);
        vec![set.resource.to_string(), set.name.clone(), facts.join(", ")]
    });
    let mut text = format!("\n{}\n", table(&["RESOURCE", "ENTITLED", "TO"], rows));
    let all = answer.grid_settings.iter().map(|settings| u64::from(settings.entitlements)).sum::<u64>();
    let more = all.saturating_sub(answer.entitlements.len() as u64);
    if more > 0 {
        text.push_str(&format!("and {} entitlements more\n", human::count(more)));
    }
    text
}

/// Returns the values of an entitlement that are not the default, in the form in which they are set.
pub(super) fn set_facts(
    resource: Resource,
    capacity: Option<Rate>,
    entitlement: &Entitlement,
) -> Vec<String> {
    let Entitlement { weight, priority, deadline_ns, reservation, limit, memory } = entitlement;
    let default = Entitlement::default();
    let rate = |name: &str, rate: &Option<Rate>| {
        rate.map(|rate| format!("{name} {}", rate_text(resource, Some(rate), capacity)))
    };
    let budget = |name: &str, bytes: Option<u64>| bytes.map(|bytes| format!("{name} {}", ByteSize(bytes)));
    let facts = [
        (*weight != default.weight).then(|| format!("weight {}", weight.get())),
        (*priority != default.priority).then(|| format!("priority {}", priority.0)),
        (*deadline_ns != default.deadline_ns)
            .then(|| format!("deadline {}", human::duration_ns(*deadline_ns))),
        rate("reservation", reservation),
        rate("limit", limit),
        budget("soft", memory.soft),
        budget("hard", memory.hard),
    ];
    let facts: Vec<String> = facts.into_iter().flatten().collect();
    if facts.is_empty() { vec!["the default".to_owned()] } else { facts }
}

/// Formats the memory of an activity; `None` is that of one with a parent.
fn memory_text(memory: Option<&ActivityMemory>) -> String {
    memory.map_or_else(|| "-".to_owned(), |memory| human::cost(memory.charged_bytes, "bytes"))
}

/// Formats a budget in the form in which it is set.
pub(in crate::cli) fn budget_text(bytes: Option<u64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string())
}

/// Formats a rate in the form in which it is set.
pub(super) fn rate_text(resource: Resource, rate: Option<Rate>, capacity: Option<Rate>) -> String {
    match (rate, resource.metric(), capacity) {
        (None, ..) => "-".to_owned(),
        (Some(rate), Metric::Cycles, Some(capacity)) => {
            format!("{:.1}%", rate.units() as f64 * 100.0 / capacity.units() as f64)
        }
        (Some(rate), Metric::Cycles, None) => format!("{} cycles/s", human::count(rate.units())),
        (Some(rate), Metric::Nanoseconds, _) => format!("{:.1}%", rate.units() as f64 / 1e7),
        (Some(rate), Metric::Bytes, _) => format!("{}/s", ByteSize(rate.units())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::grid::{MemoryBudget, Priority, Weight};
    use isola_abi::query::GridEntitlement;

    #[test]
    fn rates_are_shown_as_they_are_set() {
        let rate = |units| Rate::per_second(units).ok();
        assert_eq!(rate_text(Resource::Processor, rate(250), rate(1_000)), "25.0%");
        assert_eq!(rate_text(Resource::Processor, rate(250), None), "250 cycles/s");
        assert_eq!(rate_text(Resource::NetworkWrite, rate(10 << 20), None), "10 MiB/s");
        assert_eq!(rate_text(Resource::NetworkWrite, None, None), "-");
        assert_eq!(rate_text(Resource::Rpc, rate(1_500_000_000), rate(1_000_000_000)), "150.0%");
    }

    #[test]
    fn all_values_that_can_be_set_of_an_entitlement_are_shown() {
        let rate = |units| Rate::per_second(units).ok();
        let all = Entitlement {
            weight: Weight::new(300).unwrap(),
            priority: Priority(7),
            deadline_ns: 5_000_000,
            reservation: rate(10 << 20),
            limit: rate(20 << 20),
            memory: MemoryBudget { soft: Some(64 << 20), hard: Some(128 << 20) },
        };
        assert_eq!(
            set_facts(Resource::NetworkWrite, None, &all).join(", "),
            "weight 300, priority 7, deadline 5.00 ms, reservation 10 MiB/s, limit 20 MiB/s, soft 64 MiB, hard 128 MiB"
        );
        assert_eq!(set_facts(Resource::Memory, None, &Entitlement::default()), ["the default"]);
    }

    #[test]
    fn the_table_of_memory_has_charges_budgets_reclaim_and_weights() {
        let entitlement = Entitlement {
            weight: Weight::new(300).unwrap(),
            memory: MemoryBudget { soft: Some(64 << 20), hard: Some(128 << 20) },
            ..Entitlement::default()
        };
        let memory =
            ActivityMemory { charged_bytes: 70 << 20, budget: entitlement.memory, reclaimed_bytes: 3 << 20 };
        let usage = MemoryUse { activity: 5, name: "web".into(), entitlement, memory, waiting: 2 };
        let set = GridEntitlement { resource: Resource::Memory, name: "web".into(), entitlement };
        let settings = GridSettings {
            resource: Resource::Memory,
            policy: None,
            batch: std::num::NonZeroU32::MIN,
            limit: None,
            capacity: None,
            entitlements: 3,
        };
        let answer = QueryAnswer {
            grid_settings: vec![settings],
            memory: vec![usage],
            entitlements: vec![set],
            ..QueryAnswer::default()
        };
        let text = text(&answer);
        let row = text.lines().find(|line| line.starts_with("web")).unwrap();
        let cells: Vec<&str> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells, ["web", "70 MiB", "64 MiB", "128 MiB", "3 MiB", "300", "0", "2"], "{text}");
        assert!(text.contains("weight 300, soft 64 MiB, hard 128 MiB"), "{text}");
        assert!(text.contains("and 2 entitlements more"), "{text}");
    }
}
