//! The journal as a trace in the "Trace Event Format" that Chrome defined and Perfetto (ui.perfetto.dev) reads: a JSON
//! object with a list of events.
//!
//! The machine is the one process. It has a track for the supervisor and one for each cell. A journal entry is a
//! complete event, with begin and duration; so is a cell's time from start to end, which encloses the cell's other
//! events. Times are in us since the begin of the first entry.

use super::view::EventView;
use isola_abi::management::{JournalEntry, JournalEvent};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The process id of the machine in the trace.
const PROCESS: u32 = 1;

/// The supervisor's track; those of cells follow.
const SUPERVISOR: usize = 0;

/// Returns the trace of a machine's journal.
pub fn trace(machine: &str, entries: &[JournalEntry]) -> Value {
    let began = |entry: &JournalEntry| entry.unix_ns.saturating_sub(entry.duration_ns);
    let origin_ns = entries.iter().map(began).min().unwrap_or_default();
    let since_us = |unix_ns: u64| unix_ns.saturating_sub(origin_ns) as f64 / 1000.0;
    let mut tracks: Vec<&str> = vec!["supervisor"];
    let mut events = Vec::new();
    let mut running: BTreeMap<usize, u64> = BTreeMap::new();
    for entry in entries {
        let track = match entry.cell.as_deref() {
            None => SUPERVISOR,
            // A cell with the supervisor's name gets a track of its own.
            Some(cell) => match tracks.iter().skip(1).position(|known| *known == cell) {
                Some(index) => index + 1,
                None => {
                    tracks.push(cell);
                    tracks.len() - 1
                }
            },
        };
        let view = EventView::new(machine, entry);
        let mut event =
            complete(view.event, track, since_us(began(entry)), entry.duration_ns as f64 / 1000.0);
        event["args"] = json!({ "number": entry.number, "time": view.time, "detail": view.detail });
        events.push(event);
        match entry.event {
            JournalEvent::Start => {
                running.insert(track, entry.unix_ns);
            }
            JournalEvent::Exit(_) | JournalEvent::Crash(_) | JournalEvent::Kill => {
                if let Some(started) = running.remove(&track) {
                    events.push(run(track, started, entry.unix_ns, &since_us));
                }
            }
            _ => {}
        }
    }
    let last_ns = entries.last().map_or(0, |entry| entry.unix_ns);
    events.extend(running.iter().map(|(&track, &started)| run(track, started, last_ns, &since_us)));
    let names = tracks.iter().enumerate().map(|(track, name)| metadata("thread_name", track, name));
    let order = (0..tracks.len()).map(|track| {
        json!({ "name": "thread_sort_index", "ph": "M", "pid": PROCESS, "tid": track, "args": { "sort_index": track } })
    });
    let process = [metadata("process_name", SUPERVISOR, machine)];
    let events: Vec<Value> = process.into_iter().chain(names).chain(order).chain(events).collect();
    json!({ "displayTimeUnit": "ns", "traceEvents": events })
}

/// Returns the event of a cell's run, from start to end.
fn run(track: usize, started_ns: u64, ended_ns: u64, since_us: &impl Fn(u64) -> f64) -> Value {
    let started_us = since_us(started_ns);
    complete("running", track, started_us, since_us(ended_ns) - started_us)
}

fn complete(name: &str, track: usize, start_us: f64, duration_us: f64) -> Value {
    json!({ "name": name, "cat": "isola", "ph": "X", "pid": PROCESS, "tid": track, "ts": start_us, "dur": duration_us })
}

fn metadata(what: &str, track: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": PROCESS, "tid": track, "args": { "name": name } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn entry(
        number: u64,
        ms: u64,
        duration_ns: u64,
        cell: Option<&str>,
        event: JournalEvent,
    ) -> JournalEntry {
        let unix_ns = 1_700_000_000_000_000_000 + ms * MS;
        JournalEntry { number, unix_ns, duration_ns, cell: cell.map(str::to_owned), event }
    }

    #[test]
    fn cells_have_tracks_and_events_have_begin_and_duration() {
        let entries = [
            entry(7, 10, 10 * MS, None, JournalEvent::Boot),
            entry(8, 20, 1_500, Some("kv"), JournalEvent::Create),
            entry(9, 21, 500, Some("kv"), JournalEvent::Start),
            entry(10, 30, 250_000, Some("supervisor"), JournalEvent::Start),
            entry(11, 121, 2 * MS, Some("kv"), JournalEvent::Exit(0)),
        ];
        let text = serde_json::to_string(&trace("default", &entries)).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let events = read["traceEvents"].as_array().unwrap();
        let named = |what: &str| -> Vec<(u64, String)> {
            let of = events.iter().filter(|event| event["name"] == what && event["ph"] == "M");
            of.map(|event| {
                (event["tid"].as_u64().unwrap(), event["args"]["name"].as_str().unwrap().to_owned())
            })
            .collect()
        };
        let tracks = [(0, "supervisor"), (1, "kv"), (2, "supervisor")];
        assert_eq!(named("thread_name"), tracks.map(|(track, name)| (track, name.to_owned())));
        assert_eq!(named("process_name"), [(0, "default".to_owned())]);
        let spans: Vec<(&str, u64, f64, f64)> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .map(|event| {
                let number = |key: &str| event[key].as_f64().unwrap();
                (event["name"].as_str().unwrap(), event["tid"].as_u64().unwrap(), number("ts"), number("dur"))
            })
            .collect();
        let expected = [
            ("boot", 0, 0.0, 10_000.0),
            ("create", 1, 19_998.5, 1.5),
            ("start", 1, 20_999.5, 0.5),
            ("start", 2, 29_750.0, 250.0),
            ("exit", 1, 119_000.0, 2_000.0),
            ("running", 1, 21_000.0, 100_000.0),
            ("running", 2, 30_000.0, 91_000.0),
        ];
        assert_eq!(spans, expected);
        assert!(events.iter().all(|event| event["pid"] == 1));
    }

    #[test]
    fn an_empty_journal_is_a_trace() {
        let read = trace("m", &[]);
        assert!(read["traceEvents"].as_array().unwrap().iter().all(|event| event["ph"] == "M"));
    }
}
