//! The load as a table, for pipes and with `--plain`.

use super::grid_load::{ActivityLoad, ResourceLoad};
use super::load::{CellLoad, CoreLoad, Load};
use crate::cli::grid::budget_text;
use crate::output::{human, table};
use isola_abi::size::ByteSize;

/// Formats the load of an interval.
pub(super) fn text(load: &Load) -> String {
    match load {
        Load::Cells(cells) => cells_text(cells),
        Load::Activities(activities) => activities_text(activities),
        Load::Resources(resources) => resources_text(resources),
        Load::Cores(cores) => cores_text(cores),
    }
}

/// Formats a part in percent.
pub(super) fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// Formats a cost per second, in the unit of the resource.
pub(super) fn cost(load: &ResourceLoad) -> String {
    human::cost(load.cost_per_second as u64, load.metric.as_deref().unwrap_or_default())
}

/// Formats the memory of an activity.
pub(super) fn memory(bytes: Option<i64>) -> String {
    bytes.map_or_else(|| "-".to_owned(), human::signed_size)
}

/// Formats the memory that an activity lost per second.
pub(super) fn reclaimed(load: &ActivityLoad) -> String {
    let bytes = load.reclaimed_bytes_per_second;
    bytes.map_or_else(|| "-".to_owned(), |bytes| human::cost(bytes as u64, "bytes"))
}

/// Returns the sentence about cells that do not answer queries.
pub(super) fn silence(cells: &[&str]) -> String {
    match cells {
        [] => String::new(),
        [cell] => format!("{cell} does not answer queries"),
        cells => format!("{} do not answer queries", cells.join(", ")),
    }
}

fn cells_text(loads: &[CellLoad]) -> String {
    let size = |bytes| ByteSize(bytes).to_string();
    let rows = loads.iter().map(|load| {
        vec![
            load.name.clone(),
            load.cores.to_string(),
            percent(load.use_percent),
            human::count(load.requests_per_second as u64),
            human::maybe_duration_ns(load.p50_ns),
            human::maybe_duration_ns(load.p99_ns),
            human::maybe_duration_ns(load.wait_p99_ns),
            format!("{}/{}", size(load.used_bytes), size(load.memory_bytes)),
        ]
    });
    table(&["NAME", "CORES", "USE", "REQUESTS/S", "P50", "P99", "WAIT P99", "MEMORY"], rows)
}

fn activities_text(loads: &[ActivityLoad]) -> String {
    let rows = loads.iter().map(|load| {
        vec![
            load.cell.clone(),
            format!("{}{}", "  ".repeat(load.level), load.name),
            percent(load.use_percent),
            percent(load.share_percent),
            human::count(load.events_per_second as u64),
            memory(load.memory_bytes),
            budget_text(load.soft_bytes),
            budget_text(load.hard_bytes),
            reclaimed(load),
        ]
    });
    let headings = ["CELL", "ACTIVITY", "USE", "SHARE", "EVENTS/S", "MEMORY", "SOFT", "HARD", "RECLAIMED/S"];
    let text = table(&headings, rows);
    let mut silent: Vec<&str> =
        loads.iter().filter(|load| !load.answered).map(|load| load.cell.as_str()).collect();
    silent.dedup();
    match silent[..] {
        [] => text,
        _ => format!("{text}\n{}: figures from the report\n", silence(&silent)),
    }
}

fn resources_text(loads: &[ResourceLoad]) -> String {
    let dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = loads.iter().filter(|load| load.resource.is_some()).map(|load| {
        let number = |number: Option<u32>| dash(number.map(|number| number.to_string()));
        vec![
            load.cell.clone(),
            dash(load.resource.clone()),
            dash(load.policy.clone()),
            number(load.core),
            load.name.clone().unwrap_or_else(|| "(all)".to_owned()),
            number(load.weight),
            human::count(load.waiting),
            human::count(load.served_per_second as u64),
            cost(load),
            percent(load.share_percent),
            human::maybe_duration_ns(load.mean_wait_ns),
            human::duration_ns(load.longest_wait_ns),
        ]
    });
    let headings = [
        "CELL",
        "RESOURCE",
        "POLICY",
        "CORE",
        "ACTIVITY",
        "WEIGHT",
        "WAITING",
        "SERVED/S",
        "COST/S",
        "SHARE",
        "MEAN WAIT",
        "LONGEST",
    ];
    let text = table(&headings, rows);
    let silent: Vec<&str> =
        loads.iter().filter(|load| load.resource.is_none()).map(|load| load.cell.as_str()).collect();
    if silent.is_empty() { text } else { format!("{text}\n{}\n", silence(&silent)) }
}

fn cores_text(loads: &[CoreLoad]) -> String {
    let rows = loads.iter().map(|load| {
        vec![
            load.core.to_string(),
            load.cell.clone(),
            load.phase.to_owned(),
            percent(load.use_percent),
            percent(load.event_percent),
            percent(load.interrupt_percent),
            percent(load.loop_percent),
            human::count(load.interrupts_per_second as u64),
            human::maybe_duration_ns(load.wait_p50_ns),
            human::maybe_duration_ns(load.wait_p99_ns),
            human::count(load.long_events),
        ]
    });
    let headings = [
        "CORE",
        "CELL",
        "PHASE",
        "USE",
        "EVENTS",
        "INTERRUPTS",
        "LOOP",
        "INTERRUPTS/S",
        "WAIT P50",
        "WAIT P99",
        "TOO LONG",
    ];
    table(&headings, rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_view_has_its_columns_and_names_silent_cells() {
        let cells = Load::Cells(vec![CellLoad { requests_per_second: 1500.0, ..CellLoad::default() }]);
        assert!(text(&cells).contains("1,500"));
        let activity =
            ActivityLoad { cell: "kv".into(), name: "web".into(), level: 1, ..ActivityLoad::default() };
        let shown = text(&Load::Activities(vec![activity.clone(), activity]));
        assert!(shown.contains("    web") || shown.contains("  web"), "{shown}");
        assert!(shown.ends_with("kv does not answer queries: figures from the report\n"), "{shown}");
        let silent = |cell: &str| ResourceLoad { cell: cell.into(), ..ResourceLoad::default() };
        let bytes = ResourceLoad {
            resource: Some("network-write".into()),
            metric: Some("bytes".into()),
            cost_per_second: 2048.0,
            ..silent("web")
        };
        let shown = text(&Load::Resources(vec![silent("kv"), silent("b"), bytes]));
        assert!(shown.contains("2 KiB") && shown.ends_with("kv, b do not answer queries\n"), "{shown}");
        let core = CoreLoad { core: 7, phase: "halted", loop_percent: 1.25, ..CoreLoad::default() };
        let shown = text(&Load::Cores(vec![core]));
        assert!(shown.contains("halted") && shown.contains("1.2 %"), "{shown}");
        assert_eq!(memory(Some(-2048)), "-2 KiB");
    }
}
