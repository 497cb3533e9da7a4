//! Plug and unplug of a running cell's memory.
//!
//! Unplugging needs the cell's help, see [`isola_abi::unplug`]: it offers blocks, which the core validates. It unmaps
//! them and completes a TLB shootdown on all the cell's cores before the blocks have another owner. No memory is plugged
//! before the cell has acknowledged the answer to its last offer, as it might offer the same blocks.

use super::links::meets;
use super::{Rejection, TrustedCore};
use crate::hardware::Hardware;
use crate::inventory::{Block, BlockRequest, Chunk};
use crate::space::{CellSpace, Unplugged};
use alloc::vec::Vec;
use isola_abi::growth::Answer;
use isola_abi::id::{CellId, NodeId, PhysRange};

/// The result of [`TrustedCore::plug_block`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockPlug {
    /// The cell has a block of this number of bytes more.
    Plugged(u64),
    /// A block is free, but must be scrubbed first.
    Later,
    /// No block is free.
    Exhausted,
    /// The cell cannot have another block.
    NoRoom,
}

/// The result of [`TrustedCore::plug_memory`] if the memory is in more pieces than could be plugged into the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scattered {
    /// The number of pieces.
    pub pieces: usize,
    /// The number of blocks that can still be plugged into the cell; or, if the cell has got some, their number.
    pub room: usize,
}

/// The result of [`TrustedCore::unplug_memory`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnpluggedBlocks {
    /// Bit n is set if block n was unplugged.
    pub taken: u32,
    /// The bytes that are free now.
    pub len_bytes: u64,
    /// Whether a core did not acknowledge the TLB shootdown. It can still access the blocks, which return when the cell
    /// ends.
    pub has_stuck_core: bool,
}

impl<H: Hardware> TrustedCore<H> {
    /// Plugs one block of free memory into a running cell.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn plug_block(&mut self, id: CellId, request: BlockRequest) -> Result<BlockPlug, Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if !cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        if !cell.is_settled() {
            return Err(Rejection::NotSettled);
        }
        let (block, node) = match self.inventory.memory.take_block(request) {
            Block::Given(block, node) => (block, node),
            Block::Later => return Ok(BlockPlug::Later),
            Block::Exhausted => return Ok(BlockPlug::Exhausted),
        };
        let len_bytes = block.range().len_bytes;
        match cell.space.extend(block, node) {
            Ok(()) => {
                cell.memory_bytes += len_bytes;
                Ok(BlockPlug::Plugged(len_bytes))
            }
            Err(block) => {
                self.inventory.memory.put(alloc::vec![block]);
                Ok(BlockPlug::NoRoom)
            }
        }
    }

    /// Plugs `len_bytes` bytes into a running cell: from `node` first, in as few blocks as possible. Plugs none if fewer
    /// bytes are available and zero.
    ///
    /// # Errors
    /// Returns a [`Rejection`], or [`Scattered`] if the cell cannot have as many blocks. If a block cannot be plugged
    /// although the cell has room for it, the others stay with the cell.
    pub fn plug_memory(
        &mut self,
        id: CellId,
        len_bytes: u64,
        node: NodeId,
    ) -> Result<Result<(), Scattered>, Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if !cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        if !cell.is_settled() {
            return Err(Rejection::NotSettled);
        }
        let memory = &mut self.inventory.memory;
        let blocks = memory.take(len_bytes, node).unwrap_or_default();
        let (pieces, room) = (blocks.len(), cell.space.block_room());
        if pieces > room {
            memory.put(blocks);
            return Ok(Err(Scattered { pieces, room }));
        }
        let mut plugged = 0;
        for block in blocks {
            let range = block.range();
            let node = memory.node_of(range.start).unwrap_or(NodeId(0));
            match cell.space.extend(block, node) {
                Ok(()) => (cell.memory_bytes, plugged) = (cell.memory_bytes + range.len_bytes, plugged + 1),
                // Not expected, as the number of blocks was checked.
                Err(block) => memory.put(alloc::vec![block]),
            }
        }
        Ok(if plugged < pieces { Err(Scattered { pieces, room: plugged }) } else { Ok(()) })
    }

    /// Answers the memory request with that number of a running cell.
    pub fn answer_memory_request(&mut self, id: CellId, number: u32, answer: Answer) {
        if let Ok(cell) = self.entered(id) {
            cell.answered = number;
            cell.space.answer(number, answer);
        }
    }

    /// Sends a reclaim request for `len_bytes` bytes to a running cell. Returns the request's number.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn request_unplug(&mut self, id: CellId, len_bytes: u64) -> Result<u32, Rejection> {
        let cell = self.entered(id)?;
        if !cell.is_settled() {
            return Err(Rejection::NotSettled);
        }
        let number = cell.space.request_unplug(len_bytes);
        cell.reclaim.open = Some(number);
        Ok(number)
    }

    /// Unplugs the blocks that a running cell offers for the open reclaim request with that number; an empty block is
    /// skipped. Answers the offer.
    ///
    /// # Errors
    /// Returns a [`Rejection`].
    pub fn unplug_memory(
        &mut self,
        id: CellId,
        number: u32,
        blocks: &[PhysRange],
    ) -> Result<UnpluggedBlocks, Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if !cell.is_entered() {
            return Err(Rejection::WrongStage);
        }
        if cell.reclaim.open != Some(number) {
            return Err(Rejection::NoSuchRequest);
        }
        if cell.moves.has_lost {
            return Err(Rejection::CoreAtLarge);
        }
        // An empty block is skipped.
        let is_exposed = |block: &PhysRange| self.exposed.iter().any(|range| meets(*range, *block));
        let free = |block: &PhysRange| if is_exposed(block) { PhysRange::default() } else { *block };
        let blocks: Vec<PhysRange> = blocks.iter().map(free).collect();
        let Unplugged { taken, memory, stuck } = cell.space.unplug(&cell.cores, &blocks);
        let len_bytes: u64 = memory.iter().map(|block| block.range().len_bytes).sum();
        cell.memory_bytes = cell.memory_bytes.saturating_sub(len_bytes);
        cell.settle(number, taken);
        self.inventory.memory.put(memory);
        Ok(UnpluggedBlocks { taken, len_bytes, has_stuck_core: stuck.is_some() })
    }

    /// Withdraws the open reclaim request of a running cell: an offer to it is refused.
    pub fn withdraw_unplug(&mut self, id: CellId) {
        if let Ok(cell) = self.entered(id)
            && let Some(number) = cell.reclaim.open
        {
            cell.settle(number, 0);
        }
    }
}

impl<H: Hardware> super::OwnedCell<H> {
    fn settle(&mut self, number: u32, taken: u32) {
        self.reclaim.open = None;
        self.reclaim.settled = number;
        self.space.settle(taken);
    }
}
