//! A test image: `records PATH` writes numbered records to files of the volume at `PATH`, until the cell ends. Each
//! record is permanent before its number is printed. At the start it checks the records of earlier runs.
//!
//! `records share PATH NAME:BYTES ...` runs an activity of that name for each, which reads random blocks of the volume's
//! device, past the cache: [`READERS`] requests of that length at all times.
//!
//! `records scan PATH` reads files of the volume: see [`scan`].
//!
//! A file has [`RECORDS`] records. It is written under the name `new`, and renamed to its number when it is full; an old
//! file is removed then. So a crash meets creations, writes, renames and removals.
#![no_std]
#![no_main]

mod scan;

use isola::events::activity::charge_to;
use isola::events::{register_activity, spawn_task};
use isola::iobuf::{IoBuf, IoBufMut};
use isola::prelude::*;
use isola::storage::{self, FileError, ListPosition, Volume};

extern crate alloc;

isola::app!(main);

/// The records of a file.
const RECORDS: u64 = 20;

/// The full files that are kept.
const KEPT: u64 = 5;

/// Length of a record, in bytes: not a divisor of a block.
const LEN: usize = 1000;

/// The concurrent reads of an activity that shares the device, as many as of three processes in Vortex, 4.3.
const READERS: usize = 341;

async fn main(arguments: Arguments) -> ExitCode {
    let words: Vec<&str> = arguments.iter().collect();
    let result = match &words[..] {
        ["share", path, loads @ ..] => share(path, loads).await,
        ["scan", path] => scan::scan(path).await,
        [path] => run(path).await,
        _ => Err("usage: records PATH | scan PATH | share PATH NAME:BYTES ...".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("records: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(path: &str) -> Result<(), String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let (volume, root) = volumes.find(path).ok_or("no volume at the path")?;
    let mut next = check(volume, root.trim_end_matches('/')).await?;
    println!("records: found {next}");
    let root = root.trim_end_matches('/');
    loop {
        write(volume, root, next).await.map_err(|error| error.to_string())?;
        next += 1;
        println!("records: synced {next}");
    }
}

/// Reads random blocks of the device for each activity, until the cell is stopped.
async fn share(path: &str, loads: &[&str]) -> Result<(), String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let mounted = volumes.iter().find(|mounted| mounted.path == path).ok_or("no volume at the path")?;
    let device = mounted.cache.as_ref().ok_or("no block device at the path")?.device().clone();
    for load in loads {
        let (name, bytes) = load.split_once(':').ok_or("NAME:BYTES")?;
        let len: usize = bytes.parse().map_err(|_| "no number of bytes")?;
        let activity = register_activity(name).map_err(|_| "too many activities")?;
        charge_to(activity);
        for _ in 0..READERS {
            let device = device.clone();
            spawn_task(async move {
                let places = device.capacity() * 512 / len as u64;
                loop {
                    let mut buffer = IoBufMut::with_room(0, len);
                    buffer.append(len);
                    let sector = isola::entropy() % places * (len / 512) as u64;
                    if let Err(error) = device.read(sector, vec![buffer]).await {
                        println!("records: a read failed: {error}");
                        return;
                    }
                }
            })
            .detach();
        }
    }
    println!("records: sharing");
    isola::stop_requested().await;
    Ok(())
}

/// Returns the bytes of a record.
fn record(number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Checks all records, and finishes a renaming that a crash prevented. Returns the number of records: that of the next.
async fn check(volume: &Volume, root: &str) -> Result<u64, String> {
    let listed = volume.list(format!("{root}/"), ListPosition::default(), 1000).await;
    let (entries, _) = listed.map_err(|error| error.to_string())?;
    let names = entries.iter().filter_map(|entry| core::str::from_utf8(&entry.name).ok());
    let mut full: Vec<u64> = names.filter_map(|name| name.parse().ok()).collect();
    full.sort_unstable();
    for file in &full {
        let records = check_file(volume, &format!("{root}/{file}"), file * RECORDS).await?;
        if records != RECORDS {
            return Err(format!("file {file} has {records} records"));
        }
    }
    if full.windows(2).any(|pair| pair[0] + 1 != pair[1]) {
        return Err(format!("files are missing among {full:?}"));
    }
    let begun = full.last().map_or(0, |last| last + 1) * RECORDS;
    match check_file(volume, &format!("{root}/new"), begun).await {
        // The cell ended after the last record of the file was permanent, and before the file's new name was.
        Ok(RECORDS) => {
            finish(volume, root, begun / RECORDS).await.map_err(|error| error.to_string())?;
            Ok(begun + RECORDS)
        }
        Ok(records) => Ok(begun + records),
        // The cell ended between the renaming of the last file and the creation of the next.
        Err(error) if error == FileError::NotFound.to_string() => Ok(begun),
        Err(error) => Err(error),
    }
}

/// Checks the records of a file. Returns their number; an incomplete one at the end does not count.
async fn check_file(volume: &Volume, path: &str, first: u64) -> Result<u64, String> {
    let file = volume.open(path).await.map_err(|error| error.to_string())?;
    let mut count = 0;
    loop {
        let bytes = file.read(count * LEN as u64, LEN).await.map_err(|error| error.to_string())?;
        if bytes.len() < LEN {
            return Ok(count);
        }
        if bytes[..] != record(first + count)[..] {
            // A record beyond the last sync may have any contents.
            let is_last = file.read((count + 1) * LEN as u64, 1).await.is_ok_and(|rest| rest.is_empty());
            return if is_last {
                Ok(count)
            } else {
                Err(format!("record {} of {path} is wrong", first + count))
            };
        }
        count += 1;
    }
}

/// Writes a record, and makes it permanent.
async fn write(volume: &Volume, root: &str, number: u64) -> Result<(), FileError> {
    let new = format!("{root}/new");
    let index = number % RECORDS;
    let file = match volume.open(&new).await {
        Err(FileError::NotFound) => volume.create(&new).await?,
        opened => opened?,
    };
    file.write(index * LEN as u64, IoBuf::copy_from_slice(&record(number))).await?;
    file.sync().await?;
    drop(file);
    if index + 1 == RECORDS {
        finish(volume, root, number / RECORDS).await?;
    }
    Ok(())
}

/// Gives a full file its number as its name, and removes the oldest.
async fn finish(volume: &Volume, root: &str, full: u64) -> Result<(), FileError> {
    volume.rename(format!("{root}/new"), format!("{root}/{full}")).await?;
    if let Some(old) = full.checked_sub(KEPT) {
        match volume.remove(format!("{root}/{old}")).await {
            Ok(()) | Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    volume.sync().await
}
