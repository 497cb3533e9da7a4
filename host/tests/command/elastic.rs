//! `isola elastic`, `isola top` and `isola borrow`.

use crate::sandbox::Sandbox;
use serde_json::Value;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// Starts a service that is too slow on its one core, and a batch cell with two that lends this many.
fn machine(lent: &str) -> Sandbox {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "1", "--priority", "9", "kv", "busy"]).ok();
    sandbox.isola(&["run", "-d", "--name", "primes", "--cores", "2", "--lend", lent, "kv"]).ok();
    sandbox
}

/// Returns the number of cores of a cell.
fn cores(sandbox: &Sandbox, cell: &str) -> usize {
    sandbox.json(&["inspect", cell])["cores"].as_array().unwrap().len()
}

/// Runs the controller for a few intervals.
fn elastic(sandbox: &Sandbox, arguments: &[&str]) -> Vec<Value> {
    elastic_for(sandbox, "6", arguments)
}

/// Runs the controller for this number of intervals.
fn elastic_for(sandbox: &Sandbox, intervals: &str, arguments: &[&str]) -> Vec<Value> {
    let first = ["elastic", "-o", "json", "--interval", "10ms", "--intervals", intervals];
    let out = sandbox.isola(&[&first, arguments].concat()).ok();
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_dry_run_prints_decisions_and_borrows_nothing() {
    let sandbox = machine("1");
    let lines = elastic(&sandbox, &["kv", "--p99", "2ms..5ms", "--dry-run"]);
    let would = lines.iter().find(|line| line["decision"] == "take").unwrap();
    assert_eq!((&would["lender"], &would["done"], &would["cores"]), (&Value::Null, &false.into(), &1.into()));
    assert!(would["figure_ns"].as_u64().unwrap() > 10_000_000, "{would}");
    let decisions = sandbox.isola(&["events"]).ok();
    assert_eq!(decisions.matches("would borrow a core").count(), 1, "{decisions}");
    assert_eq!(cores(&sandbox, "kv"), 1);
}

#[test]
fn a_manifest_replaces_the_command_line() {
    let sandbox = machine("1");
    let text = "name = \"kv\"\n[elastic]\np99 = \"2ms..5ms\"\nmax = 1\n";
    fs::write(sandbox.path("isola.toml"), text).unwrap();
    let lines = elastic(&sandbox, &["-f", "isola.toml"]);
    assert!(
        lines.iter().any(|line| line["reason"].as_str().unwrap().contains("the most cores that it may have")),
        "{lines:?}"
    );
    assert!(sandbox.isola(&["events"]).ok().contains("no core moved"));
}

#[test]
fn invalid_arguments_of_elastic_are_rejected() {
    let sandbox = machine("1");
    let refused = |arguments: &[&str], code, why| {
        sandbox.isola(&[&["elastic"], arguments].concat()).failed(code, why);
    };
    refused(&["kv"], 2, "--p99");
    refused(&["kv", "--p99", "5ms..2ms"], 2, "2ms..5ms");
    refused(&["kv", "--p99", "2ms..5ms", "--interval", "1h"], 2, "10ms to 15m");
    refused(&["none", "--p99", "2ms..5ms"], 1, "is called \"none\"");
    sandbox.isola(&["stop", "kv"]).ok();
    refused(&["kv", "--p99", "2ms..5ms"], 1, "start it first");
}

#[test]
fn options_that_lending_has_replaced_are_rejected_with_their_replacement() {
    let sandbox = Sandbox::new();
    for option in ["--batch=primes", "--batch-min=1", "--min=1"] {
        let arguments = ["elastic", "kv", "--p99", "2ms..5ms", option];
        sandbox.isola(&arguments).failed(2, "cores come from the cells that lend");
    }
    for key in ["batch = [\"primes\"]", "batch_min = 1", "min = 1"] {
        fs::write(sandbox.path("isola.toml"), format!("name = \"kv\"\n[elastic]\n{key}\n")).unwrap();
        sandbox.isola(&["elastic", "-f", "isola.toml"]).failed(1, "cores come from the cells that lend");
    }
}

#[test]
fn top_shows_running_cells_in_each_interval() {
    let sandbox = machine("0");
    sandbox.isola(&["stop", "primes"]).ok();
    let text = sandbox.isola(&["top", "--interval", "10ms", "--intervals", "2"]).ok();
    assert_eq!((text.matches("WAIT P99").count(), text.matches("primes").count()), (2, 0), "{text}");
    let views = sandbox.json(&["top", "--interval", "10ms", "--intervals", "1"]);
    assert_eq!((&views[0]["name"], &views[0]["cores"]), (&"kv".into(), &1.into()), "{views}");
    assert!(views[0]["p99_ns"].as_u64().unwrap() > 10_000_000 && views[1].is_null(), "{views}");
}

#[test]
fn a_slow_service_borrows_a_core_keeps_it_and_returns_it_when_the_controller_ends() {
    let sandbox = machine("1");
    // The shortest lease is over before the controller ends, and again after that.
    let lines = elastic_for(&sandbox, "250", &["kv", "--p99", "2ms..5ms"]);
    let done: Vec<&Value> = lines.iter().filter(|line| line["done"] == true).collect();
    assert!(
        matches!(&done[..], [step] if step["decision"] == "take" && step["lender"] == "primes"),
        "{lines:?}"
    );
    let last = lines.last().unwrap();
    assert_eq!((&last["cores"], &last["decision"]), (&2.into(), &"stay".into()), "{lines:?}");
    assert!(last["reason"].as_str().unwrap().contains("between the bounds"), "{last}");
    assert_eq!(cores(&sandbox, "primes"), 1);
    let events = sandbox.isola(&["events"]).ok();
    assert!(
        events.contains("borrowed a core of primes") && events.contains("above the upper bound"),
        "{events}"
    );
    while cores(&sandbox, "primes") < 2 {
        sleep(Duration::from_millis(10));
    }
    assert_eq!(cores(&sandbox, "kv"), 1);
    assert!(sandbox.isola(&["events"]).ok().contains("to primes: the lease is over"));
}

#[test]
fn a_fast_service_gives_a_borrowed_core_back() {
    let sandbox = machine("1");
    sandbox.isola(&["borrow", "kv", "--lease", "1h"]).ok();
    let lines = elastic(&sandbox, &["kv", "--p99", "4ms..5ms", "--max", "1"]);
    let given = lines.iter().find(|line| line["decision"] == "give").unwrap();
    assert_eq!((&given["lender"], &given["done"]), (&"primes".into(), &true.into()));
    assert_eq!((cores(&sandbox, "kv"), cores(&sandbox, "primes")), (1, 2));
    assert!(sandbox.isola(&["events"]).ok().contains("gave a core back to primes"));
}

#[test]
fn a_core_that_no_cell_lends_is_requested_rarely() {
    let sandbox = machine("0");
    let lines = elastic(&sandbox, &["kv", "--p99", "2ms..5ms"]);
    assert!(lines.iter().all(|line| line["done"] == false), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| line["decision"] == "take").count(), 3, "{lines:?}");
    let events = sandbox.isola(&["events"]).ok();
    assert_eq!(events.matches("borrowed no core: no cell lends").count(), 1, "{events}");
}

