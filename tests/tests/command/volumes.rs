//! Volumes: block devices of machines with files of the host in them, which cells get and give back.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::service::published;
use isola_tests::{ports, wait};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
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
    loop {
        let printed = isola.run(&["logs", name]).ok();
        if printed.contains(words) {
            return;
        }
        assert!(Instant::now() < end, "{name} does not print {words:?}: {printed}");
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
        // With two cores, requests go to a queue for each, where the device has several.
        let (run, volume) = (["run", "--rm", "--cores", "2", "-v"], mounted[0].as_str());
        let shared = isola.run(&[&run[..], &[volume, "disks", "fill", "5"]].concat()).ok();
        let queues = if model == "q35" { 2 } else { 1 };
        assert!(shared.contains(&format!("8192 sectors and {queues} queues")), "{shared}");
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
    isola.wait_for_inventory(&before);
    assert_eq!(isola.json(&["ps", "--all"]).as_array().map(Vec::len), Some(0));
}

/// Checks an ext4 file system as it is after a power failure: replays the journal of a copy, after which `e2fsck` must
/// find nothing.
fn assert_consistent(volume: &Path) {
    let copy = volume.with_extension("copy");
    fs::copy(volume, &copy).unwrap();
    for options in [&["-y", "-E", "journal_only"][..], &["-f", "-n"]] {
        let output = Command::new("e2fsck").args(options).arg(&copy).output().unwrap();
        assert!(output.status.success(), "{options:?}: {output:?}");
    }
    fs::remove_file(copy).unwrap();
}

/// Returns the number behind the last `words` in a cell's output.
fn last_number(isola: &Isola, name: &str, words: &str) -> Option<u64> {
    let logs = isola.run(&["logs", name]).ok();
    let line = logs.lines().rev().find_map(|line| line.strip_prefix(words))?;
    line.trim().parse().ok()
}

#[test]
fn a_file_system_is_consistent_after_each_kill_and_keeps_what_was_synced() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let files = Files::new();
    let volume = files.0.path().join("records.img");
    File::create(&volume).unwrap().set_len(24 << 20).unwrap();
    let format = ["-q", "-t", "ext4", "-b", "4096", "-J", "size=4"];
    assert!(Command::new("mke2fs").args(format).arg(&volume).status().unwrap().success());
    let isola = Isola::up(&["--cores", "2"]);
    let mounted = format!("{}:/data", volume.display());
    isola.run(&["run", "-d", "--name", "writer", "-v", &mounted, "records", "/data"]).ok();
    let mut synced = 0;
    for round in 0..6_u64 {
        wait_for(&isola, "writer", "records: found");
        let found = last_number(&isola, "writer", "records: found ").unwrap();
        assert!(found >= synced, "round {round}: {found} records of {synced} are left");
        // At another moment each time.
        let written = found + 15 + round * 7;
        let end = Instant::now() + Duration::from_secs(60);
        while last_number(&isola, "writer", "records: synced ").is_none_or(|number| number < written) {
            assert!(
                Instant::now() < end,
                "round {round}: nothing is written: {:?}",
                isola.run(&["logs", "writer"])
            );
        }
        isola.run(&["kill", "writer"]).ok();
        synced = last_number(&isola, "writer", "records: synced ").unwrap();
        assert_consistent(&volume);
        isola.run(&["rm", "writer"]).ok();
        isola.run(&["run", "-d", "--name", "writer", "-v", &mounted, "records", "/data"]).ok();
    }
    wait_for(&isola, "writer", "records: found");
}

