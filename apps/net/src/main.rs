//! A service cell of a network: other cells of the machine share its network device (`isola run --service net`).
//!
//! ```text
//! net [nat NETWORK/BITS [PORT:CELL:PORT[/udp][,...] | dns:ADDRESS]...]
//! ```
//!
//! A cell that this one accepts gets a port of its switch by `--network dhcp@CELL`, or with a fixed address by
//! `--network ADDRESS/PREFIX@CELL`. With `nat`, the clients have a network of their own, with addresses by DHCP, and their
//! packets leave with the address of this cell; `8080:web:80` publishes port 80 of the client `web` as port 8080 of this cell.
#![no_std]
#![no_main]

use isola::ebbs::EbbInUse;
use isola::net::NETWORK_MANAGER;
use isola::network_service::{NatOptions, SwitchedNetwork, check_networks, serve};
use isola::prelude::*;

isola::app!(main, components: components);

fn components() -> Result<(), EbbInUse> {
    NETWORK_MANAGER.replace(|| Box::new(SwitchedNetwork))
}

async fn main(arguments: Arguments) -> ExitCode {
    let nat = match arguments.get(0) {
        None => None,
        Some("nat") => match NatOptions::parse(arguments.iter().skip(1)) {
            Ok(options) => Some(options),
            Err(error) => {
                println!("net: {error}");
                return ExitCode::USAGE;
            }
        },
        Some(_) => {
            println!("usage: net [nat NETWORK/BITS [PORT:CELL:PORT[/udp][,...] | dns:ADDRESS]...]");
            return ExitCode::USAGE;
        }
    };
    let prefix = nat.as_ref().map(|options| options.prefix);
    if let Err(error) = serve(nat) {
        println!("net: {error}");
        return ExitCode::FAILURE;
    }
    if let Some(prefix) = prefix {
        isola::events::spawn_task(async move {
            if let Err(error) = check_networks(prefix).await {
                println!("net: {error}");
            }
        })
        .detach();
    }
    println!("net: serving");
    isola::stop_requested().await;
    ExitCode::SUCCESS
}
