//! Touches every page of fresh memory in the Linux guest, and prints the time in ns. `linux-touch MIB`.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

const PAGE: usize = 4096;

fn main() -> ExitCode {
    let mib: Option<usize> = std::env::args().nth(1).and_then(|mib| mib.parse().ok());
    let Some(mib) = mib else {
        eprintln!("usage: linux-touch MIB");
        return ExitCode::from(2);
    };
    let start = Instant::now();
    // An allocation of this size is a separate mapping, whose pages are not populated until the first access.
    let mut memory = black_box(vec![0_u8; mib << 20]);
    memory.chunks_mut(PAGE).for_each(|page| page[0] = 1);
    black_box(&mut memory);
    println!("guest: touched {}", start.elapsed().as_nanos());
    ExitCode::SUCCESS
}
