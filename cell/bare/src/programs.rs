//! Programs in user mode: address spaces and threads on bare hardware.
//!
//! A page table entry owns a reference to its frame, which `machine` keeps beside the entry. Frames and tables are
//! ordinary memory of the heap: they do not migrate, and memory with them is not given back.
//!
//! A page that is removed or replaced hands its reference over to the space, which keeps it until a flush is over: until then
//! other cores may access the page through their TLBs.
//!
//! A space that is dropped, and tables that a space no longer needs, are freed when each core has passed its loop, where
//! it leaves a program's tables, or is halted.

use crate::{cores, page_tables, regions};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::user_context::{UserContext, UserRegisters};
use isola_events::program::{ProgramCore, run_program};
use isola_machine::user::{
    self as machine, PageState, ProgramSpace, ProgramThread, RawTrap, RemovedTables, TableError, is_supported,
};
use isola_memory::frame::Frame;
use isola_memory::regions::Retirement;
use isola_user_mode::{
    Access, AddressSpace, FlushGeneration, FrameGroup, InvalidState, MapError, MappedPage, PageRights,
    QuickAnswers, QuickCalls, QuickNumbers, Trap, TrapAnswer, UserMode, UserThread,
};
use spin::Mutex;

/// The error code of a page fault: a store, or the fetch of an instruction (Intel SDM 3, 4.7).
const FAULT_OF_WRITE: u64 = 1 << 1;
const FAULT_OF_FETCH: u64 = 1 << 4;

/// Bare hardware as a platform for programs.
struct BareUserMode;

/// Returns the platform for programs, if the processor can run them.
pub fn user_mode() -> Option<&'static dyn UserMode> {
    is_supported().then_some(&BareUserMode as &dyn UserMode)
}

/// Tables that a space no longer needs, or a whole space, with the time from which on no core uses them.
struct Retired {
    retirement: Retirement,
    tables: RemovedTables,
    space: Option<ProgramSpace>,
}

static RETIRED: Mutex<Vec<Retired>> = Mutex::new(Vec::new());
static HAS_RETIRED: AtomicBool = AtomicBool::new(false);

fn retire(tables: RemovedTables, space: Option<ProgramSpace>) {
    let retirement = page_tables::retire_entries();
    RETIRED.lock().push(Retired { retirement, tables, space });
    HAS_RETIRED.store(true, Ordering::Relaxed);
}

/// Frees the tables that no core uses any more.
pub(crate) fn collect() {
    if !HAS_RETIRED.load(Ordering::Relaxed) {
        return;
    }
    let Some(mut retired) = RETIRED.try_lock() else { return };
    let over: Vec<Retired> = retired.extract_if(.., |entry| page_tables::is_over(entry.retirement)).collect();
    HAS_RETIRED.store(!retired.is_empty(), Ordering::Relaxed);
    drop(retired);
    for Retired { tables, space, .. } in over {
        // SAFETY: no program uses them, and since they were retired, each core has flushed its TLB and left program spaces.
        unsafe {
            tables.free();
            if let Some(space) = space {
                space.free();
            }
        }
    }
}

impl UserMode for BareUserMode {
    fn create_space(&self) -> Result<Arc<dyn AddressSpace>, MapError> {
        collect();
        let area = page_tables::tables().ok_or(MapError::OutOfTables)?;
        let space = ProgramSpace::new(area).map_err(|_| MapError::OutOfTables)?;
        Ok(Arc::new(BareSpace { space: ManuallyDrop::new(space), removed: Mutex::default() }))
    }
}

/// An address space.
struct BareSpace {
    space: ManuallyDrop<ProgramSpace>,
    removed: Mutex<Removed>,
}

/// The capacity of the list of frames beyond which its memory is freed with its last frame.
const MOST_CAPACITY: usize = 1024;

/// What left the page tables, but may be in TLBs.
#[derive(Default)]
struct Removed {
    /// The frames of pages, in the order of their removal.
    frames: VecDeque<Frame>,
    /// The generations of the flushes of these frames, with the number of frames of each, in the same order.
    flushes: VecDeque<(u64, usize)>,
    /// The number of frames at the end of the list that no flush has covered.
    unflushed: usize,
    /// Tables, and the generation of their flush.
    tables: Vec<(u64, RemovedTables)>,
}

impl Removed {
    fn push(&mut self, frame: Frame) {
        self.frames.push_back(frame);
        self.unflushed += 1;
    }

    /// Begins a flush, which covers all frames. Returns its generation.
    fn flush(&mut self, space: &ProgramSpace) -> u64 {
        let generation = space.flush();
        if self.unflushed > 0 {
            self.flushes.push_back((generation, core::mem::take(&mut self.unflushed)));
        }
        generation
    }

    /// Takes a frame whose flush is over.
    fn pop_flushed(&mut self, space: &ProgramSpace) -> Option<Frame> {
        let (generation, left) = self.flushes.front_mut()?;
        if !space.is_flushed(*generation) {
            return None;
        }
        *left -= 1;
        if *left == 0 {
            self.flushes.pop_front();
        }
        let frame = self.frames.pop_front();
        if self.frames.is_empty() && self.frames.capacity() > MOST_CAPACITY {
            self.frames = VecDeque::new();
        }
        frame
    }
}

