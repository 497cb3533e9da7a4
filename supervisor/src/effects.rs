//! What the supervisor needs from a machine: the seam between what decides and what acts.
//!
//! The image implements [`Effects`] over `isola-machine`; tests implement it over ordinary memory, and can make
//! everything go wrong in it that can go wrong.

use crate::cells::Checkpoint;
use crate::image::ImagePlan;
use crate::images::KeptImage;
use crate::inventory::{Chunk, CoreToken};
use alloc::vec::Vec;
use isola_abi::growth::Answer;
use isola_abi::id::{CellId, CoreId, NodeId, PhysRange};
use isola_abi::ledger::Ledger;
use isola_abi::management::{CellSpec, DeviceLocation, Fault, RestartCause};
use isola_abi::places::{Order, OrderKind};
use isola_abi::query::Line;
use isola_abi::report::Report;
use isola_abi::stage::Stage;

/// Memory whose content the supervisor can get at, as long as no cell has it.
pub trait Pages: Chunk {
    /// The same, which nobody writes to any more.
    type Shared: SharedPages<Memory = Self>;

    /// Has it be only read from here on.
    fn share(self) -> Self::Shared;

    /// Its first `len_bytes` bytes, at most all.
    fn read(&self, len_bytes: usize) -> &[u8];

    /// Writes at `offset`; what does not fit is left out.
    fn write(&mut self, offset: u64, bytes: &[u8]);
}

/// Memory that several look at, and nobody writes to. A clone is one more of them.
pub trait SharedPages: Clone {
    /// What it is when only one has it.
    type Memory;

    /// Which memory.
    fn range(&self) -> PhysRange;

    /// Its first `len_bytes` bytes, at most all.
    fn read(&self, len_bytes: usize) -> &[u8];

    /// Whether somebody else has it, too.
    fn is_shared(&self) -> bool;

    /// The memory, to be used as one likes.
    ///
    /// # Errors
    /// Itself, where somebody else has it, too.
    fn into_memory(self) -> Result<Self::Memory, Self>;
}

/// Memory of a machine that several look at.
pub type SharedOf<E> = <<E as Effects>::Memory as Pages>::Shared;

/// What a cell is built from.
pub struct Blueprint<'a, E: Effects + ?Sized> {
    /// Its id.
    pub id: CellId,
    /// What it shall be.
    pub spec: &'a CellSpec,
    /// The most memory that it may have, in bytes.
    pub memory_max_bytes: u64,
    /// How its image is laid out.
    pub plan: &'a ImagePlan,
    /// The memory that the image's bytes begin, which the plan was made from. Where the plan has segments that are shared,
    /// the cell has it, too, until it is dismantled.
    pub image: &'a SharedOf<E>,
    /// Its cores, in the order of core indices.
    pub cores: &'a [E::Core],
    /// How many places it has for cores: at least as many as it has cores.
    pub places: usize,
    /// Its network device, where it has one.
    pub device: Option<&'a mut E::Device>,
}

/// Why a cell cannot be built. The memory comes back.
#[derive(Debug)]
pub struct BuildFailure<M> {
    /// The memory that was given, perhaps cut in other places.
    pub memory: Vec<M>,
    /// Why.
    pub cause: BuildError,
}

/// See [`BuildFailure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// The memory does not suffice; it takes so many bytes.
    TooSmall {
        /// The least that would do.
        least_bytes: u64,
    },
    /// What the cell has to know does not fit in its descriptor.
    DescriptorTooLong,
}

/// There is no memory for what a core needs in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoStacks;

/// Whether a core went to its cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It did.
    Entered,
    /// It did not, and is as it was.
    Refused,
}

/// What came of taking cores back.
#[derive(Debug)]
pub struct Reclaimed<C> {
    /// These are parked again.
    pub back: Vec<C>,
    /// These do not answer, and may still execute what they executed.
    pub lost: Vec<CoreId>,
}

/// What came of taking memory out of a running cell.
#[derive(Debug)]
pub struct Unplugged<M> {
    /// Bit n: block n is not the cell's any more.
    pub taken: u32,
    /// What was taken, with whatever it holds. Nothing where a core of the cell does not forget it: then it comes back when
    /// the cell is dismantled.
    pub memory: Vec<M>,
    /// The index of a core that does not forget what was taken, and so can still get at it.
    pub stuck: Option<usize>,
}