#[test]
fn a_named_volume_with_files_is_served_by_a_cell() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let files = Files::new();
    let site = files.0.path().join("site");
    fs::create_dir_all(site.join("sub")).unwrap();
    let large: Vec<u8> = (0..700_000_u32).map(|number| (number / 7) as u8).collect();
    fs::write(site.join("index.html"), "<p>from a volume").unwrap();
    fs::write(site.join("sub/large"), &large).unwrap();
    let isola = Isola::up(&["--cores", "2"]);
    let store = files.0.path().join("volumes");
    let run = |arguments: &[&str]| isola.run_with(arguments, &[("ISOLA_VOLUMES", &store)]);
    let site = site.display().to_string();
    run(&["volume", "create", "site", "--size", "16M", "--from", &site]).ok();
    run(&["volume", "create", "site", "--size", "16M"]).failed(1, "exists already");
    run(&["volume", "create", "small", "--size", "1M"]).failed(1, "at least 8 MiB");
    let web =
        ["run", "-d", "--name", "www", "-v", "site:/www:ro", "-p", "80", "-o", "json", "web", "-d", "/www"];
    let view: serde_json::Value = serde_json::from_str(&run(&web).ok()).unwrap();
    let address = published(&view);
    wait_for(&isola, "www", "files of /www on demand");
    assert!(get(address, "/").ends_with(b"\r\n\r\n<p>from a volume"));
    assert!(get(address, "/sub/large").ends_with(&large));
    assert!(get(address, "/none").starts_with(b"HTTP/1.1 404 Not Found\r\n"));
    let listed = run(&["volume", "ls"]).ok();
    assert!(listed.contains("site") && listed.contains("default/www"), "{listed}");
    run(&["volume", "rm", "site"]).failed(1, "remove the cell first");
    isola.run(&["rm", "--force", "www"]).ok();
    run(&["run", "--rm", "-v", "site:/www", "web", "-d", "/other"]).failed(1, "");
    // The same as a process of the host, by the path of the volume's file.
    let port = ports::free();
    let file = format!("{}:/www:ro", store.join("site.img").display());
    let publish = format!("{port}:80");
    // (A process cannot replay a journal that it may only read: the cell before has unmounted the volume.)
    let hosted = isola.spawn(&["run", "--hosted", "-v", &file, "-p", &publish, "web", "-d", "/www/sub"]);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // The host accepts connections before the server has read its files.
    wait::until_true("it serves", || try_get(address, "/large").is_ok_and(|answer| answer.ends_with(&large)));
    let writer = format!("{}:/www", store.join("site.img").display());
    let refused = isola.run(&["run", "--hosted", "-v", &writer, "web", "-d", "/www"]).ended_with(1);
    assert!(refused.out.contains("another cell uses it"), "{refused:?}");
    assert!(refused.out.contains("the volume at /www cannot be mounted"), "{refused:?}");
    hosted.signal("INT");
    hosted.wait().ended_with(0);
    run(&["volume", "rm", "site"]).ok();
    assert_eq!(run(&["volume", "ls", "-o", "json"]).ok().trim(), "[]");
}

#[test]
fn a_site_larger_than_the_cell_s_memory_is_served_from_its_volume() {
    if !need(Need::E2fsprogs) {
        return;
    }
    const FILE: usize = 40 << 20;
    let files = Files::new();
    let site = files.0.path().join("site");
    fs::create_dir(&site).unwrap();
    let contents = |file: usize| {
        let number = |index: usize| ((index / 8).wrapping_mul(0x9e37_79b9) ^ file).to_le_bytes()[index % 4];
        (0..FILE).map(number).collect::<Vec<u8>>()
    };
    for file in 0..3 {
        fs::write(site.join(file.to_string()), contents(file)).unwrap();
    }
    fs::write(site.join("index.html"), "<p>small").unwrap();
    let isola = Isola::up(&["--cores", "3"]);
    let store = files.0.path().join("volumes");
    let run = |arguments: &[&str]| isola.run_with(arguments, &[("ISOLA_VOLUMES", &store)]);
    let folder = site.display().to_string();
    run(&["volume", "create", "site", "--size", "160M", "--from", &folder]).ok();
    let web = ["run", "-d", "--name", "www", "--cores", "2", "--memory", "64M", "-v", "site:/www"];
    let view = run(&[&web[..], &["-p", "80", "-o", "json", "web", "-d", "/www"]].concat()).ok();
    let address = published(&serde_json::from_str(&view).unwrap());
    wait_for(&isola, "www", "files of /www on demand");
    // Clients on both cores, two of which stop reading.
    let stuck: Vec<TcpStream> = (0..2)
        .map(|file| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(format!("GET /{file} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).unwrap();
            stream
        })
        .collect();
    for _ in 0..2 {
        for file in 0..3 {
            assert!(get(address, &format!("/{file}")).ends_with(&contents(file)), "file {file}");
            assert!(get(address, "/").ends_with(b"<p>small"));
        }
    }
    drop(stuck);
    assert_eq!(isola.cell("www")["state"], "running");
    // The cell unmounts its volume when it is stopped.
    isola.run(&["stop", "www"]).ok();
    isola.run(&["rm", "www"]).ok();
    let volume = store.join("site.img");
    let output = Command::new("e2fsck").args(["-f", "-n"]).arg(&volume).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Returns the whole response to a request.
fn get(address: SocketAddr, path: &str) -> Vec<u8> {
    try_get(address, path).unwrap()
}

fn try_get(address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    Ok(response)
}
