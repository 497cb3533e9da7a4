//! The life of cells: run, inspect, stop, restart, remove.

use crate::sandbox::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_cell_is_run_listed_stopped_and_removed() {
    let sandbox = Sandbox::up();
    let run = ["run", "-d", "--name", "kv", "--cores", "2", "--memory", "32M", "kv", "-m", "16"];
    assert_eq!(sandbox.isola(&run).ok(), "kv\n");
    let ps = sandbox.isola(&["ps"]).ok();
    let line: Vec<&str> = ps.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..7], ["kv", "running", "2", "32", "MiB", "kv", "10.0.2.16"], "{ps}");
    assert_eq!(sandbox.isola(&["logs", "kv"]).ok(), "kv: started [-m 16]\n");
    sandbox.isola(&["rm", "kv"]).failed(1, "stop it first");
    assert_eq!(sandbox.isola(&["stop", "kv"]).ok(), "kv\n");
    assert_eq!(sandbox.json(&["inspect", "kv"])["state"], "exited");
    // Stopping a stopped cell is no error.
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["start", "kv"]).ok();
    assert_eq!(sandbox.json(&["inspect", "kv"])["state"], "running");
    sandbox.isola(&["rm", "-f", "kv"]).ok();
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
    assert!(!sandbox.machines().join("default/cells/kv").exists());
}

#[test]
fn a_cell_shows_its_maximum_of_memory() {
    let sandbox = Sandbox::up();
    let run = ["run", "-d", "--name", "kv", "--memory", "32M", "--memory-max", "128M", "kv"];
    sandbox.isola(&run).ok();
    let ps = sandbox.isola(&["ps"]).ok();
    assert!(ps.contains("32 MiB/128 MiB"), "{ps}");
    let inspect = sandbox.isola(&["inspect", "kv"]).ok();
    assert!(inspect.contains("32 MiB of at most 128 MiB: image"), "{inspect}");
    assert_eq!(sandbox.json(&["inspect", "kv"])["memory_max_bytes"], 128 << 20);
    let less = ["run", "-d", "--name", "less", "--memory", "32M", "--memory-max", "16M", "kv"];
    sandbox.isola(&less).failed(125, "less than what it begins with");
}

#[test]
fn counters_of_a_cell_are_shown_by_name() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let inspect = sandbox.isola(&["inspect", "kv"]).ok();
    let row = |name: &str| {
        let line = inspect.lines().find(|line| line.contains(name));
        line.map(|line| line.split_whitespace().collect::<Vec<_>>())
    };
    assert_eq!(row("tcp_accepted"), Some(vec!["tcp", "tcp_accepted", "7"]), "{inspect}");
    assert_eq!(row("drop_tcp_port"), Some(vec!["tcp", "drop_tcp_port", "1,017"]), "{inspect}");
    let worker = inspect.lines().find(|line| line.ends_with("  worker")).unwrap();
    let words: Vec<&str> = worker.split_whitespace().collect();
    assert_eq!(words, ["4", "1", "33", "sleeping", "4", "2", "MiB", "1.50", "ms", "3,000,000", "worker"]);
    assert!(inspect.contains("117 processes that used less time are not shown"), "{inspect}");
    let json = sandbox.json(&["inspect", "kv"]);
    assert_eq!((&json["processes"][1]["user"], &json["process_count"]), (&33.into(), &120.into()));
    assert_eq!(json["processes"][0]["user_name"], "root");
    let files = inspect.lines().find(|line| line.starts_with("pages of files")).unwrap();
    assert_eq!(files.split_whitespace().skip(3).collect::<Vec<_>>(), ["cached", "3", "MiB"]);
    assert!(!inspect.lines().any(|line| line.starts_with("of programs")), "a name breaks a line: {inspect}");
    let parts = json["memory_parts"].as_array().unwrap();
    assert!(parts.iter().any(|part| part["kind"] == "free" && part["bytes"] == 20 << 20), "{json}");
    assert_eq!(row("drop_udp_port"), None, "{inspect}");
    let counters = serde_json::json!({ "tcp_accepted": 7, "drop_tcp_port": 1017, "drop_udp_port": 0 });
    assert_eq!(sandbox.json(&["inspect", "kv"])["counters"], counters);
    sandbox.isola(&["stop", "kv"]).ok();
    assert_eq!(
        sandbox.json(&["inspect", "kv"])["counters"],
        serde_json::Value::Null,
        "an ended cell has counters"
    );
}

