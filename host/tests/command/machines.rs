//! Machines: up, down, several at once, and errors without one.

use crate::sandbox::{Sandbox, is_alive};

#[test]
fn a_machine_comes_up_and_goes_down_without_remains() {
    let sandbox = Sandbox::new();
    let up = sandbox.json(&["up", "--cores", "4", "--memory", "1G", "--accel", "tcg"]);
    assert_eq!(up["name"], "default");
    assert_eq!(up["accelerator"], "tcg");
    assert_eq!(up["supervisor"]["cores"].as_array().unwrap().len(), 4);
    assert!(up["ready_us"].as_u64().unwrap() > 0, "{up}");
    let pid = sandbox.qemu_pid("default").unwrap();
    assert!(is_alive(pid));
    assert_eq!(up["pid"], pid);
    assert_eq!(sandbox.isola(&["down"]).ok(), "default\n");
    assert!(!is_alive(pid));
    assert!(!sandbox.machines().join("default").exists());
    sandbox.isola(&["down"]).failed(1, "is not up");
}

#[test]
fn the_block_devices_are_those_that_the_network_devices_leave() {
    let sandbox = Sandbox::new();
    for (name, nics, disks) in [("few", "8", 4), ("many", "20", 2), ("most", "22", 0)] {
        sandbox.isola(&["up", name, "--accel", "tcg", "--nics", nics]).ok();
        let record = sandbox.machines().join(name).join("machine.json");
        let record: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(record).unwrap()).unwrap();
        assert_eq!(record["options"]["disks"], disks, "{name}");
    }
    let refused = sandbox.isola(&["up", "more", "--accel", "tcg", "--nics", "22", "--disks", "1"]);
    refused.failed(2, "at most 22 network and block devices together");
}

#[test]
fn a_machine_that_is_up_is_not_started_again() {
    let sandbox = Sandbox::up();
    let pid = sandbox.qemu_pid("default");
    sandbox.isola(&["up"]).failed(1, "is up already");
    assert_eq!(sandbox.qemu_pid("default"), pid);
    sandbox.isola(&["ps"]).ok();
}

#[test]
fn two_machines_have_their_own_cells() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["up", "second", "--machine", "microvm", "--accel", "tcg"]).ok();
    sandbox.isola(&["run", "-d", "--name", "a", "kv"]).ok();
    sandbox.isola(&["--on", "second", "run", "-d", "--name", "b", "kv"]).ok();
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "a\n");
    assert_eq!(sandbox.isola(&["ps", "-q", "--on", "second"]).ok(), "b\n");
    let all = sandbox.json(&["ps", "-a"]);
    let of = |index: usize| (all[index]["machine"].as_str().unwrap(), all[index]["name"].as_str().unwrap());
    assert_eq!((of(0), of(1)), (("default", "a"), ("second", "b")));
    let mut by_environment = sandbox.command(&["ps", "-q"]);
    let outcome = by_environment.env("ISOLA_MACHINE", "second").output().unwrap();
    assert_eq!(outcome.stdout, b"b\n");
    sandbox.isola(&["down", "--all"]).ok();
    assert_eq!(sandbox.isola(&["ps", "-aq"]).ok(), "");
}

#[test]
fn without_a_machine_the_error_advises_how_to_start_one() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.isola(&["ps"]);
    assert!(outcome.err.contains("isola up"), "{outcome:?}");
    assert!(outcome.ok().starts_with("NAME"));
    sandbox.isola(&["run", "kv"]).failed(125, "start it with `isola up`");
    sandbox.isola(&["ps", "--on", "other"]).failed(1, "`isola up other`");
    sandbox.isola(&["up", "other", "--accel", "tcg"]).ok();
    sandbox.isola(&["stop", "kv"]).failed(1, "one that is up with --on: other");
}

#[test]
fn the_machine_can_be_inspected() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let text = sandbox.isola(&["inspect"]).ok();
    assert!(text.contains("512 MiB of 1 GiB free") && text.contains("7 of 8 devices free"), "{text}");
    assert_eq!(text.matches("cell kv").count(), 2, "{text}");
    let json = sandbox.json(&["inspect"]);
    assert_eq!(json["supervisor"]["cores"][0]["owner"], "supervisor");
}

#[test]
fn a_state_folder_with_a_long_path_works() {
    let mut sandbox = Sandbox::new();
    sandbox.lengthen_state_path();
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    sandbox.isola(&["run", "-d", "--name", "kv", "-p", "80", "kv"]).ok();
    assert_eq!(sandbox.json(&["port", "kv"]).as_array().unwrap().len(), 1);
}

#[test]
fn the_supervisor_s_log_can_be_read() {
    assert_eq!(Sandbox::up().isola(&["logs", "--supervisor"]).ok(), "isola: the fake supervisor's log\n");
}
