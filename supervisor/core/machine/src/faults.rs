//! Fault injection into the supervisor, on machines booted for tests, which check that cells are not disturbed.

use core::hint::{black_box, spin_loop};
use isola_abi::management::Fault;
use isola_fault_injection::{self as fault_injection, InjectedFault};
use isola_machine::boot::command_line::CommandLine;
use isola_machine::restart;

/// The word of the command line that allows fault injection.
const WORD: &str = "isola.test-faults=1";

/// Whether fault injection is allowed, and the pending fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// Fault injection is not allowed.
    Refused,
    /// Fault injection is allowed, and no fault is pending.
    Allowed,
    /// The supervisor panics when the next cell ends.
    AtEnd,
}

impl Faults {
    /// Returns the state that the boot command line selects.
    pub fn allowed(command_line: &CommandLine) -> Self {
        if command_line.unknown.iter().any(|word| word == WORD) { Self::Allowed } else { Self::Refused }
    }

    /// Injects `fault`, if that is allowed. Returns whether the fault is still to come.
    pub fn inject(&mut self, fault: Fault) -> bool {
        if *self == Self::Refused {
            return false;
        }
        match fault {
            Fault::Panic => panic!("as a test asks"),
            Fault::PageFault => fault_injection::inject(InjectedFault::NullPointer),
            Fault::StackOverflow => drop(black_box(overflow(0))),
            Fault::Hang => loop {
                spin_loop();
            },
            Fault::PanicAtEnd => *self = Self::AtEnd,
            Fault::PanicWithoutCheckpoint => {
                restart::save_checkpoint(&[]);
                panic!("as a test asks, without an checkpoint");
            }
        }
        *self == Self::AtEnd
    }

    /// Panics if a fault is pending for the end of a cell, when the cell's cores are back and its device is not yet
    /// reset.
    pub fn at_end(self) {
        assert!(self != Self::AtEnd, "as a test asks, in the middle of the end of a cell");
    }
}

fn overflow(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { overflow(depth + 1) + frame[0] }
}