#[test]
fn a_core_is_borrowed_shown_and_given_back() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--priority", "9", "--lend", "1", "kv"]).ok();
    assert_eq!(sandbox.isola(&["borrow", "kv", "--lease", "30s"]).ok(), "core 2, for 30.0 s\n");
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!(
        (&cell["loans"][0]["core"], &cell["priority"], &cell["lends"]),
        (&2.into(), &9.into(), &1.into())
    );
    let text = sandbox.isola(&["inspect", "kv"]).ok();
    assert!(text.contains("core 2 of the free cores") && text.contains("lends 1"), "{text}");
    assert_eq!(sandbox.isola(&["borrow", "kv", "--give-back"]).ok(), "core 2 is free\n");
    sandbox.isola(&["borrow", "kv", "--give-back"]).failed(1, "no borrowed core");
    sandbox.isola(&["borrow", "kv", "--lease", "2h"]).failed(2, "up to an hour");
    let events = sandbox.isola(&["events"]).ok();
    assert!(events.contains("core 2, for 30.0 s") && events.contains("core 2: given back"), "{events}");
}

#[test]
fn memory_is_borrowed_shown_and_given_back() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "batch", "--memory", "64M", "--memory-low", "16M", "primes"]).ok();
    sandbox.isola(&["run", "-d", "--name", "kv", "--priority", "9", "kv"]).ok();
    sandbox
        .isola(&["run", "-d", "--memory", "64M", "--memory-low", "65M", "primes"])
        .failed(125, "memory-low");
    let borrowed = sandbox.isola(&["borrow", "kv", "--memory", "32M", "--lease", "30s"]).ok();
    assert_eq!(borrowed, "32 MiB of batch, for 30.0 s\n");
    let (cell, lender) = (sandbox.json(&["inspect", "kv"]), sandbox.json(&["inspect", "batch"]));
    let loan = &cell["memory_loans"][0];
    assert_eq!((&loan["memory_bytes"], &loan["from"]), (&(32 << 20).into(), &"batch".into()));
    assert_eq!(lender["memory_lent_bytes"], 32 << 20);
    assert_eq!(lender["memory_low_bytes"], 16 << 20);
    let text = sandbox.isola(&["inspect", "kv"]).ok();
    assert!(text.contains("32 MiB of batch, for another 30.0 s"), "{text}");
    let text = sandbox.isola(&["inspect", "batch"]).ok();
    assert!(text.contains("and memory beyond 16 MiB") && text.contains("lent"), "{text}");
    let metrics = sandbox.isola(&["metrics"]).ok();
    assert!(metrics.contains("isola_cell_borrowed_memory_bytes{cell=\"kv\"} 33554432"), "{metrics}");
    assert!(metrics.contains("isola_cell_lent_memory_bytes{cell=\"batch\"} 33554432"), "{metrics}");
    sandbox.isola(&["borrow", "kv", "--memory", "32M"]).failed(1, "lend less");
    let back = sandbox.isola(&["borrow", "kv", "--memory", "32M", "--give-back"]).ok();
    assert_eq!(back, "32 MiB goes back to batch, as far as kv does not use it\n");
    sandbox.isola(&["borrow", "kv", "--memory", "32M", "--give-back"]).failed(1, "no borrowed memory");
    sandbox.isola(&["borrow", "kv", "--memory", "much"]).failed(2, "much");
    let events = sandbox.isola(&["events"]).ok();
    let ends = ["32 MiB of batch, for 30.0 s", "32 MiB to batch: given back"];
    assert!(ends.iter().all(|end| events.contains(end)), "{events}");
}
