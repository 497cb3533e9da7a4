//! The address space of a program: its page tables under a lock, and TLB flushes.
//!
//! ```text
//!   a core that runs the program             a core that changes the tables
//!     visited += this core                     change entries
//!     running space := this one                generation += 1 -> n
//!     fence                                    fence
//!     read the generation n                    interrupt the visited cores whose running space is this one, and
//!     if seen[core] < n: flush, seen := n        seen < n
//!     user mode
//! ```
//!
//! With the fences, either the first core sees the new generation, or the second sees the first one's running space. An
//! interrupt ends user mode. A core outside of user mode is not interrupted: it flushes before it runs the program again.
//! (Processors may read present entries at any time by speculation. So *tables* are freed only when each core has
//! flushed, whatever it runs: the callers of [`RemovedTables::free`] and [`ProgramSpace::free`] ensure that.)

use super::core_block::{CoreBlock, pin};
use super::tables::{PageGroup, PageState, RemovedTables, TableError, Tables};
use crate::apic::local;
use crate::authority::Authority;
use crate::cell::core_slots;
use crate::interrupts::WAKE_VECTOR;
use crate::region_area::{RegionArea, flush};
use alloc::boxed::Box;
use core::arch::asm;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};
use isola_abi::id::{MAX_CORES, PhysAddr};
use isola_abi::layout::{PAGE_SIZE, ROOT_TABLE};
use spin::Mutex;

/// The root of the cell's own page tables; 0 until the first program's are created.
static CELL_ROOT: AtomicU64 = AtomicU64::new(0);

/// The number of the last space.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The address space of a program. Its tables stay allocated until it is [freed](Self::free): cores may have them loaded.
#[derive(Debug)]
pub struct ProgramSpace {
    /// A number that no other space has.
    number: u64,
    root: PhysAddr,
    area: &'static RegionArea,
    tables: Mutex<Tables>,
    /// The number of changes that need flushes.
    generation: AtomicU64,
    /// By core slot: the generation at the last flush by its core.
    seen: Box<[AtomicU64; MAX_CORES]>,
    /// The core slots whose cores have run the program, a bit for each.
    visited: AtomicU64,
}

