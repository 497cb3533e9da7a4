//! Profiles of cells: tables, files, and their limits.

use crate::sandbox::{Outcome, Sandbox, signal};
use serde_json::{Value, json};
use std::fs;

fn running() -> Sandbox {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox
}

/// The profile of the fake cell, without symbols.
const STACK: &str = "0xffffffff80100020;0xffffffff80100010";

#[test]
fn a_profile_is_a_table_of_functions_with_a_note_on_idle_and_lost_samples() {
    let sandbox = running();
    let outcome = sandbox.isola(&["profile", "kv", "--duration", "100ms"]);
    assert!(
        outcome.err.contains("26 samples on 2 cores, 76.9% of them idle, 2 lost: use a lower --rate"),
        "{outcome:?}"
    );
    assert!(outcome.err.contains("the cell's image has no symbols"), "{outcome:?}");
    let table = outcome.ok();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(
        rows,
        [
            vec!["SELF", "TOTAL", "FUNCTION"],
            vec!["66.7%", "66.7%", "0xffffffff80100010"],
            vec!["33.3%", "100.0%", "0xffffffff80100020"],
        ]
    );
    let first =
        sandbox.isola(&["profile", "kv", "--duration", "100ms", "--top", "1", "--by", "activity"]).ok();
    let rows: Vec<Vec<&str>> = first.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[1..], [vec!["66.7%", "66.7%", "web", "0xffffffff80100010"]]);
}

#[test]
fn a_profile_is_written_as_folded_stacks_and_for_speedscope() {
    let sandbox = running();
    let path = |name: &str| sandbox.state().join(name).to_str().unwrap().to_owned();
    let (folded, json) = (path("kv.folded"), path("kv.json"));
    let profile = ["profile", "kv", "--duration", "100ms", "-w", &*folded, "-w", &*json];
    let view = sandbox.json(&[&profile[..], &["--cores", "1"]].concat());
    assert_eq!(fs::read_to_string(&folded).unwrap(), format!("0xffffffff80100020 1\n{STACK} 2\n"));
    let scope: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!((&scope["profiles"][0]["endValue"], &scope["name"]), (&json!(3), &json!("kv")));
    assert_eq!(
        (&view["cores"], &view["samples"], &view["idle"], &view["lost"], &view["rate_hz"]),
        (&json!([1]), &json!(3), &json!(10), &json!(1), &json!(99))
    );
    assert_eq!(
        view["accounts"],
        json!([
            {"kind": "activity", "name": "web", "samples": 2},
            {"kind": "loop", "name": null, "samples": 1},
        ])
    );
    assert_eq!(view["functions"][1], json!({"function": "0xffffffff80100020", "own": 1, "total": 3}));
    let piped = sandbox.isola(&["profile", "kv", "--duration", "100ms", "-w", "-", "--by", "activity"]).ok();
    assert_eq!(piped, format!("loop;0xffffffff80100020 2\nweb;{STACK} 4\n"));
}

#[test]
fn an_interrupted_profile_and_that_of_an_ended_cell_are_written() {
    let sandbox = running();
    let path = sandbox.state().join("kv.folded");
    let arguments = ["profile", "kv", "--duration", "60s", "-w", path.to_str().unwrap()];
    let profile = sandbox.spawn(&arguments);
    sandbox.wait("the file is open", || path.exists());
    std::thread::sleep(std::time::Duration::from_millis(500));
    signal("INT", profile.id());
    Outcome::from(profile.wait_with_output().unwrap()).ok();
    assert!(fs::read_to_string(&path).unwrap().contains(STACK));
    fs::remove_file(&path).unwrap();
    let profile = sandbox.spawn(&arguments);
    sandbox.wait("the file is open", || path.exists());
    std::thread::sleep(std::time::Duration::from_millis(500));
    sandbox.isola(&["stop", "kv"]).ok();
    let outcome = Outcome::from(profile.wait_with_output().unwrap());
    assert!(outcome.err.contains("the cell has ended: it is exited"), "{outcome:?}");
    outcome.ok();
    assert!(fs::read_to_string(&path).unwrap().contains(STACK));
}

#[test]
fn symbols_are_those_of_the_cell_s_image_only() {
    let sandbox = running();
    let image = |name: &str| sandbox.images().join(name).to_str().unwrap().to_owned();
    let profile = ["profile", "kv", "--duration", "100ms", "--image"];
    let with = |file: &str| sandbox.isola(&[&profile[..], &[file]].concat());
    with(&image("kv")).ok();
    with(&image("primes")).failed(1, "is not the image of the cell: its SHA-256 is");
    with("/nonexistent").failed(1, "/nonexistent");
    let copy = sandbox.machines().join("default/cells/kv/image.elf");
    assert!(copy.is_file(), "{copy:?}");
    fs::copy(image("primes"), &copy).unwrap();
    let outcome = sandbox.isola(&["profile", "kv", "--duration", "100ms"]);
    assert!(outcome.err.contains("functions are shown as addresses:"), "{outcome:?}");
    assert!(outcome.ok().contains("0xffffffff80100010"));
}

#[test]
fn impossible_profiles_fail_with_advice() {
    let sandbox = running();
    sandbox.isola(&["profile"]).failed(2, "<CELL>");
    sandbox.isola(&["profile", "kv", "--rate", "0"]).failed(2, "1..=1000");
    sandbox.isola(&["profile", "kv", "--rate", "1001"]).failed(2, "1..=1000");
    sandbox.isola(&["profile", "kv", "--rate", "1000"]).failed(1, "at most 666 per core are left");
    sandbox.isola(&["profile", "kv", "--duration", "5"]).failed(2, "500ms or 5s");
    sandbox.isola(&["profile", "kv", "--by", "function"]).failed(2, "activity");
    sandbox.isola(&["profile", "kv", "-w", "-", "-o", "json"]).failed(2, "to a file");
    sandbox.isola(&["profile", "kw"]).failed(1, "see `isola ps`");
    sandbox.isola(&["profile", "kv", "-w", "/nonexistent/file"]).failed(1, "cannot be written");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["profile", "kv"]).failed(1, "needs a cell that runs");
}
