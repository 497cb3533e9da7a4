//! What a core knows of itself, at the base of its GS segment.
//!
//! ```text
//! gs:0    index of the core
//! gs:8    the core's own representatives: one word an Ebb       (Pointers)
//!         the cell's representatives, and who makes them        (&CellTable)
//!         the platform                                          (&dyn Platform)
//!         how another block is made current, whether the core's identity was handed out
//!         which representatives are being made                  (off the path of an invocation)
//! ```
//!
//! Invariant: a processor core runs cell code only after [`CoreBlock::enter`] was called on it with a block of its own,
//! whose address is the segment's base from then on, but while it runs as another core, whose identity it holds
//! ([`CoreIdentity`](crate::CoreIdentity)). All functions of this crate stand on that; the platforms (`cell/bare`,
//! `cell/hosted`) uphold it before they run anything else.
//!
//! What is read here on the path of an invocation changes once at most, from nothing to what it is for good. The compiler
//! is told so (`nomem`), and reads it once where code invokes an Ebb several times.

use crate::table::{CellTable, Entries, FAST, Pointers};
use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;
use core::sync::atomic::{AtomicBool, Ordering};
use isola_abi::id::MAX_CORES;
use isola_platform::{CoreIndex, Platform};

/// What a core knows of itself.
#[repr(C)]
pub struct CoreBlock {
    index: u64,
    pub(crate) own: Pointers,
    pub(crate) cell: &'static CellTable,
    platform: &'static dyn Platform,
    address: *const CoreBlock,
    /// Makes an address the base of the calling processor core's GS segment.
    set_gs_base: fn(*const CoreBlock),
    /// Whether the core's identity was handed out.
    handed_out: AtomicBool,
    /// The numbers of Ebbs whose representatives are being made, a bit each.
    in_making: Entries<Cell<u64>, { FAST / 64 }>,
}

impl CoreBlock {
    /// The block of core `index` of a cell whose cores share `cell` and run on `platform`.
    ///
    /// # Panics
    /// Where a cell cannot have so many cores: what is kept by core is indexed without a look at its bounds.
    pub const fn new(index: CoreIndex, cell: &'static CellTable, platform: &'static dyn Platform) -> Self {
        assert!((index.0 as usize) < MAX_CORES, "a cell has at most MAX_CORES cores");
        let own = Pointers::null();
        let in_making = Entries::new([const { Cell::new(0) }; FAST / 64]);
        let (address, set_gs_base) = (core::ptr::null(), nothing as fn(*const CoreBlock));
        let handed_out = AtomicBool::new(false);
        Self { index: index.0 as u64, own, cell, platform, address, set_gs_base, handed_out, in_making }
    }

    /// The core's index; below `MAX_CORES`.
    #[inline(always)]
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    /// Runs `make`, which makes the representative of the Ebb of that number.
    ///
    /// # Panics
    /// Where that is being done already: `make` invoked the Ebb that it makes a representative of.
    pub(crate) fn making<T>(&self, number: usize, make: impl FnOnce() -> T) -> T {
        let (word, bit) = (self.in_making.get(number / 64), 1 << (number % 64));
        assert!(word.get() & bit == 0, "a representative invoked the Ebb that it is made for");
        word.set(word.get() | bit);
        let made = make();
        word.set(word.get() & !bit);
        made
    }

    /// Hands out the core's identity, as far as that is this block's to say: once.
    pub(crate) fn hand_out(&self) -> bool {
        !self.handed_out.swap(true, Ordering::Relaxed)
    }

    /// Makes this the block that the calling processor core runs with.
    pub(crate) fn become_current(&'static self) {
        (self.set_gs_base)(self);
    }

    /// Makes this the calling core's block. `set_gs_base` has to make the address it is given the base of
    /// the core's GS segment. No function that calls this looks at the block or invokes an Ebb itself, nor does what may
    /// be inlined into it: for the compiler the block never changes, so that it could look before it is there.
    ///
    /// # Safety
    /// The caller is a core (in a process: a thread) that has no block so far, no other core uses this one or
    /// has the same index in the same cell, and `set_gs_base` does what it is said to, for as long as the core
    /// runs cell code.
    #[inline(never)]
    pub unsafe fn enter(&'static mut self, set_gs_base: fn(*const CoreBlock)) {
        self.address = self;
        self.set_gs_base = set_gs_base;
        set_gs_base(self);
    }

    /// Makes this the calling core's block once more, on a processor core that is to be the core again: another may still
    /// run as it. What is called as [`Self::enter`] says.
    ///
    /// # Safety
    /// The block was entered before, and the processor core has none so far. Until it holds the core's
    /// [`CoreIdentity`](crate::CoreIdentity), it uses what is the cell's alone, and allocates nothing.
    #[inline(never)]
    pub unsafe fn enter_again(&'static self) {
        self.become_current();
    }
}

/// Of a block that was not entered.
fn nothing(_: *const CoreBlock) {}

/// The calling core's block.
#[inline(always)]
pub(crate) fn current() -> &'static CoreBlock {
    let address: *const CoreBlock;
    // SAFETY: the segment's base is the core's block (the module's invariant), and reading it changes nothing.
    // The block never moves or goes away once entered.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) address, offset = const offset_of!(CoreBlock, address),
             options(nostack, pure, nomem, preserves_flags));
        &*address
    }
}

/// Index of the calling core; below [`MAX_CORES`].
#[inline(always)]
pub fn current_core() -> CoreIndex {
    let index: u64;
    // SAFETY: as in `current`. `CoreBlock::new` makes none with another index.
    unsafe {
        asm!("mov {}, gs:[{offset}]", out(reg) index, offset = const offset_of!(CoreBlock, index),
             options(nostack, pure, nomem, preserves_flags));
        // What is kept by core is indexed without a look at its bounds: see `CoreBlock::new`.
        core::hint::assert_unchecked(index < MAX_CORES as u64);
    }
    CoreIndex(index as u32)
}

/// The platform of the calling core's cell.
#[inline]
pub fn platform() -> &'static dyn Platform {
    current().platform
}

/// The calling core's cycle counter.
///
/// Not ordered with the instructions around it: good for accounting, not for timing single instructions.
#[inline(always)]
pub fn cycles() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and reading the counter has no effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}
