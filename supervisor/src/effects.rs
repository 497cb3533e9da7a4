//! The hardware operations that the supervisor needs: the boundary between decisions and hardware access.
//!
//! The image implements [`Effects`] with `isola-machine`. Tests implement it over ordinary memory and can inject every
//! failure that the trait allows.

use crate::cells::Checkpoint;
use crate::image::ImagePlan;
use crate::images::KeptImage;
use crate::inventory::{Chunk, CoreToken};
use alloc::vec::Vec;
use isola_abi::core_slots::{Order, OrderKind};
use isola_abi::growth::Answer;
use isola_abi::id::{CellId, CoreId, NodeId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::management::{CellSpec, DeviceLocation, Fault, RestartCause};
use isola_abi::query::Line;
use isola_abi::report::Report;
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
pub type SharedOf<E> = <<E as Effects>::Memory as Pages>::Shared;

/// The inputs of [`Effects::build`].
pub struct Blueprint<'a, E: Effects + ?Sized> {
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
    pub image: &'a SharedOf<E>,
    /// The cell's cores, in the order of their core slots.
    pub cores: &'a [E::Core],
    /// The number of core slots: at least the number of cores.
    pub places: usize,
    /// The cell's network device, if it has one.
    pub device: Option<&'a mut E::Device>,
}

/// The reason why a cell cannot be built, with the memory back.
#[derive(Debug)]
pub struct BuildFailure<M> {
    /// The memory that was passed to [`Effects::build`], possibly split differently.
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

/// The result of reclaiming cores.
#[derive(Debug)]
pub struct Reclaimed<C> {
    /// The cores that are parked again.
    pub back: Vec<C>,
    /// The cores that did not respond. They may still execute the cell's code.
    pub lost: Vec<CoreId>,
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

/// The state that a failed supervisor left for the next one.
pub struct RecoveredState<E: Effects + ?Sized> {
    /// The cause of the restart.
    pub cause: RestartCause,
    /// The number of restarts so far, including this one.
    pub number: u32,
    /// The time of the failure, on the clock of [`Effects::now_ns`].
    pub ended_ns: u64,
    /// The cells with valid ownership records.
    pub recovered_cells: Vec<RecoveredCell<E>>,
    /// The number of cells with resources that could not be recovered; the resources were taken back.
    pub gone: u32,
    /// Bytes of memory that stay out of use, because a core or a device that did not come back may still write to them.
    pub withheld_bytes: u64,
    /// The last argument of [`Effects::save_checkpoint`], not validated.
    pub checkpoint: Checkpoint,
    /// The latest arguments of [`Effects::save_journal_entry`], in any order, not validated.
    pub journal: Vec<Vec<u8>>,
    /// The images of the checkpoint whose memory has no other owner, with that memory.
    pub images: Vec<(KeptImage, SharedOf<E>)>,
    /// Other shared memory from which recovered cells map text.
    pub texts: Vec<SharedOf<E>>,
}

/// A cell that a failed supervisor left.
pub struct RecoveredCell<E: Effects + ?Sized> {
    /// The stage that was last passed to [`Effects::keep`].
    pub stage: Stage,
    /// The state that was last passed to [`Effects::keep`], not validated.
    pub saved_state: Vec<u8>,
    /// The cell's address space, descriptor, report and memory.
    pub space: E::Space,
    /// By core slot: its core.
    pub cores: Vec<Option<E::Core>>,
    /// By core slot, as far as slots were ever occupied: its core, or the last one.
    pub core_ids: Vec<CoreId>,
    /// The cell's cores that should have been reclaimed and did not respond.
    pub lost: Vec<CoreId>,
    /// The cell's network device.
    pub device: Option<E::Device>,
    /// All the cell's memory.
    pub memory: Vec<PhysRange>,
    /// The number of the cell's last memory request that was answered.
    pub answered: u32,
    /// The number of the last reclaim request that is complete; 0: there was none.
    pub settled: u32,
}

/// A machine.
pub trait Effects {
    /// A piece of memory.
    type Memory: Pages;
    /// A core: parked, or executing a cell.
    type Core: CoreToken;
    /// A network device.
    type Device;
    /// A built cell: address space, descriptor, report, and all its memory.
    type Space;

    /// Returns the time since the supervisor's first instruction, in ns.
    fn now_ns(&self) -> u64;

    /// Returns the smallest memory, in bytes, that suffices for a cell with `cores` cores at its start and `places`
    /// core slots.
    fn least_memory(&self, plan: &ImagePlan, cores: usize, places: usize) -> u64;

    /// Builds a cell in zeroed memory, ready to start. The cell owns the device until the device is reset.
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

    /// Writes the cell's stage and `saved_state` to its ownership record, from which a restarted supervisor recovers
    /// the cell. A restarted supervisor does not find a cell before the first call.
    fn keep(&mut self, space: &mut Self::Space, stage: Stage, saved_state: Vec<u8>);

    /// Saves an encoded [`Checkpoint`] for a restarted supervisor. Returns whether it fits; if not, a restarted
    /// supervisor finds no checkpoint.
    #[must_use]
    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool;

    /// Saves an encoded journal entry for a restarted supervisor. The entry replaces the oldest ones; one that is too
    /// long is not saved.
    fn save_journal_entry(&mut self, bytes: &[u8]);

