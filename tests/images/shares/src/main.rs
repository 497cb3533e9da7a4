//! A test image: activities that compete for all cores, until the cell is stopped. `shares NAME:CYCLES ...` runs an
//! activity of that name, which has an event of that length on each core at all times.
#![no_std]
#![no_main]

use alloc::string::String;
use alloc::vec::Vec;
use isola::ebbs::cycles;
use isola::events::activity::charge_to;
use isola::events::{present_cores, register_activity, spawn_task_on, yield_now};
use isola::prelude::*;

extern crate alloc;

isola::app!(main);

async fn main(arguments: Arguments) -> ExitCode {
    let loads: Option<Vec<(String, u64)>> = arguments.iter().map(load).collect();
    let Some(loads) = loads.filter(|loads| !loads.is_empty()) else {
        println!("usage: shares NAME:CYCLES ...");
        return ExitCode::USAGE;
    };
    for (name, length) in loads {
        let Ok(activity) = register_activity(&name) else {
            println!("shares: too many activities");
            return ExitCode::FAILURE;
        };
        charge_to(activity);
        for core in present_cores() {
            spawn_task_on(core, move || async move {
                loop {
                    let began = cycles();
                    while cycles() - began < length {}
                    yield_now().await;
                }
            });
        }
    }
    println!("shares: running");
    isola::stop_requested().await;
    ExitCode::SUCCESS
}

/// Parses a name and the length of its events.
fn load(argument: &str) -> Option<(String, u64)> {
    let (name, length) = argument.split_once(':')?;
    Some((name.into(), length.parse().ok()?))
}
