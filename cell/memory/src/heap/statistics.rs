//! Figures on the heap's use of memory.

use super::cache::{CoreCache, NO_CACHE};
use super::class::{Class, entry};
use super::{CoreSource, Heap};
use crate::pages::{PAGE_SIZE, PageStatistics};
use core::ptr;
use core::sync::atomic::Ordering;

/// Figures of a heap. They are read while other cores work, so they may be slightly inconsistent. The figures of a
/// core's cache are as of its last batch, or of its last call of [`Heap::note`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapStatistics {
    /// The figures of the page allocator.
    pub pages: PageStatistics,
    /// Bytes of all spans.
    pub span_bytes: usize,
    /// Bytes of allocated objects of size classes (rounded up to their class), including the caches themselves.
    pub object_bytes: usize,
    /// Bytes of free objects in cores' caches.
    pub cached_bytes: usize,
    /// Bytes of objects beyond the size classes, in whole pages.
    pub large_bytes: usize,
    /// Bytes of virtually contiguous objects, in whole pages: those beyond the size classes, and those of classes
    /// without a span.
    pub virtual_bytes: usize,
    /// How often a core's cache got objects from a central list.
    pub refills: u64,
    /// How often a core's cache gave objects to a central list.
    pub spills: u64,
    /// How often the pages have run out.
    pub shortages: u32,
}

/// Figures of a size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassStatistics {
    /// Size of an object, in bytes.
    pub size_bytes: usize,
    /// The number of spans.
    pub spans: usize,
    /// Bytes of one span.
    pub span_bytes: usize,
    /// Allocated objects.
    pub used: usize,
    /// Free objects in cores' caches.
    pub cached: usize,
}

impl<C: CoreSource> Heap<C> {
    /// Notes the fill of the current core's cache, for statistics.
    pub fn note(&self) {
        let cache = self.cache();
        if !ptr::eq(cache, &NO_CACHE) {
            Class::all().for_each(|class| cache.note(class));
        }
    }

    /// Returns the heap's figures. Takes the lock of each central list in turn.
    pub fn statistics(&self) -> HeapStatistics {
        let mut figures = HeapStatistics {
            pages: self.pages.statistics(),
            large_bytes: self.large_pages.load(Ordering::Relaxed) * PAGE_SIZE,
            virtual_bytes: self.virtual_pages.load(Ordering::Relaxed) * PAGE_SIZE,
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

    /// Returns the figures by size class, smallest first.
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

    /// Returns the caches of all cores, for their counters; those of cores without one are zero.
    fn all_caches(&self) -> impl Iterator<Item = &CoreCache> {
        // SAFETY: the pointers are to `NO_CACHE`, or to caches that were written before the release store of the
        // pointer; neither is ever freed. The caller reads only the atomics, not the bins.
        self.caches.iter().map(|cache| unsafe { &*cache.load(Ordering::Acquire) })
    }
}