impl ProgramSpace {
    /// Creates a space without pages. `area` knows the cell's memory.
    ///
    /// # Errors
    /// [`TableError::OutOfMemory`].
    pub fn new(area: &'static RegionArea) -> Result<Self, TableError> {
        // Before any program's tables are loaded, those of the cell are.
        let _ = CELL_ROOT.compare_exchange(0, loaded_root().0, Ordering::Relaxed, Ordering::Relaxed);
        let upper = |number: usize| {
            // SAFETY: the builder of the cell has mapped the page there, and does not change the upper half.
            unsafe { ((ROOT_TABLE as usize + 8 * number) as *const u64).read_volatile() }
        };
        let tables = Tables::new(upper, &|page| area.own_page(page))?;
        Ok(Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            root: tables.root(),
            area,
            tables: Mutex::new(tables),
            generation: AtomicU64::new(0),
            seen: Box::new([const { AtomicU64::new(0) }; MAX_CORES]),
            visited: AtomicU64::new(0),
        })
    }

    /// Maps the page of memory at `page`, an address by which the cell accesses it. `owner` is returned when the page is
    /// unmapped.
    ///
    /// # Errors
    /// A [`TableError`].
    ///
    /// # Safety
    /// The memory must be a page that the program may access until all cores have flushed its removal: no references to
    /// it exist, and its other accesses allow for those of a program.
    pub unsafe fn map(
        &self,
        address: u64,
        page: NonNull<u8>,
        owner: NonNull<()>,
        is_writable: bool,
        is_executable: bool,
    ) -> Result<(), TableError> {
        let phys = |page| self.area.own_page(page);
        self.tables.lock().map(address, page, owner, (is_writable, is_executable), &phys)
    }

    /// Maps the pages of a group of at most 64 pages where nothing is mapped, as [`Self::map`] does. Returns those that are
    /// mapped now, a bit for each.
    ///
    /// # Safety
    /// As for [`Self::map`].
    pub unsafe fn map_group(
        &self,
        start: u64,
        pages: &PageGroup,
        is_writable: bool,
        is_executable: bool,
    ) -> u64 {
        let phys = |page| self.area.own_page(page);
        self.tables.lock().map_group(start, pages, (is_writable, is_executable), &phys)
    }

    /// Replaces a page by another. Returns the owner and the state of the old one.
    ///
    /// # Errors
    /// [`TableError::NoPage`] if no page is mapped there; [`TableError::NotOwned`].
    ///
    /// # Safety
    /// As for [`Self::map`].
    pub unsafe fn replace(
        &self,
        address: u64,
        page: NonNull<u8>,
        owner: NonNull<()>,
        is_writable: bool,
        is_executable: bool,
    ) -> Result<(NonNull<()>, PageState), TableError> {
        let phys = |page| self.area.own_page(page);
        self.tables.lock().replace(address, page, owner, (is_writable, is_executable), &phys)
    }

    /// Frees the tables.
    ///
    /// # Safety
    /// No core has the tables loaded: since the last [`ProgramThread::run`](super::ProgramThread::run) with this space, each
    /// core of the cell that ran it has called [`leave_program_space`].
    pub unsafe fn free(self) {
        // SAFETY: the caller's promise.
        unsafe { self.tables.into_inner().free() };
    }

    /// Removes the pages of a range, and passes the address, the owner and the state of each to `removed`.
    pub fn unmap(
        &self,
        start: u64,
        end: u64,
        removed: &mut impl FnMut(u64, NonNull<()>, PageState),
    ) -> RemovedTables {
        self.tables.lock().unmap(start, end, removed)
    }

    /// Calls `see` with each page of a range. If it returns rights (writable, executable), the page gets these.
    pub fn for_each(
        &self,
        start: u64,
        end: u64,
        see: &mut impl FnMut(u64, NonNull<()>, PageState) -> Option<(bool, bool)>,
    ) {
        self.tables.lock().for_each(start, end, see);
    }

    /// Calls `see` with the owner and the state of the page that contains `address`, if one is mapped.
    pub fn page_at<R>(&self, address: u64, see: impl FnOnce(NonNull<()>, PageState) -> R) -> Option<R> {
        let tables = self.tables.lock();
        tables.page_at(address).map(|(owner, state)| see(owner, state))
    }

    /// Begins to flush the changes so far from all TLBs. Returns their generation.
    pub fn flush(&self) -> u64 {
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        fence(Ordering::SeqCst);
        let here = pin();
        for (slot, seen) in self.running() {
            if slot == here.slot {
                // The caller serves a trap of the program, which continues on this core without a load of its tables.
                flush();
                self.seen[slot].fetch_max(generation, Ordering::Release);
            } else if seen < generation
                && let Some(core) = core_slots().core(slot)
            {
                local::send(Authority::OWN, core.apic, WAKE_VECTOR);
            }
        }
        generation
    }

    /// Returns whether no program can use translations from before that generation.
    pub fn is_flushed(&self, generation: u64) -> bool {
        self.running().all(|(_, seen)| seen >= generation)
    }

    /// Returns the core slots whose cores run this program, with the generation that each has seen.
    fn running(&self) -> impl Iterator<Item = (usize, u64)> {
        let mut left = self.visited.load(Ordering::Relaxed);
        let slots = core::iter::from_fn(move || {
            let slot = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            (slot < MAX_CORES).then_some(slot)
        });
        slots.filter_map(|slot| {
            core_slots().core(slot)?;
            let runs = CoreBlock::of(slot).running_space.load(Ordering::Acquire) == self.number;
            runs.then(|| (slot, self.seen[slot].load(Ordering::Acquire)))
        })
    }

    /// Loads the page tables on this core, to which the context is pinned, and flushes what was removed from them.
    #[inline]
    pub(super) fn load(&self, slot: usize, block: &CoreBlock) {
        if self.visited.load(Ordering::Relaxed) >> (slot % MAX_CORES) & 1 == 0 {
            self.visited.fetch_or(1 << (slot % MAX_CORES), Ordering::Relaxed);
        }
        block.running_space.store(self.number, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let generation = self.generation.load(Ordering::Acquire);
        let seen = &self.seen[slot % MAX_CORES];
        if loaded_root() != self.root {
            // SAFETY: the upper half is that of the cell's own tables. The tables stay until each core has left them:
            // the caller of `run` holds the space.
            unsafe { load_root(self.root) };
            seen.store(generation, Ordering::Release);
        } else if seen.load(Ordering::Relaxed) != generation {
            flush();
            seen.store(generation, Ordering::Release);
        }
    }
}

/// Loads the cell's own page tables on this core, if those of a program are loaded. Returns whether they were: then the
/// TLB was flushed. Costs two loads and a branch in a cell without programs.
///
/// While the core serves a trap of its program, it keeps the program's tables, with which the program continues. Its thread
/// holds their space, so they are not among the retired ones.
#[inline]
pub fn leave_program_space() -> bool {
    let root = CELL_ROOT.load(Ordering::Relaxed);
    if root == 0 || loaded_root().0 == root || CoreBlock::here_runs_program() {
        return false;
    }
    // SAFETY: these are the tables that the builder of the cell has made.
    unsafe { load_root(PhysAddr(root)) };
    true
}

fn loaded_root() -> PhysAddr {
    let root: u64;
    // SAFETY: reading the register changes nothing.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    PhysAddr(root & !(PAGE_SIZE - 1))
}

/// # Safety
/// It must be the root of tables that map what the cell's own tables map.
unsafe fn load_root(root: PhysAddr) {
    // SAFETY: the caller guarantees the tables.
    unsafe { asm!("mov cr3, {}", in(reg) root.0, options(nostack, preserves_flags)) };
}
