//! Help texts, and errors of the command line.

use crate::sandbox::Sandbox;
use isola_need::{Need, need};
use std::fs;

#[test]
fn help_shows_every_verb_and_examples() {
    let sandbox = Sandbox::new();
    let help = sandbox.isola(&["--help"]).ok();
    for verb in [
        "up", "down", "run", "ps", "logs", "stop", "resize", "rm", "inspect", "top", "stats", "metrics",
        "events", "doctor", "demo",
    ] {
        assert!(help.contains(&format!("\n  {verb}")), "{verb}: {help}");
        let own = sandbox.isola(&[verb, "--help"]).ok();
        assert!(own.contains("Usage: isola"), "{own}");
    }
    assert!(help.contains("isola run -d --name kv --cores 2 --memory 64M -p 11211:11211 kv"), "{help}");
}

#[test]
fn a_mistyped_verb_gets_a_suggestion() {
    Sandbox::new().isola(&["startx"]).failed(2, "start");
}

#[test]
fn an_invalid_command_line_has_exit_code_2() {
    let sandbox = Sandbox::new();
    sandbox.isola(&[]).failed(2, "Usage");
    sandbox.isola(&["run"]).failed(2, "<IMAGE");
    sandbox.isola(&["run", "-p", "80/sctp", "kv"]).failed(2, "[IP:]HOST_PORT:CELL_PORT");
    sandbox.isola(&["run", "--memory", "64X", "kv"]).failed(2, "64M or 1GiB");
    sandbox.isola(&["run", "--network", "host", "kv"]).failed(2, "ADDRESS/PREFIX");
    sandbox.isola(&["up", "--cores", "1"]).failed(2, "the supervisor takes one");
    sandbox.isola(&["up", "--net", "bridge"]).failed(2, "tap:INTERFACE");
    sandbox.isola(&["up", "a/b"]).failed(2, "machine's name");
    sandbox.isola(&["stop"]).failed(2, "<CELLS>");
    sandbox.isola(&["stats"]).failed(2, "isola stats [OPTIONS] --all");
    sandbox.isola(&["stats", "kv", "--all"]).failed(2, "--all");
    sandbox.isola(&["top", "--by", "thread"]).failed(2, "activity, resource, core");
    sandbox.isola(&["top", "--interval", "1ms"]).failed(2, "10ms to 15m");
    sandbox.isola(&["grid", "show", "kv", "--table", "--ascii"]).failed(2, "--ascii");
    sandbox.isola(&["run", "--machine", "microvm", "kv"]).failed(2, "--standalone");
}

#[test]
fn each_of_several_volumes_is_removed_or_reported() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let sandbox = Sandbox::new();
    for name in ["one", "two"] {
        sandbox.isola(&["volume", "create", name, "--size", "8M"]).ok();
    }
    let removed = sandbox.isola(&["volume", "rm", "one", "other", "two"]);
    assert_eq!(removed.out, "one\ntwo\n");
    removed.failed(1, "there is no volume other: `isola volume ls` lists all");
    // The usage names both ways to give it a length.
    sandbox.isola(&["volume", "create", "three"]).failed(2, "<--size <SIZE>|--part <PART>> <NAME>");
    assert!(sandbox.json(&["volume", "ls"]).as_array().unwrap().is_empty());
}

#[test]
fn errors_are_json_if_answers_are() {
    let outcome = Sandbox::new().isola(&["-o", "json", "inspect", "kv"]);
    let error: serde_json::Value = serde_json::from_str(&outcome.err).unwrap();
    assert_eq!(error["exit_code"], 1);
    assert!(error["error"].as_str().unwrap().contains("isola up"), "{error}");
}

#[test]
fn doctor_lists_present_and_missing_requirements() {
    let sandbox = Sandbox::new();
    let checks = sandbox.json(&["doctor"]);
    let result = |name: &str| {
        let checks = checks.as_array().unwrap();
        checks.iter().find(|check| check["check"] == name).unwrap()["result"].as_str().unwrap().to_owned()
    };
    for check in ["qemu", "machines", "supervisor", "images", "state"] {
        assert_eq!(result(check), "ok", "{checks}");
    }
    fs::remove_file(sandbox.images().join("supervisor")).unwrap();
    let outcome = sandbox.isola(&["doctor"]);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.out.contains("MISSING  supervisor") && outcome.out.contains("cargo xtask images"));
}

#[test]
fn without_qemu_the_error_advises_what_to_install() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["up"]);
    let outcome = crate::sandbox::Outcome::from(command.env("ISOLA_QEMU", "/nonexistent").output().unwrap());
    outcome.failed(1, "apt-get install qemu-system-x86");
    let old = sandbox.path("old-qemu");
    fs::write(&old, "#!/bin/sh\necho 'QEMU emulator version 6.2.0'\n").unwrap();
    std::process::Command::new("chmod").arg("+x").arg(&old).status().unwrap();
    let outcome = crate::sandbox::Outcome::from(command.env("ISOLA_QEMU", old).output().unwrap());
    outcome.failed(1, "7.2 or newer");
}

#[test]
fn completion_needs_no_supervisor() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "cache", "kv"]).ok();
    let script = sandbox.isola(&["completion", "bash"]).ok();
    assert!(script.contains("COMPLETE=\"bash\""), "{script}");
    let complete = |words: &[&str]| {
        let mut command = sandbox.command(&[&["--", "isola"], words].concat());
        command.env("COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    assert!(complete(&["stop", ""]).contains("cache"));
    assert!(complete(&["resize", ""]).contains("cache"));
    assert!(complete(&["run", ""]).contains("primes"));
    assert!(complete(&["in"]).contains("inspect"));
    sandbox.isola(&["completion", "tcsh"]).failed(2, "possible values");
}

#[test]
fn version_prints_all_versions() {
    let version = Sandbox::new().json(&["version"]);
    assert_eq!(version["protocol"], isola_abi::VERSION);
    assert_eq!(version["qemu"], "7.2.22");
}

#[test]
fn no_color_disables_colours() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.command(&["stop", "kv"]);
    let outcome = crate::sandbox::Outcome::from(command.env("NO_COLOR", "1").output().unwrap());
    assert!(outcome.failed(1, "error: ").starts_with("error: machine"));
}
