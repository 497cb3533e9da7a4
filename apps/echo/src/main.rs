//! The echo server: returns the data of each connection.
//!
//! `echo [PORT]`, by default 7.
#![no_std]
#![no_main]

use isola::net;
use isola::prelude::*;

isola::app!(main);

const DEFAULT_PORT: u16 = 7;

/// The number of connections per core that can wait for acceptance.
const BACKLOG: usize = 128;

async fn main(arguments: Arguments) -> ExitCode {
    let port = match arguments.get(0).map(str::parse) {
        None => DEFAULT_PORT,
        Some(Ok(port)) => port,
        Some(Err(_)) => {
            println!("usage: echo [PORT]");
            return ExitCode::USAGE;
        }
    };
    let _listening = match net::listen_with(port, BACKLOG, |_| isola_echo::Echo::default()) {
        Ok(listening) => listening,
        Err(error) => {
            println!("echo: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("echo: TCP port {port}, {} cores", isola::core_count());
    isola::stop_requested().await;
    ExitCode::SUCCESS
}
