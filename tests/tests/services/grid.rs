//! The division of a cell's cores among its activities.

use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::wait;
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

/// The names of the activities, and their weights in percent.
const WEIGHTS: [(&str, f64); 3] = [("web", 50.0), ("kv", 33.0), ("batch", 17.0)];

/// Returns the cycles of each activity.
fn cycles(isola: &Isola) -> [u64; 3] {
    let cell = isola.cell("shares");
    let activities = cell["activities"].as_array().expect("a cell has activities").clone();
    WEIGHTS.map(|(name, _)| {
        let activity = activities.iter().find(|activity| activity["name"] == name);
        activity.and_then(|activity| activity["cycles"].as_u64()).expect("the activity has cycles")
    })
}

/// Returns the shares of the activities over some time, in percent.
fn shares(isola: &Isola) -> [f64; 3] {
    let before = cycles(isola);
    sleep(Duration::from_secs(4));
    let after = cycles(isola);
    let used = [0, 1, 2].map(|index| (after[index] - before[index]) as f64);
    used.map(|cycles| cycles * 100.0 / used.iter().sum::<f64>())
}

fn assert_near(shares: [f64; 3], expected: [f64; 3]) {
    for (share, expected) in shares.into_iter().zip(expected) {
        assert!((share - expected).abs() <= 0.5, "{shares:?} %, not {expected} %");
    }
}

#[test]
fn activities_get_the_processor_time_of_their_weights() {
    let isola = Isola::up(&[]);
    let run = ["run", "-d", "--name", "shares", "--cores", "2", "shares"];
    isola.run(&[&run[..], &["web:200000", "kv:50000", "batch:800000"]].concat()).ok();
    wait::until_true("the activities run", || isola.run(&["logs", "shares"]).ok().contains("running"));
    let direct = shares(&isola);
    assert!(direct[2] > 60.0, "without a policy the longest events get the most: {direct:?}");

    let set = ["grid", "set", "shares", "processor"];
    isola.run(&[&set[..], &["--activity", "nothing", "--weight", "3"]].concat()).failed(1, "no activity");
    for (name, weight) in WEIGHTS {
        isola.run(&[&set[..], &["--activity", name, "--weight", &weight.to_string()]].concat()).ok();
    }
    isola.run(&[&set[..], &["--policy", "wfq", "--dry-run"]].concat()).ok();
    assert_eq!(isola.json(&["grid", "show", "shares"])["resources"][0]["policy"], "direct");
    let changed = isola.json(&[&set[..], &["--policy", "wfq"]].concat());
    assert_eq!((&changed["resources"][0]["policy"], &changed["complete"]), (&"wfq".into(), &true.into()));
    assert_near(shares(&isola), WEIGHTS.map(|(_, weight)| weight));

    let shown = isola.json(&["grid", "show", "shares"]);
    let clients = shown["activities"].as_array().unwrap();
    let of = |name: &str| clients.iter().filter(|client| client["name"] == name).collect::<Vec<&Value>>();
    for (name, weight) in WEIGHTS {
        let clients = of(name);
        assert_eq!(clients.len(), 2, "a scheduler on each core: {shown:#}");
        assert!(
            clients
                .iter()
                .all(|client| client["weight"] == weight as u64 && client["served"].as_u64() > Some(10))
        );
    }
    isola.run(&[&set[..], &["--policy", "direct"]].concat()).ok();
    assert!(shares(&isola)[2] > 60.0);
    isola.run(&["stop", "shares"]).ok();
}

#[test]
fn a_service_goes_on_through_changes_of_its_grid() {
    let isola = Isola::up(&[]);
    let view = isola.json(&["run", "-d", "--name", "cache", "--cores", "2", "-p", "11211", "kv"]);
    let mut connection = Connection::establish(published(&view));
    for resource in ["processor", "network-write"] {
        for policy in ["wfq", "edf", "priority", "reserve", "fifo", "direct"] {
            isola.run(&["grid", "set", "cache", resource, "--policy", policy]).ok();
            for number in 0..50 {
                let value = format!("{policy} {number}");
                connection.set("key", value.as_bytes()).unwrap();
                assert_eq!(connection.get("key").unwrap().as_deref(), Some(value.as_bytes()));
            }
        }
    }
    // A limit slows the cell down and stops nothing.
    let limited = ["grid", "set", "cache", "network-write", "--policy", "wfq", "--limit", "100K"];
    isola.run(&limited).ok();
    connection.set("large", &[7; 300_000]).unwrap();
    assert_eq!(connection.get("large").unwrap().map(|value| value.len()), Some(300_000));
    let shown = isola.json(&["grid", "show", "cache"]);
    assert_eq!(shown["resources"][1]["limit"], 102_400);
    assert!(shown["activities"].as_array().unwrap().iter().any(|client| {
        client["resource"] == "network-write" && client["longest_wait_ns"].as_u64() > Some(1_000_000)
    }));
}