#[test]
fn connections_are_listed_up_to_a_limit_and_the_rest_counted() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let all = sandbox.isola(&["inspect", "kv", "--connections"]).ok();
    assert_eq!(all.matches("ESTABLISHED").count(), 2, "{all}");
    assert!(all.contains("besides: 2 half-open, 0 in TIME-WAIT") && !all.contains("more"), "{all}");
    let some = sandbox.isola(&["inspect", "kv", "--connections", "--most", "1"]).ok();
    let (_, machines) = all.split_once("MACHINE OF THE APPLICATION").expect("a table of machines");
    let words: Vec<_> = machines.split_whitespace().collect();
    assert_eq!(words, ["TRANSPORT", "1", "channel", "70000", "tcp"]);
    assert!(some.contains("10.0.2.2:40001") && some.contains("and 1 more: choose by --port"), "{some}");
    let chosen = sandbox.json(&["inspect", "kv", "-c", "--port", "40002", "--host", "10.0.2.2"]);
    assert_eq!(chosen["connections_total"], 1, "{chosen}");
    assert_eq!(chosen["machines_of_application"], serde_json::json!([]), "a filter selects connections");
    let connection = &chosen["connections"][0];
    assert_eq!((&connection["core"], &connection["round_trip_ns"]), (&1.into(), &1_500_000.into()));
    sandbox.isola(&["inspect", "--connections"]).failed(2, "<CELLS>");
    sandbox.isola(&["inspect", "kv", "--port", "1"]).failed(2, "--connections");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["inspect", "kv", "--connections"]).failed(1, "exited");
}

#[test]
fn rules_attribute_connections_to_activities() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let add = ["grid", "rule", "add", "kv"];
    let arguments = ["--port", "80", "--peer", "10.7.0.0/16", "--activity", "web", "--each-connection"];
    let shown = sandbox.isola(&[&add[..], &arguments].concat()).ok();
    let rule = shown.lines().find(|line| line.contains("10.7.0.0/16")).unwrap();
    assert!(rule.starts_with("80 ") && rule.contains("web") && rule.contains("each"), "{shown}");
    let json = sandbox.json(&[&add[..], &["--activity", "rest"]].concat());
    assert_eq!(json["rules"][0]["port"], serde_json::Value::Null);
    assert_eq!(json["rules"][0]["activity"], "rest");
    assert!(!sandbox.isola(&["grid", "rule", "clear", "kv"]).ok().contains("PEER"));
    for (arguments, code, message) in [
        (&["--activity", "refused"][..], 1, "at most 64 rules"),
        (&["--port", "80"], 2, "--activity"),
        (&["--activity", ""], 2, "name"),
        (&["--activity", "web", "--port", "0"], 2, "--port"),
        (&["--activity", "web", "--peer", "10.7.0.1/16"], 2, "did you mean 10.7.0.0/16"),
        (&["--activity", "a name of more than 24 bytes"], 2, "24"),
    ] {
        sandbox.isola(&[&add[..], arguments].concat()).failed(code, message);
    }
}

