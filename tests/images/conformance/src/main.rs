//! A test image: the library OS's conformance checks, as an application of a cell. Says of each whether it holds, and
//! ends with exit code 0 where all do.
#![no_std]
#![no_main]

use isola::prelude::*;

isola::app!(main);

async fn main(_: Arguments) -> ExitCode {
    let summary = isola_conformance::run_all(|line| println!("{line}")).await;
    if summary.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
