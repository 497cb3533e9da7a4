//! The tables in which a core and a cell find the representatives of Ebbs that are declared as statics.

use crate::maker::Makers;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Most Ebbs that an image declares.
pub const MAX_EBBS: usize = 128;

/// The slot of an Ebb that has none yet. It stays empty in every table, so that the path of an invocation needs no
/// second test: an Ebb without a slot looks like one without a representative.
const UNASSIGNED: u32 = 0;

static NEXT_SLOT: AtomicU32 = AtomicU32::new(UNASSIGNED + 1);

/// Representatives by slot: of one core, or of a cell.
#[repr(C)]
pub(crate) struct EbbTable {
    pub(crate) slots: [AtomicPtr<()>; MAX_EBBS],
}

impl EbbTable {
    /// A table of none.
    pub const fn new() -> Self {
        Self { slots: [const { AtomicPtr::new(core::ptr::null_mut()) }; MAX_EBBS] }
    }
}

/// What the cores of a cell share.
pub struct CellTable {
    /// The representatives of Ebbs that have one a cell.
    pub(crate) representatives: EbbTable,
    pub(crate) makers: Makers,
}

impl CellTable {
    /// Of a cell in which no Ebb was invoked.
    pub const fn new() -> Self {
        Self { representatives: EbbTable::new(), makers: Makers::new() }
    }
}

impl Default for CellTable {
    fn default() -> Self {
        Self::new()
    }
}

/// Where an Ebb's representatives stand in all tables: given out when it is first used, so that two cannot clash.
pub(crate) struct Slot(AtomicU32);

impl Slot {
    /// None yet.
    pub const fn new() -> Self {
        Self(AtomicU32::new(UNASSIGNED))
    }

    /// The slot, or the one that is always empty. Less than [`MAX_EBBS`].
    #[inline(always)]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Where the slot's number stands: for who reads it as [`Slot::get`] does, in a way of its own.
    #[inline(always)]
    pub fn address(&self) -> *const u32 {
        self.0.as_ptr()
    }

    /// The slot, given out now where there is none.
    ///
    /// # Panics
    /// Where the image has more than [`MAX_EBBS`].
    pub fn assigned(&self) -> usize {
        let assigned = self.get();
        if assigned != UNASSIGNED {
            return assigned as usize;
        }
        let fresh = NEXT_SLOT.fetch_add(1, Ordering::Relaxed);
        assert!((fresh as usize) < MAX_EBBS, "an image declares at most {MAX_EBBS} Ebbs");
        match self.0.compare_exchange(UNASSIGNED, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh as usize,
            Err(other) => other as usize,
        }
    }
}
