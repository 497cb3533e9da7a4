//! Volumes: block devices of machines with files of the host in them, which cells get and give back.

use isola_tests::isola::Isola;
use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Length of a volume in these tests, in bytes.
const LEN: u64 = 4 << 20;

/// Empty files for volumes.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Creates an empty file, and returns its path.
    fn create(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name);
        File::create(&path).unwrap().set_len(LEN).unwrap();
        path
    }
}

/// Runs the test program `disks` on volumes until it ends.
fn disks(isola: &Isola, volumes: &[String], arguments: &[&str]) -> isola_tests::isola::Outcome {
    let volumes = volumes.iter().flat_map(|volume| ["-v", volume]);
    let run: Vec<&str> = ["run", "--rm"].into_iter().chain(volumes).chain(["disks"]).collect();
    isola.run(&[&run[..], arguments].concat())
}

/// Starts the test program on volumes, and waits until it has opened them.
fn start(isola: &Isola, name: &str, volumes: &[&str]) {
    let volumes = volumes.iter().flat_map(|volume| ["-v", volume]);
    let run: Vec<&str> = ["run", "-d", "--name", name].into_iter().chain(volumes).collect();
    isola.run(&[&run[..], &["disks", "wait"]].concat()).ok();
    wait_for(isola, name, "disks: waiting");
}

fn wait_for(isola: &Isola, name: &str, words: &str) {
    let end = Instant::now() + Duration::from_secs(30);
    while !isola.run(&["logs", name]).ok().contains(words) {
        assert!(Instant::now() < end, "{name} does not print {words:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_volume_keeps_its_contents_across_cells_and_machines() {
    for model in ["q35", "microvm"] {
        let files = Files::new();
        let volumes = ["a", "b, c"].map(|name| files.create(name).display().to_string());
        let [one, two] = &volumes;
        let isola = Isola::up(&["--machine", model, "--cores", "3"]);
        let mounted = [format!("{one}:/one"), format!("{two}:/var/lib/two")];
        let filled = disks(&isola, &mounted, &["fill", "5"]).ok();
        assert!(filled.contains("at /one has 8192 sectors and"), "{filled}");
        let bytes = fs::read(one).unwrap();
        assert!(
            bytes.len() as u64 == LEN
                && bytes.iter().any(|byte| *byte != 0)
                && bytes == fs::read(two).unwrap()
        );
        // Another cell, with the volumes at other devices, and other volumes at theirs.
        let exchanged = [format!("{two}:/two:ro"), format!("{one}:/one")];
        disks(&isola, &exchanged, &["check", "5"]).ok();
        disks(&isola, &exchanged[1..], &["limits"]).ok();
        isola.run(&["down"]).ok();
        isola.run(&["up", "--accel", "tcg", "--machine", model, "--cores", "2", "--disks", "1"]).ok();
        disks(&isola, &mounted[..1], &["check", "5"]).ok();
        disks(&isola, &mounted[..1], &["check", "6"]).failed(1, "");
        disks(&isola, &mounted, &["check", "5"]).failed(125, "1 block devices belong to cells");
        isola.run(&["down"]).ok();
        let standalone = ["run", "--standalone", "--accel", "tcg", "--machine", model];
        let volumes = ["-v", mounted[0].as_str(), "-v", mounted[1].as_str(), "disks", "check", "5"];
        isola.run(&[&standalone[..], &volumes].concat()).ok();
    }
}

#[test]
fn a_read_only_volume_is_shared_and_never_written() {
    let files = Files::new();
    let volume = files.create("shared").display().to_string();
    let isola = Isola::up(&["--cores", "4"]);
    let (writable, read_only) = (format!("{volume}:/data"), format!("{volume}:/data:ro"));
    disks(&isola, std::slice::from_ref(&writable), &["fill", "1"]).ok();
    // The test program ignores that it may not write: only its own overlay changes.
    disks(&isola, std::slice::from_ref(&read_only), &["fill", "2"]).ok();
    disks(&isola, std::slice::from_ref(&read_only), &["check", "1"]).ok();
    for name in ["first", "second"] {
        start(&isola, name, &[&read_only]);
    }
    let refused = disks(&isola, std::slice::from_ref(&writable), &["fill", "3"]);
    refused.failed(125, "is in use by another cell, machine or program");
    assert_eq!(isola.cell("first")["volumes"][0]["read_only"], true);
    isola.run(&["stop", "first", "second"]).ok();
    disks(&isola, std::slice::from_ref(&writable), &["fill", "3"]).ok();
    isola.run(&["start", "first"]).ok();
    wait_for(&isola, "first", "disks: waiting");
    disks(&isola, &[writable], &["fill", "4"]).failed(125, "is in use");
}

#[test]
fn a_volume_belongs_to_its_cell_from_creation_to_removal_and_outlives_crashes() {
    let files = Files::new();
    let volume = files.create("data").display().to_string();
    let isola = Isola::up(&["--cores", "3", "--disks", "2"]);
    let mounted = format!("{volume}:/data");
    let before = isola.inventory();
    disks(&isola, std::slice::from_ref(&mounted), &["fill", "7"]).ok();
    start(&isola, "keeper", &[&mounted]);
    isola.run(&["kill", "keeper"]).ok();
    // The file is free after the end, and the device is still reserved for the cell.
    disks(&isola, std::slice::from_ref(&mounted), &["check", "7"]).ok();
    let two = [format!("{}:/a", files.create("a").display()), format!("{}:/b", files.create("b").display())];
    disks(&isola, &two, &["fill", "1"]).failed(125, "2 block devices belong to cells");
    isola.run(&["start", "keeper"]).ok();
    disks(&isola, std::slice::from_ref(&mounted), &["check", "7"]).failed(125, "is in use");
    isola.run(&["rm", "--force", "keeper"]).ok();
    disks(&isola, &two, &["fill", "1"]).ok();
    disks(&isola, &[mounted], &["check", "7"]).ok();
    isola.wait_for_inventory(&before);
}

#[test]
fn wrong_volumes_are_refused_before_anything_changes() {
    let files = Files::new();
    let folder = files.0.path().display().to_string();
    let good = format!("{}:/data", files.create("good").display());
    let isola = Isola::up(&["--cores", "2"]);
    let before = isola.inventory();
    for (volumes, code, words) in [
        (vec!["data".to_owned()], 2, "VOLUME:PATH"),
        (vec!["/tmp/x:data".to_owned()], 2, "absolute path"),
        (vec![format!("{folder}/none:/data")], 125, "does not exist"),
        (vec![format!("{folder}:/data")], 125, "is no file"),
        (vec!["nowhere:/data".to_owned()], 125, "isola volume create nowhere"),
        (vec![good.clone(), good.clone()], 125, "two volumes have the same path"),
    ] {
        disks(&isola, &volumes, &["wait"]).failed(code, words);
    }
    let none = ["up", "other", "--accel", "tcg", "--nics", "22", "--disks", "1"];
    isola.run(&none).failed(2, "at most 22 network and block devices together");
    isola.run(&["run", "--hosted", "-v", &good, "kv"]).failed(2, "--volume");
    isola.wait_for_inventory(&before);
    assert_eq!(isola.json(&["ps", "--all"]).as_array().map(Vec::len), Some(0));
}
