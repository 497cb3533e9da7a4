//! The text of a snapshot.

use crate::cli::grid::budget_text;
use crate::cli::inspect::cycles_ns;
use crate::output::human;
use crate::output::table;
use crate::output::view::{ActivityMemoryView, LatencyView, StatsView};
use isola_abi::size::ByteSize;
use std::fmt::Write;

/// Formats the snapshot of a cell.
pub(super) fn text(view: &StatsView) -> String {
    let mut text = summary(view);
    for part in [cores(view), activities(view), resources(view), counters(view)] {
        if !part.is_empty() {
            let _ = write!(text, "\n{part}\n");
        }
    }
    match (view.answered, view.cores_without_answer) {
        (None | Some(true), _) => {}
        (Some(false), None) => {
            text.push_str("\nThe cell does not answer queries: all figures are from its report.\n");
        }
        (Some(false), Some(cores)) => {
            let _ = writeln!(text, "\n{cores} of the cell's cores have not answered in time.");
        }
    }
    text
}

fn summary(view: &StatsView) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<12}{value}");
    };
    let uptime = view.uptime_ms.map(std::time::Duration::from_millis);
    let uptime = uptime.map(|uptime| format!("; uptime {}", human::age(uptime))).unwrap_or_default();
    line("cell", format!("{} (machine {}), {}{uptime}", view.name, view.machine, view.state));
    line("taken", view.taken.clone());
    let overhead = view.overhead_percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent:.3} %"));
    line("overhead", format!("{overhead} = (loop + scheduling + accounting) / all non-idle"));
    let cycles = &view.cycles;
    line(
        "cycles",
        format!(
            "{} non-idle: activities {}, loop {}, interrupts {}; idle {}",
            human::count(cycles.non_idle),
            human::count(cycles.events),
            human::count(cycles.of_loop),
            human::count(cycles.interrupt),
            human::count(cycles.idle),
        ),
    );
    line(
        "activities",
        format!("sum {} cycles, {} events", human::count(cycles.activities), human::count(view.events),),
    );
    line("waiting", latency(&view.queueing, view.clock_hz, "weighted samples"));
    line("requests", latency(&view.service, view.clock_hz, "requests"));
    line("network", view.traffic.to_string());
    let memory = &view.memory;
    line(
        "memory",
        format!(
            "{} given, {} held: image {}, pool {} ({} used, {} at most)",
            ByteSize(memory.given_bytes),
            ByteSize(memory.held_bytes),
            ByteSize(memory.image_bytes),
            ByteSize(memory.pool_bytes),
            ByteSize(memory.used_bytes),
            ByteSize(memory.peak_bytes),
        ),
    );
    text
}

fn latency(view: &LatencyView, clock_hz: u64, what: &str) -> String {
    let LatencyView { count, p50_cycles, p99_cycles, p999_cycles } = *view;
    if count == 0 {
        return format!("no {what}");
    }
    let time =
        |cycles: Option<u64>| human::maybe_duration_ns(cycles.and_then(|cycles| cycles_ns(cycles, clock_hz)));
    let (p50, p99, p999) = (time(p50_cycles), time(p99_cycles), time(p999_cycles));
    format!("p50 {p50}, p99 {p99}, p99.9 {p999}, of {} {what}", human::count(count))
}

fn cores(view: &StatsView) -> String {
    let time = |cycles: Option<u64>| {
        human::maybe_duration_ns(cycles.and_then(|cycles| cycles_ns(cycles, view.clock_hz)))
    };
    let rows = view.cores.iter().map(|core| {
        let busy = core.event_cycles.saturating_add(core.loop_cycles).saturating_add(core.interrupt_cycles);
        vec![
            core.id.to_string(),
            core.phase.to_owned(),
            human::count(core.event_cycles),
            human::count(core.loop_cycles),
            human::count(core.interrupt_cycles),
            human::count(core.idle_cycles),
            percent(core.loop_cycles, busy),
            human::count(core.interrupts),
            time(core.queueing.p50_cycles),
            time(core.queueing.p99_cycles),
            time(core.queueing.p999_cycles),
            human::count(core.long_events),
        ]
    });
    let headings = [
        "CORE",
        "PHASE",
        "EVENT CYCLES",
        "LOOP",
        "INTERRUPT",
        "IDLE",
        "OVERHEAD",
        "INTERRUPTS",
        "WAIT P50",
        "P99",
        "P99.9",
        "TOO LONG",
    ];
    table(&headings, rows)
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.2} %", part as f64 * 100.0 / whole as f64) }
}

