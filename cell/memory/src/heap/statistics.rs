//! What the heap does with its memory.

use super::cache::{CoreCache, NO_CACHE};
use super::class::{Class, entry};
use super::{CoreSource, Heap};
use crate::pages::{PAGE_SIZE, PageStatistics};
use core::ptr;
use core::sync::atomic::Ordering;

/// Figures of a heap. They are read while other cores work, so they may miss each other by a little; what a core keeps is
/// what it kept after its last batch, or when it last called [`Heap::note`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStatistics {
    /// The pages below.
    pub pages: PageStatistics,
    /// Bytes of all spans.
    pub span_bytes: usize,
    /// Of them, in objects that the program has (rounded up to their class) and in the caches themselves.
    pub object_bytes: usize,
    /// Of them, in free objects that cores keep.
    pub cached_bytes: usize,
    /// Bytes of objects that are too large for a class, in whole pages.
    pub large_bytes: usize,
    /// Bytes of objects in pieces, in whole pages: such large ones, and those of classes.
    pub mapped_bytes: usize,
    /// How often a core's cache got objects from a central list.
    pub refills: u64,
    /// How often it gave objects to one.
    pub spills: u64,
    /// How often the pages have run out.
    pub shortages: u32,
}

/// Figures of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Size of an object, in bytes.
    pub size_bytes: usize,
    /// Spans there are.
    pub spans: usize,
    /// Bytes of a span.
    pub span_bytes: usize,
    /// Objects that the program has.
    pub used: usize,
    /// Free objects that cores keep.
    pub cached: usize,
}

impl<C: CoreSource> Heap<C> {
    /// Notes how much the core that runs keeps, for statistics.
    pub fn note(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            Class::all().for_each(|class| cache.note(class));
        }
    }

    /// What the heap does with its memory. Takes the lock of each class in turn.
    pub fn statistics(&self) -> HeapStatistics {
        let mut figures = HeapStatistics {
            pages: self.pages.statistics(),
            large_bytes: self.large_pages.load(Ordering::Relaxed) * PAGE_SIZE,
            mapped_bytes: self.mapped_pages.load(Ordering::Relaxed) * PAGE_SIZE,
            shortages: self.shortages.load(Ordering::Relaxed),
            ..HeapStatistics::default()
        };
        for class in self.class_statistics() {
            figures.span_bytes += class.spans * class.span_bytes;
            figures.object_bytes += class.used * class.size_bytes;
            figures.cached_bytes += class.cached * class.size_bytes;
        }
        for cache in self.all_caches() {
            figures.refills += cache.refills.load(Ordering::Relaxed);
            figures.spills += cache.spills.load(Ordering::Relaxed);
        }
        figures
    }

    /// The same by size class, smallest first.
    pub fn class_statistics(&self) -> impl Iterator<Item = ClassStatistics> {
        Class::all().map(|class| {
            let shape = class.shape();
            let (mut spans, mut used) = (0, 0);
            for lists in &self.central {
                let central = entry(lists, class).statistics();
                spans += central.spans;
                used += central.used;
            }
            let cached = self.all_caches().map(|cache| cache.noted(class)).sum();
            ClassStatistics {
                size_bytes: shape.size as usize,
                spans,
                span_bytes: shape.span_pages as usize * PAGE_SIZE,
                used: used.saturating_sub(cached),
                cached,
            }
        })
    }

    /// The caches of all cores, for their counters; those of cores without one are all zero.
    fn all_caches(&self) -> impl Iterator<Item = &CoreCache> {
        // SAFETY: the pointers are of `NO_CACHE` or of caches that were written before they were stored with
        // release order, and never go away. Bins are left alone.
        self.caches.iter().map(|cache| unsafe { &*cache.load(Ordering::Acquire) })
    }
}
