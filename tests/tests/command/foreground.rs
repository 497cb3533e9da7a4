//! Commands that last as long as their cell: they end with it, or stop it when interrupted.

use isola_tests::isola::{Isola, is_alive};
use isola_tests::kv::Connection;
use isola_tests::{ports, wait};
use std::net::SocketAddr;

/// Returns an unused port of the host, and its address.
fn free_port() -> (String, SocketAddr) {
    let port = ports::free();
    (format!("{port}:11211"), SocketAddr::from(([127, 0, 0, 1], port)))
}

#[test]
fn a_foreground_run_returns_the_outcome_of_its_cell() {
    let isola = Isola::up(&[]);
    let before = isola.inventory();
    let run = |arguments: &[&str]| {
        isola.run(&[&["run", "--rm", "--memory", "16M", "--network", "none"], arguments].concat())
    };
    run(&["faulty", "exit", "0"]).ok();
    run(&["faulty", "exit", "7"]).ended_with(7);
    let usage = run(&["faulty"]);
    assert!(usage.out.starts_with("usage: faulty "), "{usage:?}");
    usage.ended_with(2);
    let crash = run(&["--name", "unlucky", "faulty", "overflow"]).failed(134, "cell \"unlucky\" crashed");
    assert!(crash.contains("double fault") && crash.contains("faulty::descend"), "{crash}");
    assert_eq!(isola.run(&["ps", "-q"]).ok(), "");
    isola.wait_for_inventory(&before);
}

#[test]
fn an_interrupted_command_stops_its_cell() {
    let isola = Isola::up(&[]);
    let before = isola.inventory();
    let (port, address) = free_port();
    let run = isola.spawn(&["run", "--rm", "--name", "cache", "-p", &port, "kv"]);
    Connection::establish(address).set("key", b"value").unwrap();
    run.signal("INT");
    let ended = run.wait().ended_with(0);
    assert!(ended.out.starts_with("kv: TCP port 11211"), "{ended:?}");
    assert_eq!(isola.run(&["ps", "-q"]).ok(), "");
    isola.wait_for_inventory(&before);
    // The second ^C stops a cell that ignores the stop request by force.
    let run = isola.spawn(&["run", "--name", "stubborn", "--memory", "16M", "faulty", "spin"]);
    wait::until_true("the cell runs", || isola.run(&["ps"]).ok().contains("running"));
    run.signal("INT");
    wait::until_true("the cell is stopping", || isola.run(&["ps"]).ok().contains("stopping"));
    run.signal("INT");
    run.wait().ended_with(137);
    isola.run(&["rm", "stubborn"]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn an_image_alone_serves_until_it_is_interrupted() {
    let isola = Isola::new();
    for machine in ["q35", "microvm"] {
        let (port, address) = free_port();
        let alone = ["run", "--standalone", "--name", "alone", "--accel", "tcg", "--machine", machine];
        let run = isola.spawn(&[&alone[..], &["-p", &port, "kv"]].concat());
        let mut connection = Connection::establish(address);
        connection.set("key", b"value").unwrap();
        assert_eq!(connection.get("key").unwrap().as_deref(), Some(&b"value"[..]));
        let qemu = isola.qemu("alone").unwrap();
        run.signal("INT");
        let ended = run.wait().ended_with(130);
        assert!(ended.out.contains("kv: TCP port 11211"), "{ended:?}");
        assert!(!is_alive(qemu) && !isola.machine_folder("alone").exists());
        assert_eq!(isola.run(&["ps", "--all", "-q"]).ok(), "");
        let exit = [&alone[..], &["faulty", "exit", "5"]].concat();
        isola.run(&exit).ended_with(5);
    }
}

#[test]
fn a_cell_that_hangs_is_reported_by_its_watchdog() {
    let isola = Isola::up(&[]);
    let run = ["run", "--name", "stuck", "--memory", "16M", "--watchdog", "300ms", "faulty", "spin"];
    let crash = isola.run(&run).failed(134, "cell \"stuck\" crashed");
    assert!(crash.contains("hang") && crash.contains("faulty::main"), "{crash}");
    let cell = isola.cell("stuck");
    assert_eq!((&cell["state"], &cell["crash"]["kind"]), (&"crashed".into(), &"hang".into()));
    let journal = isola.run(&["events", "-o", "json"]).ok();
    assert!(journal.contains(r#""event":"crash","cell":"stuck""#), "{journal}");
    // A waiting cell makes no progress either, but does not hang.
    let waits = ["run", "-d", "--name", "waits", "--memory", "16M", "--watchdog", "300ms", "faulty", "wait"];
    isola.run(&waits).ok();
    let run = ["run", "--rm", "--memory", "16M", "--watchdog", "300ms", "faulty", "spin"];
    isola.run(&run).failed(134, "hang");
    assert_eq!(isola.cell("waits")["state"], "running");
}

#[test]
fn the_demo_loses_no_request_and_leaves_no_machine() {
    let isola = Isola::new();
    let demo = isola.json(&["demo", "--accel", "tcg", "--seconds", "1"]);
    let states: Vec<String> =
        demo["cells"].as_array().unwrap().iter().map(|cell| cell["state"].to_string()).collect();
    assert!(states.contains(&"\"crashed\"".to_owned()) && states.len() == 3, "{states:?}");
    assert!(demo["kv_requests_during_crash"].as_u64() > Some(0), "{demo:#}");
    assert!(!isola.machine_folder("demo").exists());
}
