//! `isola top` and `isola grid show` on a terminal, and their tables for scripts.

use crate::pty::Pty;
use crate::sandbox::{Sandbox, signal};
use serde_json::Value;
use std::process::Command;

/// Returns the bytes that leave the terminal's other screen.
const LEAVE: &str = "\x1b[?1049l";

/// Returns the command for a terminal with Unicode.
fn command(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(arguments);
    command.env("TERM", "xterm").env("LC_ALL", "C.UTF-8");
    command
}

fn top(sandbox: &Sandbox, arguments: &[&str]) -> Pty {
    let arguments = [&["top", "--interval", "20ms"], arguments].concat();
    Pty::start(&mut command(sandbox, &arguments), (80, 24))
}

/// Returns the names of a cell's loads in the first interval.
fn names(sandbox: &Sandbox, arguments: &[&str]) -> Vec<Value> {
    let loads = sandbox.json(&[&["top", "--interval", "10ms", "--intervals", "1"], arguments].concat());
    loads.as_array().unwrap().clone()
}

#[test]
fn top_is_interactive_on_a_terminal_and_restores_it() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv"]).ok();
    let mut pty = top(&sandbox, &[]);
    pty.wait_for("REQUESTS/S");
    assert!(!pty.is_cooked());
    pty.press("\r");
    let tree = pty.wait_for("10.0.2.2:40001");
    pty.press("3");
    let grid = pty.wait_after(tree, "network-write");
    pty.press("4");
    let cores = pty.wait_after(grid, "PHASE");
    pty.resize((40, 10));
    let resized = pty.wait_after(cores, "\x1b[2J");
    pty.press("?");
    pty.wait_after(resized, "keys");
    pty.press("q");
    let (code, output) = pty.end();
    assert_eq!(code, Some(0), "{output:?}");
    let left = output.rfind(LEAVE).unwrap_or_else(|| panic!("{output:?}"));
    assert!(output.rfind("\x1b[?25h") > output.rfind("\x1b[?25l"), "the cursor is shown: {output:?}");
    assert_eq!(output[left..].trim_end(), LEAVE);
}

#[test]
fn a_signal_and_an_error_restore_the_terminal() {
    let sandbox = Sandbox::up();
    for name in ["TERM", "INT", "HUP"] {
        let pty = top(&sandbox, &[]);
        pty.wait_for("isola run -d kv");
        signal(name, pty.pid());
        let (code, output) = pty.end();
        assert_eq!(code, Some(0), "{name}: {output:?}");
        assert!(output.contains(LEAVE), "{name}: {output:?}");
    }
    let mut pty = top(&sandbox, &[]);
    let shown = pty.wait_for("isola run -d kv");
    sandbox.isola(&["down"]).ok();
    // The screen remains, with the reason.
    pty.wait_after(shown, "not up");
    pty.press("q");
    assert_eq!(pty.end().0, Some(0));
    // Without a machine the screen does not appear.
    let (code, output) = top(&sandbox, &[]).end();
    assert_eq!((code, output.contains("\x1b[?1049h")), (Some(1), false), "{output:?}");
    assert!(output.contains("isola up"), "{output:?}");
}

#[test]
fn top_ends_with_its_terminal() {
    let sandbox = Sandbox::up();
    let pty = top(&sandbox, &[]);
    pty.wait_for("isola run -d kv");
    // The terminal is not the controlling one of the command, which therefore gets no signal.
    pty.hang_up();
}

#[test]
fn a_cell_that_ends_or_does_not_answer_is_explained_on_the_screen() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "kv", "mute"]).ok();
    let mut pty = top(&sandbox, &["kv", "--by", "activity"]);
    let shown = pty.wait_for("report");
    assert!(pty.output().contains("infrastructure"), "{:?}", pty.output());
    sandbox.isola(&["stop", "kv"]).ok();
    pty.wait_after(shown, "run");
    pty.press("q");
    assert_eq!(pty.end().0, Some(0));
}

