//! Going wrong on purpose, on machines that were booted for tests: so it can be seen that cells do not notice.

use core::hint::{black_box, spin_loop};
use isola_abi::management::Fault;
use isola_machine::boot::command_line::CommandLine;
use isola_machine::fault_injection::{self, InjectedFault};
use isola_machine::restart;

/// The word of the command line that allows it.
const WORD: &str = "isola.test-faults=1";

/// Whether it is allowed, and what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// It is not allowed.
    Refused,
    /// It is.
    Allowed,
    /// A panic is due when a cell ends.
    AtEnd,
}

impl Faults {
    /// What the machine was told when it was booted.
    pub fn allowed(command_line: &CommandLine) -> Self {
        if command_line.unknown.iter().any(|word| word == WORD) { Self::Allowed } else { Self::Refused }
    }

    /// Goes wrong, if that is allowed. Returns whether that is still to come.
    pub fn commit(&mut self, fault: Fault) -> bool {
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

    /// A cell ends: its cores are back, and its device is not.
    pub fn at_end(self) {
        assert!(self != Self::AtEnd, "as a test asks, in the middle of the end of a cell");
    }
}

fn overflow(depth: u64) -> u64 {
    let frame = black_box([depth; 64]);
    if depth == u64::MAX { 0 } else { overflow(depth + 1) + frame[0] }
}
