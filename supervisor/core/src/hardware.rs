//! The machine, as the trusted core sees it: the boundary between ownership rules and hardware access.
//!
//! `isola-supervisor-machine` implements [`Hardware`] and [`CellSpace`] with `isola-machine`.
//! `isola-supervisor-fake` implements them over ordinary memory, and can inject every failure that they allow.

use crate::image::ImagePlan;
use crate::inventory::{Chunk, CoreToken, Inventory};
use crate::space::CellSpace;
use alloc::vec::Vec;
use isola_abi::id::{CellId, CoreId, PhysRange};
use isola_abi::management::{CellSpec, DeviceLocation, Fault, RestartCause};
use isola_abi::stage::Stage;

/// Memory whose contents the supervisor can access while no cell has it.
pub trait Pages: Chunk {
    /// The same memory, shared and read-only.
    type Shared: SharedPages<Memory = Self>;

    /// Makes the memory read-only and shareable.
    fn share(self) -> Self::Shared;

    /// Returns the first `len_bytes` bytes, or all if there are fewer.
    fn read(&self, len_bytes: usize) -> &[u8];

    /// Writes `bytes` at `offset`; bytes past the end of the memory are dropped.
    fn write(&mut self, offset: u64, bytes: &[u8]);
}

/// Read-only memory with several owners. A clone is another owner.
pub trait SharedPages: Clone {
    /// The memory's type when it has one owner.
    type Memory;

    /// Returns the physical range.
    fn range(&self) -> PhysRange;

    /// Returns the first `len_bytes` bytes, or all if there are fewer.
    fn read(&self, len_bytes: usize) -> &[u8];

    /// Returns whether the memory has other owners.
    fn is_shared(&self) -> bool;

    /// Returns the memory for exclusive, writable use.
    ///
    /// # Errors
    /// Returns `self` if the memory has other owners.
    fn into_memory(self) -> Result<Self::Memory, Self>;
}

/// A machine's shared read-only memory.
pub type SharedOf<H> = <<H as Hardware>::Memory as Pages>::Shared;

/// A machine's inventory.
pub type InventoryOf<H> = Inventory<<H as Hardware>::Memory, <H as Hardware>::Core, <H as Hardware>::Device>;

/// The inputs of [`Hardware::build`].
pub struct Blueprint<'a, H: Hardware> {
    /// The cell's id.
    pub id: CellId,
    /// The cell's specification.
    pub spec: &'a CellSpec,
    /// The most memory that the cell may have, in bytes.
    pub memory_max_bytes: u64,
    /// The layout of the cell's image.
    pub plan: &'a ImagePlan,
    /// Memory that starts with the image's bytes, from which `plan` was made. If the plan has shared segments, the cell
    /// maps this memory until it is dismantled.
    pub image: &'a SharedOf<H>,
    /// The cell's cores, in the order of their core slots.
    pub cores: &'a [H::Core],
    /// The number of core slots: at least the number of cores.
    pub slots: usize,
    /// The cell's devices.
    pub devices: &'a mut CellDevices<H::Device>,
}

/// The devices of a cell.
#[derive(Debug)]
pub struct CellDevices<D> {
    /// Its network device, if it has one.
    pub network: Option<D>,
    /// Its block devices, in the order of its volumes.
    pub disks: Vec<D>,
}

impl<D> CellDevices<D> {
    /// Returns no devices.
    pub const fn none() -> Self {
        Self { network: None, disks: Vec::new() }
    }

    /// Returns all devices, the network device first.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut D> {
        self.network.iter_mut().chain(&mut self.disks)
    }
}

/// The reason why a cell cannot be built, with the memory back.
#[derive(Debug)]
pub struct BuildFailure<M> {
    /// The memory that was passed to [`Hardware::build`], possibly split differently.
    pub memory: Vec<M>,
    /// The reason.
    pub cause: BuildError,
}

/// See [`BuildFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The memory does not suffice.
    TooSmall {
        /// The least memory that suffices, in bytes.
        least_bytes: u64,
    },
    /// The cell's configuration does not fit in its descriptor.
    DescriptorTooLong,
}

/// The result of reclaiming cores.
#[derive(Debug)]
pub struct Reclaimed<C> {
    /// The cores that are parked again.
    pub back: Vec<C>,
    /// The cores that did not respond. They may still execute the cell's code.
    pub lost: Vec<CoreId>,
}

