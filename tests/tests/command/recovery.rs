//! Recovery after machines and commands were killed.

use isola_tests::isola::{Isola, is_alive, signal};
use isola_tests::kv::Connection;
use isola_tests::service::published;
use isola_tests::{ports, wait};
use serde_json::Value;
use std::thread::sleep;
use std::time::Duration;

#[test]
fn a_machine_whose_qemu_was_killed_is_reported_and_replaced() {
    let isola = Isola::up(&[]);
    let run = ["run", "-d", "--name", "cache", "-p", "11211", "kv"];
    let address = published(&isola.json(&run));
    let follower = isola.spawn(&["logs", "-f", "cache"]);
    let qemu = isola.qemu("default").unwrap();
    signal("KILL", qemu);
    wait::until_true("QEMU is gone", || !is_alive(qemu));
    // The machine ended between two requests of `logs -f`, or during one.
    let stderr = follower.wait().failed(1, "ended");
    let ends = ["has ended unexpectedly", "the machine ended before it answered"];
    assert!(ends.iter().any(|end| stderr.contains(end)), "{stderr}");
    // Commands report it until `isola up` or `isola down` removes its files.
    isola.run(&["inspect", "cache"]).failed(1, "has ended unexpectedly");
    isola.run(&["up", "--accel", "tcg"]).ok();
    let again = ["run", "-d", "--name", "cache", "-p", &format!("{}:11211", address.port()), "kv"];
    isola.run(&again).ok();
    Connection::establish(address).set("key", b"value").unwrap();
    // `up` itself cleans up as well, and so does `down`.
    for verb in [&["up", "--accel", "tcg"][..], &["down"]] {
        let qemu = isola.qemu("default").unwrap();
        signal("KILL", qemu);
        wait::until_true("QEMU is gone", || !is_alive(qemu));
        isola.run(verb).ok();
    }
    assert!(!isola.machine_folder("default").exists());
}

/// Kills the command before, during and after the upload of the image.
#[test]
fn a_killed_run_leaves_a_machine_that_works() {
    let isola = Isola::up(&["--nics", "2"]);
    let before = isola.inventory();
    let port = ports::free();
    let run = ["run", "-d", "--name", "cache", "-p", &format!("{port}:11211"), "kv"];
    let mut made = 0;
    for wait_ms in (0..96).step_by(4) {
        let killed = isola.spawn(&run);
        sleep(Duration::from_millis(wait_ms));
        killed.signal("KILL");
        killed.wait();
        let cells = isola.json(&["ps"]);
        if !cells.as_array().unwrap().is_empty() {
            made += 1;
            isola.run(&["rm", "--force", "cache"]).ok();
        }
        isola.wait_for_inventory(&before);
    }
    eprintln!("{made} of 24 were killed after the cell was made");
    isola.run(&run).ok();
    Connection::establish(([127, 0, 0, 1], port).into()).set("key", b"value").unwrap();
}

#[test]
fn a_killed_up_leaves_no_machine() {
    let isola = Isola::new();
    let record = isola.machine_folder("default").join("machine.json");
    for wait_ms in [0, 20, 50, 100, 150, 200] {
        let up = isola.spawn(&["up", "--accel", "tcg"]);
        sleep(Duration::from_millis(wait_ms));
        up.signal("KILL");
        up.wait();
        assert_eq!(isola.json(&["ps"]), serde_json::json!([]));
        // The next `up` replaces the machine, unless it was completely up: then it has no owner, and works.
        let owned = match std::fs::read(&record) {
            Ok(record) => {
                let record: Value = serde_json::from_slice(&record).unwrap();
                record["owner"] != Value::Null
            }
            Err(_) => true,
        };
        if owned {
            isola.run(&["up", "--accel", "tcg"]).ok();
        }
        isola.run(&["inspect"]).ok();
        isola.run(&["down"]).ok();
    }
}

#[test]
fn down_ends_a_standalone_image_after_its_command_was_killed() {
    let isola = Isola::new();
    let run = isola.spawn(&["run", "--standalone", "--name", "alone", "--accel", "tcg", "faulty", "wait"]);
    let qemu = wait::until("QEMU runs", || isola.qemu("alone"));
    run.signal("KILL");
    run.wait();
    let listed = isola.run(&["ps"]);
    assert!(listed.err.contains("belonged to a command that has ended"), "{listed:?}");
    isola.run(&["down", "alone"]).ok();
    assert!(!is_alive(qemu) && !isola.machine_folder("alone").exists());
}
