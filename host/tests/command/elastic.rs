//! `isola elastic`, `isola top` and `isola borrow`.

use crate::sandbox::Sandbox;
use serde_json::Value;
use std::fs;

/// Starts a service that is too slow on its one core, and a batch cell with two.
fn machine() -> Sandbox {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "1", "kv", "busy"]).ok();
    sandbox.isola(&["run", "-d", "--name", "primes", "--cores", "2", "kv"]).ok();
    sandbox
}

/// Runs the controller for a few intervals.
fn elastic(sandbox: &Sandbox, arguments: &[&str]) -> Vec<Value> {
    let first = ["elastic", "-o", "json", "--interval", "10ms", "--intervals", "6"];
    let out = sandbox.isola(&[&first, arguments].concat()).ok();
    out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_dry_run_prints_decisions_and_moves_nothing() {
    let sandbox = machine();
    let lines = elastic(&sandbox, &["kv", "--batch", "primes", "--p99", "2ms..5ms", "--dry-run"]);
    let would = lines.iter().find(|line| line["decision"] == "take").unwrap();
    assert_eq!(
        (&would["batch"], &would["done"], &would["cores"]),
        (&"primes".into(), &false.into(), &1.into())
    );
    assert!(would["figure_ns"].as_u64().unwrap() > 10_000_000, "{would}");
    let decisions = sandbox.isola(&["events"]).ok();
    assert_eq!(decisions.matches("would move a core of primes to kv").count(), 1, "{decisions}");
    assert_eq!(sandbox.json(&["inspect", "kv"])["cores"].as_array().unwrap().len(), 1);
}

#[test]
fn a_manifest_replaces_the_command_line() {
    let sandbox = machine();
    let text = "name = \"kv\"\n[elastic]\np99 = \"2ms..5ms\"\nbatch = [\"primes\"]\nmax = 1\n";
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
    let sandbox = machine();
    let refused = |arguments: &[&str], code, why| {
        sandbox.isola(&[&["elastic"], arguments].concat()).failed(code, why);
    };
    refused(&["kv", "--batch", "primes"], 2, "--p99");
    refused(&["kv", "--batch", "primes", "--p99", "5ms..2ms"], 2, "2ms..5ms");
    refused(&["kv", "--batch", "kv", "--p99", "2ms..5ms"], 2, "another cell");
    refused(&["kv", "--batch", "primes", "--p99", "2ms..5ms", "--min", "3", "--max", "2"], 2, "at least 1");
    refused(&["kv", "--batch", "none", "--p99", "2ms..5ms"], 1, "is called \"none\"");
    sandbox.isola(&["stop", "primes"]).ok();
    refused(&["kv", "--batch", "primes", "--p99", "2ms..5ms"], 1, "start it first");
}

#[test]
fn top_shows_running_cells_in_each_interval() {
    let sandbox = machine();
    sandbox.isola(&["stop", "primes"]).ok();
    let text = sandbox.isola(&["top", "--interval", "10ms", "--intervals", "2"]).ok();
    assert_eq!((text.matches("WAIT P99").count(), text.matches("primes").count()), (2, 0), "{text}");
    let views = sandbox.json(&["top", "--interval", "10ms", "--intervals", "1"]);
    assert_eq!((&views[0]["name"], &views[0]["cores"]), (&"kv".into(), &1.into()), "{views}");
    assert!(views[0]["p99_ns"].as_u64().unwrap() > 10_000_000 && views[1].is_null(), "{views}");
}

#[test]
fn a_slow_service_gets_a_core_of_the_batch_cell_and_keeps_it() {
    let sandbox = machine();
    let lines = elastic(&sandbox, &["kv", "--batch", "primes", "--p99", "2ms..5ms"]);
    let done: Vec<&Value> = lines.iter().filter(|line| line["done"] == true).collect();
    assert!(
        matches!(&done[..], [step] if step["decision"] == "take" && step["batch"] == "primes"),
        "{lines:?}"
    );
    let last = lines.last().unwrap();
    assert_eq!((&last["cores"], &last["decision"]), (&2.into(), &"stay".into()), "{lines:?}");
    assert!(last["reason"].as_str().unwrap().contains("between the bounds"), "{last}");
    assert_eq!(sandbox.json(&["inspect", "primes"])["cores"].as_array().unwrap().len(), 1);
    let events = sandbox.isola(&["events"]).ok();
    assert!(
        events.contains("a core of primes to kv") && events.contains("above the upper bound"),
        "{events}"
    );
}

#[test]
fn a_batch_cell_keeps_its_minimum_of_cores() {
    let sandbox = machine();
    let lines = elastic(&sandbox, &["kv", "--batch", "primes", "--p99", "2ms..5ms", "--batch-min", "2"]);
    assert!(lines.iter().all(|line| line["done"] == false), "{lines:?}");
    assert!(lines.iter().any(|line| line["reason"].as_str().unwrap().contains("core to spare")), "{lines:?}");
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
