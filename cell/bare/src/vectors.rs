//! The interrupt vectors of device queues: those of network devices, and behind them those of block devices.

use core::ops::RangeInclusive;
use isola_abi::descriptor::Descriptor;
use isola_events::interrupt::QUEUE_VECTORS;

/// The vectors for the queues of block devices, in a cell that has some: four for each of the most volumes.
const BLOCK_VECTORS: u8 = 32;

/// Returns the vectors for the queues of network devices.
pub(crate) fn of_network(descriptor: &Descriptor) -> RangeInclusive<u8> {
    let last = *QUEUE_VECTORS.end();
    let has_volumes = !descriptor.volumes.is_empty();
    *QUEUE_VECTORS.start()..=if has_volumes { last - BLOCK_VECTORS } else { last }
}

/// Returns the vectors for the queues of block devices, in a cell that has some.
pub(crate) fn of_block() -> RangeInclusive<u8> {
    let last = *QUEUE_VECTORS.end();
    last - BLOCK_VECTORS + 1..=last
}
