//! The block of per-core state at the GS segment base.
//!
//! ```text
//! gs:0    index of the core
//! gs:8    the core's own representatives: one word per Ebb      (Pointers)
//!         the cell's representatives and factories              (&CellTable)
//!         the platform                                          (&dyn Platform)
//!         the function that sets the GS base, whether the core's identity was taken
//!         the representatives under construction                (off the path of a call)
//! ```
//!
//! Each block belongs to a vcore; a core that runs several vcores changes the GS base.
//!
//! Invariant: a core runs cell code only after it has called [`CoreBlock::enter`] with a block of its own. From then on
//! the GS base is the address of that block, or, while the core runs another vcore, of the block of that vcore, whose
//! identity the core holds ([`VcoreIdentity`](crate::VcoreIdentity)). All functions of this crate rely on this; the
//! platforms (`cell/bare`, `cell/hosted`) uphold it before they run other code.
//!
//! The words that a call reads here change at most once, from empty to their final value. The assembly that reads them
//! is therefore `nomem`, and the compiler reads them once for several calls of an Ebb.

use crate::cell_table::CellTable;
use crate::table::{Entries, FAST, Pointers};
use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::id::MAX_CORES;
use isola_platform::{CoreIndex, Platform};

/// The per-core state of one vcore.
#[repr(C)]
pub struct CoreBlock {
    index: u64,
    pub(crate) own: Pointers,
    pub(crate) cell: &'static CellTable,
    platform: &'static dyn Platform,
    address: *const CoreBlock,
    /// Sets the GS segment base of the calling core.
    set_gs_base: fn(*const CoreBlock),
    /// Whether the identity was taken.
    identity_taken: AtomicBool,
    /// The numbers of the Ebbs whose representatives are under construction, one bit each.
    under_construction: Entries<Cell<u64>, { FAST / 64 }>,
}

impl CoreBlock {
    /// Returns the block of core `index` of a cell whose cores share `cell` and run on `platform`.
    ///
    /// # Panics
    /// Panics if `index` is not below [`MAX_CORES`], as per-core arrays are indexed without bounds checks.
    pub const fn new(index: CoreIndex, cell: &'static CellTable, platform: &'static dyn Platform) -> Self {
        assert!((index.0 as usize) < MAX_CORES, "a cell has at most MAX_CORES cores");
        let own = Pointers::null();
        let under_construction = Entries::new([const { Cell::new(0) }; FAST / 64]);
        let (address, set_gs_base) = (core::ptr::null(), nothing as fn(*const CoreBlock));
        let identity_taken = AtomicBool::new(false);
        Self {
            index: index.0 as u64,
            own,
            cell,
            platform,
            address,
            set_gs_base,
            identity_taken,
            under_construction,
        }
    }

    /// Returns the core's index, below `MAX_CORES`.
    #[inline(always)]
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    /// Runs `make`, which creates the representative of the Ebb with this number.
    ///
    /// # Panics
    /// Panics on recursion: if `make` calls the Ebb whose representative it creates.
    pub(crate) fn constructing<T>(&self, number: usize, make: impl FnOnce() -> T) -> T {
        let (word, bit) = (self.under_construction.get(number / 64), 1 << (number % 64));
        assert!(word.get() & bit == 0, "a representative invoked the Ebb that it is made for");
        word.set(word.get() | bit);
        let made = make();
        word.set(word.get() & !bit);
        made
    }

    /// Marks the identity as taken. Returns whether it was not taken before.
    pub(crate) fn take_identity(&self) -> bool {
        !self.identity_taken.swap(true, Ordering::Relaxed)
    }

    /// Makes this block the one of the calling core.
    pub(crate) fn become_current(&'static self) {
        (self.set_gs_base)(self);
    }

    /// Makes this block the one of the calling core. `set_gs_base` must set the GS segment base of the calling core to
    /// its argument. A caller of this function must not read the block or call an Ebb itself, nor contain inlined code
    /// that does: the compiler assumes that the block never changes, and could read it before it is set.
    ///
    /// # Safety
    /// The caller is a core (in a process: a thread) without a block so far; no other core uses this block or has the
    /// same index in the same cell; and `set_gs_base` works as described for as long as the core runs cell code.
    #[inline(never)]
    pub unsafe fn enter(&'static mut self, set_gs_base: fn(*const CoreBlock)) {
        self.address = self;
        self.set_gs_base = set_gs_base;
        set_gs_base(self);
    }

    /// Makes this block the one of the calling core again, for a core that joins at the same core slot; another core
    /// may still run the vcore. The restrictions of [`Self::enter`] on the caller apply.
    ///
    /// # Safety
    /// The block was entered before, and the calling core has no block so far. Until the core holds the vcore's
    /// [`VcoreIdentity`](crate::VcoreIdentity), it uses only state of the cell, no per-core state, and allocates
    /// nothing.
    #[inline(never)]
    pub unsafe fn enter_again(&'static self) {
        self.become_current();
    }
}

/// The `set_gs_base` of a block that was not entered.
fn nothing(_: *const CoreBlock) {}

/// Returns the calling core's block.
#[inline(always)]
pub(crate) fn current() -> &'static CoreBlock {
    let address: *const CoreBlock;
    // SAFETY: the GS base is the address of the core's block (the module's invariant), and the load has no effect. A
    // block neither moves nor ends after it was entered.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) address, offset = const offset_of!(CoreBlock, address),
             options(nostack, pure, nomem, preserves_flags));
        &*address
    }
}

/// Returns the index of the calling core, below [`MAX_CORES`].
#[inline(always)]
pub fn current_core() -> CoreIndex {
    let index: u64;
    // SAFETY: as in `current`. `CoreBlock::new` creates no block with a higher index.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) index, offset = const offset_of!(CoreBlock, index),
             options(nostack, pure, nomem, preserves_flags));
        // Per-core arrays are indexed without bounds checks: see `CoreBlock::new`.
        core::hint::assert_unchecked(index < MAX_CORES as u64);
    }
    CoreIndex(index as u32)
}

/// Returns the platform of the calling core's cell.
#[inline]
pub fn platform() -> &'static dyn Platform {
    current().platform
}

/// Returns the calling core's cycle counter.
///
/// The read is not ordered with the instructions around it: suitable for accounting, not for the timing of single
/// instructions.
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and the read has no effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}
