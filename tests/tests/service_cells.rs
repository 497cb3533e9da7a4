//! Service cells: volumes and folders of one cell that others mount.

use isola_need::{LONG, Need, need};
use isola_tests::isola::{Isola, Outcome};
use isola_tests::linux_root::LinuxRoot;
use isola_tests::wait;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const CELL: [&str; 6] = ["--cores", "1", "--network", "none", "--memory", "32M"];

/// A machine with one disk, and a volume with parts for its service cell.
struct Rig {
    isola: Isola,
    folder: TempDir,
}

impl Rig {
    fn new(parts: &[&str]) -> Self {
        Self::with_cores("5", parts)
    }

    fn with_cores(cores: &str, parts: &[&str]) -> Self {
        let parts: Vec<&str> = parts.iter().flat_map(|part| ["--part", part]).collect();
        Self::with_volume(cores, &parts)
    }

    fn with_volume(cores: &str, options: &[&str]) -> Self {
        let isola = Isola::up(&["--cores", cores, "--memory", "1G", "--nics", "1", "--disks", "1"]);
        let rig = Self { isola, folder: tempfile::tempdir().unwrap() };
        rig.run(&[&["volume", "create", "pool"], options].concat()).ok();
        rig
    }

    fn store(&self) -> PathBuf {
        self.folder.path().join("volumes")
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.isola.run_with(arguments, &[("ISOLA_VOLUMES", Path::new(&self.store()))])
    }

    /// Starts the service cell `store`.
    fn serve(&self, options: &[&str], image: &[&str]) {
        let run =
            [&["run", "-d", "--name", "store"], &CELL[..], &["-v", "pool:/pool"], options, image].concat();
        self.run(&run).ok();
        self.waits_for("store", "serving web, kv");
    }

    fn waits_for(&self, cell: &str, line: &str) {
        let has_line = || self.isola.run(&["logs", cell]).ok().contains(line);
        wait::until_true(&format!("{cell} prints {line:?}"), has_line);
    }

    /// Starts a client in the background.
    fn start(&self, name: &str, volume: &str, arguments: &[&str]) {
        let run = [&["run", "-d", "--name", name], &CELL[..], &["-v", volume, "volume-client"], arguments];
        self.run(&run.concat()).ok();
    }

    /// Runs a client to its end. Returns its output.
    fn client(&self, name: &str, code: i32, volume: &str, arguments: &[&str]) -> String {
        let run = [&["run", "--rm", "--name", name], &CELL[..], &["-v", volume, "volume-client"], arguments];
        self.run(&run.concat()).ended_with(code).out
    }

    /// Returns the number of the latest record that a client has synced.
    fn synced(&self, cell: &str) -> u32 {
        let log = self.isola.run(&["logs", cell]).ok();
        let numbers =
            log.lines().filter_map(|line| line.strip_prefix("volume-client: synced ")?.parse().ok());
        numbers.max().unwrap_or(0)
    }

    /// Waits until a client has synced some more records.
    fn advances(&self, cell: &str) {
        let before = self.synced(cell);
        wait::until_true(&format!("{cell} goes on after record {before}"), || {
            self.synced(cell) > before + 10
        });
    }

    fn ends_well(&self, cell: &str, line: &str) {
        let ended = self.isola.wait_for_end(cell);
        let log = self.isola.run(&["logs", cell]).ok();
        assert!(ended["exit_code"] == 0 && log.contains(line), "{cell}: {ended}, {log}");
        self.isola.run(&["rm", cell]).ok();
    }
}

