//! Goes wrong on purpose, in the way that its first argument says: for the demo, for tests, and for whoever wants to
//! see what a crash looks like and that nobody else feels it.
//!
//! `faulty panic | null | write | code | overflow | spin | exhaust | exit CODE | wait`
#![no_std]
#![no_main]

use isola::mishap::{Mishap, commit};
use isola::prelude::*;

isola::app!(main);

const USAGE: &str =
    "usage: faulty panic | null | write | code | overflow | spin | exhaust | exit CODE | wait";

async fn main(arguments: Arguments) -> ExitCode {
    match (arguments.get(0), arguments.get(1)) {
        (Some("panic"), None) => panic!("asked to"),
        (Some("null"), None) => commit(Mishap::NullPointer),
        (Some("write"), None) => commit(Mishap::ForeignMemory),
        (Some("code"), None) => commit(Mishap::OwnCode),
        (Some("overflow"), None) => println!("{}", descend(1)),
        (Some("spin"), None) => loop {
            core::hint::spin_loop();
        },
        (Some("exhaust"), None) => exhaust(),
        (Some("exit"), Some(code)) => match code.parse() {
            Ok(code) => return ExitCode(code),
            Err(_) => println!("{USAGE}"),
        },
        (Some("wait"), None) => {
            isola::stop_requested().await;
            return ExitCode::SUCCESS;
        }
        _ => println!("{USAGE}"),
    }
    ExitCode::USAGE
}

/// Recurses until the stack ends.
#[expect(unconditional_recursion, reason = "overflowing the stack is the purpose")]
fn descend(depth: u64) -> u64 {
    let here = core::hint::black_box([depth; 64]);
    descend(here[63] + 1) + here[0]
}

/// Takes memory until there is none: first as somebody who can go on without, then as somebody who cannot.
fn exhaust() {
    const PIECE: usize = 1 << 20;
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let mut piece = Vec::new();
    while piece.try_reserve_exact(PIECE).is_ok() {
        piece.resize(PIECE, 1);
        taken.push(core::mem::take(&mut piece));
    }
    println!("memory ran out after {} MiB, and the cell goes on", taken.len());
    taken.push(vec![1; PIECE]);
}
