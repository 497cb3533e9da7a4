//! A valid application compiles. The compiler therefore rejects the other files for the items that they name, not for
//! their package.
#![forbid(unsafe_code)]

use isola::prelude::*;

fn main() {
    let _: fn() -> u64 = isola::entropy;
    let _: fn() -> usize = isola::core_count;
    let _: String = "text".to_string();
    let _ = isola::memory::CellHeap;
}
