//! Channels between cells: services, ends at each step, and a hostile peer.

use isola_abi::management::{CellSpec, CellState, Fault, RequestBody};
use isola_tests::isola::Isola;
use isola_tests::management::spec;
use isola_tests::supervised::{MachineSetup, SupervisedMachine, image};
use isola_tests::wait;
use std::thread::sleep;
use std::time::Duration;

const CELL: [&str; 6] = ["--cores", "1", "--network", "none", "--memory", "16M"];

/// Starts a cell with a role, which other cells may open channels to if it is to serve.
fn start(isola: &Isola, name: &str, arguments: &[&str]) {
    let accept: &[&str] = if arguments == ["serve"] { &["--accept", "web", "--accept", "evil"] } else { &[] };
    let run = [&["run", "-d", "--name", name], &CELL[..], accept, &["channels"], arguments].concat();
    isola.run(&run).ok();
}

fn waits_for(isola: &Isola, cell: &str, line: &str) {
    wait::until_true(&format!("{cell} prints {line:?}"), || isola.run(&["logs", cell]).ok().contains(line));
}

/// Runs a cell named `web` to its end. Returns its output.
fn web(isola: &Isola, code: i32, arguments: &[&str]) -> String {
    let run = [&["run", "--rm", "--name", "web"], &CELL[..], &["channels"], arguments].concat();
    isola.run(&run).ended_with(code).out
}

#[test]
fn cells_exchange_packets_and_share_memory_and_survive_each_other() {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    start(&isola, "kv", &["serve"]);
    waits_for(&isola, "kv", "serving");
    let out = web(&isola, 0, &["client", "kv"]);
    for line in ["echo is right", "shared memory is right", "a writer without a reader waits"] {
        assert!(out.contains(line), "{line}: {out}");
    }
    assert!(web(&isola, 0, &["costs", "kv"]).contains("cost broadcast "));
    // The peer dies at each step; the service goes on.
    for step in ["opening", "open", "writing", "sharing", "idle"] {
        let run = [&["run", "--rm", "--name", "web"], &CELL[..], &["channels", "die", step, "kv"]].concat();
        let out = isola.run(&run);
        assert!(out.out.contains("dies") || out.err.contains("dies"), "{step}: {out:?}");
    }
    assert!(web(&isola, 0, &["client", "kv"]).contains("echo is right"));
    // A hostile peer writes to its half, beside a client.
    start(&isola, "evil", &["hostile", "kv"]);
    assert!(web(&isola, 0, &["client", "kv"]).contains("shared memory is right"));
    isola.wait_for_end("evil");
    assert!(isola.run(&["logs", "evil"]).ok().contains("40 attacks"));
    isola.run(&["rm", "evil"]).ok();
    assert!(web(&isola, 0, &["client", "kv"]).contains("echo is right"));
    // The service dies under a client that waits for it, and one that keeps its memory.
    start(&isola, "web", &["wait", "kv"]);
    waits_for(&isola, "web", "waiting");
    start(&isola, "evil", &["keep", "kv"]);
    waits_for(&isola, "evil", "keeping");
    isola.run(&["kill", "kv"]).ok();
    waits_for(&isola, "web", "Some(Closed), false");
    waits_for(&isola, "evil", "the contents were kept");
    for cell in ["web", "evil"] {
        assert_eq!(isola.wait_for_end(cell)["exit_code"], 0);
    }
    isola.run(&["rm", "web", "evil"]).ok();
    assert!(web(&isola, 1, &["client", "kv"]).contains("no cell of that name runs"));
    isola.run(&["rm", "kv"]).ok();
    let strangers = [&["run", "-d", "--name", "kv"], &CELL[..], &["channels", "serve"]].concat();
    isola.run(&strangers).ok();
    waits_for(&isola, "kv", "serving");
    assert!(web(&isola, 1, &["client", "kv"]).contains("does not accept this one"));
}

#[test]
fn cells_are_machines_of_one_application_over_channels() {
    let isola = Isola::up(&["--cores", "3", "--memory", "512M"]);
    // No cell has a network.
    start(&isola, "kv", &["serve"]);
    waits_for(&isola, "kv", "serving");
    let out = web(&isola, 0, &["join", "kv"]);
    assert!(out.contains("joined over a channel") && out.contains("calls and files are right"), "{out}");
    // The first machine is killed, and comes back.
    start(&isola, "web", &["stay", "kv"]);
    waits_for(&isola, "web", "staying");
    isola.run(&["kill", "kv"]).ok();
    isola.run(&["start", "kv"]).ok();
    waits_for(&isola, "web", "it is back");
    isola.run(&["rm", "-f", "kv", "web"]).ok();
    // By its address: over a channel if the first machine accepts the cell, over TCP otherwise.
    for (accept, transport) in [(&["--accept", "web/messenger"][..], "a channel"), (&[], "TCP")] {
        let cell = ["--cores", "1", "--memory", "32M", "--loop", "*"];
        let run = [&["run", "-d", "--name", "kv"], &cell[..], accept, &["channels", "serve"]].concat();
        isola.run(&run).ok();
        waits_for(&isola, "kv", "serving");
        let address = wait::until("the cell has an address", || {
            isola.json(&["inspect", "kv"])["address"].as_str().map(|address| format!("{address}:9000"))
        });
        let join = [&["run", "--rm", "--name", "web"], &cell[..], &["channels", "join", &address]].concat();
        let out = isola.run(&join).ok();
        assert!(out.contains(&format!("joined over {transport}")), "{transport}: {out}");
        assert!(out.contains("calls and files are right"), "{transport}: {out}");
        isola.run(&["rm", "-f", "kv"]).ok();
    }
}

/// Returns the last round that a cell with the role `hold` has printed.
fn rounds(machine: &mut SupervisedMachine) -> Option<u64> {
    let text = machine.client.logs("web");
    let last = text.lines().rev().find_map(|line| line.strip_suffix(" rounds"))?;
    last.rsplit(' ').next()?.parse().ok()
}

#[test]
fn channels_and_shared_memory_survive_a_restart_of_the_supervisor() {
    let setup = MachineSetup {
        cores: 3,
        command_line: "isola.test-faults=1",
        network_devices: 0,
        ..MachineSetup::default()
    };
    let mut machine = SupervisedMachine::boot(setup);
    let channels = image("channels");
    let accepting = CellSpec { accept: vec!["web".into()], ..spec("kv", 1, 16, &["serve"]) };
    for spec in [accepting, spec("web", 1, 16, &["hold", "kv"])] {
        let name = spec.name.clone();
        machine.client.create(&channels, spec);
        machine.client.start(&name);
        sleep(Duration::from_millis(300));
    }
    for fault in [Fault::Panic, Fault::PageFault] {
        wait::until_true("the cells exchange packets", || rounds(&mut machine) >= Some(10));
        machine.client.send(RequestBody::GoWrong(fault));
        machine.client.hello();
        let before = rounds(&mut machine);
        wait::until_true("they go on", || rounds(&mut machine) >= before.map(|before| before + 20));
    }
    assert_eq!(machine.client.machine().restarts, 2);
    machine.client.stop("kv", 0);
    let ended = machine.client.wait_for_end("web");
    assert_eq!((ended.state, ended.exit_code), (CellState::Exited, Some(1)), "the channel is closed");
}
