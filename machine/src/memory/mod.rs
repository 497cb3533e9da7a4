//! Physical memory: the firmware's memory map, access to firmware's tables, and ownership of memory.

pub mod map;
mod nodes;
pub mod physical;
mod region;
mod shared;

pub use nodes::MemoryNodes;
pub(crate) use region::direct;
#[cfg(test)]
pub(crate) use region::tests::region as test_region;
pub use region::{Contents, FreeRegions, OutOfRegion, Region};
pub use shared::SharedRegion;
