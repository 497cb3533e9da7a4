//! The inventory: the machine's resources, each free or owned by exactly one cell.
//!
//! A resource is represented by a token that cannot be copied: a block of memory, a parked core, a device. The
//! inventory has the tokens of free resources, and a cell those of its own. So the types guarantee that each resource
//! has exactly one owner; that no resource is lost is checked by sums.
//!
//! Not here: the hardware operations on resources (see [`crate::hardware`]).

pub mod cores;
pub mod devices;
pub mod disks;
pub mod memory;

pub use cores::{CoreRefusal, CoreRequest, CoreToken, Cores};
pub use devices::Devices;
pub use disks::Disks;
pub use memory::{Block, BlockRequest, CHUNK, Chunk, Memory, Scrub};

/// All resources that can be given to cells.
#[derive(Debug)]
pub struct Inventory<M, C, D> {
    /// The cores.
    pub cores: Cores<C>,
    /// The memory.
    pub memory: Memory<M>,
    /// The network devices.
    pub devices: Devices<D>,
    /// The block devices.
    pub disks: Disks<D>,
}