#[test]
fn activities_are_shown_as_a_tree() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let shown = sandbox.isola(&["grid", "activities", "kv"]).ok();
    let rows: Vec<&str> = shown.lines().skip(1).map(|line| line.trim_end()).collect();
    assert!(rows[0].starts_with("web ") && rows[0].contains("75.0%"), "{shown}");
    assert!(rows[0].ends_with("70 MiB") && rows[1].ends_with('-'), "{shown}");
    assert!(rows[1].starts_with("  10.0.2.2:40001 ") && rows[1].contains("50.0%"), "{shown}");
    assert!(rows[2].starts_with("  10.0.2.2:40002 ") && rows[2].contains("20.0%"), "{shown}");
    let shortened = sandbox.isola(&["grid", "activities", "kv", "--most", "2"]).ok();
    assert!(shortened.contains("and 1 that have used less"), "{shortened}");
    let json = sandbox.json(&["grid", "activities", "kv"]);
    assert_eq!((&json["count"], &json["cycles"]), (&3.into(), &10_000.into()));
    assert_eq!((&json["activities"][1]["parent"], &json["activities"][1]["events"]), (&2.into(), &50.into()));
    sandbox.isola(&["grid", "activities", "kv", "--most", "0"]).failed(2, "--most");
    sandbox.isola(&["grid", "activities", "kv", "--most", "201"]).failed(2, "200");
    sandbox.isola(&["grid", "activities", "nobody"]).failed(1, "nobody");
}

#[test]
fn the_grid_is_shown_and_changed() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let shown = sandbox.isola(&["grid", "show", "kv"]).ok();
    assert!(shown.contains("direct") && shown.contains("50.0%"), "{shown}");
    let [second, first] = ["activity-2", "activity-3"].map(|name| shown.find(name).unwrap());
    assert!(second < first && shown.contains("75.0%") && shown.contains("25.0%"), "{shown}");
    assert_eq!(sandbox.isola(&["grid", "show", "kv", "--table"]).ok(), shown, "a pipe gets tables");
    let memory = shown.lines().find(|line| line.starts_with("activity-2")).unwrap();
    let memory: Vec<&str> = memory.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    assert_eq!(memory, ["activity-2", "70 MiB", "64 MiB", "128 MiB", "3 MiB", "7", "0", "1"], "{shown}");
    assert!(shown.contains("weight 7, soft 64 MiB, hard 128 MiB"), "{shown}");
    let picture = sandbox.isola(&["grid", "show", "kv", "--ascii"]).ok();
    for fact in ["70 MiB", "soft 64 MiB, hard 128 MiB, 3 MiB reclaimed", "set activity-2", "weight 7"] {
        assert!(picture.contains(fact), "{fact}: {picture}");
    }
    let set = ["grid", "set", "kv", "processor"];
    let changed = sandbox.isola(&[&set[..], &["--policy", "wfq"]].concat()).ok();
    assert!(changed.contains("wfq") && !changed.contains("direct"), "{changed}");
    let json = sandbox.json(&[&set[..], &["--policy", "edf", "--batch", "4"]].concat());
    let processor = &json["resources"][0];
    assert_eq!((&processor["policy"], &processor["metric"]), (&"edf".into(), &"cycles".into()));
    assert_eq!((&json["activities"][0]["weight"], &json["complete"]), (&300.into(), &true.into()));
    for (arguments, code, message) in [
        (&["--activity", "unknown", "--weight", "3"][..], 1, "no such activity"),
        (&[], 2, "nothing to change: use --policy"),
        (&["--activity", "web"], 2, "nothing to change for the activity"),
        (&["--weight", "3"], 2, "--activity"),
        (&["--activity", "web", "--weight", "0"], 2, "1 to 10000"),
        (&["--limit", "10M"], 2, "percentage"),
        (&["--policy", "best"], 2, "wfq"),
        (&["--batch", "0"], 2, "--batch"),
    ] {
        sandbox.isola(&[&set[..], arguments].concat()).failed(code, message);
    }
    sandbox.isola(&["grid", "set", "kv", "printer", "--policy", "wfq"]).failed(2, "network-write");
    sandbox.isola(&["grid", "show", "nobody"]).failed(1, "nobody");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["grid", "show", "kv"]).failed(1, "exited");
}

