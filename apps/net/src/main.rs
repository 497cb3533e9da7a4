//! A service cell of a network: other cells of the machine share its network device (`isola run --service net`).
//!
//! `net` takes no arguments. A cell that this one accepts gets a port of its switch by `--network dhcp@CELL`, or with a fixed
//! address by `--network ADDRESS/PREFIX@CELL`.
#![no_std]
#![no_main]

use isola::ebbs::EbbInUse;
use isola::net::NETWORK_MANAGER;
use isola::network_service::{SwitchedNetwork, serve};
use isola::prelude::*;

isola::app!(main, components: components);

fn components() -> Result<(), EbbInUse> {
    NETWORK_MANAGER.replace(|| Box::new(SwitchedNetwork))
}

async fn main(arguments: Arguments) -> ExitCode {
    if arguments.get(0).is_some() {
        println!("usage: net");
        return ExitCode::USAGE;
    }
    if let Err(error) = serve() {
        println!("net: {error}");
        return ExitCode::FAILURE;
    }
    println!("net: serving");
    isola::stop_requested().await;
    ExitCode::SUCCESS
}
