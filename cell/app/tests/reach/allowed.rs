//! What an application may do compiles: the other files are rejected for what they name, not for how they are built.
#![forbid(unsafe_code)]

use isola::prelude::*;

fn main() {
    let _: fn() -> u64 = isola::entropy;
    let _: fn() -> usize = isola::core_count;
    let _: String = "text".to_string();
    let _ = isola::memory::CellHeap;
}
