//! The inventory: what the machine has, each piece free or owned by exactly one cell.
//!
//! A piece is represented by a token that cannot be copied: a block of memory, a parked core, a device. A free
//! piece's token is here; an owned one's is with its cell. So that a piece has exactly one owner is not a rule
//! to be kept but a fact of the types, and what remains to be shown is that nothing is forgotten: the sums.
//!
//! What is not here: what can be done with the pieces (see [`crate::effects`]).

pub mod cores;
pub mod devices;
pub mod memory;

pub use cores::{CoreRefusal, CoreRequest, CoreToken, Cores};
pub use devices::Devices;
pub use memory::{Block, BlockRequest, CHUNK, Chunk, Memory, Scrub};

/// All that can be given to cells.
#[derive(Debug)]
pub struct Inventory<M, C, D> {
    /// Cores.
    pub cores: Cores<C>,
    /// Memory.
    pub memory: Memory<M>,
    /// Network devices.
    pub devices: Devices<D>,
}
