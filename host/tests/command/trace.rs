//! Traces of cells: files, sums, and lost periods.

use crate::sandbox::{Outcome, Sandbox, signal};
use isola_tests::perfetto;
use std::fs;

fn running() -> Sandbox {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox
}

#[test]
fn a_trace_is_written_and_summed_up_with_its_lost_periods() {
    let sandbox = running();
    let path = sandbox.state().join("kv.pftrace");
    let trace = ["trace", "kv", "-w", path.to_str().unwrap(), "--duration", "100ms"];
    let outcome = sandbox.isola(&trace);
    assert!(outcome.err.contains("4 events on 2 cores, 6 periods lost"), "{outcome:?}");
    assert_eq!(outcome.ok(), "");
    let written = perfetto::parse(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(written.process, "kv");
    assert_eq!(written.slices.len(), 8, "{:#?}", written.slices);
    assert!(written.slices.iter().any(|slice| {
        (&*slice.track, &*slice.name, &*slice.category) == ("core 1", "net/sockets/src/device.rs:40", "web")
    }));
    let sums = sandbox.json(&[&trace[..], &["--cores", "1"]].concat());
    assert_eq!((&sums["cores"], &sums["events"], &sums["lost"]), (&[1].into(), &2.into(), &3.into()));
    assert_eq!(
        (&sums["activities"][0]["name"], &sums["activities"][0]["cycles"]),
        (&"web".into(), &500.into())
    );
    let written = perfetto::parse(&fs::read(&path).unwrap()).unwrap();
    assert!(written.slices.iter().all(|slice| slice.track == "core 1"), "{written:#?}");
}

#[test]
fn an_interrupted_trace_leaves_a_readable_file() {
    let sandbox = running();
    let path = sandbox.state().join("kv.pftrace");
    let trace = sandbox.spawn(&["trace", "kv", "-w", path.to_str().unwrap()]);
    sandbox.wait("periods are written", || fs::read(&path).is_ok_and(|bytes| bytes.len() > 200));
    signal("INT", trace.id());
    Outcome::from(trace.wait_with_output().unwrap()).ok();
    assert_eq!(perfetto::parse(&fs::read(&path).unwrap()).unwrap().slices.len(), 8);
    let piped = sandbox.spawn(&["trace", "kv", "-w", "-", "--duration", "100ms"]);
    assert_eq!(perfetto::parse(&piped.wait_with_output().unwrap().stdout).unwrap().slices.len(), 8);
}

#[test]
fn impossible_traces_fail_with_advice() {
    let sandbox = running();
    sandbox.isola(&["trace", "kv"]).failed(2, "--write");
    sandbox.isola(&["trace", "kv", "-w", "file", "--duration", "5"]).failed(2, "500ms or 5s");
    sandbox.isola(&["trace", "kv", "-w", "file", "--cores", "64"]).failed(2, "2,5-7");
    sandbox.isola(&["trace", "kv", "-w", "-", "-o", "json"]).failed(2, "to a file");
    sandbox.isola(&["trace", "kw", "-w", "file"]).failed(1, "see `isola ps`");
    sandbox.isola(&["trace", "kv", "-w", "/nonexistent/file"]).failed(1, "cannot be written");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["trace", "kv", "-w", "file"]).failed(1, "needs a cell that runs");
}