#[test]
fn cells_have_volumes_of_one_disk_and_each_only_its_own() {
    let rig = Rig::new(&["web=16M", "kv=16M"]);
    // A client may start before its service cell.
    rig.start("kv", "kv@store:/data", &["load", "40"]);
    rig.serve(&["--service", "block", "--accept", "web/web", "--accept", "kv/kv"], &[]);
    rig.start("web", "web@store:/data", &["load", "60"]);
    rig.ends_well("kv", "40 records are right");
    rig.ends_well("web", "60 records are right");
    assert!(rig.client("kv", 0, "kv@store:/data", &["check", "40"]).contains("are right"));
    assert!(rig.client("web", 0, "web@store:/data", &["check", "60"]).contains("are right"));
    let stranger = rig.client("web", 1, "kv@store:/data", &["check", "40"]);
    assert!(stranger.contains("does not accept this one"), "{stranger}");
    // The client dies with requests in the device: what it had synced is there for its next life.
    rig.start("kv", "kv@store:/data", &["load", "100000"]);
    rig.advances("kv");
    rig.isola.run(&["kill", "kv"]).ok();
    rig.isola.run(&["rm", "kv"]).ok();
    assert!(rig.client("kv", 0, "kv@store:/data", &["load", "20"]).contains("20 records are right"));
    let report = rig.isola.json(&["inspect", "store"]).to_string();
    assert!(report.contains("\"kv\"") && report.contains("\"web\""), "an activity for each volume: {report}");
}

#[test]
fn hostile_clients_disturb_neither_the_service_cell_nor_its_other_clients() {
    let rig = Rig::new(&["web=16M", "kv=16M"]);
    rig.serve(&["--service", "block", "--accept", "*"], &[]);
    rig.start("web", "web@store:/data", &["load", "100000"]);
    rig.advances("web");
    let evil = |arguments: &[&str]| {
        let run = [&["run", "--rm", "--name", "evil"], &CELL[..], &["volume-client"], arguments];
        rig.run(&run.concat())
    };
    let out = evil(&["attack", "store/kv", "30"]).ended_with(0).out;
    assert!(out.contains("30 attacks") && out.contains("ended all connections"), "{out}");
    rig.advances("web");
    for step in ["hello", "offer", "map", "requests"] {
        let end = evil(&["die", step, "store/kv"]);
        assert!(format!("{end:?}").contains(&format!("dies at the step {step}")), "{end:?}");
    }
    // The volume is free for an honest client, and the other client has gone on.
    assert!(rig.client("kv", 0, "kv@store:/data", &["load", "20"]).contains("20 records are right"));
    rig.advances("web");
    let store = rig.isola.json(&["inspect", "store"]);
    assert_eq!(store["state"], "running", "{store}");
    // The work of the service cell for a client is below the client's own activities.
    let top = rig.isola.json(&["top", "--by", "activity", "--intervals", "1"]);
    let served = top.as_array().and_then(|rows| rows.iter().find(|row| row["served_by"] == "store"));
    let row = served.unwrap_or_else(|| panic!("{top}"));
    assert_eq!((row["cell"].as_str(), row["name"].as_str()), (Some("web"), Some("web@store")), "{row}");
    assert!(row["events_per_second"].as_f64() > Some(0.0), "{row}");
}

/// Fewer cells in a short run.
#[test]
fn one_disk_has_the_volumes_of_forty_cells() {
    let count = if std::env::var_os(LONG).is_some() { 40 } else { 8 };
    let parts: Vec<String> = (0..count).map(|number| format!("v{number}=8M")).collect();
    let rig = Rig::with_cores("42", &parts.iter().map(String::as_str).collect::<Vec<_>>());
    let cell = ["--cores", "1", "--network", "none", "--memory", "64M", "-v", "pool:/pool", "--accept", "*"];
    rig.run(&[&["run", "-d", "--name", "store", "--service", "block"], &cell[..]].concat()).ok();
    rig.waits_for("store", "serving v0, v1");
    for number in 0..count {
        rig.start(&format!("c{number}"), &format!("v{number}@store:/data"), &["load", "40"]);
    }
    rig.isola.run(&["kill", "store"]).ok();
    rig.run(&["start", "store"]).ok();
    (0..count).for_each(|number| rig.ends_well(&format!("c{number}"), "40 records are right"));
}

