//! Traces of a serving cell.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::perfetto::{self, Slice};
use isola_tests::service::published;
use isola_tests::wait;
use serde_json::Value;
use std::fs;

/// Requests during the trace.
const REQUESTS: u32 = 400;

/// Returns the number in `field` of the activity of that name in `view`.
fn of_activity(view: &Value, name: &str, field: &str) -> u64 {
    let activities = view["activities"].as_array().unwrap();
    let activity = activities.iter().find(|activity| activity["name"] == name);
    activity.and_then(|activity| activity[field].as_u64()).unwrap_or_else(|| panic!("no {name} in {view:#}"))
}

#[test]
fn a_trace_of_a_serving_cell_agrees_with_its_ledger() {
    let isola = Isola::up(&[]);
    let view = isola.json(&["run", "-d", "--name", "cache", "--cores", "2", "-p", "11211", "kv"]);
    let mut early = Connection::establish(published(&view));
    early.set("key", b"value").unwrap();
    isola.run(&["grid", "rule", "add", "cache", "--port", "11211", "--activity", "clients"]).ok();
    let mut connection = Connection::establish(published(&view));
    let ledger = || of_activity(&isola.json(&["grid", "activities", "cache"]), "clients", "cycles");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache.pftrace");
    let before_trace = ledger();
    let trace = ["-o", "json", "trace", "cache", "-w", path.to_str().unwrap(), "--duration", "10s"];
    let trace = isola.spawn(&trace);
    wait::until_true("both cores are traced", || {
        let written = fs::read(&path).unwrap_or_default();
        let slices = perfetto::parse(&written).map(|trace| trace.slices).unwrap_or_default();
        ["core 0", "core 1"].iter().all(|core| slices.iter().any(|slice| slice.track == *core))
    });
    let before = ledger();
    for number in 0..REQUESTS {
        let value = number.to_string();
        connection.set("key", value.as_bytes()).unwrap();
        assert_eq!(connection.get("key").unwrap().as_deref(), Some(value.as_bytes()));
    }
    let requested = ledger() - before;
    let summary: Value = serde_json::from_str(&trace.wait().ended_with(0).out).unwrap();
    let after_trace = ledger();

    assert_eq!(summary["lost"], 0, "{summary:#}");
    let traced = of_activity(&summary, "clients", "cycles");
    assert!(traced > requested - requested / 20, "{traced} of {requested} cycles: {summary:#}");
    // The trace leaves its own cost in the events.
    let most = after_trace - before_trace;
    assert!(traced <= most + most / 20, "{traced} of at most {most} cycles: {summary:#}");
    let written = perfetto::parse(&fs::read(&path).unwrap()).unwrap();
    assert_eq!((&*written.process, written.tracks.len()), ("cache", 4), "{:?}", written.tracks);
    let of =
        |category: &str| written.slices.iter().filter(|slice| slice.category == category).collect::<Vec<_>>();
    assert!(of("clients").len() > REQUESTS as usize, "an event for each request");
    assert!(of("clients").iter().any(|slice| slice.name.contains(".rs:")), "{:?}", of("clients")[0]);
    assert!(!of("interrupts").is_empty());
    // An idle cell sleeps; emulated cores are slow, and do most of it.
    let length = |slices: &[&Slice]| slices.iter().map(|slice| slice.end_ns - slice.start_ns).sum::<u64>();
    assert!(length(&of("idle")) > 1_000_000_000, "{} ns idle", length(&of("idle")));
    // The cell serves after the trace, and can be traced again.
    connection.set("key", b"after").unwrap();
    let again = ["trace", "cache", "-w", path.to_str().unwrap(), "--duration", "300ms"];
    assert_eq!(isola.json(&[&again[..], &["--cores", "1"]].concat())["cores"], serde_json::json!([1]));
}
