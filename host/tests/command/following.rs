//! Commands that follow something: they end when they should, and let others get their turn.

use crate::sandbox::{Outcome, Sandbox, signal};

#[test]
fn logs_are_followed_to_the_cell_s_end() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "exit:5"]).ok();
    let outcome = sandbox.isola(&["logs", "-f", "kv"]);
    assert_eq!(outcome.ok(), "kv: started [exit:5]\nbye\n");
}

#[test]
fn followers_let_other_commands_have_their_turn() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let followers: Vec<_> = (0..3).map(|_| sandbox.spawn(&["logs", "-f", "kv"])).collect();
    let events = sandbox.spawn(&["events", "-f"]);
    for _ in 0..5 {
        assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "kv\n");
    }
    sandbox.isola(&["stop", "kv"]).ok();
    for follower in followers {
        assert_eq!(Outcome::from(follower.wait_with_output().unwrap()).ok(), "kv: started []\n");
    }
    signal("INT", events.id());
    let events = Outcome::from(events.wait_with_output().unwrap()).ok();
    assert!(events.contains("start         kv"), "{events}");
}

#[test]
fn lost_bytes_of_a_log_are_noted() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "chatty"]).ok();
    let outcome = sandbox.isola(&["logs", "kv"]);
    assert!(outcome.err.contains("bytes before this are gone"), "{outcome:?}");
    assert_eq!(outcome.ok().len(), 4096);
}

#[test]
fn logs_begin_with_the_last_lines_on_request() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "exit:5"]).ok();
    // Until its end.
    sandbox.isola(&["logs", "-f", "kv"]).ok();
    for follow in [&["logs", "-f"][..], &["logs"]] {
        assert_eq!(sandbox.isola(&[follow, &["-n", "1", "kv"]].concat()).ok(), "bye\n");
        assert_eq!(
            sandbox.isola(&[follow, &["--tail=9", "kv"]].concat()).ok(),
            "kv: started [exit:5]\nbye\n"
        );
    }
    assert_eq!(sandbox.isola(&["logs", "-n", "0", "kv"]).ok(), "");
    assert_eq!(sandbox.isola(&["logs", "-n", "x", "kv"]).code, 2);
    // Longer than a piece of the log, whose first bytes are gone.
    sandbox.isola(&["run", "-d", "--name", "web", "kv", "chatty"]).ok();
    let all = sandbox.isola(&["logs", "web"]).ok();
    let last = sandbox.isola(&["logs", "-n", "1", "web"]);
    assert_eq!(last.err, "");
    assert!(all.ends_with(&last.ok()), "the last line");
}

#[test]
fn events_are_printed_in_order() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    sandbox.isola(&["rm", "-f", "kv"]).ok();
    let lines = sandbox.isola(&["events", "-o", "json"]).ok();
    let event = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["event"].clone();
    let events: Vec<_> = lines.lines().map(event).collect();
    assert_eq!(events, ["boot", "create", "start", "kill", "destroy"]);
    assert_eq!(sandbox.isola(&["events", "--from", "4"]).ok().lines().count(), 1);
}

#[test]
fn the_journal_is_exported_as_a_trace() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "--rm", "--name", "kv", "kv", "exit:0"]).ok();
    assert_eq!(sandbox.isola(&["events", "--trace", "trace.json"]).ok(), "");
    let text = std::fs::read_to_string(sandbox.path("trace.json")).unwrap();
    let trace: serde_json::Value = serde_json::from_str(&text).unwrap();
    let spans = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X");
    let names: Vec<&str> = spans.map(|event| event["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["boot", "create", "start", "exit", "running", "destroy"]);
    sandbox.isola(&["events", "--trace", "absent/trace.json"]).failed(1, "absent/trace.json");
}

#[test]
fn lost_entries_of_the_journal_are_counted() {
    // The fake supervisor keeps only the latest 20.
    let sandbox = Sandbox::up();
    for _ in 0..8 {
        sandbox.isola(&["run", "--rm", "-d", "--name", "kv", "kv"]).ok();
        sandbox.isola(&["rm", "-f", "kv"]).ok();
    }
    let outcome = sandbox.isola(&["events", "-o", "json"]);
    assert!(outcome.err.contains("note: 13 entries before this are gone"), "{outcome:?}");
    let lines = outcome.ok();
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((&first["number"], lines.lines().count()), (&13.into(), 20));
    assert!(sandbox.isola(&["events", "--from", "30"]).err.is_empty());
}

#[test]
fn an_interrupt_stops_a_foreground_cell() {
    let sandbox = Sandbox::up();
    let run = sandbox.spawn(&["run", "--rm", "--name", "kv", "kv"]);
    sandbox.wait("the cell runs", || sandbox.isola(&["ps"]).ok().contains("running"));
    signal("INT", run.id());
    let outcome = Outcome::from(run.wait_with_output().unwrap());
    assert_eq!(outcome.code, 0, "{outcome:?}");
    assert_eq!(sandbox.isola(&["ps", "-q"]).ok(), "");
}

#[test]
fn a_second_interrupt_stops_a_foreground_cell_by_force() {
    let sandbox = Sandbox::up();
    let run = sandbox.spawn(&["run", "--name", "kv", "kv", "endless"]);
    sandbox.wait("the cell runs", || sandbox.isola(&["ps"]).ok().contains("running"));
    signal("INT", run.id());
    sandbox.wait("the cell is stopping", || sandbox.isola(&["ps"]).ok().contains("stopping"));
    signal("INT", run.id());
    let outcome = Outcome::from(run.wait_with_output().unwrap());
    assert_eq!(outcome.code, 137, "{outcome:?}");
}

#[test]
fn a_cell_that_stops_slowly_delays_no_other_command() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "stubborn"]).ok();
    let stop = sandbox.spawn(&["stop", "--time", "20", "kv"]);
    sandbox.wait("other commands see it stopping", || sandbox.isola(&["ps"]).ok().contains("stopping"));
    sandbox.isola(&["kill", "kv"]).ok();
    assert_eq!(Outcome::from(stop.wait_with_output().unwrap()).ok(), "kv\n");
}

#[test]
fn a_closed_pipe_ends_logs_without_an_error() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "chatty"]).ok();
    let mut logs = sandbox.spawn(&["logs", "-f", "kv"]);
    drop(logs.stdout.take());
    let outcome = Outcome::from(logs.wait_with_output().unwrap());
    assert!(!outcome.err.contains("panicked") && !outcome.err.contains("error"), "{outcome:?}");
}
