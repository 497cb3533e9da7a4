//! Network traffic between cells over links: by agreement, transparent, visible, and across the death of a cell.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::wait;
use std::fs;
use std::os::unix::fs::symlink;

const CELL: [&str; 4] = ["--cores", "1", "--memory", "32M"];

/// Starts a cell in the background that exchanges frames with the cell `with`, if there is one. Returns its address.
fn start(isola: &Isola, name: &str, with: Option<&str>, command: &[&str]) -> String {
    let with = with.map(|with| vec!["--loop", with]).unwrap_or_default();
    isola.run(&[&["run", "-d", "--name", name], &CELL[..], &with, command].concat()).ok();
    wait::until("the cell has an address", || {
        isola.json(&["inspect", name])["address"].as_str().map(str::to_owned)
    })
}

/// Returns the path of the cell's latest connection once it has transferred a megabyte. A connection of a client that was
/// killed stays for a while.
fn path(isola: &Isola, cell: &str) -> String {
    wait::until("a connection transfers data", || {
        let view = isola.json(&["inspect", cell, "--connections"]);
        let number = |connection: &serde_json::Value, key: &str| connection[key].as_u64().unwrap_or_default();
        let latest = view["connections"].as_array()?.iter().min_by_key(|one| number(one, "idle_ns"))?;
        let is_busy = number(latest, "received_bytes") > 1 << 20 && number(latest, "idle_ns") < 500_000_000;
        is_busy.then(|| latest["path"].as_str().unwrap_or_default().to_owned())
    })
}

/// Starts a cell named `web` that sends long messages to the cell at `address`.
fn stream(isola: &Isola, with: Option<&str>, address: &str) {
    let there = format!("{address}:5002");
    // A round is longer than the test.
    start(isola, "web", with, &["netpipe", "connect", &there, "-l", "65536", "-s", "to", "-t", "600000"]);
}

#[test]
fn traffic_takes_a_link_if_both_cells_agree_and_survives_their_ends() {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let address = start(&isola, "pipe", Some("web"), &["netpipe"]);
    // One side alone.
    stream(&isola, None, &address);
    assert_eq!(path(&isola, "pipe"), "device");
    isola.run(&["rm", "-f", "web"]).ok();
    // Both sides.
    stream(&isola, Some("*"), &address);
    assert_eq!(path(&isola, "pipe"), "link");
    let captured = isola.run(&["capture", "pipe", "--port", "5002", "--count", "20"]).ok();
    assert!(captured.contains(" in ") && captured.contains(" out "), "{captured}");
    let bytes =
        captured.lines().filter_map(|line| line.strip_suffix(" bytes")?.rsplit(' ').next()?.parse().ok());
    assert!(bytes.max() > Some(10_000), "long frames: {captured}");
    // The server is killed under load; its next life resets the connection.
    isola.run(&["kill", "pipe"]).ok();
    isola.run(&["start", "pipe"]).ok();
    assert_eq!(isola.wait_for_end("web")["exit_code"], 1);
    let logs = isola.run(&["logs", "web"]).ok();
    assert!(logs.contains("reset"), "{logs}");
    isola.run(&["rm", "web"]).ok();
    // A new connection to it has a link again; then the client is killed.
    stream(&isola, Some("pipe"), &address);
    assert_eq!(path(&isola, "pipe"), "link");
    isola.run(&["rm", "-f", "web"]).ok();
    stream(&isola, Some("pipe"), &address);
    assert_eq!(path(&isola, "pipe"), "link");
}

#[test]
fn a_hostile_neighbour_disturbs_no_connection_of_others() {
    let isola = Isola::up(&["--cores", "4", "--memory", "512M"]);
    let address = start(&isola, "pipe", Some("*"), &["netpipe"]);
    stream(&isola, Some("pipe"), &address);
    assert_eq!(path(&isola, "pipe"), "link");
    start(&isola, "evil", Some("*"), &["channels", "hostile-neighbour", &address]);
    let end = isola.wait_for_end("evil");
    let log = isola.run(&["logs", "evil"]).ok();
    assert!(end["exit_code"] == 0 && log.contains(" attacks with "), "{end}, {log}");
    println!("{log}");
    // The connection has neither ended nor left the link.
    assert_eq!(path(&isola, "pipe"), "link");
    for cell in ["pipe", "web"] {
        assert_eq!(isola.json(&["inspect", cell])["state"], "running", "{cell}");
    }
}

#[test]
fn a_linux_program_reaches_a_cell_over_a_link() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (root, store) = (folder.path().join("root"), folder.path().join("volumes"));
    for name in ["bin", "etc", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::write(root.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for applet in ["sh", "nc", "md5sum", "seq", "cat", "head", "sleep"] {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    let isola = Isola::up(&["--cores", "4", "--memory", "768M"]);
    let create = ["volume", "create", "root", "--size", "32M", "--from", root.to_str().unwrap()];
    isola.run_with(&create, &[("ISOLA_VOLUMES", &store)]).ok();
    let address = start(&isola, "echo", Some("program"), &["echo"]);
    // The connection stays open once all data has come back, so that its path can be read.
    let script = format!(
        "seq 1 400000 > /tmp/data; md5sum < /tmp/data; \
         (cat /tmp/data; sleep 600) | nc {address} 7 | head -c 2688895 | md5sum"
    );
    let run = ["run", "-d", "--name", "program", "-v", "root:/", "--memory", "128M", "--loop", "echo"];
    let program = [&run[..], &["linux", "--", "sh", "-c", &script]].concat();
    isola.run_with(&program, &[("ISOLA_VOLUMES", &store)]).ok();
    let sums = wait::until("the data has come back", || {
        let log = isola.run(&["logs", "program"]).ok();
        let sums = log.split_whitespace().filter(|word| word.len() == 32).map(str::to_owned);
        Some(sums.collect::<Vec<_>>()).filter(|sums| sums.len() == 2)
    });
    assert_eq!(sums[0], sums[1]);
    // The number of frames shows nothing: it depends on the lengths that the program writes at once. Without its link the
    // connection would continue over the device.
    let view = isola.json(&["inspect", "echo", "--connections"]);
    let connections = view["connections"].as_array().unwrap();
    let received = |one: &&serde_json::Value| one["received_bytes"].as_u64() == Some(2_688_895);
    let connection = connections.iter().find(received).unwrap_or_else(|| panic!("{view:#}"));
    assert_eq!(connection["path"], "link", "{view:#}");
}