/// The state of a machine whose supervisor has failed, apart from the failed supervisor's own notes.
pub struct RecoveredState<H: Hardware> {
    /// The cause of the restart.
    pub cause: RestartCause,
    /// The number of restarts so far, including this one.
    pub number: u32,
    /// The time of the failure, on the clock of [`Hardware::now_ns`].
    pub ended_ns: u64,
    /// The cells with valid ownership records.
    pub recovered_cells: Vec<RecoveredCell<H>>,
    /// The number of cells with resources that could not be recovered; the resources were taken back.
    pub gone: u32,
    /// Bytes of memory that stay out of use, because a core or a device that did not come back may still write to them.
    pub withheld_bytes: u64,
}

/// A cell that a failed supervisor left.
pub struct RecoveredCell<H: Hardware> {
    /// The stage that was last passed to [`CellSpace::save`].
    pub stage: Stage,
    /// The state that was last passed to [`CellSpace::save`], not validated.
    pub saved_state: Vec<u8>,
    /// The cell's address space, descriptor, report and memory.
    pub space: H::Space,
    /// By core slot: its core.
    pub cores: Vec<Option<H::Core>>,
    /// By core slot, as far as slots were ever occupied: its core, or the last one.
    pub core_ids: Vec<CoreId>,
    /// The cell's cores that should have been reclaimed and did not respond.
    pub lost: Vec<CoreId>,
    /// The cell's devices.
    pub devices: CellDevices<H::Device>,
    /// All the cell's memory.
    pub memory: Vec<PhysRange>,
    /// The number of the cell's last memory request that was answered.
    pub answered: u32,
    /// The number of the last reclaim request that is complete; 0: there was none.
    pub settled: u32,
}

/// A machine.
pub trait Hardware: Sized {
    /// A piece of memory.
    type Memory: Pages;
    /// A core: parked, or executing a cell.
    type Core: CoreToken;
    /// A network device or a block device.
    type Device;
    /// A built cell: address space, descriptor, report, and all its memory.
    type Space: CellSpace<Memory = Self::Memory, Core = Self::Core>;

    /// Returns the time since the supervisor's first instruction, in ns.
    fn now_ns(&self) -> u64;

    /// Returns the smallest memory, in bytes, that suffices for a cell with `cores` cores at its start and `slots` core
    /// slots.
    fn least_memory(&self, plan: &ImagePlan, cores: usize, slots: usize) -> u64;

    /// Builds a cell in zeroed memory, ready to start. The cell owns each device until that is reset.
    ///
    /// # Errors
    /// Returns the memory if it does not suffice or the descriptor is too long.
    fn build(
        &mut self,
        blueprint: Blueprint<'_, Self>,
        memory: Vec<Self::Memory>,
    ) -> Result<Self::Space, BuildFailure<Self::Memory>>;

    /// Dismantles a cell on which no core and no device is active. Returns all its memory, not scrubbed.
    fn dismantle(&mut self, space: Self::Space) -> Vec<Self::Memory>;

    /// Saves the policy's checkpoint for a restarted supervisor. Returns whether it fits; if not, a restarted
    /// supervisor finds no checkpoint.
    #[must_use]
    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool;

    /// Saves an encoded journal entry for a restarted supervisor. The entry replaces the oldest ones; one that is too
    /// long is not saved.
    fn save_journal_entry(&mut self, bytes: &[u8]);

    /// Takes cores away from the code that they execute. Waits until each is parked or counts as lost.
    fn reclaim(&mut self, cores: Vec<Self::Core>) -> Reclaimed<Self::Core>;

    /// Returns a device's location in the machine.
    fn location(device: &Self::Device) -> DeviceLocation;

    /// Returns the hardware address of a network device that no cell has changed since its reset.
    fn mac(device: &Self::Device) -> Option<[u8; 6]>;

    /// Resets a device, so that no transfer is under way and none begins. Returns whether the reset succeeded; if not,
    /// neither the device nor the memory that it may still write to is used again.
    #[must_use]
    fn reset(&mut self, device: &mut Self::Device) -> bool;

    /// Injects a fault for a test, if the boot command line allows it. Returns whether the fault is still to come.
    #[must_use]
    fn inject(&mut self, fault: Fault) -> bool;

    /// Powers the machine off, after the console output was sent.
    fn power_off(&mut self);
}