/// What a supervisor that has gone wrong has left to the one that comes after it.
pub struct RecoveredState<E: Effects + ?Sized> {
    /// What had gone wrong.
    pub cause: RestartCause,
    /// How often the supervisor has restarted by now.
    pub number: u32,
    /// When it went wrong: see [`Effects::now_ns`].
    pub ended_ns: u64,
    /// The cells whose holdings can be told.
    pub recovered_cells: Vec<RecoveredCell<E>>,
    /// The number of others, which had something and have it no more.
    pub gone: u32,
    /// Memory that is out of use, as something may still write to it that did not come back.
    pub withheld_bytes: u64,
    /// What [`Effects::save_checkpoint`] was told last; nobody vouches for it.
    pub checkpoint: Checkpoint,
    /// What [`Effects::keep_entry`] was told, the latest of it in any order; nobody vouches for it.
    pub journal: Vec<Vec<u8>>,
    /// The images of the checkpoint whose memory nobody else has, with that.
    pub images: Vec<(KeptImage, SharedOf<E>)>,
    /// What else recovered cells stand on.
    pub texts: Vec<SharedOf<E>>,
}

/// A cell that a supervisor has left.
pub struct RecoveredCell<E: Effects + ?Sized> {
    /// What [`Effects::keep`] was told last.
    pub stage: Stage,
    /// Likewise; nobody vouches for it.
    pub saved_state: Vec<u8>,
    /// The cell.
    pub space: E::Space,
    /// By place: the core that is there.
    pub cores: Vec<Option<E::Core>>,
    /// By place that ever had one: the core that is there, or was there last.
    pub core_ids: Vec<CoreId>,
    /// Those of its cores that should have come back and did not.
    pub lost: Vec<CoreId>,
    /// Its network device.
    pub device: Option<E::Device>,
    /// All its memory.
    pub memory: Vec<PhysRange>,
    /// The number of its last request that was answered.
    pub answered: u32,
    /// The number of the last request for memory to it that is done with; 0: there was none.
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
    /// A built cell: address space, descriptor, report, and the memory that it is made of.
    type Space;

    /// Time since the supervisor's first instruction, in ns.
    fn now_ns(&self) -> u64;

    /// Bytes of memory that a cell cannot do without that begins with so many cores, and has so many places for them.
    fn least_memory(&self, plan: &ImagePlan, cores: usize, places: usize) -> u64;

    /// Builds a cell in memory that is all zero, ready to start. Its device is the cell's from here on, until it is reset.
    ///
    /// # Errors
    /// Where the memory does not suffice, or the descriptor does not.
    fn build(
        &mut self,
        blueprint: Blueprint<'_, Self>,
        memory: Vec<Self::Memory>,
    ) -> Result<Self::Space, BuildFailure<Self::Memory>>;

    /// Takes a cell apart of which no core and no device is active, and returns all memory that it was built
    /// in, with whatever it holds.
    fn dismantle(&mut self, space: Self::Space) -> Vec<Self::Memory>;

    /// Notes how far a cell is, and what is to be known again of it, where a supervisor finds it that restarts. Until
    /// this was called once, none would.
    fn keep(&mut self, space: &mut Self::Space, stage: Stage, saved_state: Vec<u8>);

    /// Notes an encoded [`Checkpoint`] where a supervisor finds it that restarts. Returns whether there is room for it; else
    /// it finds none.
    #[must_use]
    fn save_checkpoint(&mut self, bytes: &[u8]) -> bool;

    /// Notes an encoded entry of the journal where a supervisor finds it that restarts, as far as there is room.
    fn keep_entry(&mut self, bytes: &[u8]);

    /// Where the text is that the cell stands on, if it does on others' or an image's.
    fn text(&self, space: &Self::Space) -> Option<PhysRange>;

