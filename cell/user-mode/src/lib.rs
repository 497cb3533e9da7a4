//! Programs in user mode: the interface between a platform, which runs them, and the Linux personality, which serves
//! their system calls.
//!
//! - [`UserMode`]: a platform that can run programs. It creates address spaces.
//! - [`AddressSpace`]: the page tables of a process, filled with [`Frame`]s.
//! - [`UserThread`]: the registers of a program's thread in an address space. [`UserThread::run`] executes the program
//!   until a [`Trap`].
//!
//! A thread runs within an event, to which its cycles are charged. No code outside of the platform accesses a program's
//! memory by the program's addresses: [`AddressSpace::page_at`] returns the frame, which is read and written by copies.
//! Therefore an access never faults, and it does not matter which page tables are loaded.
//!
//! A frame that was unmapped may be in TLBs until a flush is over ([`AddressSpace::flush`]); its last reference must
//! live until then.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod quick_calls;

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
pub use isola_abi::user_context::TrapAnswer;
use isola_abi::user_context::{UserContext, UserRegisters};
use isola_memory::frame::Frame;
pub use quick_calls::{QuickAnswers, QuickCalls, QuickNumbers};

/// The size of a page, in bytes.
pub const PAGE_SIZE: u64 = isola_abi::layout::PAGE_SIZE;

/// The lowest address that no program can have: the end of the lower half, less one page, as in Linux. (A SYSCALL
/// instruction at the very end of the lower half would return to a non-canonical address.)
pub const USER_END: u64 = 0x0000_7fff_ffff_f000;

/// The permitted accesses of a program to a page. A page that is mapped is readable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageRights {
    /// The program may write.
    pub writable: bool,
    /// The program may execute instructions.
    pub executable: bool,
}

/// A mapped page.
#[derive(Clone, Debug)]
pub struct MappedPage {
    /// Its memory.
    pub frame: Frame,
    /// The permitted accesses.
    pub rights: PageRights,
    /// Whether the program has written to it since it was mapped.
    pub is_dirty: bool,
}

/// The kind of an access that caused a page fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The fetch of an instruction.
    Execute,
}

/// The reason why a program's thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// The program executed SYSCALL. RIP is behind the instruction.
    SystemCall,
    /// The program accessed a page that is not mapped, or in a way that the page does not permit.
    PageFault {
        /// The address that it accessed. A program can choose any, also one that is no program's.
        address: u64,
        /// The kind of access.
        access: Access,
    },
    /// The program caused another exception.
    Exception {
        /// The vector (Intel SDM 3, table 6-1).
        vector: u8,
        /// The error code; 0 for an exception without one.
        error_code: u64,
    },
    /// An interrupt arrived, or the core has other work. The program did nothing wrong.
    Interrupt,
    /// [`UserThread::run_with`] has served a trap, and the thread has other work before its program continues.
    Served,
}

/// A failure to map a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapError {
    /// The address is not that of a page, or not a program's.
    NoPage(u64),
    /// A page is mapped there.
    Occupied(u64),
    /// No memory is left for page tables.
    OutOfTables,
}

impl fmt::Display for MapError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPage(address) => write!(f, "no page of a program begins at {address:#x}"),
            Self::Occupied(address) => write!(f, "a page is mapped at {address:#x} already"),
            Self::OutOfTables => f.write_str("no memory is left for page tables"),
        }
    }
}

impl core::error::Error for MapError {}

/// A point in the history of an address space: the changes before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlushGeneration(pub u64);

/// The pages of a [`FrameGroup`].
pub const GROUP_PAGES: usize = 16;

/// Frames for pages that follow each other; none for a page that stays as it is.
pub type FrameGroup = [Option<Frame>; GROUP_PAGES];

/// A platform that can run programs in user mode.
pub trait UserMode: Send + Sync {
    /// Creates an address space without pages.
    ///
    /// # Errors
    /// [`MapError::OutOfTables`].
    fn create_space(&self) -> Result<Arc<dyn AddressSpace>, MapError>;
}

/// The page tables of a process. All methods can be called on any core, also while the program runs on others. A function
/// that is passed to a method calls none of the space.
///
/// The program may access a page that was removed or replaced until a flush is over. So the space keeps the frame until
/// then: [`Self::free_flushed`] and the drop of the space, which each thread of the program has, are the only ways to free it.
pub trait AddressSpace: Send + Sync {
    /// Maps `frame` at `address`, at which nothing is mapped. No TLB has to be flushed.
    ///
    /// # Errors
    /// A [`MapError`]; the frame is dropped.
    fn map(&self, address: u64, frame: Frame, rights: PageRights) -> Result<(), MapError>;

