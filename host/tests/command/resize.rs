//! Resizes of running cells.

use crate::sandbox::Sandbox;

fn cell(arguments: &[&str]) -> Sandbox {
    let sandbox = Sandbox::up();
    let run = ["run", "-d", "--name", "kv", "--memory", "32M", "kv"];
    sandbox.isola(&[&run, arguments].concat()).ok();
    sandbox
}

#[test]
fn a_cell_s_memory_is_resized_while_it_runs() {
    let sandbox = cell(&[]);
    assert_eq!(
        sandbox.isola(&["resize", "kv", "--memory", "+32M"]).ok(),
        "kv: has 64 MiB of memory, 32 MiB before\n"
    );
    assert!(sandbox.isola(&["ps"]).ok().contains("64 MiB"));
    assert_eq!(
        sandbox.isola(&["resize", "kv", "--memory", "-16M"]).ok(),
        "kv: has 48 MiB of memory, 64 MiB before\n"
    );
    assert_eq!(sandbox.isola(&["resize", "kv", "-m", "48M"]).ok(), "kv: has 48 MiB of memory, as before\n");
    let events = sandbox.isola(&["events"]).ok();
    assert!(events.contains("memory from 32 MiB to 64 MiB"), "{events}");
}

#[test]
fn a_cell_s_cores_are_resized_while_it_runs() {
    let sandbox = cell(&[]);
    assert_eq!(
        sandbox.isola(&["resize", "kv", "--cores", "+1"]).ok(),
        "kv: has 2 cores, 1 before: core 2 came\n"
    );
    assert_eq!(
        sandbox.isola(&["resize", "kv", "--cores", "-1"]).ok(),
        "kv: has 1 core, 2 before: core 2 left\n"
    );
    let json = sandbox.json(&["resize", "kv", "-c", "3"]);
    assert_eq!((&json["cores"]["had"], &json["cores"]["has"]), (&1.into(), &3.into()));
    assert_eq!(json["memory"], serde_json::Value::Null);
    sandbox.isola(&["resize", "kv", "--cores", "0"]).failed(1, "keeps a core");
    sandbox.isola(&["resize", "kv", "--cores", "x"]).failed(2, "--cores");
}

#[test]
fn cores_and_memory_are_resized_together_or_not_at_all() {
    let sandbox = cell(&[]);
    let both =
        |cores: &str, memory: &str| sandbox.isola(&["resize", "kv", "--cores", cores, "--memory", memory]);
    both("2", "4G").failed(1, "not enough memory");
    both("9", "64M").failed(1, "not enough cores");
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!(cell["memory_bytes"], 32 << 20, "the memory has changed");
    assert!(!sandbox.isola(&["events"]).ok().contains("memory from"));
    let text = both("2", "64M").ok();
    assert_eq!(text, "kv: has 2 cores, 1 before: core 2 came\nkv: has 64 MiB of memory, 32 MiB before\n");
}

#[test]
fn a_dry_run_prints_the_result_and_changes_nothing() {
    let sandbox = cell(&[]);
    let dry = ["resize", "kv", "--memory", "64M", "--dry-run"];
    assert_eq!(sandbox.isola(&dry).ok(), "kv: would have 64 MiB of memory, 32 MiB before\n");
    let json = sandbox.json(&dry);
    assert_eq!((&json["dry_run"], &json["memory"]["has_bytes"]), (&true.into(), &(64 << 20).into()));
    assert!(sandbox.isola(&["ps"]).ok().contains("32 MiB"));
}

#[test]
fn a_partial_reclaim_is_reported_with_the_reason() {
    let sandbox = cell(&["hungry"]);
    let outcome = sandbox.isola(&["resize", "kv", "--memory", "16M"]).ok();
    assert!(outcome.contains("has 24 MiB") && outcome.contains("8 MiB came back"), "{outcome}");
    let json = sandbox.json(&["resize", "kv", "--memory", "16M"]);
    assert_eq!(
        (&json["memory"]["had_bytes"], &json["memory"]["has_bytes"]),
        (&(24 << 20).into(), &(20 << 20).into())
    );
    assert!(json["memory"]["kept"].as_str().unwrap().contains("in use"), "{json}");
}

#[test]
fn impossible_resizes_fail_with_advice() {
    let sandbox = cell(&[]);
    let resize = |memory: &str| sandbox.isola(&["resize", "kv", "--memory", memory]);
    resize("4M").failed(1, "leave it at least 8 MiB");
    resize("4G").failed(1, "ask for less, or stop a cell");
    resize("-32M").failed(1, "no size for a cell");
    resize("32X").failed(2, "64M or 1GiB");
    sandbox.isola(&["resize", "kv"]).failed(2, "--memory");
    sandbox.isola(&["resize", "absent", "--memory", "64M"]).failed(1, "absent");
    sandbox.isola(&["stop", "kv"]).ok();
    resize("64M").failed(1, "not running");
}
