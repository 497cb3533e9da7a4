//! Commands and machines that were killed, damaged records, and folders that are not Isola's.

use crate::ports::is_free;
use crate::sandbox::{Outcome, Sandbox, is_alive, signal};
use isola_tests::ports;
use std::fs;
use std::process::Child;

#[test]
fn a_machine_with_a_killed_qemu_is_reported_with_its_log_until_down() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    signal("KILL", sandbox.qemu_pid("default").unwrap());
    for _ in 0..2 {
        let err = sandbox.isola(&["logs", "kv"]).failed(1, "has ended unexpectedly");
        assert!(err.contains("`isola down`") && err.contains("the fake supervisor's log"), "{err}");
    }
    let listed = sandbox.isola(&["ps"]);
    assert!(listed.err.contains("has ended unexpectedly"), "{listed:?}");
    assert!(sandbox.machines().join("default/machine.json").exists(), "a listing removed the record");
    let outcome = sandbox.isola(&["down"]);
    assert!(outcome.err.contains("had ended unexpectedly"), "{outcome:?}");
    assert_eq!(outcome.ok(), "default\n");
    assert!(!sandbox.machines().join("default").exists());
    sandbox.isola(&["logs", "kv"]).failed(1, "is not up");
}

#[test]
fn up_replaces_a_machine_that_has_ended() {
    let sandbox = Sandbox::up();
    signal("KILL", sandbox.qemu_pid("default").unwrap());
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
}

#[test]
fn a_run_killed_during_a_publication_leaves_no_unrecorded_port() {
    let sandbox = Sandbox::with_behaviour("halts");
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    let port = ports::free();
    let run = ["run", "-d", "--name", "kv", "-p", &format!("{port}:11211"), "kv"];
    let killed = sandbox.spawn(&run);
    sandbox.wait("the port is published", || !is_free(port));
    signal("KILL", killed.id());
    killed.wait_with_output().unwrap();
    assert!(!is_free(port));
    sandbox.isola(&["rm", "-f", "kv"]).ok();
    assert!(is_free(port));
    sandbox.isola(&run).ok();
}

/// Starts `isola up` with a supervisor that does not answer; returns the command, and QEMU's process id.
fn unfinished_up() -> (Sandbox, Child, u32) {
    let sandbox = Sandbox::with_behaviour("silent");
    let up = sandbox.spawn(&["up", "--accel", "tcg"]);
    sandbox.wait("QEMU runs", || sandbox.qemu_pid("default").is_some());
    let qemu = sandbox.qemu_pid("default").unwrap();
    (sandbox, up, qemu)
}

#[test]
fn an_up_that_was_killed_leaves_no_machine() {
    let (sandbox, up, qemu) = unfinished_up();
    signal("KILL", up.id());
    up.wait_with_output().unwrap();
    let outcome = sandbox.isola(&["ps"]);
    assert!(outcome.err.contains("belonged to a command that has ended"), "{outcome:?}");
    assert!(is_alive(qemu), "a listing ended QEMU");
    sandbox.isola(&["down"]).ok();
    assert!(!is_alive(qemu));
    assert!(!sandbox.machines().join("default").exists());
}

#[test]
fn an_up_that_is_interrupted_takes_the_machine_down_again() {
    let (sandbox, up, qemu) = unfinished_up();
    signal("INT", up.id());
    Outcome::from(up.wait_with_output().unwrap()).failed(130, "interrupted");
    assert!(!is_alive(qemu));
    assert!(!sandbox.machines().join("default").exists());
}

#[test]
fn a_failed_supervisor_is_reported_with_its_log() {
    let sandbox = Sandbox::with_behaviour("dies");
    let err = sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "the supervisor did not come up");
    assert!(err.contains("the fake supervisor's log") && err.contains("triple fault"), "{err}");
    assert!(!sandbox.machines().join("default").exists());
}

#[test]
fn the_error_of_a_failed_qemu_is_quoted() {
    let sandbox = Sandbox::with_behaviour("refuses");
    sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "qemu: no such thing");
    assert!(!sandbox.machines().join("default").exists());
}

#[test]
fn a_supervisor_of_another_version_is_rejected() {
    let sandbox = Sandbox::with_behaviour("version");
    let err = sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "the supervisor speaks version");
    assert!(err.contains("with this build"), "{err}");
}

#[test]
fn a_killed_command_releases_the_machine() {
    let sandbox = Sandbox::up();
    let followers: Vec<_> = (0..4).map(|_| sandbox.spawn(&["events", "-f"])).collect();
    sandbox.isola(&["ps"]).ok();
    for follower in followers {
        signal("KILL", follower.id());
        follower.wait_with_output().unwrap();
        sandbox.isola(&["ps"]).ok();
    }
}