#[test]
fn inspect_shows_latencies_and_queueing_delays() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let text = sandbox.isola(&["inspect", "kv"]).ok();
    // 2^20 cycles of 2.1 GHz are half a millisecond, 2^30 half a second.
    let line = text.lines().find(|line| line.starts_with("requests")).unwrap();
    assert!(line.contains("1,020; p50 5") && line.contains(" us, p99 5") && line.contains(" ms"), "{line}");
    assert!(text.contains("WAIT P99"), "{text}");
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!(
        (&cell["service"]["count"], &cell["cores"][1]["queueing"]["count"]),
        (&1020.into(), &7.into())
    );
    let p99 = cell["service"]["p99_cycles"].as_u64().unwrap();
    assert!((1 << 30..5 << 28).contains(&p99), "{p99}");
}

#[test]
fn a_foreground_command_returns_the_cell_s_exit_code() {
    let sandbox = Sandbox::up();
    let outcome = sandbox.isola(&["run", "--rm", "kv", "exit:3"]);
    assert_eq!(outcome.code, 3, "{outcome:?}");
    assert!(outcome.out.ends_with(": started [exit:3]\nbye\n"), "{outcome:?}");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
    assert_eq!(sandbox.isola(&["run", "--name", "left", "kv", "exit:0"]).code, 0);
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "left\n");
}

#[test]
fn a_crash_is_printed_with_its_backtrace() {
    let sandbox = Sandbox::up();
    let err = sandbox.isola(&["run", "--name", "victim", "kv", "crash"]).failed(134, "page fault at 0x10");
    assert!(err.contains("a wild write") && err.contains("0xffffffff80001000"), "{err}");
    assert!(sandbox.isola(&["ps"]).ok().contains("crashed (exception)"));
    let crash = &sandbox.json(&["inspect", "victim"])["crash"];
    assert_eq!(crash["kind"], "exception");
    assert_eq!(crash["fault_address"], 0x10);
    assert_eq!(crash["backtrace"].as_array().unwrap().len(), 2);
    assert!(sandbox.isola(&["logs", "victim"]).failed(0, "page fault").contains("core 1"));
}

#[test]
fn a_cell_with_rm_is_removed_after_its_end() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--rm", "--name", "brief", "kv", "exit:0"]).ok();
    sandbox.wait("the cell is gone", || sandbox.isola(&["ps", "-q"]).ok().is_empty());
    sandbox.isola(&["run", "-d", "--name", "brief", "kv"]).ok();
}

#[test]
fn an_ended_cell_shows_its_usage_and_holds_no_resources() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "--name", "kv", "--cores", "3", "kv", "exit:0"]).ok();
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!((&cell["held_cores"], &cell["held_bytes"]), (&0.into(), &0.into()), "{cell}");
    assert_eq!((cell["cores"].as_array().unwrap().len(), &cell["memory_bytes"]), (3, &(64 << 20).into()));
    let text = sandbox.isola(&["inspect", "kv"]).ok();
    for part in ["none now; it had 64 MiB", "none now; it had 1, 2, 3", "2 MiB at most", "infrastructure"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let ps = sandbox.isola(&["ps"]).ok();
    let line: Vec<&str> = ps.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(line[..5], ["kv", "exited", "(0)", "-", "-"], "{ps}");
    let machine = sandbox.isola(&["inspect"]).ok();
    assert!(
        machine.contains("256 MiB of that not scrubbed yet") && !machine.contains("cell kv"),
        "{machine}"
    );
    // Another cell gets the cores.
    sandbox.isola(&["run", "-d", "--name", "next", "--cores", "1", "kv"]).ok();
    sandbox.isola(&["start", "kv"]).failed(1, "3 wanted, 2 free");
    assert_eq!(sandbox.json(&["inspect", "kv"])["state"], "exited");
}