/// Returns the page of an entry whose reference to the frame stays with the entry. To be used while the space is locked.
#[inline]
fn seen(owner: NonNull<()>, state: PageState) -> ManuallyDrop<MappedPage> {
    // SAFETY: the entry owns a reference, which stays, as this one is not dropped. It cannot end meanwhile, as the space
    // is locked.
    ManuallyDrop::new(page(unsafe { Frame::from_raw(owner) }, state))
}

/// Returns the page of an entry that was removed.
fn taken(owner: NonNull<()>, state: PageState) -> MappedPage {
    // SAFETY: `map` has made the pointer of a reference, and the entry that owned it is gone.
    page(unsafe { Frame::from_raw(owner) }, state)
}

fn page(frame: Frame, state: PageState) -> MappedPage {
    let rights = PageRights { writable: state.is_writable, executable: state.is_executable };
    MappedPage { frame, rights, is_dirty: state.is_dirty }
}

fn map_error(error: TableError, address: u64) -> MapError {
    match error {
        TableError::NoPage | TableError::NotOwned => MapError::NoPage(address),
        TableError::Occupied => MapError::Occupied(address),
        TableError::OutOfMemory => MapError::OutOfTables,
    }
}

impl BareSpace {
    /// Hands tables that the program cannot use any more over to the cores' grace periods.
    fn retire_flushed(&self) {
        let Some(mut removed) = self.removed.try_lock() else { return };
        let flushed = removed.tables.extract_if(.., |(generation, _)| self.space.is_flushed(*generation));
        let mut tables = RemovedTables::default();
        flushed.for_each(|(_, more)| tables.append(more));
        drop(removed);
        if !tables.is_empty() {
            retire(tables, None);
        }
    }
}

impl AddressSpace for BareSpace {
    fn map(&self, address: u64, frame: Frame, rights: PageRights) -> Result<(), MapError> {
        let (memory, owner) = (frame.address(), frame.into_raw());
        // SAFETY: a frame is accessed by atomic copies and operations only, and lives until its last reference is dropped. The
        // entry owns one, which moves to `removed` with the page, and leaves it when all cores have flushed the removal.
        let mapped = unsafe { self.space.map(address, memory, owner, rights.writable, rights.executable) };
        mapped.map_err(|error| {
            // SAFETY: made above, and no entry has it.
            drop(unsafe { Frame::from_raw(owner) });
            map_error(error, address)
        })
    }

    fn map_group(&self, start: u64, frames: &mut FrameGroup, rights: PageRights) -> usize {
        let pages =
            frames.each_mut().map(|frame| frame.take().map(|frame| (frame.address(), frame.into_raw())));
        // SAFETY: as for `map`.
        let mapped = unsafe { self.space.map_group(start, &pages, rights.writable, rights.executable) };
        for (number, (frame, page)) in frames.iter_mut().zip(pages).enumerate() {
            if mapped >> number & 1 == 0 {
                // SAFETY: made above, and no entry has it.
                *frame = page.map(|(_, owner)| unsafe { Frame::from_raw(owner) });
            }
        }
        mapped.count_ones() as usize
    }

    fn replace(&self, address: u64, frame: Frame, rights: PageRights) -> Result<MappedPage, MapError> {
        let (memory, owner) = (frame.address(), frame.into_raw());
        // SAFETY: as for `map`.
        let former =
            unsafe { self.space.replace(address, memory, owner, rights.writable, rights.executable) };
        match former {
            Ok((former, state)) => {
                let page = taken(former, state);
                self.removed.lock().push(page.frame.clone());
                Ok(page)
            }
            Err(error) => {
                // SAFETY: made above, and no entry has it.
                drop(unsafe { Frame::from_raw(owner) });
                Err(map_error(error, address))
            }
        }
    }

    fn unmap(&self, start: u64, end: u64, removed: &mut dyn FnMut(u64, &MappedPage)) {
        let mut kept = self.removed.lock();
        let tables = self.space.unmap(start, end, &mut |address, owner, state| {
            let page = taken(owner, state);
            removed(address, &page);
            kept.push(page.frame);
        });
        if !tables.is_empty() {
            let generation = kept.flush(&self.space);
            kept.tables.push((generation, tables));
            drop(kept);
            self.retire_flushed();
        }
    }

    fn protect(&self, start: u64, end: u64, rights: &mut dyn FnMut(u64, &MappedPage) -> PageRights) {
        self.space.for_each(start, end, &mut |address, owner, state| {
            let PageRights { writable, executable } = rights(address, &seen(owner, state));
            Some((writable, executable))
        });
    }

    fn page_at(&self, address: u64) -> Option<MappedPage> {
        self.space.page_at(address, |owner, state| MappedPage::clone(&seen(owner, state)))
    }

