//! A test image: the costs of the library OS itself. Prints `NAME: N`, in hundredths of a cycle of the cycle counter,
//! and ends.
//!
//! In a process the counter counts time; on a machine whose clocks count instructions, instructions. Each figure is the
//! least of several rounds, as other work of the host can only add to it.
#![no_std]
#![no_main]

mod calls;
mod events;

use isola::prelude::*;

isola::app!(main);

async fn main(_: Arguments) -> ExitCode {
    calls::measure();
    events::measure().await;
    println!("cycles-per-second: {}", events::cycles_per_second());
    println!("costs: all taken");
    ExitCode::SUCCESS
}

/// Prints a figure: `cycles` for `count` operations.
fn say(name: &str, cycles: u64, count: u64) {
    println!("{name}: {}", cycles * 100 / count);
}