#[test]
fn a_cell_starts_again_from_its_original_image() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "--name", "victim", "kv", "crash"]).failed(134, "page fault");
    // A rebuilt image is for new cells only.
    fs::write(sandbox.images().join("kv"), "another program").unwrap();
    // At first the store still has the image. Later another image has replaced it, and the copy is uploaded.
    sandbox.isola(&["start", "victim"]).ok();
    sandbox.wait("it crashes", || sandbox.json(&["inspect", "victim"])["state"] == "crashed");
    sandbox.isola(&["run", "--rm", "primes", "exit:0"]).ok();
    sandbox.isola(&["start", "victim"]).ok();
    let lines = sandbox.isola(&["logs", "victim"]).ok();
    assert_eq!(lines, "victim: started [crash]\n".repeat(3));
    let events = sandbox.isola(&["events"]).ok();
    assert!(events.contains("recreate      victim"), "{events}");
}

#[test]
fn a_cell_that_awaits_its_restart_can_be_stopped_for_good() {
    let sandbox = Sandbox::up();
    let port = isola_tests::ports::free();
    let publish = format!("{port}:80");
    let run = ["run", "-d", "--name", "kv", "--restart", "on-failure:3", "-p", &publish, "kv", "crash"];
    sandbox.isola(&run).ok();
    sandbox.wait("it crashes", || sandbox.json(&["inspect", "kv"])["state"] == "crashed");
    let cell = sandbox.json(&["inspect", "kv"]);
    assert_eq!((&cell["restart"]["policy"], &cell["restart"]["count"]), (&"on-failure:3".into(), &0.into()));
    assert!(cell["restart"]["next"].is_string(), "{cell}");
    let listed = sandbox.isola(&["ps"]).ok();
    assert!(listed.contains("crashed (exception), again in 59m"), "{listed}");
    assert!(listed.contains(&port.to_string()), "its port is not published: {listed}");
    assert!(sandbox.isola(&["inspect", "kv"]).ok().contains("on-failure:3: 0 so far"));
    sandbox.isola(&["stop", "kv"]).ok();
    let stopped = sandbox.isola(&["ps"]).ok();
    assert!(stopped.contains("crashed (exception)  ") && !stopped.contains(&port.to_string()), "{stopped}");
    assert!(sandbox.isola(&["events"]).ok().contains("restart-cancelled"));
}

#[test]
fn ports_of_a_cell_with_a_restart_policy_need_a_fixed_address() {
    let sandbox = Sandbox::up();
    let run = ["run", "-d", "--name", "kv", "--network", "dhcp", "--restart", "always"];
    sandbox.isola(&[&run[..], &["-p", "80", "kv"]].concat()).failed(125, "--network auto");
    sandbox.isola(&[&run[..], &["kv"]].concat()).ok();
    sandbox.isola(&["publish", "kv", "80"]).failed(1, "--network auto");
    sandbox.isola(&["run", "--rm", "--restart", "always", "kv"]).failed(2, "--restart");
    sandbox.isola(&["run", "--restart", "often", "kv"]).failed(2, "on-failure:5");
}

#[test]
fn a_stored_image_is_not_uploaded_again() {
    // The fake supervisor rejects an image that it has.
    let sandbox = Sandbox::up();
    for name in ["a", "b", "c"] {
        sandbox.isola(&["run", "-d", "--name", name, "kv"]).ok();
    }
    let cells = sandbox.json(&["ps"]);
    let digest = cells[0]["image_sha256"].as_str().unwrap();
    assert_eq!((digest.len(), &cells[2]["image_sha256"]), (64, &cells[0]["image_sha256"]));
    assert!(sandbox.isola(&["inspect", "a"]).ok().contains(digest));
    assert_eq!(sandbox.json(&["inspect"])["supervisor"]["image_bytes"], 2 << 20);
}

#[test]
fn a_cell_whose_image_is_gone_or_damaged_is_not_started_again() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "--name", "kv", "kv", "exit:0"]).ok();
    let kept = sandbox.machines().join("default/cells/kv/image.elf");
    let image = fs::read(&kept).unwrap();
    sandbox.isola(&["run", "--rm", "primes", "exit:0"]).ok();
    fs::write(&kept, &image[..100]).unwrap();
    sandbox.isola(&["start", "kv"]).failed(1, "was changed where it is kept");
    let mut other = image.clone();
    other[299] ^= 1;
    fs::write(&kept, other).unwrap();
    sandbox.isola(&["start", "kv"]).failed(1, "was changed where it is kept");
    fs::remove_file(&kept).unwrap();
    sandbox.isola(&["start", "kv"]).failed(1, "is not kept here any more");
    assert_eq!(sandbox.json(&["inspect", "kv"])["state"], "exited");
    fs::write(&kept, image).unwrap();
    sandbox.isola(&["start", "kv"]).ok();
}

