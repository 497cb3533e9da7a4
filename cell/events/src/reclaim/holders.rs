//! The holders of memory that the cell could do without.

use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::Range;
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::MemoryPressure;
use isola_ebbs::{Ebb, Representative, current_core, platform};

use super::RECLAIM;

/// The holders of each core.
pub(super) static HOLDERS: Ebb<CoreHolders> = Ebb::new();

/// The reason for which memory is to be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimCause {
    /// An activity uses more than its hard budget.
    Budget,
    /// The supervisor wants memory back.
    Supervisor,
    /// The cell has little free memory.
    Shortage(MemoryPressure),
}

/// A holder of memory that the cell could do without, such as a cache. All its methods run on the core on which it was
/// registered, between events, and take less than a millisecond.
pub trait MemoryHolder {
    /// Returns the memory that [`Self::free`] could free for that cause, in bytes, by activity.
    fn held(&self, cause: ReclaimCause) -> Vec<(ActivityId, usize)>;

    /// Frees about `len_bytes` bytes that the activity could do without, those that it needs least. Returns the number
    /// of bytes. It may free fewer; 0 means that it has none.
    fn free(&self, cause: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize;

    /// Copies some of its memory at these addresses to other addresses, or frees it, if it can. It begins at the
    /// position `from` of an order of its own, in which 0 is the beginning, and returns the position at which to
    /// continue; `None` at the end.
    ///
    /// Memory that it frees may be allocated again on this core before it returns: it first allocates all copies of a
    /// call, then frees the originals.
    fn vacate(&self, addresses: &Range<usize>, from: u64) -> Option<u64>;
}

/// Keeps a holder registered until dropped.
#[must_use = "the holder is removed when this is dropped"]
pub struct HolderRegistration {
    _holder: Rc<dyn MemoryHolder>,
}

impl Drop for HolderRegistration {
    fn drop(&mut self) {
        platform().report().memory.holders.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Registers a holder on this core, until the returned value is dropped.
pub fn register_memory_holder(holder: impl MemoryHolder + 'static) -> HolderRegistration {
    let holder: Rc<dyn MemoryHolder> = Rc::new(holder);
    HOLDERS.holders.borrow_mut().push(Rc::downgrade(&holder));
    RECLAIM.add_core(current_core());
    platform().report().memory.holders.fetch_add(1, Ordering::Relaxed);
    HolderRegistration { _holder: holder }
}

#[derive(Default)]
pub(super) struct CoreHolders {
    holders: RefCell<Vec<Weak<dyn MemoryHolder>>>,
}

impl Representative for CoreHolders {
    fn create() -> Self {
        Self::default()
    }
}

impl CoreHolders {
    /// Returns the holders, without those that were removed. Holds no borrow while they are called.
    fn all(&self) -> Vec<Rc<dyn MemoryHolder>> {
        let mut holders = self.holders.borrow_mut();
        holders.retain(|holder| holder.strong_count() > 0);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    pub fn held(&self, cause: ReclaimCause) -> Vec<(ActivityId, usize)> {
        self.all().iter().flat_map(|holder| holder.held(cause)).collect()
    }

    pub fn free(&self, cause: ReclaimCause, activity: ActivityId, len_bytes: usize) -> usize {
        let mut freed: usize = 0;
        for holder in self.all() {
            if freed < len_bytes {
                freed = freed.saturating_add(holder.free(cause, activity, len_bytes - freed));
            }
        }
        freed
    }

    /// Vacates some memory of the holder at index `holder`. Returns where to continue: the holder and its position.
    pub fn vacate(&self, addresses: &Range<usize>, (holder, from): (usize, u64)) -> Option<(usize, u64)> {
        let all = self.all();
        match all.get(holder)?.vacate(addresses, from) {
            Some(next) => Some((holder, next)),
            None => (holder + 1 < all.len()).then_some((holder + 1, 0)),
        }
    }
}
