//! The resources of all cells, and the only operations that change their owners.
//!
//! ```text
//!              build           start             end              release
//!    (free) ----------> Built -------> Entered -------> Ending ---------------> (free, or quarantine)
//!                         |                                                       ^
//!                         +--------------------- release -------------------------+
//! ```
//!
//! Invariants, after any sequence of calls:
//!
//! - A core, a chunk or a device is free, or one cell has it, or it is out of use. Tokens that cannot be copied
//!   represent resources; a cell's tokens are here, those of free resources in the [inventory](crate::inventory).
//! - A cell gets only memory that is zero, and only cores that are free and not reserved.
//! - Resources of an ended cell are free only if nothing can still write to its memory: after all its cores were
//!   reclaimed and its device was reset. Otherwise memory and device stay in *quarantine*.
//! - The ownership record names a resource before the cell can use it, and until the cell can no longer use it.
//! - A cell maps memory of another only as long as both have a link that names it. Memory that a core may still access
//!   after that is free only after the core was reclaimed: until then it stays in quarantine with its owner.
//! - The core at a cell's first slot never leaves. No block of memory is both offered by a cell and plugged into it.
//!
//! The policy's notes about a cell travel with its ownership record, as bytes that the core does not read.
//!
//! | file | contents |
//! |---|---|
//! | this | the state, and access to it |
//! | `cell` | a cell's resources |
//! | `lifecycle` | build, start, end, release |
//! | `cores` | plug and unplug of cores |
//! | `force` | forced core reclaim |
//! | `memory` | plug and unplug of memory |
//! | `links` | memory of a cell that another maps |
//! | `recover` | recovery after a restart of the supervisor |
//! | `recovered_links` | links that survive the restart |

mod cell;
mod cores;
mod force;
mod lifecycle;
mod links;
mod memory;
mod recover;
mod recovered_links;

pub use cell::OwnedCell;
pub use cores::{CoreChange, CoreEvent};
pub use lifecycle::{BuildRefusal, BuildRequest, Released};
pub use memory::{BlockPlug, Scattered, UnpluggedBlocks};
pub use recover::{Recovery, UnclaimedCell};

use crate::hardware::{CellDevices, Hardware, InventoryOf};
use crate::inventory::Scrub;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, NodeId, PhysRange};
use isola_abi::management::Fault;

/// The reason why the core did not carry out a request. The state is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// No cell with that id has resources.
    NoSuchCell,
    /// The cell's stage does not permit the operation.
    WrongStage,
    /// The core is not free, reserved, or not the cell's; or it is the cell's first one, which never leaves.
    WrongCore,
    /// The core slot is not vacant, has no stacks, or does not exist.
    WrongSlot,
    /// The machine did not let the core enter.
    NotAdmitted,
    /// The cell has not acknowledged the answer to its last offer.
    NotSettled,
    /// No reclaim request with that number is open.
    NoSuchRequest,
    /// A core of the cell did not come back, and would not acknowledge a TLB shootdown.
    CoreAtLarge,
}

/// The resources of the machine, and those of all cells.
pub struct TrustedCore<H: Hardware> {
    hardware: H,
    inventory: InventoryOf<H>,
    /// The cells with resources.
    cells: BTreeMap<CellId, OwnedCell<H>>,
    quarantine: Vec<Quarantined<H>>,
    /// Bytes of memory that an earlier incarnation could not recover, and that stay out of use.
    withheld_bytes: u64,
    /// Memory of cells that a lost core of another cell may still access.
    exposed: Vec<PhysRange>,
    /// The recovered cells with links that were not adopted yet.
    unclaimed: BTreeSet<CellId>,
    /// The cells that have ended while others, with links to them, were not adopted yet.
    ended_before: BTreeSet<CellId>,
}

/// The resources of an ended cell to which a lost core or device may still write. They are never used again.
struct Quarantined<H: Hardware> {
    memory_bytes: u64,
    _parts: (H::Space, CellDevices<H::Device>),
}

impl<H: Hardware> TrustedCore<H> {
    /// Returns the core of a machine without cells.
    pub fn new(hardware: H, inventory: InventoryOf<H>) -> Self {
        Self {
            hardware,
            inventory,
            cells: BTreeMap::new(),
            quarantine: Vec::new(),
            withheld_bytes: 0,
            exposed: Vec::new(),
            unclaimed: BTreeSet::new(),
            ended_before: BTreeSet::new(),
        }
    }

    /// Returns the machine.
    pub fn hardware(&self) -> &H {
        &self.hardware
    }

