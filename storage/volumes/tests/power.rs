//! Power failures at every write, and with random losses among the writes since the latest flush.

mod common;

use common::{
    MemoryDisk, check, check_after_power_failure, data, make_image, mount, run_on, small_image, tree,
};
use isola_need::{LONG, Need, need};
use isola_storage_sim::{Logged, power};
use isola_volumes::{Ext4, FileSystem};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The length that a disk writes wholly or not at all, in bytes: ext4 relies on it for its superblock.
const ATOM: usize = 1024;

fn is_long() -> bool {
    std::env::var_os(LONG).is_some()
}

type Tree = BTreeMap<String, Option<Vec<u8>>>;

/// Creates, truncates, renames and removes files.
fn change(file_system: &mut Ext4, round: usize) {
    let root = file_system.root();
    let name = format!("directory{round}");
    let directory = file_system.make_directory(root, name.as_bytes()).unwrap().id;
    for number in 0..6 {
        let name = format!("file{number}");
        let name = name.as_bytes();
        let file = file_system.create(directory, name).unwrap().id;
        file_system.write(file, 0, &data(round * 100 + number, 3000 * (number + 1))).unwrap();
        match number % 4 {
            0 => file_system.truncate(file, 100).unwrap(),
            1 => {
                let unnamed = file_system.remove(directory, name).unwrap().unwrap();
                file_system.release(unnamed).unwrap();
            }
            2 => {
                let unnamed = file_system.rename((directory, name), (root, b"renamed")).unwrap();
                unnamed.into_iter().for_each(|unnamed| file_system.release(unnamed).unwrap());
            }
            _ => {}
        }
    }
}

/// Mounts, changes and unmounts. Returns the log, and the trees after each sync with their position in the log.
fn run(base: &[u8]) -> (Vec<Logged>, Vec<(usize, Tree)>) {
    let disk = MemoryDisk::new(base.to_vec());
    let mut file_system = mount(&disk).unwrap();
    let position = |disk: &Rc<MemoryDisk>| disk.log.borrow().len();
    let mut synced = vec![(position(&disk), tree(&mut file_system).unwrap())];
    for round in 0..3 {
        change(&mut file_system, round);
        file_system.sync().unwrap();
        synced.push((position(&disk), tree(&mut file_system).unwrap()));
    }
    file_system.unmount().unwrap();
    check(&disk.contents.borrow()).unwrap();
    (disk.log.take(), synced)
}

/// Checks that e2fsck finds nothing but a journal to replay, that the file system can be mounted, and that all that was
/// synced is there.
fn check_cut(position: usize, contents: &[u8], synced: &[(usize, Tree)]) -> Result<(), String> {
    check_after_power_failure(contents)?;
    let disk = MemoryDisk::new(contents.to_vec());
    let mut file_system = mount(&disk).map_err(|error| format!("mount: {error}"))?;
    let found = tree(&mut file_system).map_err(|error| format!("tree: {error}"))?;
    let latest = synced.iter().rev().find(|(at, _)| *at <= position);
    if let Some((_, tree)) = latest {
        for (path, contents) in tree {
            // The next round may have replaced this one.
            if path != "/renamed" && found.get(path) != Some(contents) {
                return Err(format!("{path} is not as it was synced"));
            }
        }
    }
    file_system.unmount().map_err(|error| format!("unmount: {error}"))?;
    let contents = disk.contents.borrow();
    check(&contents)
}

fn check_all(base: &[u8], tries: usize) {
    let (log, synced) = run(base);
    let writes = log.iter().filter(|entry| matches!(entry, Logged::Write { .. })).count();
    let mut cuts = 0;
    let mut bad = Vec::new();
    let mut note = |position: usize, contents: &[u8]| {
        cuts += 1;
        if let Err(error) = check_cut(position, contents, &synced) {
            bad.push(format!("after {position} of {}: {error}", log.len()));
        }
    };
    power::at_every_write(base, &log, &mut note);
    power::with_random_losses(base, &log, ATOM, tries, 7, &mut note);
    assert!(bad.is_empty(), "{} of {cuts} cuts are bad, with {writes} writes: {}", bad.len(), bad.join("\n"));
    assert!(writes > 50 && cuts > writes);
}

#[test]
fn a_power_failure_at_any_write_leaves_a_file_system_that_the_journal_restores() {
    if !need(Need::E2fsprogs) {
        return;
    }
    check_all(&small_image(), if is_long() { 100 } else { 8 });
}

#[test]
fn a_power_failure_with_blocks_of_1_kib_leaves_a_file_system_that_the_journal_restores() {
    if !need(Need::E2fsprogs) {
        return;
    }
    check_all(&make_image(4 << 20, &["-b", "1024", "-J", "size=1"]), if is_long() { 100 } else { 4 });
}

#[test]
fn a_power_failure_during_the_recovery_from_another_leaves_a_file_system_that_the_journal_restores() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let base = make_image(4 << 20, &["-b", "1024", "-J", "size=1"]);
    let (log, synced) = run(&base);
    let mut cuts = 0;
    power::at_every_write(&base, &log, |position, contents| {
        // Among these are cuts between the writes of a transaction, of a checkpoint and of the unmount.
        if position % 9 > 0 && !is_long() {
            return;
        }
        let disk = MemoryDisk::new(contents.to_vec());
        drop(mount(&disk).unwrap());
        let recovery = disk.log.take();
        let check = |_: usize, contents: &[u8]| {
            cuts += 1;
            check_cut(position, contents, &synced)
                .unwrap_or_else(|error| panic!("after {position}: {error}"));
        };
        power::with_random_losses(contents, &recovery, ATOM, 2, position as u64, check);
    });
    assert!(cuts > 50, "{cuts}");
}

#[test]
fn a_power_failure_while_a_mount_creates_lost_and_found_is_recovered() {
    if !need(Need::E2fsprogs) {
        return;
    }
    let image = make_image(4 << 20, &["-b", "1024", "-J", "size=1"]);
    let (output, base) = run_on(&image, "debugfs", &["-w", "-R", "rmdir lost+found"]);
    assert!(output.status.success() && base != image, "{output:?}");
    let disk = MemoryDisk::new(base.clone());
    drop(mount(&disk).unwrap());
    let log = disk.log.take();
    let mut cuts = 0;
    let check_cut = |position: usize, contents: &[u8]| {
        cuts += 1;
        let disk = MemoryDisk::new(contents.to_vec());
        mount(&disk).unwrap().unmount().unwrap();
        check(&disk.contents.borrow()).unwrap_or_else(|error| panic!("after {position}: {error}"));
    };
    power::with_random_losses(&base, &log, ATOM, 20, 5, check_cut);
    assert!(cuts > 100, "{cuts}");
}
