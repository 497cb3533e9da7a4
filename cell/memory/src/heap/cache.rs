//! What a core keeps for itself: free objects, a bin a class.
//!
//! The core that a cache belongs to is the only one that touches its bins, and it is never interrupted
//! while it does: no lock, no atomic read-modify-write. The counters are atomics so that others may read
//! them for statistics; the core itself loads and stores them like any other word.
//!
//! A bin starts without a right to hold anything. Its limit doubles whenever it runs empty or over, up to
//! the class's; a class that is used little ties up little.

use super::class::{CLASSES, Class, MOST_CACHED, entry};
use super::free_list::{Bin, FreeObject};
use core::cell::Cell;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// The cache of a core.
///
/// What belongs to a class stands in several arrays: their elements have sizes that the processor can
/// multiply an index with.
pub(crate) struct CoreCache {
    heads: [Cell<NonNull<FreeObject>>; CLASSES],
    bottoms: [FreeObject; CLASSES],
    /// How many objects each bin held after the last batch, or when the core last looked.
    held: [AtomicU8; CLASSES],
    /// The shortages of memory that this cache has been emptied for.
    pub shortages_seen: AtomicU32,
    /// How often objects came from a central list.
    pub refills: AtomicU64,
    /// How often objects went to a central list.
    pub spills: AtomicU64,
}

// A page holds several, also where there is one core.
const _: () = assert!(size_of::<CoreCache>() <= 1024);
const _: () = assert!(MOST_CACHED <= u8::MAX as usize);

// SAFETY: `CoreSource` promises that one core at a time, and one at all, uses a cache's bins. The others
// read the atomics.
unsafe impl Sync for CoreCache {}

/// The cache of a core that has none yet: it has no objects and takes none, so nobody writes to it.
pub(crate) static NO_CACHE: CoreCache = CoreCache::new();

/// What is below all objects of a bin that has no bottom of its own.
static NO_BOTTOM: NoBottom = NoBottom(FreeObject::bottom());

struct NoBottom(FreeObject);

// SAFETY: nobody writes to it.
unsafe impl Sync for NoBottom {}

/// Adds to a counter that one core alone writes.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl CoreCache {
    /// A cache that has no objects and takes none.
    const fn new() -> Self {
        Self {
            // SAFETY: a static is not at address 0.
            heads: [const { Cell::new(unsafe { NonNull::new_unchecked((&raw const NO_BOTTOM.0).cast_mut()) }) };
                CLASSES],
            bottoms: [const { FreeObject::bottom() }; CLASSES],
            held: [const { AtomicU8::new(0) }; CLASSES],
            shortages_seen: AtomicU32::new(0),
            refills: AtomicU64::new(0),
            spills: AtomicU64::new(0),
        }
    }

    /// Makes one in `place`, where it stays.
    ///
    /// # Safety
    /// The memory is the caller's, who leaves it to the cache for good.
    pub unsafe fn make(place: NonNull<Self>) {
        // SAFETY: the caller's promise.
        unsafe { place.write(Self::new()) };
        // SAFETY: just written, and nobody else knows of it.
        let cache = unsafe { place.as_ref() };
        cache.heads.iter().zip(&cache.bottoms).for_each(|(head, bottom)| head.set(NonNull::from(bottom)));
    }

    /// Its objects of that class.
    #[inline(always)]
    pub fn bin(&self, class: Class) -> Bin<'_> {
        Bin { head: entry(&self.heads, class), bottom: entry(&self.bottoms, class) }
    }

    /// How many objects of that class it held when its core last noted it.
    pub fn noted(&self, class: Class) -> usize {
        entry(&self.held, class).load(Relaxed).into()
    }

    /// Notes how many objects of that class it holds, for statistics.
    pub fn note(&self, class: Class) {
        entry(&self.held, class).store(self.bin(class).held() as u8, Relaxed);
    }
}
