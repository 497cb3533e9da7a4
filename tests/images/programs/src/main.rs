//! A test image: small programs in user mode, given as machine code, and checks of their effects in ring 0.
//!
//! | argument | effect |
//! |---|---|
//! | none | all checks; then prints `programs: all checks passed`, and ends |
//! | `calls` | a program on each core makes system calls until the cell is asked to stop; checks each of them |
//! | `stubborn` | the same, in events of three seconds, on all cores but the first |
//! | `loop` | a program on each core computes until the cell is asked to stop |
//! | `costs` | prints the cycles of a system call and of a page fault: instructions, on a machine that counts these |
#![no_std]
#![no_main]

mod costs;
mod endless;
mod extended;
mod faults;
mod hostile;
mod interrupts;
mod program;
mod registers;
mod spaces;

use isola::prelude::*;

isola::app!(main);

async fn main(arguments: Arguments) -> ExitCode {
    if isola::user_mode().is_none() {
        println!("programs: the processor runs no programs");
        return ExitCode(3);
    }
    match arguments.get(0) {
        Some("calls") => endless::calls().await,
        Some("stubborn") => endless::stubborn().await,
        Some("loop") => endless::loops().await,
        Some("costs") => costs::print().await,
        _ => {
            registers::check().await;
            faults::check().await;
            hostile::check().await;
            extended::check().await;
            spaces::check().await;
            interrupts::check().await;
            println!("programs: all checks passed");
        }
    }
    ExitCode::SUCCESS
}
