//! What a core keeps for itself: a list of free objects a class.
//!
//! The core that a cache belongs to is the only one that touches its lists, and it is never interrupted
//! while it does: no lock, no atomic read-modify-write. The counters are atomics so that others may read
//! them for statistics; the core itself loads and stores them like any other word.
//!
//! A list starts without a right to hold anything. Its limit doubles whenever it runs empty or over, up to
//! the class's; a class that is used little ties up little.

use super::class::{CLASSES, Class, entry};
use super::free_list::FreeList;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The cache of a core.
///
/// What belongs to a class stands in several arrays: their elements have sizes that the processor can
/// multiply an index with.
pub(crate) struct CoreCache {
    lists: [FreeList; CLASSES],
    /// How many more objects a list may hold.
    room: [AtomicU32; CLASSES],
    /// How many it may hold in all.
    limit: [AtomicU32; CLASSES],
    /// The shortages of memory that this cache has been emptied for.
    pub shortages_seen: AtomicU32,
    /// How often objects came from a central list.
    pub refills: AtomicU64,
    /// How often objects went to a central list.
    pub spills: AtomicU64,
}

/// The cache's objects of one class.
#[derive(Clone, Copy)]
pub(crate) struct Bin<'a> {
    pub list: &'a FreeList,
    room: &'a AtomicU32,
    limit: &'a AtomicU32,
}

// SAFETY: `CoreSource` promises that one core at a time, and one at all, uses a cache's lists. The others
// read the atomics.
unsafe impl Sync for CoreCache {}

/// The cache of a core that has none yet: it has no objects and takes none, so nobody writes to it.
pub(crate) static NO_CACHE: CoreCache = CoreCache::new();

/// Adds to a counter that one core alone writes.
pub(crate) fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Relaxed) + 1, Relaxed);
}

impl CoreCache {
    /// A cache without objects.
    pub const fn new() -> Self {
        Self {
            lists: [const { FreeList::new() }; CLASSES],
            room: [const { AtomicU32::new(0) }; CLASSES],
            limit: [const { AtomicU32::new(0) }; CLASSES],
            shortages_seen: AtomicU32::new(0),
            refills: AtomicU64::new(0),
            spills: AtomicU64::new(0),
        }
    }

    /// Its objects of that class.
    #[inline(always)]
    pub fn bin(&self, class: Class) -> Bin<'_> {
        Bin {
            list: entry(&self.lists, class),
            room: entry(&self.room, class),
            limit: entry(&self.limit, class),
        }
    }
}

impl Bin<'_> {
    /// How many more objects it may take.
    #[inline(always)]
    pub fn room(self) -> u32 {
        self.room.load(Relaxed)
    }

    /// Changes that.
    #[inline(always)]
    pub fn set_room(self, room: u32) {
        self.room.store(room, Relaxed);
    }

    /// How many it may hold.
    pub fn limit(self) -> u32 {
        self.limit.load(Relaxed)
    }

    /// How many it holds.
    pub fn held(self) -> u32 {
        self.limit().saturating_sub(self.room())
    }

    /// Doubles the limit, up to `most`.
    pub fn raise_limit(self, most: u32) {
        let limit = self.limit();
        let raised = (limit * 2).max(2).min(most.max(limit));
        self.limit.store(raised, Relaxed);
        self.set_room(self.room() + (raised - limit));
    }

    /// Takes everything out, and the right to hold anything.
    pub fn empty(self) -> FreeList {
        self.limit.store(0, Relaxed);
        self.set_room(0);
        self.list.take()
    }
}
