//! The cache of a core: free objects, one bin per size class.
//!
//! Only its own core accesses a cache's bins, and no interrupt handler runs meanwhile; hence bins need neither locks
//! nor atomic read-modify-write operations. The counters are atomics so that other cores may read them for statistics;
//! the core itself uses plain loads and stores.
//!
//! The limit of a bin is 0 at first. It doubles whenever the bin is empty or full, up to the class's limit; so a rarely
//! used class retains little memory.

use super::class::{CLASSES, Class, MOST_CACHED, entry};
use super::free_list::{Bin, FreeObject};
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The cache of a core.
///
/// One array per field, not one array of bins: the processor can then scale the index in the address of a load.
pub(crate) struct CoreCache {
    heads: [Cell<NonNull<FreeObject>>; CLASSES],
    bottoms: [FreeObject; CLASSES],
    /// The number of objects in each bin, as of the last batch or the core's last [`CoreCache::note`].
    held: [AtomicU8; CLASSES],
    /// The heap's count of shortages when this cache was last emptied for one.
    pub shortages_seen: AtomicU32,
    /// How often objects came from a central list.
    pub refills: AtomicU64,
    /// How often objects went to a central list.
    pub spills: AtomicU64,
}

// A page holds several caches; a cell with one core has one.
const _: () = assert!(size_of::<CoreCache>() <= 1024);
const _: () = assert!(MOST_CACHED <= u8::MAX as usize);

// SAFETY: `CoreSource` guarantees that only one core uses a cache's bins, and never twice at the same time. Other cores
// read only the atomics.
unsafe impl Sync for CoreCache {}

/// The cache of a core that has none yet. It has no objects and accepts none, so it is never written to.
pub(crate) static NO_CACHE: CoreCache = CoreCache::new();

/// The bottom of the bins of [`NO_CACHE`].
static NO_BOTTOM: NoBottom = NoBottom(FreeObject::bottom());

struct NoBottom(FreeObject);

// SAFETY: it is never written to.
unsafe impl Sync for NoBottom {}

/// Increments a counter that only one core writes.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl CoreCache {
    /// Returns a cache that has no objects and accepts none.
    const fn new() -> Self {
        Self {
            // SAFETY: the address of a static is not 0.
            heads: [const { Cell::new(unsafe { NonNull::new_unchecked((&raw const NO_BOTTOM.0).cast_mut()) }) };
                CLASSES],
            bottoms: [const { FreeObject::bottom() }; CLASSES],
            held: [const { AtomicU8::new(0) }; CLASSES],
            shortages_seen: AtomicU32::new(0),
            refills: AtomicU64::new(0),
            spills: AtomicU64::new(0),
        }
    }

    /// Creates a cache at `memory`, from which it must not move: its bins point to their bottoms within it.
    ///
    /// # Safety
    /// The caller owns the memory and leaves it to the cache forever.
    pub unsafe fn make(memory: NonNull<Self>) {
        // SAFETY: the caller guarantees that the memory is writable and unused.
        unsafe { memory.write(Self::new()) };
        // SAFETY: the cache was just written, and no other pointer to it exists.
        let cache = unsafe { memory.as_ref() };
        cache.heads.iter().zip(&cache.bottoms).for_each(|(head, bottom)| head.set(NonNull::from(bottom)));
    }

    /// Returns the bin of a class.
    #[inline(always)]
    pub fn bin(&self, class: Class) -> Bin<'_> {
        Bin { head: entry(&self.heads, class), bottom: entry(&self.bottoms, class) }
    }

    /// Returns the noted number of objects of a class.
    pub fn noted(&self, class: Class) -> usize {
        entry(&self.held, class).load(Relaxed).into()
    }

    /// Notes the number of objects of a class, for statistics.
    pub fn note(&self, class: Class) {
        entry(&self.held, class).store(self.bin(class).held() as u8, Relaxed);
    }
}