/// Formats the tree of activities, or those of the report if the cell did not answer.
fn activities(view: &StatsView) -> String {
    let sum = view.cycles.activities;
    let row = |name: String, cycles, events, bytes: Option<i64>, memory: Option<ActivityMemoryView>| {
        let dash = || "-".to_owned();
        vec![
            name,
            human::count(cycles),
            percent(cycles, sum),
            human::count(events),
            bytes.map_or_else(dash, human::signed_size),
            budget_text(memory.and_then(|memory| memory.soft_bytes)),
            budget_text(memory.and_then(|memory| memory.hard_bytes)),
            memory.map_or_else(dash, |memory| human::cost(memory.reclaimed_bytes, "bytes")),
        ]
    };
    let mut rows = Vec::new();
    for node in &view.activity_tree {
        let name = format!("{}{}", "  ".repeat(node.level), node.name);
        let bytes = node.memory.map(|memory| i64::try_from(memory.charged_bytes).unwrap_or(i64::MAX));
        rows.push(row(name, node.cycles, node.events, bytes, node.memory));
    }
    if rows.is_empty() {
        let reported = view.activities.iter();
        rows.extend(reported.map(|usage| {
            row(usage.name.clone(), usage.cycles, usage.events, Some(usage.memory_bytes), None)
        }));
    }
    let ended = &view.ended_activities;
    if ended.events > 0 || ended.memory_bytes != 0 {
        rows.push(row("(ended)".to_owned(), ended.cycles, ended.events, Some(ended.memory_bytes), None));
    }
    let listed = view.activity_tree.len() as u64;
    let headings = ["ACTIVITY", "CYCLES", "SHARE", "EVENTS", "MEMORY", "SOFT", "HARD", "RECLAIMED"];
    let text = table(&headings, rows);
    match view.activity_count.map_or(0, |count| count.saturating_sub(listed)) {
        0 => text,
        more => format!("{text}\nand {} activities that have used less", human::count(more)),
    }
}

fn resources(view: &StatsView) -> String {
    if view.resources.is_empty() {
        return String::new();
    }
    let mut rows = Vec::new();
    for resource in &view.resources {
        rows.push(vec![
            resource.resource.clone(),
            resource.policy.clone(),
            "-".to_owned(),
            "(all)".to_owned(),
            human::count(resource.waiting),
            human::count(resource.served),
            human::cost(resource.cost, &resource.metric),
            "-".to_owned(),
            human::maybe_duration_ns(resource.mean_wait_ns),
            human::duration_ns(resource.longest_wait_ns),
        ]);
        for client in &resource.activities {
            let of_core = resource.activities.iter().filter(|other| other.core == client.core);
            let of_core = of_core.map(|other| other.cost).fold(0, u64::saturating_add);
            rows.push(vec![
                resource.resource.clone(),
                resource.policy.clone(),
                client.core.to_string(),
                client.name.clone(),
                human::count(client.waiting),
                human::count(client.served),
                human::cost(client.cost, &resource.metric),
                percent(client.cost, of_core),
                human::maybe_duration_ns(client.waited_ns.checked_div(client.served)),
                human::duration_ns(client.longest_wait_ns),
            ]);
        }
    }
    let headings = [
        "RESOURCE",
        "POLICY",
        "CORE",
        "ACTIVITY",
        "WAITING",
        "SERVED",
        "COST",
        "SHARE",
        "MEAN WAIT",
        "LONGEST",
    ];
    table(&headings, rows)
}

/// Formats the counters that are not 0.
fn counters(view: &StatsView) -> String {
    let counters = view.counters.iter().flatten();
    let counted =
        counters.filter_map(|(name, count)| Some((name, count.as_u64().filter(|count| *count > 0)?)));
    let rows: Vec<_> = counted.map(|(name, count)| vec![name.clone(), human::count(count)]).collect();
    if rows.is_empty() { String::new() } else { table(&["COUNTER", "COUNT"], rows) }
}