    /// Returns the time since the supervisor's first instruction, in ns.
    pub fn now_ns(&self) -> u64 {
        self.hardware.now_ns()
    }

    /// Returns the inventory.
    pub fn inventory(&self) -> &InventoryOf<H> {
        &self.inventory
    }

    /// Returns the resources of a cell, until they are [released](Self::release).
    pub fn cell(&self, id: CellId) -> Option<&OwnedCell<H>> {
        self.cells.get(&id)
    }

    /// Returns the cells with resources.
    pub fn cells(&self) -> impl Iterator<Item = (CellId, &OwnedCell<H>)> {
        self.cells.iter().map(|(id, cell)| (*id, cell))
    }

    /// Returns the bytes of memory out of use: in quarantine, or withheld after a restart.
    pub fn quarantined_bytes(&self) -> u64 {
        self.quarantine.iter().map(|quarantined| quarantined.memory_bytes).sum::<u64>() + self.withheld_bytes
    }

    /// Reserves these cores for these cells, and removes all other reservations. A reserved core keeps its owner; once
    /// it is free, no cell gets it, not even its destination, before its reservation is
    /// [removed](Self::unreserve_core).
    pub fn reserve_cores(&mut self, reserved: &[(CoreId, CellId)]) {
        self.inventory.cores.reserve(reserved);
    }

    /// Removes the reservation of a core.
    pub fn unreserve_core(&mut self, core: CoreId) {
        self.inventory.cores.unreserve(core);
    }

    /// Reserves [available](crate::inventory::Memory::available) bytes for a request that waits until they are zero.
    pub fn reserve_memory(&mut self, len_bytes: u64) {
        self.inventory.memory.reserve(len_bytes);
    }

    /// Ends a reservation of `len_bytes` bytes.
    pub fn unreserve_memory(&mut self, len_bytes: u64) {
        self.inventory.memory.unreserve(len_bytes);
    }

    /// Scrubs the next `len_bytes` bytes, whole pages, of dirty free memory: of the node `near` first.
    pub fn scrub(&mut self, len_bytes: u64, near: Option<NodeId>) -> Scrub {
        self.inventory.memory.scrub(len_bytes, near)
    }

    /// Gives the policy `len_bytes` contiguous bytes, rounded up to whole chunks and not scrubbed, for its image store.
    /// Returns `None` if no free block is as long.
    #[must_use]
    pub fn take_store_memory(&mut self, len_bytes: u64) -> Option<H::Memory> {
        self.inventory.memory.take_contiguous(len_bytes)
    }

    /// Gives the policy memory of a node, like [`Self::take_store_memory`].
    #[must_use]
    pub fn take_store_memory_on(&mut self, len_bytes: u64, node: NodeId) -> Option<H::Memory> {
        self.inventory.memory.take_contiguous_on(len_bytes, node)
    }

    /// Takes memory of the image store back, which counts as dirty.
    pub fn put_store_memory(&mut self, memory: H::Memory) {
        self.inventory.memory.put(alloc::vec![memory]);
    }

    /// Saves the policy's checkpoint for a restarted supervisor. Returns whether it fits; if not, a restarted
    /// supervisor finds no checkpoint.
    #[must_use]
    pub fn save_checkpoint(&mut self, bytes: &[u8]) -> bool {
        self.hardware.save_checkpoint(bytes)
    }

    /// Saves an encoded journal entry for a restarted supervisor. The entry replaces the oldest ones; one that is too
    /// long is not saved.
    pub fn save_journal_entry(&mut self, bytes: &[u8]) {
        self.hardware.save_journal_entry(bytes);
    }

    /// Injects a fault for a test, if the boot command line allows it. Returns whether the fault is still to come.
    #[must_use]
    pub fn inject(&mut self, fault: Fault) -> bool {
        self.hardware.inject(fault)
    }

    /// Powers the machine off, after the console output was sent.
    pub fn power_off(&mut self) {
        self.hardware.power_off();
    }

    /// Returns the machine as it is when a supervisor fails, for tests of the next one: its cells run on.
    pub fn into_hardware(self) -> H {
        self.hardware
    }

    /// Returns a cell in the stage *entered*.
    fn entered(&mut self, id: CellId) -> Result<&mut OwnedCell<H>, Rejection> {
        let cell = self.cells.get_mut(&id).ok_or(Rejection::NoSuchCell)?;
        if cell.is_entered() { Ok(cell) } else { Err(Rejection::WrongStage) }
    }
}
