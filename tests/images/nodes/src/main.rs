//! A test image: an application that looks where the memory is that its cores get; or, with `wakes`, how these wake.
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

/// Objects of these sizes are made: of a class, and of whole pages.
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

/// Whether all that the core that runs gets is of its node.
fn all_near() -> bool {
    let core = current_core();
    let own = platform().descriptor().cores.get(core.0 as usize).map(|core| core.node);
    let objects: Vec<Vec<u8>> = (0..100).map(|number| vec![0_u8; SIZES[number % SIZES.len()]]).collect();
    let mut nodes = objects.iter().filter_map(|object| node_of(object.as_ptr().addr() as u64));
    nodes.all(|node| Some(node) == own)
}

/// The node of the memory at that address; `None` where it is the image's, and not of the pool.
fn node_of(address: u64) -> Option<NodeId> {
    let address = PhysAddr(address.checked_sub(DIRECT_MAP)?);
    platform().descriptor().pool.iter().find(|range| range.memory.contains(address)).map(|range| range.node)
}