#[test]
fn clients_go_on_when_their_service_cell_crashes_or_is_replaced() {
    let rig = Rig::new(&["web=16M", "kv=16M"]);
    let accept = ["--accept", "*", "--restart", "always"];
    rig.serve(&accept, &["volume-client", "serve", "1500"]);
    rig.start("kv", "kv@store:/data", &["load", "300"]);
    rig.start("web", "web@store:/data", &["load", "300"]);
    rig.ends_well("kv", "300 records are right");
    rig.ends_well("web", "300 records are right");
    let crashes = rig.isola.json(&["inspect", "store"])["restarts"].as_u64();
    println!("the service cell was restarted {crashes:?} times");
    rig.isola.run(&["kill", "store"]).ok();
    rig.isola.run(&["rm", "store"]).ok();
    rig.serve(&["--service", "block", "--accept", "*"], &[]);
    rig.start("kv", "kv@store:/data", &["load", "400"]);
    for _ in 0..3 {
        rig.advances("kv");
        rig.isola.run(&["kill", "store"]).ok();
        rig.run(&["start", "store"]).ok();
    }
    rig.ends_well("kv", "400 records are right");
}

#[test]
fn cells_share_folders_and_go_on_when_their_service_cell_is_killed() {
    let rig = Rig::with_volume("6", &["--size", "64M"]);
    // A client may start before its service cell.
    rig.start("kv", "kv@store:/data", &["load", "40"]);
    let store = ["run", "-d", "--name", "store", "--service", "files", "-v", "pool:/pool", "--accept", "*"];
    rig.run(&[&store[..], &CELL, &["kv", "web"]].concat()).ok();
    rig.waits_for("store", "serving kv, web");
    rig.ends_well("kv", "40 records are right");
    assert!(rig.client("web", 0, "web@store:/data", &["load", "20"]).contains("20 records are right"));
    // A client writes, and others read meanwhile, but cannot write.
    rig.start("writer", "web@store:/data", &["hold"]);
    rig.waits_for("writer", "mounted web@store");
    assert!(rig.client("reader", 0, "web@store:/data:ro", &["check", "20"]).contains("20 records are right"));
    let refused = rig.client("reader", 1, "web@store:/data:ro", &["load", "1"]);
    assert!(refused.contains("read-only"), "{refused}");
    // Enough for some ten seconds.
    rig.start("kv", "kv@store:/data", &["load", "3000"]);
    for _ in 0..2 {
        rig.advances("kv");
        rig.isola.run(&["kill", "store"]).ok();
        rig.run(&["start", "store"]).ok();
    }
    rig.ends_well("kv", "3000 records are right");
    assert!(rig.client("kv", 0, "kv@store:/data:ro", &["check", "3000"]).contains("are right"));
    assert!(rig.client("reader", 0, "web@store:/data:ro", &["check", "20"]).contains("are right"));
    let report = rig.isola.json(&["inspect", "store"]).to_string();
    assert!(report.contains("\"kv\"") && report.contains("\"web\""), "an activity for each folder: {report}");
}

#[test]
fn linux_cells_without_devices_have_their_root_in_a_service_cell() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = LinuxRoot::new();
    let source = root.path("..").display().to_string();
    let rig = Rig::with_volume("5", &["--size", "64M", "--from", &source]);
    let linux = |options: &[&str], root: &str, script: &str| {
        let cell = ["--cores", "1", "--network", "none", "--memory", "64M"];
        let run = [&["run"], options, &cell, &["--rootfs", root, "--", "sh", "-c", script]].concat();
        rig.run(&run)
    };
    let store = ["run", "-d", "--name", "store", "--service", "files", "-v", "pool:/pool", "--accept", "*"];
    rig.run(&[&store[..], &CELL].concat()).ok();
    rig.waits_for("store", "serving root");
    // Two cells read one folder; the changes of each are in its own memory.
    let script = "i=0; while cat /etc/passwd > /tmp/x; do i=$((i+1)); echo round $i; done";
    linux(&["-d", "--name", "reader"], "root@store", script).ok();
    rig.waits_for("reader", "round 5");
    let script = "ls /bin/busybox; mkdir /new; seq 1000 > /tmp/x; mv /tmp/x /new/y; wc -l < /new/y; grep -c . /etc/passwd";
    let out = linux(&["--rm"], "root@store", script).ok();
    assert_eq!(out.split_whitespace().collect::<Vec<_>>(), ["/bin/busybox", "1000", "1"]);
    // The programs' errors are output of their cell.
    let gone = linux(&["--rm"], "root@store", "ls /new").ended_with(1);
    assert!(gone.out.contains("No such file"), "{gone:?}");
    // One cell changes it.
    let script = "echo kept > /bin/f; ln -s f /bin/s; cat /bin/s";
    assert_eq!(linux(&["--rm"], "root@store:rw", script).ok().trim_end(), "kept");
    assert_eq!(linux(&["--rm"], "root@store", "cat /bin/s").ok().trim_end(), "kept");
    // The reader goes on when the service cell was killed and started again.
    rig.run(&["kill", "store"]).ok();
    rig.run(&["start", "store"]).ok();
    let round = || -> Option<u32> {
        let log = rig.isola.run(&["logs", "reader"]).ok();
        log.lines().rev().find_map(|line| line.strip_prefix("round ")?.parse().ok())
    };
    let before = round();
    wait::until_true("the reader goes on", || round() > before.map(|before| before + 5));
    let absent = linux(&["--rm"], "absent@store", "true").ended_with(1);
    assert!(
        absent.out.contains("cannot be mounted") || absent.err.contains("cannot be mounted"),
        "{absent:?}"
    );
}

