//! The division of a cell's resources among its activities, and the attribution of connections.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::wait;
use serde_json::Value;
use std::fs::File;
use std::process::Command;
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
    shares_since(before, cycles(isola))
}

fn shares_since(before: [u64; 3], after: [u64; 3]) -> [f64; 3] {
    let used = [0, 1, 2].map(|index| (after[index] - before[index]) as f64);
    used.map(|cycles| cycles * 100.0 / used.iter().sum::<f64>())
}

/// Returns the bytes of the disk that each activity of the cell `disk` has got by its policy.
fn disk_bytes(isola: &Isola) -> [u64; 3] {
    let shown = isola.json(&["grid", "show", "disk"]);
    let clients = shown["activities"].as_array().expect("a list of clients").clone();
    WEIGHTS.map(|(name, _)| {
        let is_it = |client: &&Value| client["resource"] == "disk" && client["name"] == name;
        clients.iter().find(is_it).and_then(|client| client["cost"].as_u64()).unwrap_or(0)
    })
}

/// Checks that the shares become those expected within 0.5 %, over up to 12 s. An event that the host interrupts for long is
/// charged as a whole, and if that was shortly before, the others are ahead for a while: so the time begins anew.
fn assert_become_near(isola: &Isola, expected: [f64; 3]) {
    let mut last = [0.0; 3];
    for _ in 0..4 {
        let start = cycles(isola);
        for _ in 0..3 {
            sleep(Duration::from_secs(4));
            last = shares_since(start, cycles(isola));
            if last.iter().zip(expected).all(|(share, expected)| (share - expected).abs() <= 0.5) {
                return;
            }
        }
    }
    panic!("{last:?} %, not {expected:?} %");
}

/// Vortex 4.3: shares of a disk in bytes, with requests of different lengths, 1,023 at a time.
#[test]
fn activities_get_the_disk_bytes_of_their_weights() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("disk.img");
    File::create(&volume).unwrap().set_len(32 << 20).unwrap();
    let format = ["-q", "-t", "ext4", "-b", "4096", "-J", "size=4"];
    assert!(Command::new("mke2fs").args(format).arg(&volume).status().unwrap().success());
    let isola = Isola::up(&["--cores", "2"]);
    let mounted = format!("{}:/data", volume.display());
    let run =
        ["run", "-d", "--name", "disk", "--memory", "128M", "-v", &mounted, "records", "share", "/data"];
    isola.run(&[&run[..], &["web:4096", "kv:65536", "batch:16384"]].concat()).ok();
    wait::until_true("the activities read", || isola.run(&["logs", "disk"]).ok().contains("sharing"));
    let set = ["grid", "set", "disk", "disk"];
    for (name, weight) in WEIGHTS {
        isola.run(&[&set[..], &["--activity", name, "--weight", &weight.to_string()]].concat()).ok();
    }
    isola.run(&[&set[..], &["--policy", "wfq"]].concat()).ok();
    sleep(Duration::from_millis(500));
    let before = disk_bytes(&isola);
    sleep(Duration::from_secs(4));
    let after = disk_bytes(&isola);
    let used = [0, 1, 2].map(|index| (after[index] - before[index]) as f64);
    let all = used.iter().sum::<f64>();
    assert!(all > (4 << 20) as f64, "{used:?} bytes in 4 s");
    for ((_, weight), used) in WEIGHTS.into_iter().zip(used) {
        let share = used * 100.0 / all;
        assert!((share - weight).abs() <= 1.0, "{used} of {all} bytes are {share} %, not {weight} %");
    }
    isola.run(&["stop", "disk"]).ok();
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
    assert_become_near(&isola, WEIGHTS.map(|(_, weight)| weight));

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

/// Returns the names of the activities below `clients`.
fn clients(isola: &Isola) -> Vec<String> {
    let shown = isola.json(&["grid", "activities", "cache"]);
    let activities = shown["activities"].as_array().unwrap();
    let above = activities.iter().find(|activity| activity["name"] == "clients").expect("a rule names it");
    let below = activities.iter().filter(|activity| activity["parent"] == above["activity"]);
    below.map(|activity| activity["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_rule_gives_each_connection_an_activity() {
    let isola = Isola::up(&[]);
    let view = isola.json(&["run", "-d", "--name", "cache", "-p", "11211", "kv"]);
    let mut earlier = Connection::establish(published(&view));
    let rule = ["grid", "rule", "add", "cache", "--port", "11211", "--activity", "clients"];
    let shown = isola.run(&[&rule[..], &["--each-connection"]].concat()).ok();
    assert!(shown.contains("11211") && shown.contains("each connection"), "{shown}");
    assert!(clients(&isola).is_empty());
    let mut open: Vec<Connection> = (0..3).map(|_| Connection::establish(published(&view))).collect();
    for connection in &mut open {
        connection.set("key", b"value").unwrap();
    }
    earlier.set("key", b"of a connection without a rule").unwrap();
    wait::until_true("each has an activity", || clients(&isola).len() == 3);
    let shown = isola.run(&["grid", "activities", "cache"]).ok();
    assert!(shown.lines().any(|line| line.starts_with("clients ")), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.starts_with("  ")).count(), 3, "{shown}");
    open.pop();
    wait::until_true("an activity ends with its connection", || clients(&isola).len() == 2);
    assert!(!isola.run(&["grid", "rule", "clear", "cache"]).ok().contains("each connection"));
    drop(Connection::establish(published(&view)));
    open.clear();
    wait::until_true("all have ended", || clients(&isola).is_empty());
}

#[test]
fn a_manifest_sets_up_the_grid_and_it_outlasts_the_cell() {
    let isola = Isola::up(&[]);
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("isola.toml");
    std::fs::write(
        &manifest,
        "image = \"shares\"\nname = \"shares\"\n\
         arguments = [\"web:200000\", \"kv:50000\", \"batch:800000\"]\n\
         [grid.processor]\npolicy = \"wfq\"\nactivities.web = { weight = 50 }\n\
         activities.kv = { weight = 33 }\nactivities.batch = { weight = 17 }\n",
    )
    .unwrap();
    isola.run(&["run", "-d", "-f", manifest.to_str().unwrap(), "--net-rate", "10M"]).ok();
    for start in 0..2 {
        if start > 0 {
            isola.run(&["stop", "shares"]).ok();
            isola.run(&["start", "shares"]).ok();
        }
        wait::until_true("the activities run", || isola.run(&["logs", "shares"]).ok().contains("running"));
        let resources = &isola.json(&["grid", "show", "shares"])["resources"];
        assert_eq!((&resources[0]["policy"], &resources[1]["policy"]), (&"wfq".into(), &"fifo".into()));
        assert_eq!(resources[1]["limit"], 10 << 20);
        assert_become_near(&isola, WEIGHTS.map(|(_, weight)| weight));
    }
}