    /// Returns the range of the shared text that the cell maps, or `None` if it has its own copy.
    fn text(&self, space: &Self::Space) -> Option<PhysRange>;

    /// Returns the cell's report.
    fn report<'a>(&self, space: &'a Self::Space) -> &'a Report;

    /// Returns the ledger: the usage of the cell's activities, as the cell counts it.
    fn ledger<'a>(&self, space: &'a Self::Space) -> Ledger<'a>;

    /// Allocates stacks for the core slot `place` and for all slots before it.
    ///
    /// # Errors
    /// Returns [`OutOfStackMemory`] if the cell needs more memory for them: see [`Self::allocate_stacks_from`].
    fn allocate_stacks(&mut self, space: &mut Self::Space, place: usize) -> Result<(), OutOfStackMemory>;

    /// Gives the cell a zeroed chunk from which [`Self::allocate_stacks`] allocates.
    ///
    /// # Errors
    /// Returns the memory if the ownership record has no room for it.
    fn allocate_stacks_from(
        &mut self,
        space: &mut Self::Space,
        memory: Self::Memory,
    ) -> Result<(), Self::Memory>;

    /// Sends a core into the cell, to a core slot that has stacks and is vacant, without waiting for it. Returns the
    /// core, and whether it entered.
    fn admit(&mut self, space: &mut Self::Space, core: Self::Core, place: usize) -> (Self::Core, Admission);

    /// Writes the next order for the core at a core slot, and interrupts the core. Returns the order.
    fn order(&mut self, space: &Self::Space, place: usize, kind: OrderKind) -> Order;

    /// Returns the last order of a core slot.
    fn last_order(&self, space: &Self::Space, place: usize) -> Order;

    /// Marks a core slot as vacant, after its core was reclaimed.
    fn vacate(&mut self, space: &Self::Space, place: usize);

    /// Plugs memory into a running cell: one zeroed block, a power of two of chunks, naturally aligned. On return the
    /// cell's direct map and its descriptor's live words contain the block.
    ///
    /// # Errors
    /// Returns the memory if the cell cannot have another block.
    fn extend(
        &mut self,
        space: &mut Self::Space,
        memory: Self::Memory,
        node: NodeId,
    ) -> Result<(), Self::Memory>;

    /// Returns how many more blocks can be plugged into the cell.
    fn places(&self, space: &Self::Space) -> usize;

    /// Writes the most memory that a running cell may have from now on, in bytes, to its live words.
    fn set_limit(&self, space: &Self::Space, limit_bytes: u64);

    /// Sends a reclaim request for `len_bytes` bytes to a running cell. Returns the request's number.
    fn request_unplug(&self, space: &Self::Space, len_bytes: u64) -> u32;

    /// Unplugs blocks from a running cell, except those that are in use by the cell's image, stacks or tables, that are
    /// not whole chunks, or that the cell does not own. On return no core can access the unplugged memory, unless
    /// [`Unplugged::stuck`] names one.
    fn unplug(
        &mut self,
        space: &mut Self::Space,
        cores: &[Option<Self::Core>],
        blocks: &[PhysRange],
    ) -> Unplugged<Self::Memory>;

    /// Answers a running cell's offer to the last reclaim request: bit n of `taken` is set if block n was unplugged.
    fn settle(&self, space: &Self::Space, taken: u32);

    /// Answers a running cell's memory request with that number.
    fn answer(&self, space: &Self::Space, number: u32, answer: Answer);

    /// Sends a stop request to a running cell.
    fn request_stop(&mut self, space: &Self::Space);

    /// Sends a query to a running cell, see [`isola_abi::query`]. Returns its number, or `None` if it is too long.
    fn ask(&mut self, space: &Self::Space, line: Line, query: &[u8]) -> Option<u32>;

    /// Returns the number of the last query to the cell.
    fn asked(&self, space: &Self::Space, line: Line) -> u32;

    /// Marks a core slot as without a core, while its suspended context is unfinished. Its core was reclaimed.
    fn empty(&mut self, space: &Self::Space, place: usize);

    /// Interrupts the core at a core slot by NMI, so that it carries out its order.
    fn force(&mut self, space: &Self::Space, core: &Self::Core, place: usize);

    /// Interrupts all the cell's cores by NMI, so that each alternates between its own and a suspended context.
    fn rotate(&mut self, space: &Self::Space, cores: &[Option<Self::Core>]);

    /// Interrupts by NMI the core at the core slot `place`, or another of the cell's cores if that one is not inside
    /// the cell, so that the cell stops and records the interrupted instruction.
    fn examine(&mut self, space: &Self::Space, cores: &[Option<Self::Core>], place: usize);

    /// Takes cores away from the code that they execute. Waits until each is parked or counts as lost.
    fn reclaim(&mut self, cores: Vec<Self::Core>) -> Reclaimed<Self::Core>;

    /// Returns a device's location in the machine.
    fn location(device: &Self::Device) -> DeviceLocation;

    /// Resets a device, so that no transfer is under way and none begins. Returns whether the reset succeeded; if not,
    /// neither the device nor the memory that it may still write to is used again.
    #[must_use]
    fn reset(&mut self, device: &mut Self::Device) -> bool;

    /// Injects a fault for a test, if the boot command line allows it. Returns whether the fault is still to come.
    #[must_use]
    fn go_wrong(&mut self, fault: Fault) -> bool;

    /// Powers the machine off, after the console output was sent.
    fn power_off(&mut self);
}