    fn for_each(&self, start: u64, end: u64, see: &mut dyn FnMut(u64, &MappedPage)) {
        self.space.for_each(start, end, &mut |address, owner, state| {
            see(address, &seen(owner, state));
            None
        });
    }

    fn flush(&self) -> FlushGeneration {
        FlushGeneration(self.removed.lock().flush(&self.space))
    }

    fn free_flushed(&self, most: usize) -> usize {
        for freed in 0..most {
            let frame = self.removed.lock().pop_flushed(&self.space);
            // Freed without the lock.
            if frame.is_none() {
                return freed;
            }
        }
        most
    }

    fn is_flushed(&self, generation: FlushGeneration) -> bool {
        let is_flushed = self.space.is_flushed(generation.0);
        if is_flushed {
            self.retire_flushed();
        }
        is_flushed
    }

    fn create_thread(self: Arc<Self>, context: UserContext) -> Box<dyn UserThread> {
        Box::new(BareThread { thread: ProgramThread::new(context), space: self })
    }
}

impl Drop for BareSpace {
    fn drop(&mut self) {
        // No thread has the space, so no program uses its pages, also not those that were removed.
        let mut tables = self.space.unmap(0, u64::MAX, &mut |_, owner, state| drop(taken(owner, state)));
        self.removed.get_mut().tables.drain(..).for_each(|(_, more)| tables.append(more));
        // SAFETY: not used afterwards.
        let space = unsafe { ManuallyDrop::take(&mut self.space) };
        retire(tables, Some(space));
        collect();
    }
}

/// Returns the trap as the personality of the cell sees it.
#[inline]
fn trap_of(trap: RawTrap) -> Trap {
    match trap {
        RawTrap::SystemCall => Trap::SystemCall,
        RawTrap::PageFault { address, error_code } => {
            let access = match error_code {
                code if code & FAULT_OF_FETCH != 0 => Access::Execute,
                code if code & FAULT_OF_WRITE != 0 => Access::Write,
                _ => Access::Read,
            };
            Trap::PageFault { address, access }
        }
        RawTrap::Exception { vector, error_code } => Trap::Exception { vector, error_code },
        RawTrap::Interrupt => Trap::Interrupt,
        RawTrap::Served => Trap::Served,
    }
}

/// A thread of a program.
struct BareThread {
    thread: ProgramThread,
    space: Arc<BareSpace>,
}

impl BareThread {
    /// Runs the program until a trap that `serve` does not serve.
    #[inline]
    fn execute(
        &mut self,
        quick: QuickCalls<'_>,
        mut serve: impl FnMut(&ProgramCore<'_>, RawTrap, &UserRegisters) -> TrapAnswer,
    ) -> Trap {
        let quick = machine::QuickCalls { numbers: quick.numbers.table(), answers: quick.answers.all() };
        let mut trap = RawTrap::Interrupt;
        let _ = run_program(|core| {
            page_tables::leave_grace_periods();
            let serve = |trap, registers: &UserRegisters| serve(core, trap, registers);
            trap = self.thread.run(&self.space.space, quick, || !cores::has_pending(), serve);
            regions::after_halt();
        });
        trap_of(trap)
    }
}

impl UserThread for BareThread {
    fn context(&self) -> &UserContext {
        self.thread.context()
    }

    fn context_mut(&mut self) -> &mut UserContext {
        self.thread.context_mut()
    }

    /// Without the steps that serving takes.
    fn run(&mut self) -> Trap {
        static NO_ANSWERS: QuickAnswers = QuickAnswers::new();
        let quick = QuickCalls { numbers: QuickNumbers::NONE, answers: &NO_ANSWERS };
        self.execute(quick, |_, _, _| TrapAnswer::Unserved)
    }

    fn run_with(
        &mut self,
        quick: QuickCalls<'_>,
        serve: &mut dyn FnMut(Trap, &UserRegisters) -> TrapAnswer,
    ) -> Trap {
        self.execute(quick, |core, trap, registers| {
            if !page_tables::rejoin_grace_periods() {
                return TrapAnswer::Unserved;
            }
            let mut answer = TrapAnswer::Unserved;
            let may_resume = core.serve(|| answer = serve(trap_of(trap), registers));
            match answer {
                TrapAnswer::Resume(result) if !may_resume => TrapAnswer::Stop(result),
                TrapAnswer::Resume(_) => {
                    page_tables::leave_grace_periods();
                    answer
                }
                _ => answer,
            }
        })
    }

    fn extended_state(&mut self) -> &[u8] {
        self.thread.extended_state()
    }

    fn set_extended_state(&mut self, bytes: &[u8]) -> Result<(), InvalidState> {
        self.thread.set_extended_state(bytes).map_err(|_| InvalidState)
    }

    fn duplicate(&mut self, space: Arc<dyn AddressSpace>) -> Box<dyn UserThread> {
        let mut thread = space.create_thread(self.context().clone());
        // The state is in the format that the same processor uses.
        let is_set = thread.set_extended_state(self.thread.extended_state());
        debug_assert_eq!(is_set, Ok(()));
        thread
    }
}
