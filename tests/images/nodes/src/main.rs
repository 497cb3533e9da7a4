//! A test image: an application that checks on which node its cores' memory is; or, with `wakes`, how cores wake.
#![no_std]
#![no_main]

mod wakes;

use isola::ebbs::current_core;
use isola::events::parallel;
use isola::prelude::*;
use isola_abi::id::{NodeId, PhysAddr};
use isola_abi::layout::DIRECT_MAP;
use isola_ebbs::platform;

isola::app!(main);

/// The sizes of the objects: one of a size class, one of whole pages.
const SIZES: [usize; 2] = [1000, 100_000];

async fn main(arguments: Arguments) -> ExitCode {
    if arguments.get(0) == Some("wakes") {
        wakes::measure().await;
        return ExitCode::SUCCESS;
    }
    for (core, near) in parallel(isola::core_count(), |_| async { all_near() }).await.into_iter().enumerate()
    {
        println!("core {core}: {}", if near { "near" } else { "far" });
    }
    ExitCode::SUCCESS
}

/// Returns whether all memory that this core allocates is on its node.
fn all_near() -> bool {
    let core = current_core();
    let own = platform().descriptor().cores.get(core.0 as usize).map(|core| core.node);
    let objects: Vec<Vec<u8>> = (0..100).map(|number| vec![0_u8; SIZES[number % SIZES.len()]]).collect();
    let mut nodes = objects.iter().filter_map(|object| node_of(object.as_ptr().addr() as u64));
    nodes.all(|node| Some(node) == own)
}

/// Returns the node of the memory at `address`; `None` if it is not in the pool, but in the image.
fn node_of(address: u64) -> Option<NodeId> {
    let address = PhysAddr(address.checked_sub(DIRECT_MAP)?);
    platform().descriptor().pool.iter().find(|range| range.memory.contains(address)).map(|range| range.node)
}
