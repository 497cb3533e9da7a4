//! A test image: the library OS's conformance checks, as an application of a cell. Prints the result of each check, and
//! ends with exit code 0 if all pass.
//!
//! Usage: `conformance-image [IP:PORT]`, with the address of an echo server for TCP and UDP.
#![no_std]
#![no_main]

mod network;

use core::net::SocketAddr;
use isola::prelude::*;

isola::app!(main, components: network::components);

async fn main(arguments: Arguments) -> ExitCode {
    let peer: Option<SocketAddr> = match arguments.get(0).map(str::parse).transpose() {
        Ok(peer) => peer,
        Err(_) => {
            println!("usage: conformance-image [IP:PORT]");
            return ExitCode::USAGE;
        }
    };
    let summary = isola_conformance::run_all(|line| println!("{line}")).await;
    let network = match peer {
        Some(peer) => network::check(peer).await,
        None => Ok(()),
    };
    match &network {
        Ok(()) => println!("network: {}", if peer.is_some() { "ok" } else { "not looked at" }),
        Err(error) => println!("network: BROKEN: {error}"),
    }
    if summary.failed == 0 && network.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
