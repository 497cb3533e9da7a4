//! A test image: an application that names its own allocator, and misuses memory as its argument says.
#![no_std]
#![no_main]

use isola::memory::misuse_injection::{InjectedMisuse, inject};
use isola::memory::{CellHeap, Hardened};
use isola::prelude::*;

isola::app!(main, allocator: Hardened<CellHeap> = Hardened::new(CellHeap));

/// The number of objects allocated after the misuse: more than the allocator keeps in quarantine.
const OTHERS: u64 = 1000;

async fn main(arguments: Arguments) -> ExitCode {
    let wanted = arguments.get(0).unwrap_or_default();
    if let Some(misuse) = InjectedMisuse::ALL.into_iter().find(|misuse| format!("{misuse:?}") == wanted) {
        inject(misuse, &ALLOCATOR);
    }
    for number in 0..OTHERS {
        let other = core::hint::black_box(Box::new(number));
        assert_eq!(*other, number, "the allocator works");
    }
    println!("{} objects were made and freed", OTHERS);
    ExitCode::SUCCESS
}
