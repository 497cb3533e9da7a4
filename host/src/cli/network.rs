//! A cell's network counters and connections, as text and as JSON.

use crate::machine::switch::SwitchError;
use crate::output::view::{ConnectedMachineView, ConnectionView, path_name};
use crate::output::{human, table};
use crate::query::{Extent, QueryAnswer};
use crate::switch::fabric::PortCounters;
use isola_abi::query::FrameFilter;
use isola_abi::size::ByteSize;
use serde_json::{Map, Value};

/// Formats the counters that are not 0, by layer.
pub(super) fn counters_text(answer: &QueryAnswer) -> String {
    let rows: Vec<_> = answer.counters.iter().filter(|(_, count)| *count != 0).collect();
    let note = extent_text(answer.extent);
    if rows.is_empty() {
        return if note.is_empty() { note } else { format!("\n{note}") };
    }
    let mut layers: Vec<&str> = Vec::new();
    for (counter, _) in &rows {
        if !layers.contains(&counter.layer.as_str()) {
            layers.push(&counter.layer);
        }
    }
    let by_layer =
        layers.iter().flat_map(|layer| rows.iter().filter(|(counter, _)| counter.layer == **layer));
    let rows = by_layer
        .map(|(counter, count)| vec![counter.layer.clone(), counter.name.clone(), human::count(*count)]);
    format!("\n{}\n{note}", table(&["NETWORK", "COUNTER", "COUNT"], rows))
}

/// Adds all counters, and the extent of the answer, to the JSON form of a cell.
pub(super) fn add_counters(view: &mut Value, answer: &QueryAnswer) {
    let counters = answer.counters.iter().map(|(counter, count)| (counter.name.clone(), Value::from(*count)));
    add(view, "counters", Value::Object(counters.collect::<Map<_, _>>()));
    add_extent(view, answer.extent);
}

/// Formats the switch's counters of dropped frames; empty if there are none.
pub(super) fn switch_text(counters: &Result<Option<PortCounters>, SwitchError>) -> String {
    let counters = match counters {
        Ok(None) => return String::new(),
        Ok(Some(counters)) => counters,
        Err(error) => return error.to_string(),
    };
    let PortCounters { foreign_address, to_host, not_read } = *counters;
    let losses = [
        (foreign_address, "dropped: the source address is not the cell's"),
        (to_host, "dropped: sent to services of the host; `isola up --net user,host-access` permits them"),
        (not_read, "dropped: the cell did not read earlier ones"),
    ];
    let losses = losses.iter().filter(|(count, _)| *count > 0);
    losses
        .map(|(count, what)| format!("{} frames {what}", human::count(*count)))
        .collect::<Vec<_>>()
        .join("; ")
}

/// Adds the switch's counters to the JSON form of a cell: null if there is no switch or it does not answer.
pub(super) fn add_switch(
    view: &mut Value,
    counters: &Result<Option<PortCounters>, SwitchError>,
) -> serde_json::Result<()> {
    add(view, "switch", serde_json::to_value(counters.as_ref().ok().copied().flatten())?);
    Ok(())
}

/// Sorts the connections by their addresses and the machines by their numbers, and keeps the first `most` of each.
pub(super) fn order_connections(answer: &mut QueryAnswer, most: usize) {
    answer.machines.sort_by_key(|machine| machine.number);
    answer.machines.truncate(most);
    answer.connections.sort_by_key(|connection| (connection.local, connection.remote));
    answer.connections.truncate(most);
}

/// Formats the connections, one per line, and the number of those not listed.
pub(super) fn connections_text(answer: &QueryAnswer, filter: &FrameFilter) -> String {
    let rows = answer.connections.iter().map(|connection| {
        vec![
            connection.local.to_string(),
            connection.remote.to_string(),
            connection.state.clone(),
            connection.core.to_string(),
            path_name(connection).to_owned(),
            connection.congestion.clone(),
            human::count(connection.window.into()),
            human::count(connection.in_flight.into()),
            human::maybe_duration_ns(connection.round_trip_ns),
            human::count(connection.retransmits),
            human::count(connection.receive_queue.into()),
            human::count(connection.send_queue.into()),
            ByteSize(connection.bytes_in).to_string(),
            ByteSize(connection.bytes_out).to_string(),
            human::duration_ns(connection.idle_ns),
        ]
    });
    let mut text = table(
        &[
            "LOCAL",
            "REMOTE",
            "STATE",
            "CORE",
            "PATH",
            "CONTROL",
            "WINDOW",
            "IN FLIGHT",
            "ROUND TRIP",
            "RESENT",
            "UNREAD",
            "UNACKED",
            "IN",
            "OUT",
            "IDLE",
        ],
        rows,
    );
    text.push('\n');
    let more = answer.connections_meant.saturating_sub(answer.connections.len() as u64);
    if more > 0 {
        text.push_str(&format!(
            "and {} more: choose by --port or --host, or raise --most\n",
            human::count(more)
        ));
    }
    if answer.half_open + answer.time_wait > 0 {
        let (half_open, time_wait) = (human::count(answer.half_open), human::count(answer.time_wait));
        // The filter does not apply to these two counts.
        let of = if *filter == FrameFilter::default() { "" } else { ", of all ports and hosts" };
        text.push_str(&format!("besides: {half_open} half-open, {time_wait} in TIME-WAIT{of}\n"));
    }
    if !answer.machines.is_empty() {
        let rows = answer.machines.iter().map(|machine| {
            let ConnectedMachineView { number, transport } = ConnectedMachineView::new(machine);
            vec![number.to_string(), transport.to_owned()]
        });
        text.push_str(&format!("\n{}\n", table(&["MACHINE OF THE APPLICATION", "TRANSPORT"], rows)));
    }
    text.push_str(&extent_text(answer.extent));
    text
}