    /// Maps the frames of a group, of pages that follow each other from `start` on, where nothing is mapped. Takes those that it
    /// maps, and returns their number. Without memory for page tables it maps fewer.
    fn map_group(&self, start: u64, frames: &mut FrameGroup, rights: PageRights) -> usize {
        let mut mapped = 0;
        for (page, frame) in (start..).step_by(PAGE_SIZE as usize).zip(frames) {
            if let Some(present) = frame
                && self.map(page, present.clone(), rights).is_ok()
            {
                *frame = None;
                mapped += 1;
            }
        }
        mapped
    }

    /// Replaces the page at `address` by another, and returns the old one. The space keeps the old frame.
    ///
    /// # Errors
    /// [`MapError::NoPage`] if no page is mapped there.
    fn replace(&self, address: u64, frame: Frame, rights: PageRights) -> Result<MappedPage, MapError>;

    /// Removes all pages from `start` on, below `end`, both multiples of the page size, and passes each to `removed` in
    /// ascending order. The space keeps their frames.
    fn unmap(&self, start: u64, end: u64, removed: &mut dyn FnMut(u64, &MappedPage));

    /// Changes the rights of all pages from `start` on, below `end`. `rights` returns the new rights from the address and
    /// the old rights. Rights that were removed may be in use until a flush is over.
    fn protect(&self, start: u64, end: u64, rights: &mut dyn FnMut(u64, &MappedPage) -> PageRights);

    /// Returns the page that contains `address`.
    fn page_at(&self, address: u64) -> Option<MappedPage>;

    /// Calls `see` with each mapped page from `start` on, below `end`, in ascending order.
    fn for_each(&self, start: u64, end: u64, see: &mut dyn FnMut(u64, &MappedPage));

    /// Begins to flush the changes before this call from all TLBs. Returns the generation for [`Self::is_flushed`].
    fn flush(&self) -> FlushGeneration;

    /// Returns whether all cores have flushed the changes before that generation.
    fn is_flushed(&self, generation: FlushGeneration) -> bool;

    /// Drops the references to at most that many frames of removed pages whose flush is over. Returns their number.
    fn free_flushed(&self, most: usize) -> usize;

    /// Creates a thread with these registers, and x87 and upper vector registers in their initial state.
    fn create_thread(self: Arc<Self>, context: UserContext) -> Box<dyn UserThread>;
}

/// A thread of a program in an address space.
pub trait UserThread: Send {
    /// Returns the registers.
    fn context(&self) -> &UserContext;

    /// Returns the registers, to change them. Values that a program must not have are corrected by [`Self::run`]: a
    /// non-canonical address becomes an exception of the program.
    fn context_mut(&mut self) -> &mut UserContext;

    /// Executes the program on the calling core until a trap. While the core has other work, the program runs to the end of
    /// a slice of its event; then, and for work that cannot wait, the trap is [`Trap::Interrupt`].
    fn run(&mut self) -> Trap {
        let answers = QuickAnswers::default();
        let quick = QuickCalls { numbers: QuickNumbers::NONE, answers: &answers };
        self.run_with(quick, &mut |_, _| TrapAnswer::Unserved)
    }

    /// As [`Self::run`], but answers the `quick` calls, and first passes each other system call and page fault to `serve`, with
    /// the program's registers. If `serve` answers [`TrapAnswer::Resume`], the program continues at once, without the steps of
    /// another run.
    ///
    /// While `serve` runs, other cores interrupt this core for messages, which are received afterwards: so it must be short.
    /// Events that it creates for this core run when the program stops, after the slice of its event at the latest. The time
    /// in `serve` is part of the program's.
    fn run_with(
        &mut self,
        quick: QuickCalls<'_>,
        serve: &mut dyn FnMut(Trap, &UserRegisters) -> TrapAnswer,
    ) -> Trap;

    /// Returns the processor state in the standard format of XSAVE (Intel SDM 1, 13.4), for a signal frame: registers of
    /// x87, SSE and what else the processor has.
    fn extended_state(&mut self) -> &[u8];

    /// Sets the processor state from that format.
    ///
    /// # Errors
    /// [`InvalidState`] if the bytes are too few or set reserved bits; the state is then unchanged.
    fn set_extended_state(&mut self, bytes: &[u8]) -> Result<(), InvalidState>;

    /// Creates a thread with the same processor state in another address space, for `fork`, or in the same one.
    fn duplicate(&mut self, space: Arc<dyn AddressSpace>) -> Box<dyn UserThread>;
}

/// Bytes that are not a processor state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidState;

impl fmt::Display for InvalidState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes are no processor state in the format of XSAVE")
    }
}

impl core::error::Error for InvalidState {}