/// Changes a folder as users do, and prints parts of it.
const CHANGES: &str = "
    PATH=/bin; set -e; cd /site
    busybox mkdir -p a/b; echo one > a/b/one
    busybox cp -r a c; busybox mv c d
    busybox ln a/b/one hard; busybox ln -s a/b/one soft
    dd if=/bin/busybox of=big bs=64k count=8 2> /dev/null
    busybox cp big copy; busybox mv big a/big; busybox cmp a/big copy
    busybox rm -r d; busybox chmod 600 hard; echo two >> hard
    busybox stat -c 'hard: %a %h %s' hard
    cat soft; ls -R . | tr '\\n' ' '; busybox sync
    echo changed; sleep 1000";

/// Reads it in another cell.
const CHECKS: &str = "
    PATH=/bin; cd /site
    busybox cmp a/big copy && cat soft && wc -c < copy
    echo three > hard || echo refused";

#[test]
fn programs_of_linux_cells_share_a_folder() {
    if !need(Need::E2fsprogs) || !need(Need::Busybox) {
        return;
    }
    let root = LinuxRoot::new();
    let isola = Isola::up(&["--cores", "4", "--memory", "1G", "--disks", "3"]);
    let rig = Rig { isola, folder: tempfile::tempdir().unwrap() };
    rig.run(&["volume", "create", "pool", "--size", "64M"]).ok();
    let store = ["run", "-d", "--name", "store", "--service", "files", "-v", "pool:/pool", "--accept", "*"];
    rig.run(&[&store[..], &CELL, &["web"]].concat()).ok();
    rig.waits_for("store", "serving web");
    let rootfs = root.path("").display().to_string();
    let linux = |options: &[&str], volume: &str, script: &str| {
        let cell =
            ["--cores", "1", "--network", "none", "--memory", "64M", "--rootfs", &rootfs, "-v", volume];
        rig.run(&[&["run"], options, &cell, &["--", "sh", "-c", script]].concat())
    };
    linux(&["-d", "--name", "writer"], "web@store:/site", CHANGES).ok();
    rig.waits_for("writer", "changed");
    let log = rig.isola.run(&["logs", "writer"]).ok();
    for line in ["hard: 600 2 8", "one\ntwo", ".: a copy hard soft  ./a: b big  ./a/b: one"] {
        assert!(log.replace("\r\n", "\n").contains(line), "{line:?}: {log}");
    }
    let out = linux(&["--rm", "--name", "reader"], "web@store:/site:ro", CHECKS).ok();
    assert!(out.replace("\r\n", "\n").contains("one\ntwo\n524288\n") && out.contains("refused"), "{out}");
    // A folder has one client that writes.
    let other = rig.run(
        &[
            &["run", "--rm", "--name", "other"],
            &CELL[..],
            &["-v", "web@store:/data", "volume-client", "hold"],
        ]
        .concat(),
    );
    assert!(other.ended_with(1).out.contains("another cell uses it: mount a folder with `:ro`"));
}