    /// What the cell says of itself.
    fn report<'a>(&self, space: &'a Self::Space) -> &'a Report;

    /// Returns what the cell says that its activities used.
    fn ledger<'a>(&self, space: &'a Self::Space) -> Ledger<'a>;

    /// Makes a place of the cell ready for a core, and all before it.
    ///
    /// # Errors
    /// [`NoStacks`], where that takes memory, which [`Self::allocate_stacks_from`] gives.
    fn allocate_stacks(&mut self, space: &mut Self::Space, place: usize) -> Result<(), NoStacks>;

    /// Gives the cell a chunk that [`Self::allocate_stacks`] takes from, all of it zero.
    ///
    /// # Errors
    /// The memory, where it cannot be written down whose it is.
    fn allocate_stacks_from(
        &mut self,
        space: &mut Self::Space,
        memory: Self::Memory,
    ) -> Result<(), Self::Memory>;

    /// Sends a core into the cell, to a place that is ready and vacant. Does not wait for it. Returns the core, and
    /// whether it goes.
    fn admit(&mut self, space: &mut Self::Space, core: Self::Core, place: usize) -> (Self::Core, Admission);

    /// Gives the core at a place the next order, and interrupts it. Returns the order.
    fn order(&mut self, space: &Self::Space, place: usize, kind: OrderKind) -> Order;

    /// The last order of a place.
    fn last_order(&self, space: &Self::Space, place: usize) -> Order;

    /// Says that there is no core at a place any more: it was reclaimed.
    fn vacate(&mut self, space: &Self::Space, place: usize);

    /// Gives a running cell memory on top, all of it zero: one block, a power of two of chunks at a multiple of its
    /// length. It is in the cell's address space, and among what the cell is told to own, when this returns.
    ///
    /// # Errors
    /// The memory, where the cell has no place for it.
    fn extend(
        &mut self,
        space: &mut Self::Space,
        memory: Self::Memory,
        node: NodeId,
    ) -> Result<(), Self::Memory>;

    /// How many blocks the cell can be given.
    fn places(&self, space: &Self::Space) -> usize;

    /// Tells a running cell the most memory that it may have from now on, in bytes.
    fn set_limit(&self, space: &Self::Space, limit_bytes: u64);

    /// Asks a running cell to offer so many bytes that it can do without. Returns the request's number.
    fn request_unplug(&self, space: &Self::Space, len_bytes: u64) -> u32;

    /// Takes blocks out of a running cell, whatever they are: those that the cell cannot do without, that are not whole
    /// chunks, or that are not the cell's stay. When this returns, nobody can get at what was taken.
    fn unplug(
        &mut self,
        space: &mut Self::Space,
        cores: &[Option<Self::Core>],
        blocks: &[PhysRange],
    ) -> Unplugged<Self::Memory>;

    /// Tells a running cell what became of its offer to the last request: bit n of `taken` stands for block n.
    fn settle(&self, space: &Self::Space, taken: u32);

    /// Tells a running cell what came of its request of that number.
    fn answer(&self, space: &Self::Space, number: u32, answer: Answer);

    /// Asks the running cell to stop.
    fn request_stop(&mut self, space: &Self::Space);

    /// Puts a question to the running cell, see [`isola_abi::query`]. Returns its number; `None` where it is too long.
    fn ask(&mut self, space: &Self::Space, line: Line, question: &[u8]) -> Option<u32>;

    /// The number of the question that the cell was asked last.
    fn asked(&self, space: &Self::Space, line: Line) -> u32;

    /// Says that nothing executes at a place any more, where something is still to be finished: its core was reclaimed.
    fn empty(&mut self, space: &Self::Space, place: usize);

    /// Interrupts the core at a place in a way that it cannot ignore, so that it carries out its order.
    fn force(&mut self, space: &Self::Space, core: &Self::Core, place: usize);

    /// Interrupts all of a cell's cores in such a way, so that each changes from what it does to what was suspended, or back.
    fn rotate(&mut self, space: &Self::Space, cores: &[Option<Self::Core>]);

    /// Interrupts the core at this place of a cell's in such a way, or another one's where none is there that can be, so that
    /// the cell stops, and reports where it stands.
    fn examine(&mut self, space: &Self::Space, cores: &[Option<Self::Core>], place: usize);

    /// Takes cores away from whatever they execute, and waits until they are parked or are not going to be.
    fn reclaim(&mut self, cores: Vec<Self::Core>) -> Reclaimed<Self::Core>;

    /// Where a device is in the machine.
    fn location(device: &Self::Device) -> DeviceLocation;

    /// Makes a device forget its cell: no transfer is under way afterwards, and none begins. Returns whether
    /// it did; a device that does not is not used again, nor the memory that it may still write to.
    #[must_use]
    fn reset(&mut self, device: &mut Self::Device) -> bool;

    /// Goes wrong on purpose, as a test asks, if it was told when the machine was booted that it may. Returns whether that
    /// is still to come.
    #[must_use]
    fn go_wrong(&mut self, fault: Fault) -> bool;

    /// Ends the machine, once what was sent to the console has left.
    fn power_off(&mut self);
}
