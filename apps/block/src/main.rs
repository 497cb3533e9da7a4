//! A service cell of volumes: other cells of the machine mount its volumes (`isola run --service block`).
//!
//! `block` takes no arguments. A volume at `/data` has the name `data`; of a volume with partitions (`isola volume create
//! --part`), each partition has its own name. Cells that this one accepts mount it with `-v data@CELL:PATH`.
#![no_std]
#![no_main]

use isola::prelude::*;

isola::app!(main);

async fn main(arguments: Arguments) -> ExitCode {
    if arguments.get(0).is_some() {
        println!("usage: block");
        return ExitCode::USAGE;
    }
    match isola::storage::serve_volumes().await {
        Ok(names) => println!("block: serving {}", names.join(", ")),
        Err(error) => {
            println!("block: {error}");
            return ExitCode::FAILURE;
        }
    }
    isola::stop_requested().await;
    ExitCode::SUCCESS
}
