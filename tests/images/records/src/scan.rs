//! `records scan PATH`: an activity that reads ten times the cell's memory beside one that rereads a few blocks.
//!
//! Both read files of the volume at `PATH`: `small`, and `large`, which is longer than the cache. Each block of 4 KiB of
//! a file begins with its number. The image prints the hits and accesses of the second activity, first without the scan:
//!
//! ```text
//! alone: HITS of ACCESSES
//! beside: HITS of ACCESSES, scanned BYTES
//! ```
//!
//! Then it reads random blocks of both files until it is stopped, and prints how many were right, and the bytes in the
//! cache and of the cell.

use alloc::rc::Rc;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use isola::events::{register_activity, spawn_task, spawn_task_for, yield_now};
use isola::prelude::*;
use isola::storage::{self, BlockCache, File, Volume};
use isola_abi::id::ActivityId;

const BLOCK: usize = 4096;

/// The bytes of a read of the scan.
const RUN: usize = 256 << 10;

/// The scan reads this many times the cell's memory.
const TIMES: usize = 10;

/// The random reads between two lines.
const READS: u64 = 256;

struct Files<'a> {
    cache: &'a BlockCache,
    small: Rc<File>,
    large: Rc<File>,
    small_len: u64,
    large_len: u64,
}

pub async fn scan(path: &str) -> Result<(), String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let mounted = volumes.iter().find(|mounted| mounted.path == path).ok_or("no volume at the path")?;
    let (small, small_len) = open(&mounted.volume, "/small").await?;
    let (large, large_len) = open(&mounted.volume, "/large").await?;
    let cache = mounted.cache.as_ref().ok_or("no block device at the path")?;
    let files = Files { cache, small, large, small_len, large_len };
    let [reader, scanning] = ["reader", "scan"].map(register_activity);
    let (reader, scanning) = (reader.map_err(text)?, scanning.map_err(text)?);
    let runs = TIMES * isola::memory_total() / RUN;
    // The first reads are misses.
    read_small(&files, reader, Rc::new(Cell::new(usize::MAX)), 4 * runs).await?;
    let (hits, accesses) = read_small(&files, reader, Rc::new(Cell::new(usize::MAX)), runs).await?;
    println!("alone: {hits} of {accesses}");
    let scanned = Rc::new(Cell::new(0));
    let scan = spawn_task_for(scanning, read_large(files.large.clone(), large_len, scanned.clone(), runs));
    let (hits, accesses) = read_small(&files, reader, scanned, runs).await?;
    scan.await?;
    println!("beside: {hits} of {accesses}, scanned {}", runs * RUN);
    reread(&files).await
}

fn text(error: impl core::fmt::Display) -> String {
    error.to_string()
}

async fn open(volume: &Volume, path: &str) -> Result<(Rc<File>, u64), String> {
    let file = volume.open(path).await.map_err(text)?;
    let len = volume.metadata(path).await.map_err(text)?.len;
    if len < RUN as u64 { Err(format!("{path} is too short")) } else { Ok((Rc::new(file), len)) }
}

/// Reads blocks of a file from a position on, and checks the number in each.
async fn check(file: &File, at: u64, len: usize) -> Result<(), String> {
    let chain = file.read_chain(at, len).await.map_err(text)?;
    if chain.len() != len {
        return Err(format!("{} of {len} bytes at {at} were read", chain.len()));
    }
    for (number, block) in (at / BLOCK as u64..).zip(chain.parts()) {
        if block.len() != BLOCK || block[..8] != number.to_le_bytes() {
            return Err(format!("the block at {} is wrong", number * BLOCK as u64));
        }
    }
    Ok(())
}

/// Reads a random block of `small` for each run of the scan, `count` times. Returns the hits and all accesses.
async fn read_small(
    files: &Files<'_>,
    reader: ActivityId,
    scanned: Rc<Cell<usize>>,
    count: usize,
) -> Result<(u64, u64), String> {
    let before = files.cache.usage(reader);
    let (file, len) = (files.small.clone(), files.small_len);
    let reads = spawn_task_for(reader, async move {
        for read in 0..count {
            // No more often than this: if the least recently used block were evicted, by whichever reader, few would hit.
            while scanned.get() < read {
                yield_now().await;
            }
            let block = isola::entropy() % (len / BLOCK as u64);
            check(&file, block * BLOCK as u64, BLOCK).await?;
        }
        Ok::<(), String>(())
    });
    reads.await?;
    let after = files.cache.usage(reader);
    let (hits, misses) = (after.hits - before.hits, after.misses - before.misses);
    Ok((hits, hits + misses))
}

async fn read_large(file: Rc<File>, len: u64, scanned: Rc<Cell<usize>>, runs: usize) -> Result<(), String> {
    for run in 0..runs {
        check(&file, (run * RUN) as u64 % (len / RUN as u64 * RUN as u64), RUN).await?;
        scanned.set(run + 1);
    }
    scanned.set(usize::MAX);
    Ok(())
}

/// Reads random blocks of both files until the cell is stopped.
async fn reread(files: &Files<'_>) -> Result<(), String> {
    static IS_STOPPED: AtomicBool = AtomicBool::new(false);
    spawn_task(async {
        isola::stop_requested().await;
        IS_STOPPED.store(true, Ordering::Relaxed);
    })
    .detach();
    let mut right = 0_u64;
    while !IS_STOPPED.load(Ordering::Relaxed) {
        for read in 0..READS {
            let (file, len) =
                if read % 4 == 0 { (&files.small, files.small_len) } else { (&files.large, files.large_len) };
            let block = isola::entropy() % (len / BLOCK as u64);
            check(file, block * BLOCK as u64, BLOCK).await?;
            yield_now().await;
        }
        right += READS;
        let (cached, _) = files.cache.len_bytes();
        println!("right: {right}, cached {cached} of {}", isola::memory_total());
    }
    Ok(())
}