/// With a record of another version, a damaged one, or another program's, the machine may run, so it must continue to
/// run.
#[test]
fn a_machine_with_an_unreadable_record_is_left_alone() {
    let sandbox = Sandbox::up();
    let qemu = sandbox.qemu_pid("default").unwrap();
    let record = sandbox.machines().join("default/machine.json");
    let own = fs::read_to_string(&record).unwrap();
    let later = own.replace("\"format\": 2", "\"format\": 3");
    assert_ne!(later, own);
    let verbs: [&[&str]; 8] = [
        &["ps"],
        &["ps", "-a"],
        &["inspect"],
        &["logs", "--supervisor"],
        &["up", "--accel", "tcg"],
        &["start", "kv"],
        &["down"],
        &["down", "--all"],
    ];
    for (text, words) in
        [(later.as_str(), "another version of isola"), ("{\"format\":", "repair the file"), ("{}", "repair")]
    {
        fs::write(&record, text).unwrap();
        for verb in verbs {
            sandbox.isola(verb).failed(1, words);
        }
        sandbox.isola(&["doctor"]);
        assert!(is_alive(qemu), "{words}");
        assert_eq!(fs::read_to_string(&record).unwrap(), text);
    }
    fs::write(&record, own).unwrap();
    sandbox.isola(&["inspect"]).ok();
}

/// A user may name any folder as the state folder: no verb touches the files in it.
#[test]
fn folders_that_are_not_machines_are_left_alone() {
    let sandbox = Sandbox::up();
    let machines = sandbox.machines();
    let [thesis, source] = [machines.join("Documents/thesis.txt"), machines.join("src/main.rs")];
    let beside = sandbox.state().join("y/z");
    for file in [&thesis, &source, &beside] {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, "text").unwrap();
    }
    assert_eq!(sandbox.isola(&["ps", "-a", "-q"]).ok(), "");
    assert_eq!(sandbox.isola(&["-o", "json", "ps", "-a"]).err, "");
    for verb in [&["up", "src", "--accel", "tcg"][..], &["down", "src"], &["--on", "src", "ps"]] {
        sandbox.isola(verb).failed(1, "is not a machine's folder");
    }
    let alone = ["run", "--standalone", "--name", "Documents", "--accel", "tcg", "kv"];
    sandbox.isola(&alone).failed(125, "choose another name");
    sandbox.isola(&["rm", "-f", "Documents"]).failed(1, "Documents");
    sandbox.isola(&["doctor"]).ok();
    assert_eq!(sandbox.isola(&["down", "--all"]).ok(), "default\n");
    for file in [thesis, source, beside] {
        assert_eq!(fs::read(file).unwrap(), b"text");
    }
}

/// A process id of another PID namespace is unrelated to a process of this one.
#[test]
fn a_machine_of_another_container_is_left_alone() {
    let sandbox = Sandbox::up();
    let qemu = sandbox.qemu_pid("default").unwrap();
    let record = sandbox.machines().join("default/machine.json");
    let own = fs::read_to_string(&record).unwrap();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let elsewhere = own.replace(namespace.to_str().unwrap(), "pid:[1]");
    assert_ne!(elsewhere, own);
    fs::write(&record, &elsewhere).unwrap();
    for verb in [&["ps"][..], &["up", "--accel", "tcg"], &["down", "--all"]] {
        sandbox.isola(verb).failed(1, "in another container");
    }
    assert!(is_alive(qemu));
    assert_eq!(fs::read_to_string(&record).unwrap(), elsewhere);
    fs::write(&record, own).unwrap();
}

#[test]
fn down_ends_a_standalone_image_with_a_killed_command() {
    let sandbox = Sandbox::new();
    let run = sandbox.spawn(&["run", "--standalone", "--name", "alone", "--accel", "tcg", "kv"]);
    sandbox.wait("QEMU runs", || sandbox.qemu_pid("alone").is_some());
    let qemu = sandbox.qemu_pid("alone").unwrap();
    signal("KILL", run.id());
    run.wait_with_output().unwrap();
    let listed = sandbox.isola(&["ps"]);
    assert!(listed.err.contains("`isola down alone` ends it"), "{listed:?}");
    sandbox.isola(&["down", "alone"]).ok();
    assert!(!is_alive(qemu));
}

#[test]
fn a_command_that_waits_for_its_turn_prints_a_notice() {
    let sandbox = Sandbox::up();
    let lock = sandbox.machines().join("default.lock");
    let mut holder = std::process::Command::new("flock").arg(&lock).args(["sleep", "2"]).spawn().unwrap();
    sandbox.wait("the lock is held", || {
        let mut try_lock = std::process::Command::new("flock");
        !try_lock.arg("--nonblock").arg(&lock).arg("true").status().unwrap().success()
    });
    let outcome = sandbox.isola(&["ps"]);
    holder.wait().unwrap();
    assert!(outcome.err.contains("waiting for another isola command"), "{outcome:?}");
    assert_eq!(outcome.code, 0);
}
