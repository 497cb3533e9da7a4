//! A cell that asks for more memory than it began with.

use crate::check_memory;
use crate::said::{exit, print, say};
use isola_abi::descriptor::Descriptor;
use isola_abi::growth::{Answer, SMALLEST_CHUNK};
use isola_abi::id::NodeId;
use isola_abi::report::CellPhase;
use isola_machine::cell;

/// What is done with the memory that has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Each of its words is looked at, and written to.
    All,
    /// Nothing: the core only waits for more.
    Nothing,
}

/// Asks for memory until it is refused, in chunks of up to so many MiB. Exits with the number of words that were not
/// zero in what it got, as far as it looked.
pub fn go(descriptor: &Descriptor, mib: u64, used: Use) -> ! {
    let mut bytes = descriptor.memory_bytes;
    let mut dirty = 0;
    let refusal = loop {
        let number = cell::request_memory(SMALLEST_CHUNK, mib << 20, NodeId(0));
        say(CellPhase::Running);
        let answer = loop {
            if let Some(answer) = cell::answer_to(number) {
                break answer;
            }
            core::hint::spin_loop();
        };
        let Answer::Refused(refusal) = answer else {
            let (node, memory) = cell::take_grown().expect("what was given is there");
            bytes += memory.len() as u64;
            if used == Use::All {
                dirty += check_memory([(node, memory)]);
            }
            continue;
        };
        break refusal;
    };
    assert!(cell::take_grown().is_none(), "there is no more than was told");
    print(format_args!("{} MiB in the end: {refusal:?}\n", bytes >> 20));
    exit(dirty)
}
