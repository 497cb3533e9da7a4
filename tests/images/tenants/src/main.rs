//! A test image: tenants of one cell, each an activity, until the cell is stopped. The group `grid` of the benchmarks
//! gives them entitlements and measures their shares.
//!
//! | argument | the tenant |
//! |---|---|
//! | `web:PORT` | a web server of files of 4 MiB, 1 MB, 32 KiB and 507 bytes |
//! | `kv:PORT` | a key-value server |
//! | `batch:NAME` | an activity of that name that counts primes |
//! | `read:PATH:NAME` | an activity of that name that opens the file at the path, reads 32 KiB and closes it, in a loop |
//! | `disk:PATH:NAME:BYTES` | an activity of that name that reads random blocks of that length from the device of the volume at the path, past the cache, [`READERS`] at all times |
//!
//! The connections of the servers are attributed by rules.
#![no_std]
#![no_main]

use isola::events::activity::charge_to;
use isola::events::{current_activity, register_activity, spawn_task, yield_if_needed};
use isola::iobuf::IoBufMut;
use isola::net;
use isola::prelude::*;
use isola::storage::{self, BlockCache, FileError, Volume, Volumes};
use isola_kv::{Config, KeyHasher, Server};
use isola_primes::job::Job;
use isola_web::{Site, SiteBuilder};

extern crate alloc;

isola::app!(main);

/// The concurrent reads of an activity that shares a device, as many as of each of three processes in Vortex, 4.3.
const READERS: usize = 341;

/// The bytes that are read from a file at a time (Vortex, 4.1).
const READ: usize = 32 << 10;

/// The number of connections that can wait for acceptance.
const BACKLOG: usize = 1024;

/// The memory of the key-value server for items, in bytes.
const KV_BYTES: usize = 64 << 20;

/// The shards of the key-value server, among which its memory is divided.
const KV_SHARDS: u16 = 4;

/// The bound of the numbers among which the batch job counts primes; then it begins again.
const NUMBER: u64 = 100_000_000;

/// The files of the web servers.
const FILES: [(&str, usize); 4] = [("4m", 4 << 20), ("1m", 1_000_000), ("32k", 32 << 10), ("507", 507)];

const USAGE: &str =
    "usage: tenants web:PORT | kv:PORT | batch:NAME | read:PATH:NAME | disk:PATH:NAME:BYTES ...";

async fn main(arguments: Arguments) -> ExitCode {
    match run(&arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("tenants: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: &Arguments) -> Result<(), String> {
    let volumes = storage::mount().await.map_err(|error| error.to_string())?;
    let mut site: Option<&'static Site> = None;
    let mut listening = Vec::new();
    for argument in arguments.iter() {
        let words: Vec<&str> = argument.split(':').collect();
        match words[..] {
            ["web", port] => {
                let site = match site {
                    Some(site) => site,
                    None => site.insert(build_site()?),
                };
                let serve = move |connection: &_| isola_web::serve(connection, site);
                listening.push(net::listen_with(parse(port)?, BACKLOG, serve).map_err(|e| e.to_string())?);
            }
            ["kv", port] => {
                let config = Config::new(KV_BYTES, KV_SHARDS).map_err(|error| error.to_string())?;
                let server = Server::new(config, KeyHasher::new(isola::entropy()), isola_kv::unix_time());
                isola_kv::prepare(server, isola::memory_total);
                let listen = net::listen_with(parse(port)?, BACKLOG, isola_kv::serve);
                listening.push(listen.map_err(|error| error.to_string())?);
            }
            ["batch", name] => as_activity(name, || spawn_task(count_primes()).detach())?,
            ["read", path, name] => {
                let (volume, path) = volumes.find(path).ok_or("no volume at the path")?;
                let (volume, path) = (volume.clone(), path.to_string());
                as_activity(name, move || spawn_task(read_files(volume, path)).detach())?;
            }
            ["disk", path, name, len] => {
                let (cache, len) = (cache_at(&volumes, path)?, parse(len)?);
                as_activity(name, || {
                    for _ in 0..READERS {
                        spawn_task(read_blocks(cache.clone(), len)).detach();
                    }
                })?;
            }
            _ => return Err(USAGE.into()),
        }
    }
    println!("tenants: running, TCP port");
    isola::stop_requested().await;
    Ok(())
}

fn parse<T: core::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text} is no valid number"))
}

/// Runs `start` for a new activity of that name. The tasks that it spawns belong to the activity.
fn as_activity(name: &str, start: impl FnOnce()) -> Result<(), String> {
    let activity = register_activity(name).map_err(|_| "too many activities")?;
    let before = current_activity();
    charge_to(activity);
    start();
    charge_to(before);
    Ok(())
}

/// Returns the cache of the volume that is mounted at exactly that path.
fn cache_at(volumes: &Volumes, path: &str) -> Result<BlockCache, String> {
    let mounted = volumes.iter().find(|mounted| mounted.path == path);
    let cache = &mounted.ok_or("no volume at the path")?.cache;
    cache.clone().ok_or_else(|| "no block device at the path".into())
}

/// Returns the site with [`FILES`]. It exists until the cell ends.
fn build_site() -> Result<&'static Site, String> {
    let mut site = SiteBuilder::new(isola::entropy());
    for (name, len) in FILES {
        let content: Vec<u8> = (0..len).map(|position| b'a' + (position % 26) as u8).collect();
        site.add(name, content.leak(), None).map_err(|error| error.to_string())?;
    }
    Ok(Box::leak(Box::new(site.build())))
}

/// Counts primes, forever.
async fn count_primes() {
    loop {
        let job = Job::new(NUMBER);
        let mut counter = job.counter();
        while job.step_with(&mut counter, yield_if_needed).await {
            yield_if_needed().await;
        }
    }
}

/// Opens, reads and closes a file, until an error.
async fn read_files(volume: Volume, path: String) {
    let read = async || -> Result<usize, FileError> {
        let file = volume.open(&path).await?;
        Ok(file.read(0, READ).await?.len())
    };
    loop {
        match read().await {
            Ok(READ) => yield_if_needed().await,
            Ok(len) => return println!("tenants: {path} has {len} bytes only"),
            Err(error) => return println!("tenants: {path} cannot be read: {error}"),
        }
    }
}

/// Reads random blocks of that length from the device below a cache, until an error.
async fn read_blocks(cache: BlockCache, len: usize) {
    let device = cache.device().clone();
    let places = device.capacity() * 512 / len as u64;
    loop {
        let mut buffer = IoBufMut::with_room(0, len);
        buffer.append(len);
        let sector = isola::entropy() % places * (len / 512) as u64;
        if let Err(error) = device.read(sector, vec![buffer]).await {
            return println!("tenants: a block cannot be read: {error}");
        }
    }
}
