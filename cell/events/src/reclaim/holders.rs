//! The holders of memory that the cell could do without.

use alloc::rc::{Rc, Weak};
use alloc::vec::Vec;
use core::cell::RefCell;
use core::sync::atomic::Ordering;
use isola_abi::id::ActivityId;
use isola_abi::report::MemoryPressure;
use isola_ebbs::{Ebb, Representative, current_core, platform};
use isola_platform::VacatedMemory;

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

    /// Copies some of what it has in this memory to other memory, or frees it, if it can. It begins at the
    /// position `from` of an order of its own, in which 0 is the beginning, and returns the position at which to
    /// continue; `None` at the end.
    ///
    /// Memory that it frees may be allocated again on this core before it returns: it first allocates all copies of a
    /// call, then frees the originals.
    fn vacate(&self, memory: &VacatedMemory, from: u64) -> Option<u64>;
}

/// Leaves memory that is to become free: see [`on_vacate`].
type Vacate = dyn Fn(&VacatedMemory);

/// Keeps a handler registered until dropped.
#[must_use = "the handler is removed when this is dropped"]
pub struct VacateHandler {
    _handler: Rc<Vacate>,
}

/// Registers a handler on this core, until the returned value is dropped. It frees what it keeps in the memory that is
/// passed to it, or copies that to other memory. It is for objects with little use in relation to the cell's, such as
/// buffers; the contents of a cache have a [`MemoryHolder`]. The handler runs on this core between events, at the beginning
/// of each round, and takes less than a millisecond. It allocates before it frees, as [`MemoryHolder::vacate`] does.
pub fn on_vacate(handler: impl Fn(&VacatedMemory) + 'static) -> VacateHandler {
    let handler: Rc<Vacate> = Rc::new(handler);
    HOLDERS.handlers.borrow_mut().push(Rc::downgrade(&handler));
    RECLAIM.add_vacating_core(current_core());
    VacateHandler { _handler: handler }
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
    handlers: RefCell<Vec<Weak<Vacate>>>,
}

impl Representative for CoreHolders {
    fn create() -> Self {
        Self::default()
    }
}

impl CoreHolders {
    /// Returns the holders, without those that were removed. Holds no borrow while they are called.
    fn all(&self) -> Vec<Rc<dyn MemoryHolder>> {
        present(&self.holders)
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

    /// Vacates some memory: in step 0 that of the handlers, then of a holder in each step, from a position of its own on.
    /// Returns the next step and position.
    pub fn vacate(&self, memory: &VacatedMemory, (step, from): (usize, u64)) -> Option<(usize, u64)> {
        let all = self.all();
        let next = match step.checked_sub(1) {
            None => {
                present(&self.handlers).iter().for_each(|handler| handler(memory));
                None
            }
            Some(holder) => all.get(holder)?.vacate(memory, from),
        };
        match next {
            Some(next) => Some((step, next)),
            None => (step < all.len()).then_some((step + 1, 0)),
        }
    }
}

/// Returns the entries of a list, without those that were removed.
fn present<T: ?Sized>(list: &RefCell<Vec<Weak<T>>>) -> Vec<Rc<T>> {
    let mut list = list.borrow_mut();
    list.retain(|entry| entry.strong_count() > 0);
    list.iter().filter_map(Weak::upgrade).collect()
}
