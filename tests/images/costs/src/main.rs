//! A test image: what the library OS itself costs. Says `NAME: N`, in hundredths of a cycle of the cycle counter, and ends.
//!
//! In a process the counter counts time. On a machine whose clocks go by its instructions it counts those. Each figure is
//! the least of several rounds, as whatever else the host does only adds.
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

/// Says a figure: `cycles` for `count` times.
fn say(name: &str, cycles: u64, count: u64) {
    println!("{name}: {}", cycles * 100 / count);
}