#[test]
fn a_cell_without_a_name_gets_one() {
    let sandbox = Sandbox::up();
    let name = sandbox.isola(&["run", "-d", "kv"]).ok();
    assert!(name.trim().contains('-'), "{name}");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), name);
}

#[test]
fn a_rejected_cell_leaves_no_remains() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).failed(125, "choose another name");
    sandbox.isola(&["run", "-d", "--cores", "3", "kv"]).failed(125, "3 wanted, 2 free");
    sandbox.isola(&["run", "-d", "--cores", "0", "kv"]).failed(125, "at least one core");
    sandbox.isola(&["run", "-d", "--name", "-kv", "kv"]).failed(2, "unexpected argument");
    sandbox.isola(&["run", "-d", "--name", "a/b", "kv"]).failed(125, "cannot be a cell's name");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "kv\n");
}

#[test]
fn exit_codes_distinguish_invalid_and_missing_images() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "prmes"]).failed(127, "did you mean \"primes\"?");
    sandbox.isola(&["run", "./absent"]).failed(127, "no image at ./absent");
    fs::write(sandbox.path("script"), "#!/bin/sh\n").unwrap();
    sandbox.isola(&["run", "./script"]).failed(126, "no 64-bit x86 ELF");
    sandbox.isola(&["run", env!("CARGO_BIN_EXE_isola")]).failed(126, "cannot run as a cell");
}

#[test]
fn an_unknown_name_gets_a_suggestion() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "cache", "kv"]).ok();
    for verb in ["logs", "stop", "rm", "inspect", "port", "start", "kill"] {
        sandbox.isola(&[verb, "cachex"]).failed(1, "did you mean \"cache\"?");
    }
}

#[test]
fn a_stubborn_cell_is_stopped_by_force_in_the_end() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "deaf", "kv", "stubborn"]).ok();
    sandbox.isola(&["stop", "--time", "1", "deaf"]).ok();
    assert_eq!(sandbox.json(&["inspect", "deaf"])["state"], "killed");
    sandbox.isola(&["start", "deaf"]).ok();
    sandbox.isola(&["kill", "deaf"]).ok();
    assert_eq!(sandbox.json(&["inspect", "deaf"])["state"], "killed");
}

#[test]
fn one_failure_among_several_does_not_stop_the_others() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "a", "kv"]).ok();
    sandbox.isola(&["run", "-d", "--name", "b", "kv"]).ok();
    let outcome = sandbox.isola(&["stop", "a", "x", "b"]);
    assert_eq!((outcome.code, &*outcome.out), (1, "a\nb\n"), "{outcome:?}");
    let outcome = sandbox.isola(&["rm", "x", "a", "b"]);
    assert_eq!((outcome.code, &*outcome.out), (1, "a\nb\n"), "{outcome:?}");
}

#[test]
fn a_manifest_supplies_missing_options() {
    let sandbox = Sandbox::up();
    let manifest = "image = \"kv\"\nname = \"cache\"\ncores = 2\nmemory = \"32M\"\narguments = [\"-v\"]\n";
    fs::write(sandbox.path("isola.toml"), manifest).unwrap();
    sandbox.isola(&["run", "-d", "-f", "isola.toml", "--cores", "1"]).ok();
    let cell = sandbox.json(&["inspect", "cache"]);
    assert_eq!(cell["cores"].as_array().unwrap().len(), 1);
    assert_eq!(cell["memory_bytes"], 32 << 20);
    assert_eq!(cell["arguments"][0], "-v");
    fs::write(sandbox.path("isola.toml"), format!("{manifest}coers = 2\n")).unwrap();
    sandbox.isola(&["run", "-d", "-f", "isola.toml"]).failed(2, "line 6");
}

