//! A service cell of folders: other cells of the machine mount folders of its volumes (`isola run --service files`).
//!
//! ```text
//! folders [NAME...]
//! ```
//!
//! A directory in the root directory of a volume is a folder, with its name. With names, `folders` serves these, and creates
//! those that do not exist in the first volume; without, all. Cells that this one accepts mount them with
//! `-v NAME@CELL:PATH`.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::vec::Vec;
use isola::prelude::*;

isola::app!(main);

async fn main(arguments: Arguments) -> ExitCode {
    let names: Vec<&str> = arguments.iter().collect();
    let served = match isola::storage::serve_folders(&names).await {
        Ok(served) => served,
        Err(error) => {
            println!("folders: {error}");
            return ExitCode::FAILURE;
        }
    };
    println!("folders: serving {}", served.names().join(", "));
    isola::stop_requested().await;
    if let Err(error) = served.sync().await {
        println!("folders: the latest changes cannot be written: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
