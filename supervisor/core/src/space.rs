//! The operations on the address space of one cell.

use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::growth::Answer;
use isola_abi::id::{ApicId, NodeId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::links::{LinkAccess, LinkPart, LinkTable, LinkWindow};
use isola_abi::query::Line;
use isola_abi::report::Report;
use isola_abi::stage::Stage;

/// The cell lacks memory for a core's stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfStackMemory;

/// The result of sending a core into a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The core entered the cell.
    Entered,
    /// The core did not enter, and its state is unchanged.
    Refused,
}

/// The result of unplugging memory from a running cell.
#[derive(Debug)]
pub struct Unplugged<M> {
    /// Bit n is set if block n was unplugged.
    pub taken: u32,
    /// The unplugged memory, not scrubbed. Empty if a core did not acknowledge the TLB shootdown: the memory then
    /// returns when the cell is dismantled.
    pub memory: Vec<M>,
    /// The core slot of a core that did not acknowledge the TLB shootdown, and can still access the blocks.
    pub stuck: Option<usize>,
}

/// A built cell: address space, descriptor, report, ownership record, and all its memory.
pub trait CellSpace {
    /// A piece of memory.
    type Memory;
    /// A core: parked, or executing a cell.
    type Core;

    /// Writes the cell's stage and the policy's `saved_state` to its ownership record, from which a restarted
    /// supervisor recovers the cell. A restarted supervisor does not find a cell before the first call.
    fn save(&mut self, stage: Stage, saved_state: Vec<u8>);

    /// Returns the range of the shared text that the cell maps, or `None` if it has its own copy.
    fn text(&self) -> Option<PhysRange>;

    /// Returns the cell's report.
    fn report(&self) -> &Report;

    /// Returns the ledger: the usage of the cell's activities, as the cell counts it.
    fn ledger(&self) -> Ledger<'_>;

    /// Allocates stacks for the core slot `slot` and for all slots before it.
    ///
    /// # Errors
    /// Returns [`OutOfStackMemory`] if the cell needs more memory for them: see [`Self::allocate_stacks_from`].
    fn allocate_stacks(&mut self, slot: usize) -> Result<(), OutOfStackMemory>;

    /// Gives the cell a zeroed chunk from which [`Self::allocate_stacks`] allocates.
    ///
    /// # Errors
    /// Returns the memory if the ownership record has no room for it.
    fn allocate_stacks_from(&mut self, memory: Self::Memory) -> Result<(), Self::Memory>;

    /// Sends a core into the cell, to a core slot that has stacks and is vacant, without waiting for it. Returns the
    /// core, and whether it entered.
    fn admit(&mut self, core: Self::Core, slot: usize) -> (Self::Core, Admission);

    /// Writes the next order for the core at a core slot, and interrupts the core. Returns the order.
    fn order(&self, slot: usize, kind: OrderKind) -> Order;

    /// Returns the last order of a core slot.
    fn last_order(&self, slot: usize) -> Order;

    /// Marks a core slot as vacant, after its core was reclaimed.
    fn vacate(&self, slot: usize);

    /// Marks a core slot as without a core, while its suspended context is unfinished. Its core was reclaimed.
    fn empty(&self, slot: usize);

    /// Interrupts the core at a core slot by NMI, so that it carries out its order.
    fn force(&self, core: &Self::Core, slot: usize);

    /// Interrupts all the cell's cores by NMI, so that each alternates between its own and a suspended context.
    fn rotate(&self, cores: &[Option<Self::Core>]);

    /// Interrupts by NMI the core at a core slot, or another of the cell's cores if that one is not inside the cell, so
    /// that the cell stops and records the interrupted instruction.
    fn examine(&self, cores: &[Option<Self::Core>], slot: usize);

    /// Interrupts all the cell's cores by NMI, so that each stores a sample of its call stack.
    fn sample(&self, cores: &[Option<Self::Core>]);

    /// Plugs memory into a running cell: one zeroed block, a power of two of chunks, naturally aligned. On return the
    /// cell's direct map and its descriptor's live words contain the block.
    ///
    /// # Errors
    /// Returns the memory if the cell cannot have another block.
    fn extend(&mut self, memory: Self::Memory, node: NodeId) -> Result<(), Self::Memory>;

    /// Returns how many more blocks can be plugged into the cell.
    fn block_room(&self) -> usize;

    /// Writes the most memory that a running cell may have from now on, in bytes, to its live words.
    fn set_limit(&self, limit_bytes: u64);

    /// Sends a reclaim request for `len_bytes` bytes to a running cell. Returns the request's number.
    fn request_unplug(&self, len_bytes: u64) -> u32;

    /// Unplugs blocks from a running cell, except those that are in use by the cell's image, stacks or tables, that are
    /// not whole chunks, or that the cell does not own. On return no core can access the unplugged memory, unless
    /// [`Unplugged::stuck`] names one.
    fn unplug(&mut self, cores: &[Option<Self::Core>], blocks: &[PhysRange]) -> Unplugged<Self::Memory>;

    /// Answers a running cell's offer to the last reclaim request: bit n of `taken` is set if block n was unplugged.
    fn settle(&self, taken: u32);

    /// Answers a running cell's memory request with that number.
    fn answer(&self, number: u32, answer: Answer);

    /// Sends a stop request to a running cell.
    fn request_stop(&self);

    /// Sends a query to a running cell, see [`isola_abi::query`]. Returns its number, or `None` if it is too long.
    fn send_query(&self, line: Line, query: &[u8]) -> Option<u32>;

    /// Returns the number of the last query to the cell.
    fn last_query(&self, line: Line) -> u32;

    /// Returns the table of the cell's links.
    fn links(&self) -> &LinkTable;

    /// Returns whether the cell can give this memory to a peer: whole pages of its pool.
    fn can_lend(&self, memory: PhysRange) -> bool;

    /// Returns a part of the link area that no link in the table uses; `None` if there is none.
    fn find_window(&self, len_bytes: u64, access: LinkAccess) -> Option<LinkWindow>;

    /// Maps memory of another cell in a window that the table lists. Returns whether the cell's cores have to
    /// [flush their TLBs](Self::flush) before they use it; `None` if the cell has no memory for page tables: then the
    /// window may be mapped in part.
    fn map_peer(&mut self, window: LinkWindow, memory: PhysRange) -> Option<bool>;

    /// Maps memory of the cell itself in place of a peer's memory. The cores may access the peer's memory until they
    /// have [flushed their TLBs](Self::flush).
    fn unmap_peer(&mut self, window: LinkWindow);

    /// Copies what the cell maps in a window to memory of the same length that it [can lend](Self::can_lend).
    fn copy_window(&mut self, window: LinkWindow, to: PhysRange);

    /// Returns the memory of other cells that this one maps in a window.
    fn peer_memory_in(&self, window: LinkWindow) -> Vec<PhysRange>;

    /// Returns the memory of other cells that this one maps in the windows of its table.
    fn peer_memory(&self) -> Vec<PhysRange> {
        let windows = self.links().iter().flat_map(|(_, link)| LinkPart::ALL.map(|part| link.window(part)));
        windows.flatten().flat_map(|window| self.peer_memory_in(window)).collect()
    }

    /// Makes every core of the cell flush its TLB. Returns whether all did; if not, one can still access memory that was
    /// unmapped.
    #[must_use]
    fn flush(&self, cores: &[Option<Self::Core>]) -> bool;

    /// Returns the destination of doorbells to the cell.
    fn doorbell_target(&self) -> ApicId;

    /// Announces news of a link to the cell.
    fn ring_doorbell(&self);
}