/// Adds the connections, and the extent of the answer, to the JSON form of a cell.
pub(super) fn add_connections(view: &mut Value, answer: &QueryAnswer) -> serde_json::Result<()> {
    let views: Vec<_> = answer.connections.iter().map(ConnectionView::new).collect();
    add(view, "connections", serde_json::to_value(views)?);
    let machines: Vec<_> = answer.machines.iter().map(ConnectedMachineView::new).collect();
    add(view, "machines_of_application", serde_json::to_value(machines)?);
    add(view, "connections_total", answer.connections_meant.into());
    add(view, "half_open", answer.half_open.into());
    add(view, "time_wait", answer.time_wait.into());
    add_extent(view, answer.extent);
    Ok(())
}

/// Adds whether the cell answered, and how many of its cores did not: null if it did not answer at all.
fn add_extent(view: &mut Value, extent: Extent) {
    let silent = match extent {
        Extent::Whole => Some(0),
        Extent::Without(cores) => Some(cores),
        Extent::Nothing => None,
    };
    add(view, "answered", silent.is_some().into());
    add(view, "cores_without_answer", silent.into());
}

fn add(view: &mut Value, key: &str, value: Value) {
    if let Some(view) = view.as_object_mut() {
        view.insert(key.to_owned(), value);
    }
}

/// Returns a line if the cell has not answered completely; otherwise nothing.
pub(super) fn extent_text(extent: Extent) -> String {
    match extent {
        Extent::Whole => String::new(),
        Extent::Nothing => {
            "query: the cell does not answer; see `isola logs`, and whether it hangs\n".to_owned()
        }
        Extent::Without(cores) => format!("query: {cores} of the cell's cores have not answered in time\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isola_abi::query::CounterName;

    fn answer_of(counters: &[(&str, &str, u64)], extent: Extent) -> QueryAnswer {
        let counter = |(layer, name, count): &(&str, &str, u64)| {
            (CounterName { layer: layer.to_string(), name: name.to_string() }, *count)
        };
        QueryAnswer { counters: counters.iter().map(counter).collect(), extent, ..QueryAnswer::default() }
    }

    #[test]
    fn text_has_the_nonzero_counters_by_layer_and_json_has_all() {
        let answer =
            answer_of(&[("tcp", "a", 1), ("ip", "b", 2), ("tcp", "c", 3), ("ip", "d", 0)], Extent::Whole);
        let text = counters_text(&answer);
        let rows: Vec<Vec<&str>> =
            text.lines().skip(2).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows, [["tcp", "a", "1"], ["tcp", "c", "3"], ["ip", "b", "2"]]);
        let mut view = serde_json::json!({ "name": "kv" });
        add_counters(&mut view, &answer);
        assert_eq!(view["counters"], serde_json::json!({ "a": 1, "b": 2, "c": 3, "d": 0 }));
    }

    #[test]
    fn frames_that_the_switch_dropped_are_shown_with_the_reason() {
        let counters = PortCounters { foreign_address: 1234, to_host: 1, not_read: 0 };
        let text = switch_text(&Ok(Some(counters)));
        assert!(
            text.starts_with("1,234 frames dropped: the source address") && text.contains("host-access"),
            "{text}"
        );
        assert!(!text.contains("not read"), "{text}");
        assert_eq!(switch_text(&Ok(Some(PortCounters::default()))), "");
        let mut view = serde_json::json!({});
        add_switch(&mut view, &Ok(Some(counters))).unwrap();
        assert_eq!(view["switch"]["foreign_address"], 1234);
        let silent = Err(SwitchError::Silent(std::io::ErrorKind::ConnectionRefused.into()));
        assert!(switch_text(&silent).contains("have no network"));
        add_switch(&mut view, &silent).unwrap();
        assert_eq!(view["switch"], Value::Null);
    }

    #[test]
    fn an_incomplete_answer_is_noted() {
        assert!(counters_text(&answer_of(&[], Extent::Nothing)).contains("does not answer"));
        assert!(
            counters_text(&answer_of(&[("tcp", "a", 1)], Extent::Without(2)))
                .contains("2 of the cell's cores")
        );
        assert_eq!(counters_text(&answer_of(&[("tcp", "a", 0)], Extent::Whole)), "");
    }

    #[test]
    fn json_distinguishes_complete_partial_and_missing_answers() {
        for (extent, answered, silent) in [
            (Extent::Whole, true, Value::from(0)),
            (Extent::Without(2), true, Value::from(2)),
            (Extent::Nothing, false, Value::Null),
        ] {
            let (mut counters, mut connections) = (serde_json::json!({}), serde_json::json!({}));
            add_counters(&mut counters, &answer_of(&[], extent));
            add_connections(&mut connections, &answer_of(&[], extent)).unwrap();
            for view in [counters, connections] {
                assert_eq!((&view["answered"], &view["cores_without_answer"]), (&answered.into(), &silent));
            }
        }
    }

    #[test]
    fn unfiltered_counts_are_marked() {
        let answer = QueryAnswer { half_open: 3, ..answer_of(&[], Extent::Whole) };
        let filter = FrameFilter { port: Some(80), host: None };
        assert!(
            connections_text(&answer, &filter)
                .ends_with("3 half-open, 0 in TIME-WAIT, of all ports and hosts\n")
        );
        assert!(
            connections_text(&answer, &FrameFilter::default()).ends_with("3 half-open, 0 in TIME-WAIT\n")
        );
    }
}
