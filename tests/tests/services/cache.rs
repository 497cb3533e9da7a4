//! The block cache of a cell's volumes as memory: a scan takes none of another activity's, and a full cache gives some
//! back to the machine while the files are read.

use isola_need::{Need, need};
use isola_tests::isola::Isola;
use isola_tests::wait;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// The cell, and its memory in MiB, a quarter of which is for its cache.
const CELL: &str = "records";
const MEMORY: u64 = 48;

/// The lengths of the files, in blocks: `small` is a part of the cache, and `large` some times the cache.
const BLOCK: usize = 4096;
const SMALL: u64 = 128;
const LARGE: u64 = 12 << 10;

/// Writes a file whose blocks begin with their numbers.
fn numbered(path: &Path, blocks: u64) {
    let block = |number: u64| [&number.to_le_bytes()[..], &[0x5a; BLOCK - 8]].concat();
    fs::write(path, (0..blocks).flat_map(block).collect::<Vec<u8>>()).unwrap();
}

/// Starts the cell, which scans a volume. Returns the folder of the volume, too.
fn start(isola: &Isola, options: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (files, volume) = (folder.path().join("files"), folder.path().join("disk.img"));
    fs::create_dir(&files).unwrap();
    numbered(&files.join("small"), SMALL);
    numbered(&files.join("large"), LARGE);
    File::create(&volume).unwrap().set_len(80 << 20).unwrap();
    let format = ["-q", "-t", "ext4", "-b", "4096", "-J", "size=4", "-d"];
    assert!(Command::new("mke2fs").args(format).args([&files, &volume]).status().unwrap().success());
    let mounted = format!("{}:/data", volume.display());
    let memory = format!("{MEMORY}M");
    let run = ["run", "-d", "--name", CELL, "--memory", &memory, "-v", &mounted];
    isola.run(&[&run[..], options, &["records", "scan", "/data"]].concat()).ok();
    folder
}

/// Returns the numbers of the latest line of the cell that begins with these words.
fn latest(isola: &Isola, words: &str) -> Option<Vec<u64>> {
    let printed = isola.run(&["logs", CELL]).ok();
    assert!(!printed.contains("records: "), "{printed}");
    let line = printed.lines().rev().find_map(|line| line.strip_prefix(words))?;
    let numbers = line.split(|letter: char| !letter.is_ascii_digit());
    Some(numbers.filter_map(|number| number.parse().ok()).collect())
}

fn line(isola: &Isola, words: &str) -> Vec<u64> {
    wait::until(&format!("the cell prints {words:?}"), || latest(isola, words))
}

/// Returns the bytes in the cache and those of the cell after some further reads, all of which were right.
fn after_more_reads(isola: &Isola) -> (u64, u64) {
    let before = line(isola, "right: ")[0];
    wait::until("blocks are read", || match latest(isola, "right: ")?[..] {
        [right, cached, total] if right > before + 1_000 => Some((cached, total)),
        _ => None,
    })
}

/// Stops the cell, which has found nothing wrong.
fn stop(isola: &Isola) {
    let stopped = isola.json(&["stop", CELL]);
    assert_eq!((&stopped[0]["state"], &stopped[0]["exit_code"]), (&"exited".into(), &0.into()), "{stopped}");
}

/// Two activities on one volume; one reads ten times the cell's memory, and the other rereads 128 blocks, each of them
/// so seldom that the scan would have replaced it. Then the cell, whose memory the cache has filled, is made smaller.
#[test]
fn a_scan_of_ten_times_the_memory_changes_no_hit_rate_and_its_blocks_are_given_back() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let isola = Isola::up(&["--memory", "256M", "--cores", "2"]);
    let _volume = start(&isola, &[]);
    let rate = |numbers: &[u64]| numbers[0] as f64 / numbers[1] as f64;
    let (alone, beside) = (line(&isola, "alone: "), line(&isola, "beside: "));
    assert!(rate(&alone) > 0.99, "{alone:?}");
    assert!(rate(&alone) - rate(&beside) < 0.01, "{beside:?} beside the scan, {alone:?} without");
    // The cell reports its pool, a part of its memory.
    assert!(beside[2] > 9 * MEMORY * MIB, "{beside:?}");
    let (full, total) = after_more_reads(&isola);
    assert!(full > total / 5, "the cache has {full} bytes of {total}");
    let less = 20;
    let mut resized = Value::Null;
    // A busy host can delay the cell beyond the supervisor's patience: the rest comes at the next request.
    for _ in 0..4 {
        resized = isola.json(&["resize", CELL, "--memory", &format!("{less}M")])["memory"].clone();
        if resized["has_bytes"] == less * MIB {
            break;
        }
    }
    assert_eq!(resized["has_bytes"], less * MIB, "{resized}");
    let (cached, total) = after_more_reads(&isola);
    // The cache is smaller in proportion, and does not take what is free now.
    assert!(total <= less * MIB && cached < full / 2, "{cached} bytes of {full} are left of {total}");
    stop(&isola);
}

#[test]
fn a_full_cache_lends_its_memory_and_reads_on() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let isola = Isola::up(&["--memory", "256M", "--cores", "4"]);
    let _volume = start(&isola, &["--memory-low", "16M"]);
    isola.run(&["run", "-d", "--name", "service", "--priority", "9", "--memory", "16M", "primes"]).ok();
    line(&isola, "beside: ");
    let (full, _) = after_more_reads(&isola);
    let borrowed = || {
        let loans = isola.cell("service")["memory_loans"].clone();
        let loans = loans.as_array().expect("the cell has a list of loans").clone();
        // Free memory goes first.
        let of_cell = loans.iter().filter(|loan| loan["from"] == CELL);
        of_cell.map(|loan| loan["memory_bytes"].as_u64().unwrap()).sum::<u64>()
    };
    isola.run(&["run", "-d", "--name", "rest", "--memory", &free(&isola), "primes"]).ok();
    isola.run(&["borrow", "service", "--memory", "32M", "--lease", "1h"]).ok();
    wait::until_true("the service has memory of the cache", || borrowed() >= 28 * MIB);
    assert_eq!(isola.cell(CELL)["held_bytes"], MEMORY * MIB - borrowed());
    let (cached, _) = after_more_reads(&isola);
    assert!(cached < full / 2, "{cached} bytes of {full} are left");
    isola.run(&["borrow", "service", "--memory", "32M", "--give-back"]).ok();
    wait::until_true("the cell has its memory again", || isola.cell(CELL)["held_bytes"] == MEMORY * MIB);
    after_more_reads(&isola);
    stop(&isola);
}

/// Returns all free memory but a little, as an option of `isola run`.
fn free(isola: &Isola) -> String {
    format!("{}M", isola.inventory()["memory"].as_u64().unwrap() / MIB - 2)
}
