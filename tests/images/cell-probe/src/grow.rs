//! A cell that requests memory.

use crate::cell_report::{exit, print, report_phase};
use crate::check_memory;
use isola_abi::descriptor::Descriptor;
use isola_abi::growth::{Answer, SMALLEST_BLOCK};
use isola_abi::id::NodeId;
use isola_abi::report::CellPhase;
use isola_machine::cell;

/// The use of the granted memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum MemoryUse {
    /// All words are checked and written.
    All,
    /// The memory is not used; the core only waits for more.
    Nothing,
}

/// Requests memory until a request is refused, in blocks of up to `mib` MiB. Exits with the number of nonzero words in
/// the memory that it checked.
pub fn go(descriptor: &Descriptor, mib: u64, used: MemoryUse) -> ! {
    let mut bytes = descriptor.memory_bytes;
    let mut dirty = 0;
    let refusal = loop {
        let number = cell::request_memory(SMALLEST_BLOCK, mib << 20, NodeId(0));
        report_phase(CellPhase::Running);
        let answer = loop {
            if let Some(answer) = cell::answer_to(number) {
                break answer;
            }
            core::hint::spin_loop();
        };
        let Answer::Refused(refusal) = answer else {
            let (node, memory) = cell::take_plugged_block().expect("the granted block is in the live words");
            bytes += memory.len() as u64;
            if used == MemoryUse::All {
                dirty += check_memory([(node, memory)]);
            }
            continue;
        };
        break refusal;
    };
    assert!(cell::take_plugged_block().is_none(), "there is no block without an answer");
    print(format_args!("{} MiB in the end: {refusal:?}\n", bytes >> 20));
    exit(dirty)
}