#[test]
fn scripts_and_plain_get_tables_by_cell_activity_resource_and_core() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    sandbox.isola(&["run", "-d", "--name", "mute", "kv", "mute"]).ok();
    let tables =
        |by: &str| sandbox.isola(&["top", "--interval", "10ms", "--intervals", "1", "--by", by]).ok();
    assert!(tables("cell").starts_with("NAME"));
    let activities = tables("activity");
    assert!(activities.contains("kv    web") && activities.contains("  10.0.2.2:40001"), "{activities}");
    let web = activities.lines().find(|line| line.contains("kv    web")).unwrap();
    assert!(["70 MiB", "64 MiB", "128 MiB"].iter().all(|size| web.contains(size)), "{activities}");
    assert!(activities.contains("mute does not answer queries: figures from the report"), "{activities}");
    let resources = tables("resource");
    assert!(resources.contains("activity-3") && resources.contains("mute does not answer"), "{resources}");
    assert!(tables("core").contains("INTERRUPTS/S"));
    let loads = names(&sandbox, &["kv", "--by", "resource"]);
    assert_eq!((&loads[0]["resource"], &loads[0]["core"]), (&"processor".into(), &Value::Null));
    assert_eq!((&loads[1]["name"], &loads[1]["waiting"]), (&"activity-2".into(), &2.into()));
    assert!(loads.iter().all(|load| load["cell"] == "kv"), "{loads:?}");
    let loads = names(&sandbox, &["mute", "--by", "activity"]);
    assert_eq!((&loads[0]["answered"], &loads[0]["activity"]), (&false.into(), &Value::Null));
    assert_eq!(names(&sandbox, &["--by", "core", "kv"]).len(), 2);
    let plain = Pty::start(&mut command(&sandbox, &["top", "--plain", "--interval", "10ms"]), (80, 24));
    plain.wait_for("WAIT P99");
    signal("INT", plain.pid());
    let (code, output) = plain.end();
    assert!(code == Some(0) && !output.contains("\x1b[?1049h"), "{output:?}");
    sandbox.isola(&["top", "nobody", "--intervals", "1"]).failed(1, "nobody");
    sandbox.isola(&["stop", "kv"]).ok();
    sandbox.isola(&["top", "kv", "--intervals", "1"]).failed(1, "only a running cell has a load");
}

#[test]
fn the_grid_is_a_picture_on_a_terminal() {
    let sandbox = Sandbox::up();
    sandbox.isola(&["run", "-d", "--name", "kv", "--cores", "2", "kv"]).ok();
    let show = ["grid", "show", "kv"];
    for size in [(80, 24), (40, 10), (200, 60)] {
        let (code, output) = Pty::start(&mut command(&sandbox, &show), size).end();
        assert!(code == Some(0) && output.contains("│ core 0"), "{output}");
        let widest = output.lines().map(|line| line.trim_end().chars().count()).max();
        assert!(widest.is_some_and(|widest| widest < size.0.into()), "{output}");
    }
    let (_, output) = Pty::start(command(&sandbox, &show).env("LC_ALL", "C"), (80, 24)).end();
    assert!(output.is_ascii() && output.contains("| core 0"), "{output}");
    let with = |option| [&show[..], &[option]].concat();
    let (_, output) = Pty::start(&mut command(&sandbox, &with("--table")), (80, 24)).end();
    assert!(output.starts_with("RESOURCE"), "{output}");
    assert!(sandbox.isola(&with("--ascii")).ok().contains("+- network-write -- direct"));
    let picture = command(&sandbox, &with("--picture")).output().unwrap();
    assert!(String::from_utf8(picture.stdout).unwrap().contains("┌─ processor ── direct"));
    sandbox.isola(&["run", "-d", "--name", "mute", "kv", "mute"]).ok();
    let silent = sandbox.isola(&["grid", "show", "mute", "--picture"]).ok();
    assert!(silent.contains("the cell does not answer"), "{silent}");
}
