//! A test image: a client of the volume at `/data`, its own or one of a service cell.
//!
//! | arguments | effect |
//! |---|---|
//! | `load COUNT` | writes and syncs COUNT records in turn in 16 files, and checks all of them at the end |
//! | `check COUNT` | checks the records that `load COUNT` has written |
//! | `read SECONDS` | reads a file of 1 MiB again and again, without the cache; prints the number of reads |
//! | `reads COUNT DEPTH` | prints `ready`; two seconds later reads COUNT random blocks of 4 KiB past the cache, DEPTH at a time, and prints the time; waits until it is stopped |
//! | `costs` | prints the cycles of a read of 4 KiB, and of a write with its sync |
//! | `folders MS NAME...` | serves folders of the cell's volume, and panics after MS milliseconds |
//! | `serve MS` | serves the cell's volumes, and panics after MS milliseconds |
//! | `attack CELL/VOLUME COUNT` | violates the protocol of served volumes COUNT times, in all steps |
//! | `die STEP CELL/VOLUME` | ends the cell at a step of a connection: `hello`, `offer`, `map`, `requests` |
//! | `hold` | mounts the volume, and waits until it is stopped |
#![no_std]
#![no_main]

use core::time::Duration;
use isola::ebbs::cycles;
use isola::events::{now, sleep, spawn_task};
use isola::iobuf::{IoBuf, IoBufMut};
use isola::prelude::*;
use isola::storage::{self, File, FileError, MountedVolume, Volume};

extern crate alloc;

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

mod hostile;

isola::app!(main);

const FILES: u32 = 16;

/// The length of a record, in bytes: some blocks and a part.
const RECORD_LEN: usize = 9000;

