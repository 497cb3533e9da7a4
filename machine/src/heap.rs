//! A heap for images that own the machine: the allocator of the `talc` crate over memory of the image.
//!
//! One lock; meant for a supervisor and for small images, not for cells, which have heaps of their own.

use crate::memory::{Region, direct};
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use talc::base::Talc;
use talc::source::Manual;
use talc::{DefaultBinning, TalcLock};

/// Defines the image's global allocator: a heap of `$len_bytes` bytes in its zeroed memory.
#[macro_export]
macro_rules! static_heap {
    ($len_bytes:expr) => {
        static HEAP_MEMORY: $crate::heap::HeapMemory<{ $len_bytes }> = $crate::heap::HeapMemory::new();

        #[global_allocator]
        static HEAP: $crate::heap::StaticHeap<{ $len_bytes }> = $crate::heap::StaticHeap::new(&HEAP_MEMORY);
    };
}

/// The memory of a heap. A static of its own, so that it is in the zeroed part of the image and takes no space in the
/// file.
pub struct HeapMemory<const LEN: usize> {
    taken: AtomicBool,
    bytes: UnsafeCell<MaybeUninit<[u8; LEN]>>,
}

// SAFETY: only one heap uses the bytes: the one that finds `taken` unset and sets it.
unsafe impl<const LEN: usize> Sync for HeapMemory<LEN> {}

impl<const LEN: usize> HeapMemory<LEN> {
    /// Creates memory that no heap uses yet.
    #[expect(clippy::new_without_default, reason = "made for statics")]
    pub const fn new() -> Self {
        Self { taken: AtomicBool::new(false), bytes: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// The heap.
pub struct StaticHeap<const LEN: usize> {
    memory: &'static HeapMemory<LEN>,
    talc: TalcLock<spin::Mutex<()>, Manual>,
    /// Bytes of the regions that extended the heap.
    added: AtomicUsize,
}

/// The usage of a heap, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUse {
    /// Allocated.
    pub allocated_bytes: usize,
    /// In total, allocated or free.
    pub total_bytes: usize,
}

impl<const LEN: usize> StaticHeap<LEN> {
    /// Creates a heap that claims `memory` at its first use.
    pub const fn new(memory: &'static HeapMemory<LEN>) -> Self {
        Self { memory, talc: TalcLock::new(Manual), added: AtomicUsize::new(0) }
    }

    /// Adds a region to the heap, for good.
    pub fn extend(&self, region: Region) {
        let range = region.into_range();
        // SAFETY: the region owned its memory, and gives it up to the heap alone here.
        self.with(|talc| unsafe { talc.claim(direct(range.start), range.len_bytes as usize) });
        self.added.fetch_add(range.len_bytes as usize, Ordering::Relaxed);
    }

    /// Returns the heap's usage.
    pub fn usage(&self) -> HeapUse {
        let counters = self.talc.lock().counters().allocated_bytes;
        HeapUse { allocated_bytes: counters, total_bytes: LEN + self.added.load(Ordering::Relaxed) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Talc<Manual, DefaultBinning>) -> R) -> R {
        let mut talc = self.talc.lock();
        if !self.memory.taken.swap(true, Ordering::Relaxed) {
            // SAFETY: `taken` was unset, so only this heap uses the memory from here on, see `HeapMemory`.
            unsafe { talc.claim(self.memory.bytes.get().cast(), LEN) };
        }
        f(&mut talc)
    }
}

// SAFETY: `talc` upholds the contract of a global allocator; layouts and pointers are passed to it unchanged.
unsafe impl<const LEN: usize> GlobalAlloc for StaticHeap<LEN> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees a valid layout.
        self.with(|talc| unsafe { talc.allocate(layout) }).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pointer) = NonNull::new(pointer) {
            // SAFETY: the caller guarantees that the pointer came from this heap, with this layout.
            self.with(|talc| unsafe { talc.deallocate(pointer.as_ptr(), layout) });
        }
    }
}
