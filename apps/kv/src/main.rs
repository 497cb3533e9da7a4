//! The server's image: the library's shards and sessions on events, connections and messages between cores.
//!
//! `kv [-p PORT] [-m MEGABYTES] [-I MAX_VALUE_BYTES]`, as memcached's. Each core owns the shard of its number. A
//! connection is served on the core that its flow belongs to; what it asks of another core's shard goes there
//! as one message a batch, and the responses come back as one.
#![no_std]
#![no_main]

extern crate alloc;

mod client;
mod options;
mod serve;

use isola::net;
use isola::prelude::*;
use isola_kv::{KeyHasher, Server};
use options::Options;

isola::app!(main);

/// Connections that wait on a core to be taken.
const BACKLOG: usize = 1024;

/// Connections that are served at once on each core.
const MAX_CONNECTIONS: u32 = 8192;

async fn main(arguments: Arguments) -> ExitCode {
    let options = match Options::parse(&arguments, isola::memory_total()) {
        Ok(options) => options,
        Err(error) => {
            println!("kv: {error}");
            return ExitCode::USAGE;
        }
    };
    let config = match options.config(isola::core_count() as u16) {
        Ok(config) => config,
        Err(error) => {
            println!("kv: {error}");
            return ExitCode::USAGE;
        }
    };
    let memory = match config.memory_limit_bytes() {
        bytes @ ..0x10_0000 => format!("{} KiB", bytes >> 10),
        bytes => format!("{} MiB", bytes >> 20),
    };
    serve::prepare(Server {
        hasher: KeyHasher::new(isola::entropy()),
        pid: isola::cell_id(),
        port: options.port,
        max_connections: MAX_CONNECTIONS,
        started: serve::unix_time(),
        config,
    });
    let _listening = match net::listen_with(options.port, BACKLOG, serve::serve) {
        Ok(listening) => listening,
        Err(error) => {
            println!("kv: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("kv: TCP port {}, {} cores, {memory} for items", options.port, isola::core_count());
    isola::stop_requested().await;
    ExitCode::SUCCESS
}