async fn main(arguments: Arguments) -> ExitCode {
    let words: Vec<&str> = arguments.iter().collect();
    let number = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    if words.first() == Some(&"serve") {
        return serve(number).await;
    }
    if words.first() == Some(&"folders") {
        return serve_folders(number, words.get(2..).unwrap_or_default()).await;
    }
    let hostile = match words[..] {
        ["attack", volume, count] => Some(hostile::attack(volume, count.parse().unwrap_or(0)).await),
        ["die", step, volume] => Some(hostile::die(step, volume).await),
        _ => None,
    };
    if let Some(done) = hostile {
        return match done {
            Ok(text) => {
                println!("volume-client: {text}");
                ExitCode::SUCCESS
            }
            Err(text) => {
                println!("volume-client: failed: {text}");
                ExitCode::FAILURE
            }
        };
    }
    let volumes = match storage::mount().await {
        Ok(volumes) => volumes,
        Err(error) => {
            println!("volume-client: {error}");
            return ExitCode::FAILURE;
        }
    };
    let Some(mounted) = volumes.iter().next() else { return ExitCode::USAGE };
    println!("volume-client: mounted {} at {}", mounted.name, mounted.path);
    let done = match words.first().copied() {
        Some("load") => load(&mounted.volume, number).await,
        Some("check") => check(&mounted.volume, number).await,
        Some("read") => read(mounted, Duration::from_secs(number.into())).await,
        Some("reads") => match words.get(2).and_then(|word| word.parse().ok()) {
            Some(depth) => reads(mounted, number, depth).await,
            None => return ExitCode::USAGE,
        },
        Some("costs") => costs(mounted).await,
        Some("hold") => {
            isola::stop_requested().await;
            Ok("held".to_string())
        }
        _ => return ExitCode::USAGE,
    };
    let unmounted = volumes.unmount().await;
    match (done, unmounted) {
        (Ok(text), Ok(())) => {
            println!("volume-client: {text}");
            ExitCode::SUCCESS
        }
        (Err(text), _) => {
            println!("volume-client: failed: {text}");
            ExitCode::FAILURE
        }
        (_, Err(error)) => {
            println!("volume-client: failed: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(crash_after_ms: u32) -> ExitCode {
    match storage::serve_volumes().await {
        Ok(names) => println!("volume-client: serving {}", names.join(", ")),
        Err(error) => {
            println!("volume-client: {error}");
            return ExitCode::FAILURE;
        }
    }
    sleep(Duration::from_millis(crash_after_ms.into())).await;
    panic!("this service cell crashes");
}

async fn serve_folders(crash_after_ms: u32, names: &[&str]) -> ExitCode {
    match storage::serve_folders(names).await {
        Ok(served) => {
            println!("volume-client: serving {}", served.names().join(", "));
            sleep(Duration::from_millis(crash_after_ms.into())).await;
            panic!("this service cell crashes");
        }
        Err(error) => println!("volume-client: {error}"),
    }
    ExitCode::FAILURE
}

/// Returns the contents of a record.
fn record(number: u32) -> Vec<u8> {
    let mut state = number.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..RECORD_LEN).map(|_| next()).collect()
}

fn path(number: u32) -> String {
    format!("/record-{}", number % FILES)
}

fn text(error: FileError) -> String {
    error.to_string()
}

async fn create(volume: &Volume, path: &str) -> Result<File, String> {
    match volume.create(path).await {
        Err(FileError::AlreadyExists) => volume.open(path).await.map_err(text),
        result => result.map_err(text),
    }
}

async fn load(volume: &Volume, count: u32) -> Result<String, String> {
    for number in 0..count {
        let file = create(volume, &path(number)).await?;
        file.write(0, IoBuf::from(record(number))).await.map_err(text)?;
        file.sync().await.map_err(text)?;
        if number % 10 == 0 {
            println!("volume-client: synced {number}");
        }
    }
    check(volume, count).await
}

async fn check(volume: &Volume, count: u32) -> Result<String, String> {
    for number in count.saturating_sub(FILES)..count {
        let file = volume.open(&path(number)).await.map_err(text)?;
        let read = file.read(0, RECORD_LEN).await.map_err(text)?;
        if read[..] != record(number)[..] {
            return Err(format!("record {number} differs"));
        }
    }
    Ok(format!("{count} records are right"))
}

/// Writes a file of 1 MiB, and returns it with an empty cache.
async fn large(mounted: &MountedVolume) -> Result<File, String> {
    let file = create(&mounted.volume, "/large").await?;
    for part in 0..16 {
        file.write(part << 16, IoBuf::from(vec![part as u8; 1 << 16])).await.map_err(text)?;
    }
    file.sync().await.map_err(text)?;
    Ok(file)
}

async fn read(mounted: &MountedVolume, duration: Duration) -> Result<String, String> {
    let file = large(mounted).await?;
    let end = now() + duration;
    let mut reads = 0;
    while now() < end {
        if let Some(cache) = &mounted.cache {
            cache.shrink(usize::MAX);
        }
        for part in 0..16 {
            let chain = file.read_chain(part << 16, 1 << 16).await.map_err(text)?;
            if chain.len() != 1 << 16 || chain.to_vec().iter().any(|byte| *byte != part as u8) {
                return Err(format!("part {part} differs"));
            }
            reads += 1;
        }
    }
    Ok(format!("{reads} reads"))
}

/// The sectors of a block of 4 KiB, and the blocks from which `reads` chooses: 8 MiB.
const BLOCK_SECTORS: u64 = 8;
const BLOCKS: u64 = 2048;

async fn reads(mounted: &MountedVolume, count: u32, depth: u32) -> Result<String, String> {
    let Some(cache) = &mounted.cache else { return Err("a folder has no device".to_string()) };
    println!("volume-client: ready");
    // Time to read the counters of an idle machine.
    sleep(Duration::from_secs(2)).await;
    let begin = now();
    let readers = (0..depth.max(1)).map(|reader| {
        let device = cache.device().clone();
        spawn_task(async move {
            let mut state = u64::from(reader) * 0x9e37_79b9_7f4a_7c15 + 1;
            for _ in 0..count / depth.max(1) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut buffer = IoBufMut::with_room(0, 4096);
                buffer.append(4096);
                let sector = (state >> 33) % BLOCKS * BLOCK_SECTORS;
                device.read(sector, vec![buffer]).await.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await?;
    }
    println!("volume-client: took {} ns", now().since(begin).as_nanos());
    isola::stop_requested().await;
    Ok("stopped".to_string())
}

async fn costs(mounted: &MountedVolume) -> Result<String, String> {
    const ROUNDS: u64 = 200;
    let file = large(mounted).await?;
    let mut reading = 0;
    for round in 0..ROUNDS {
        if let Some(cache) = &mounted.cache {
            cache.shrink(usize::MAX);
        }
        let begin = cycles();
        file.read_chain((round % 256) << 12, 4096).await.map_err(text)?;
        reading += cycles() - begin;
    }
    let begin = cycles();
    for round in 0..ROUNDS {
        file.write((round % 256) << 12, IoBuf::from(vec![7; 4096])).await.map_err(text)?;
        file.sync().await.map_err(text)?;
    }
    let writing = cycles() - begin;
    Ok(format!("cycles of a read {}, of a write {}", reading / ROUNDS, writing / ROUNDS))
}