#[test]
fn a_cell_can_be_inspected_as_text_and_as_json() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--network", "10.0.2.50/24,10.0.2.2", "kv"]).ok();
    let text = sandbox.isola(&["inspect", "kv"]).ok();
    for part in [
        "10.0.2.50 (static)",
        "infrastructure",
        "4,000",
        "tenant",
        "(ended)",
        "pool 60 MiB (1 MiB used, 2 MiB at most), low",
        "-2 KiB",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let json = sandbox.json(&["inspect", "kv"]);
    assert_eq!(json["activities"][0]["cycles"], 4000);
    assert_eq!(json["activities"][0]["memory_bytes"], -2048);
    assert_eq!(
        (&json["activities"][1]["name"], &json["activities"][1]["cycles"]),
        (&"tenant".into(), &123.into())
    );
    let ended = &json["ended_activities"];
    assert_eq!(
        (&ended["cycles"], &ended["events"], &ended["memory_bytes"]),
        (&57.into(), &3.into(), &4096.into())
    );
    assert_eq!(json["pressure"], "low");
    assert_eq!(json["traffic"]["received_frames"], 5);
    assert!(json["uptime_ms"].as_u64().is_some(), "{json}");
    sandbox.isola(&["run", "-d", "--network", "10.0.2.50/24", "kv"]).failed(125, "has the address 10.0.2.50");
}

#[test]
fn a_standalone_image_is_run_listed_and_ended() {
    let sandbox = Sandbox::new();
    let run = ["run", "--standalone", "-d", "--name", "alone", "--accel", "tcg", "-p", "80", "kv"];
    assert_eq!(sandbox.isola(&run).ok(), "alone\n");
    let ps = sandbox.json(&["ps"]);
    assert_eq!((&ps[0]["name"], &ps[0]["state"]), (&"alone".into(), &"running".into()), "{ps}");
    assert_eq!(ps[0]["ports"].as_array().unwrap().len(), 1);
    assert!(sandbox.isola(&["logs", "alone"]).ok().contains("log"));
    sandbox.isola(&["inspect", "alone", "--connections"]).failed(1, "standalone image");
    sandbox.isola(&["rm", "alone"]).failed(1, "stop it first");
    sandbox.isola(&["run", "--on", "alone", "kv"]).failed(125, "standalone image");
    sandbox.isola(&["stop", "alone"]).ok();
    assert_eq!(sandbox.json(&["ps"])[0]["state"], "exited");
    sandbox.isola(&["rm", "alone"]).ok();
    assert_eq!(sandbox.json(&["ps"]).as_array().unwrap().len(), 0);
}

#[test]
fn a_foreground_command_returns_a_standalone_image_s_exit_code() {
    let sandbox = Sandbox::with_behaviour("exits");
    let outcome =
        sandbox.isola(&["run", "--standalone", "--name", "alone", "--accel", "tcg", "kv", "-v", "1"]);
    assert_eq!(outcome.code, 7, "{outcome:?}");
    assert!(outcome.out.contains("alone: name=alone -- -v 1"), "{outcome:?}");
    assert!(!sandbox.machines().join("alone").exists());
}

#[test]
fn a_hosted_cell_with_too_long_a_name_runs_with_a_note() {
    let sandbox = Sandbox::new();
    let name = "n".repeat(90);
    let program = sandbox.images().join(&name);
    fs::write(&program, "#!/bin/sh\necho runs\nexit 3\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let program = program.to_str().unwrap();
    for given in [&["--name", &name][..], &[]] {
        let run = [&["run", "--hosted"], given, &[program]].concat();
        let outcome = sandbox.isola(&run);
        assert_eq!((outcome.code, &*outcome.out), (3, "runs\n"), "{outcome:?}");
        assert!(
            outcome.err.contains("cannot be inspected") && outcome.err.contains("75 bytes"),
            "{outcome:?}"
        );
    }
}
