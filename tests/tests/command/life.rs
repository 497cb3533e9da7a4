//! Machines and cells from creation to removal, by the command's JSON output.

use isola_tests::isola::{Isola, is_alive};
use isola_tests::kv::Connection;
use isola_tests::ports;
use isola_tests::service::published;
use serde_json::{Value, json};
use std::net::{SocketAddr, TcpListener};
use std::thread;

/// Returns the journal.
fn events(isola: &Isola) -> Vec<Value> {
    let lines = isola.run(&["events", "-o", "json"]).ok();
    lines.lines().map(|line| serde_json::from_str(line).expect("each line is an object")).collect()
}

fn stores(address: SocketAddr) {
    let mut connection = Connection::establish(address);
    connection.set("key", b"value").unwrap();
    assert_eq!(connection.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Captures frames of the cell `cache` while it serves requests.
fn shows_frames(isola: &Isola, address: SocketAddr) {
    let capture = isola.spawn(&["capture", "cache", "--port", "11211", "--count", "40"]);
    let captured = thread::scope(|scope| {
        let captured = scope.spawn(|| capture.wait().ended_with(0));
        while !captured.is_finished() {
            stores(address);
        }
        captured.join().unwrap()
    });
    let [received, sent] = [" in ", " out "].map(|direction| captured.out.matches(direction).count());
    assert!(received > 0 && sent > 0 && received + sent == 40, "{captured:?}");
    assert!(captured.out.contains(":11211 TCP [S"), "{captured:?}");
}

#[test]
fn a_cell_is_run_inspected_stopped_started_and_removed() {
    for model in ["q35", "microvm"] {
        let isola = Isola::new();
        let up =
            isola.json(&["up", "--accel", "tcg", "--machine", model, "--cores", "3", "--memory", "256M"]);
        assert_eq!((&up["name"], &up["model"], &up["cores"]), (&json!("default"), &json!(model), &json!(3)));
        let qemu = up["pid"].as_u64().unwrap() as u32;
        assert!(is_alive(qemu));
        let before = isola.inventory();
        let owners: Vec<&str> = up["supervisor"]["cores"]
            .as_array()
            .unwrap()
            .iter()
            .map(|core| core["owner"].as_str().unwrap())
            .collect();
        assert_eq!(owners, ["supervisor", "free", "free"]);

        let run = ["run", "-d", "--name", "cache", "--cores", "2", "--memory", "32M"];
        let ran = isola.json(&[&run[..], &["-p", "11211", "kv", "-m", "16"]].concat());
        let address = published(&ran);
        stores(address);
        let listed = isola.json(&["ps"]);
        assert_eq!((&listed[0]["name"], &listed[0]["state"]), (&json!("cache"), &json!("running")));
        assert_eq!(isola.run(&["ps", "-q"]).ok(), "cache\n");
        let cell = isola.cell("cache");
        assert_eq!((&cell["memory_bytes"], &cell["arguments"]), (&json!(32 << 20), &json!(["-m", "16"])));
        assert_eq!(cell["cores"].as_array().unwrap().len(), 2);
        let numbers = [&cell["traffic"]["received_frames"], &cell["used_bytes"], &cell["create_ns"]];
        assert!(numbers.iter().all(|number| number.as_u64() > Some(0)), "{cell:#}");
        let counted = &cell["counters"];
        assert!(counted["tcp_accepted"].as_u64() > Some(0), "{cell:#}");
        assert_eq!(counted["drop_ipv4_malformed"], 0, "{cell:#}");
        let activities = cell["activities"].as_array().unwrap();
        assert!(activities.iter().any(|activity| activity["cycles"].as_u64() > Some(0)), "{cell:#}");
        shows_frames(&isola, address);
        let owner = isola.inventory()["cores"][1]["owner"].clone();
        assert_eq!(owner, cell["id"].to_string(), "the inventory names the core's owner");
        // On a busy host the log may also contain lines about long events.
        let log = isola.run(&["logs", "cache"]).ok();
        assert!(log.lines().any(|line| line == "kv: TCP port 11211, 2 cores, 16 MiB for items"), "{log}");

        let stopped = isola.json(&["stop", "cache"]);
        assert_eq!((&stopped[0]["state"], &stopped[0]["exit_code"]), (&json!("exited"), &json!(0)));
        assert!(TcpListener::bind(address).is_ok(), "the port is free while the cell does not run");
        assert_eq!(isola.inventory(), before, "the cell's resources are free already");
        isola.run(&["run", "-d", "--name", "cache", "kv"]).failed(125, "cache");
        let started = isola.json(&["start", "cache"]);
        assert_eq!(started[0]["state"], "running");
        stores(published(&started[0]));
        isola.run(&["rm", "cache"]).failed(1, "cache");
        assert_eq!(isola.json(&["rm", "--force", "cache"]), json!(["cache"]));
        isola.wait_for_inventory(&before);
        isola.run(&["inspect", "cache"]).failed(1, "cache");

        let journal = events(&isola);
        let of_cell = journal.iter().filter(|entry| entry["cell"] == "cache");
        let kinds: Vec<&str> = of_cell.map(|entry| entry["event"].as_str().unwrap()).collect();
        assert_eq!(
            kinds,
            ["create", "start", "exit", "recreate", "start", "kill", "destroy"],
            "{journal:#?}"
        );
        assert!(isola.run(&["logs", "--supervisor"]).ok().contains("cache"));
        assert_eq!(isola.json(&["down"]), json!(["default"]));
        assert!(!is_alive(qemu) && !isola.machine_folder("default").exists());
        isola.run(&["ps"]).ok();
        isola.run(&["inspect"]).failed(1, "isola up");
    }
}

#[test]
fn a_port_in_use_is_rejected_and_leaves_no_cell() {
    let isola = Isola::up(&[]);
    let before = isola.inventory();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port().to_string();
    let run = |name: &str, port: &str| {
        isola.run(&["run", "-d", "--name", name, "-p", &format!("{port}:11211"), "kv"])
    };
    run("first", &port).failed(125, "in use by another program");
    assert_eq!(isola.inventory(), before);
    let port = ports::free().to_string();
    run("first", &port).ok();
    run("second", &port).failed(125, "\"first\"");
    assert_eq!(isola.run(&["ps", "-q"]).ok(), "first\n");
    stores(format!("127.0.0.1:{port}").parse().unwrap());
    // A second port of a running cell.
    let further = ports::free().to_string();
    isola.run(&["publish", "first", &format!("{further}:11211")]).ok();
    let mut connection = Connection::establish(format!("127.0.0.1:{further}").parse().unwrap());
    assert_eq!(connection.get("key").unwrap().as_deref(), Some(&b"value"[..]));
}

#[test]
fn two_machines_are_independent() {
    let isola = Isola::up(&["one", "--cores", "2", "--memory", "128M"]);
    isola
        .run(&["up", "two", "--accel", "tcg", "--cores", "2", "--memory", "128M", "--machine", "microvm"])
        .ok();
    isola.run(&["up", "two", "--accel", "tcg"]).failed(1, "is up already");
    let addresses = ["one", "two"].map(|machine| {
        let run = ["--on", machine, "run", "-d", "--name", "cache", "--memory", "32M", "-p", "11211", "kv"];
        published(&isola.json(&run))
    });
    let [mut one, mut two] = addresses.map(Connection::establish);
    one.set("key", b"one").unwrap();
    assert_eq!(two.get("key").unwrap(), None);
    let all = isola.json(&["ps", "--all"]);
    let machines: Vec<&Value> = all.as_array().unwrap().iter().map(|cell| &cell["machine"]).collect();
    assert_eq!(machines, ["one", "two"]);
    isola.run(&["down", "one"]).ok();
    two.set("key", b"two").unwrap();
    assert_eq!(two.get("key").unwrap().as_deref(), Some(&b"two"[..]));
    isola.run(&["--on", "one", "inspect"]).failed(1, "is not up");
    assert_eq!(isola.json(&["down", "--all"]), json!(["two"]));
}

#[test]
fn unavailable_resources_are_rejected_by_name_and_cost_nothing() {
    let isola = Isola::up(&["--cores", "3", "--memory", "128M", "--nics", "1"]);
    let before = isola.inventory();
    let refused = |arguments: &[&str], code: i32, words: &str| {
        isola.run(&[&["run", "-d"], arguments].concat()).failed(code, words);
        assert_eq!(isola.inventory(), before, "after {arguments:?}");
    };
    refused(&["--cores", "3", "kv"], 125, "core");
    refused(&["--memory", "1G", "kv"], 125, "memory");
    refused(&["no-such-image"], 127, "no-such-image");
    refused(&["/bin/sh"], 126, "/bin/sh");
    isola.run(&["run", "-d", "--name", "first", "--memory", "32M", "kv"]).ok();
    isola.run(&["run", "-d", "--name", "second", "--memory", "32M", "kv"]).failed(125, "network");
    isola
        .run(&["run", "-d", "--name", "second", "--network", "none", "--memory", "16M", "faulty", "wait"])
        .ok();
    isola.run(&["rm", "--force", "first", "second"]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn doctor_reports_a_machine_that_is_up() {
    let isola = Isola::up(&[]);
    let checks = isola.json(&["doctor"]);
    let result = |name: &str| {
        let check = checks.as_array().unwrap().iter().find(|check| check["check"] == name);
        check.unwrap_or_else(|| panic!("no {name}: {checks:#}"))["result"].clone()
    };
    for check in ["qemu", "machines", "supervisor", "images", "state", "ports", "up"] {
        assert_eq!(result(check), "ok", "{check}: {checks:#}");
    }
    assert!(["ok", "remark"].iter().any(|word| result("kvm") == *word), "{checks:#}");
}

#[test]
fn a_cell_grows_to_its_limit_and_returns_all_memory() {
    let isola = Isola::up(&["--memory", "256M"]);
    let before = isola.inventory();
    let run = |name, most, image| {
        let cell = ["run", "--name", name, "--memory", "16M", "--memory-max", most, image, "exhaust"];
        let stderr = isola.run(&cell).ended_with(134).err;
        (isola.cell(name), stderr)
    };
    let (cell, stderr) = run("limited", "64M", "faulty");
    assert!(stderr.contains("the cell has 64 MiB, and may have no more than 64 MiB"), "{stderr}");
    assert_eq!((&cell["memory_bytes"], &cell["memory_max_bytes"]), (&json!(64 << 20), &json!(64 << 20)));
    assert_eq!(cell["held_bytes"], 0);
    assert!(cell["peak_bytes"].as_u64() > Some(40 << 20), "{cell:#}");
    let (cell, stderr) = run("boundless", "1T", "faulty");
    assert!(stderr.contains("of the 1 TiB that it may have, and the machine has no more for it"), "{stderr}");
    assert!(cell["memory_bytes"].as_u64() > Some(200 << 20), "{cell:#}");
    let (cell, stderr) = run("fixed", "16M", "faulty");
    assert!(stderr.contains("the cell has 16 MiB, and may have no more than 16 MiB"), "{stderr}");
    assert_eq!(cell["memory_bytes"], 16 << 20);
    let (cell, stderr) = run("paged", "48M", "regions");
    assert!(stderr.contains("region \"too much\": memory ran out"), "{stderr}");
    assert!(stderr.contains("may have no more than 48 MiB") && cell["memory_bytes"] == 48 << 20, "{stderr}");
    assert_eq!(isola.inventory(), before);

    let journal = events(&isola);
    let of = |name: &str, kind: &str| {
        journal.iter().filter(|entry| entry["cell"] == name && entry["event"] == kind).collect::<Vec<_>>()
    };
    let grown = of("limited", "grow");
    assert_eq!(grown.last().unwrap()["detail"].as_str().unwrap().split_once(", ").unwrap().1, "64 MiB now");
    assert!(grown.iter().all(|entry| entry["duration_ns"].as_u64() > Some(0)), "{grown:#?}");
    assert_eq!((of("boundless", "not-grown").len(), of("fixed", "grow").len()), (1, 0), "{journal:#?}");
}
