//! The image of the key-value server: it parses the arguments and listens.
//!
//! The usage is `kv [-p PORT] [-m MEGABYTES] [-I MAX_VALUE_BYTES[k|m]] [-c CONNECTIONS]`. The options have memcached's
//! meaning, except `-c`, which limits the connections per core.
#![no_std]
#![no_main]

mod options;

use isola::net;
use isola::prelude::*;
use isola_kv::{KeyHasher, Server};
use options::Options;

isola::app!(main);

/// The number of connections per core that may wait to be accepted.
const BACKLOG: usize = 1024;

async fn main(arguments: Arguments) -> ExitCode {
    let options = match Options::parse(&arguments, isola::memory_total()) {
        Ok(options) => options,
        Err(error) => {
            println!("kv: {error}");
            return ExitCode::USAGE;
        }
    };
    let config = match options.config() {
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
    let hasher = KeyHasher::new(isola::entropy());
    let server = Server {
        pid: isola::cell_id(),
        port: options.port,
        max_connections: options.max_connections,
        item_limit: options.item_limit,
        ..Server::new(config, hasher, isola_kv::unix_time())
    };
    isola_kv::prepare(server, isola::memory_total);
    let _listening = match net::listen_with(options.port, BACKLOG, isola_kv::serve) {
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
