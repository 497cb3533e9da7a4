//! What is left behind by what was killed trips nobody up.

use crate::ports::is_free;
use crate::sandbox::{Outcome, Sandbox, is_alive, signal};
use isola_tests::ports;
use std::fs;

#[test]
fn a_machine_whose_qemu_was_killed_is_cleaned_up_once() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    signal("KILL", sandbox.qemu_pid("default").unwrap());
    let err = sandbox.isola(&["logs", "kv"]).failed(1, "has ended unexpectedly");
    assert!(err.contains("the fake supervisor's log"), "{err}");
    sandbox.isola(&["logs", "kv"]).failed(1, "is not up");
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
}

#[test]
fn up_follows_a_crash_without_further_ado() {
    let sandbox = Sandbox::up();
    signal("KILL", sandbox.qemu_pid("default").unwrap());
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    signal("KILL", sandbox.qemu_pid("default").unwrap());
    let outcome = sandbox.isola(&["down"]);
    assert!(outcome.err.contains("cleaned up"), "{outcome:?}");
    assert_eq!(outcome.ok(), "default\n");
}

#[test]
fn a_run_that_was_killed_while_it_published_a_port_leaves_none_that_nobody_knows() {
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

#[test]
fn an_up_that_was_killed_leaves_no_machine() {
    let sandbox = Sandbox::with_behaviour("silent");
    let up = sandbox.spawn(&["up", "--accel", "tcg"]);
    sandbox.wait("QEMU runs", || sandbox.qemu_pid("default").is_some());
    let qemu = sandbox.qemu_pid("default").unwrap();
    signal("KILL", up.id());
    up.wait_with_output().unwrap();
    assert!(is_alive(qemu));
    let outcome = sandbox.isola(&["ps"]);
    assert!(outcome.err.contains("belonged to a command that has ended"), "{outcome:?}");
    assert!(!is_alive(qemu));
    assert!(!sandbox.state().join("default").exists());
}

#[test]
fn an_up_that_is_interrupted_takes_the_machine_down_again() {
    let sandbox = Sandbox::with_behaviour("silent");
    let up = sandbox.spawn(&["up", "--accel", "tcg"]);
    sandbox.wait("QEMU runs", || sandbox.qemu_pid("default").is_some());
    let qemu = sandbox.qemu_pid("default").unwrap();
    signal("INT", up.id());
    Outcome::from(up.wait_with_output().unwrap()).failed(130, "interrupted");
    assert!(!is_alive(qemu));
    assert!(!sandbox.state().join("default").exists());
}

#[test]
fn a_supervisor_that_does_not_come_up_is_shown_by_its_log() {
    let sandbox = Sandbox::with_behaviour("dies");
    let err = sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "the supervisor did not come up");
    assert!(err.contains("the fake supervisor's log") && err.contains("triple fault"), "{err}");
    assert!(!sandbox.state().join("default").exists());
}

#[test]
fn a_qemu_that_does_not_start_is_quoted() {
    let sandbox = Sandbox::with_behaviour("refuses");
    sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "qemu: no such thing");
    assert!(!sandbox.state().join("default").exists());
}

#[test]
fn a_supervisor_of_another_version_is_refused_by_name() {
    let sandbox = Sandbox::with_behaviour("version");
    let err = sandbox.isola(&["up", "--accel", "tcg"]).failed(1, "the supervisor speaks version");
    assert!(err.contains("with this build"), "{err}");
}

#[test]
fn a_command_that_was_killed_gives_its_turn_back() {
    let sandbox = Sandbox::up();
    let followers: Vec<_> = (0..4).map(|_| sandbox.spawn(&["events", "-f"])).collect();
    sandbox.isola(&["ps"]).ok();
    for follower in followers {
        signal("KILL", follower.id());
        follower.wait_with_output().unwrap();
        sandbox.isola(&["ps"]).ok();
    }
}

#[test]
fn damaged_records_do_not_trip_anybody_up() {
    let sandbox = Sandbox::up();
    let pid = sandbox.qemu_pid("default").unwrap();
    fs::write(sandbox.state().join("default/machine.json"), "{\"format\":").unwrap();
    sandbox.isola(&["up", "--accel", "tcg"]).ok();
    assert!(!is_alive(pid));
    fs::create_dir_all(sandbox.state().join("stray/cells")).unwrap();
    fs::write(sandbox.state().join("default/cells"), "not a folder").unwrap();
    sandbox.isola(&["ps", "-a"]).ok();
    assert!(!sandbox.state().join("stray").exists());
}

#[test]
fn a_foreground_image_alone_does_not_outlive_its_command() {
    let sandbox = Sandbox::new();
    let run = sandbox.spawn(&["run", "--standalone", "--name", "alone", "--accel", "tcg", "kv"]);
    sandbox.wait("QEMU runs", || sandbox.qemu_pid("alone").is_some());
    let qemu = sandbox.qemu_pid("alone").unwrap();
    signal("KILL", run.id());
    run.wait_with_output().unwrap();
    sandbox.isola(&["ps", "-a"]).ok();
    assert!(!is_alive(qemu));
}

#[test]
fn who_waits_for_a_turn_is_told_for_whom() {
    let sandbox = Sandbox::up();
    let lock = sandbox.state().join("default.lock");
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
