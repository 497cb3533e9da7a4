//! Damaged and hostile file systems: each operation returns, with an error or without.

mod common;

use common::{MemoryDisk, data, make_image, mount, services};
use isola_need::{LONG, Need, need};
use isola_volumes::{Access, Ext4, FileError, FileId, FileKind, FileSystem, ListPosition};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

/// Does as much as possible with a file system, within bounds.
fn use_all(file_system: &mut Ext4) -> Result<(), FileError> {
    let root = file_system.root();
    let _ = use_directory(file_system, root, 0);
    for number in 0..3_u8 {
        let name = [b'n', b'0' + number];
        if let Ok(file) = file_system.create(root, &name) {
            let _ = file_system.write(file.id, u64::from(number) * 5000, &data(1, 9000));
            let _ = file_system.truncate(file.id, 100);
        }
        let _ = file_system.make_directory(root, &[b'd', number + b'0']);
        let _ = file_system.rename((root, &name), (root, b"renamed"));
    }
    let _ = file_system.remove(root, b"renamed").map(|unnamed| unnamed.map(|file| file_system.release(file)));
    let _ = file_system.sync();
    file_system.unmount()
}

fn use_directory(file_system: &mut Ext4, directory: FileId, depth: usize) -> Result<(), FileError> {
    let mut position = Some(ListPosition::default());
    for _ in 0..20 {
        let Some(from) = position else { break };
        let (entries, next) = file_system.list(directory, from, 50)?;
        position = next;
        for entry in entries {
            let Ok(metadata) = file_system.lookup(directory, &entry.name) else { continue };
            if metadata.kind == FileKind::Directory && depth < 3 {
                let _ = use_directory(file_system, metadata.id, depth + 1);
            }
            let mut bytes = vec![0; 20_000];
            for offset in [0, 7, metadata.len.saturating_sub(100), metadata.len / 2, u64::MAX - 5] {
                let _ = file_system.read(metadata.id, offset, &mut bytes);
                if let Ok(Some(map)) = file_system.extents(metadata.id, offset) {
                    let part = offset..offset.saturating_add(20_000);
                    let len: usize = map.pieces(part).map(|piece| piece.len).sum();
                    assert!(len <= 20_000, "{len} bytes of 20,000");
                }
            }
            let _ = file_system.write(metadata.id, metadata.len.min(1 << 20), &bytes[..3000]);
            if entry.name.len() % 2 == 0 {
                let unnamed = file_system.remove(directory, &entry.name);
                let _ = unnamed.map(|unnamed| unnamed.map(|file| file_system.release(file)));
            }
        }
    }
    Ok(())
}

/// An image with files, directories, a large directory with an index, a fragmented file, and a journal to replay.
fn image(options: &[&str]) -> Vec<u8> {
    let disk = MemoryDisk::new(make_image(4 << 20, options));
    let mut file_system = mount(&disk).unwrap();
    let root = file_system.root();
    let directory = file_system.make_directory(root, b"directory").unwrap().id;
    for number in 0..40 {
        let name = format!("a file with quite a long name, number {number}");
        let file = file_system.create(directory, name.as_bytes()).unwrap().id;
        file_system.write(file, 0, &data(number, number * 300)).unwrap();
    }
    let fragmented = file_system.create(root, b"fragmented").unwrap().id;
    for block in 0..60 {
        file_system.write(fragmented, block * 2048, &data(3, 1024)).unwrap();
    }
    file_system.sync().unwrap();
    file_system.make_directory(directory, b"in the journal").unwrap();
    file_system.sync().unwrap();
    disk.contents.take()
}

/// The superblock's and inodes' checksums hide most damage from the code behind them; without checksums it is reached.
const WITHOUT_CHECKSUMS: &[&str] = &["-b", "1024", "-O", "^metadata_csum", "-J", "size=1"];
const WITH_CHECKSUMS: &[&str] = &["-b", "1024", "-J", "size=1"];

fn positions(image: &[u8], random: &mut fastrand::Rng, used: &[usize]) -> usize {
    // Mostly the superblock, the group descriptors, and blocks with contents.
    match random.u8(..6) {
        0 => 1024 + random.usize(..1024),
        1 => 2048 + random.usize(..1024),
        _ => used[random.usize(..used.len())] * 1024 + random.usize(..1024),
    }
    .min(image.len() - 8)
}

fn damage(image: &mut [u8], random: &mut fastrand::Rng, used: &[usize]) {
    for _ in 0..random.usize(1..6) {
        let at = positions(image, random, used);
        let value = match random.u8(..5) {
            0 => 0,
            1 => u64::MAX,
            2 => random.u64(..),
            3 => u64::from(random.u8(..)),
            _ => 1 << random.u8(..64),
        };
        let len = [1, 2, 4, 8][random.usize(..4)];
        image[at..at + len].copy_from_slice(&value.to_le_bytes()[..len]);
    }
}

fn attempt(image: Vec<u8>, access: Access) {
    let disk = MemoryDisk::new(image);
    if let Ok(mut file_system) = Ext4::mount(disk.clone() as Rc<_>, access, services()) {
        let _ = use_all(&mut file_system);
    }
}

fn test_damage(options: &[&str], seed: u64, attempts: u64) {
    let base = image(options);
    let used: Vec<usize> = base
        .chunks(1024)
        .enumerate()
        .filter(|(_, block)| block.iter().any(|byte| *byte != 0))
        .map(|(number, _)| number)
        .collect();
    let mut panics = Vec::new();
    for attempt_number in 0..attempts {
        let mut random = fastrand::Rng::with_seed(seed + attempt_number);
        let mut image = base.clone();
        damage(&mut image, &mut random, &used);
        let access = if random.bool() { Access::ReadWrite } else { Access::ReadOnly };
        if catch_unwind(AssertUnwindSafe(|| attempt(image, access))).is_err() {
            panics.push(seed + attempt_number);
        }
    }
    assert!(
        panics.is_empty(),
        "{} of {attempts} damaged images panic, with the seeds {panics:?}",
        panics.len()
    );
}

fn attempts() -> u64 {
    if std::env::var_os(LONG).is_some() { 5_000 } else { 300 }
}

#[test]
fn damage_without_checksums_is_an_error() {
    if need(Need::E2fsprogs) {
        test_damage(WITHOUT_CHECKSUMS, 0, attempts());
        // A length beyond the most that a file can have.
        test_damage(WITHOUT_CHECKSUMS, 2960, 1);
    }
}

#[test]
fn damage_with_checksums_is_an_error() {
    if need(Need::E2fsprogs) {
        test_damage(WITH_CHECKSUMS, 1_000_000, attempts());
    }
}
