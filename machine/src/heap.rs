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

/// Gives the image a heap of so many bytes, in its zeroed memory.
#[macro_export]
macro_rules! static_heap {
    ($len_bytes:expr) => {
        static HEAP_MEMORY: $crate::heap::HeapMemory<{ $len_bytes }> = $crate::heap::HeapMemory::new();

        #[global_allocator]
        static HEAP: $crate::heap::StaticHeap<{ $len_bytes }> = $crate::heap::StaticHeap::new(&HEAP_MEMORY);
    };
}

/// What a heap is made of. Apart from it, so that it takes no place in the image's file.
pub struct HeapMemory<const LEN: usize> {
    taken: AtomicBool,
    bytes: UnsafeCell<MaybeUninit<[u8; LEN]>>,
}

// SAFETY: the bytes are used by the one heap alone that finds `taken` unset.
unsafe impl<const LEN: usize> Sync for HeapMemory<LEN> {}

impl<const LEN: usize> HeapMemory<LEN> {
    /// Memory that no heap has taken.
    #[expect(clippy::new_without_default, reason = "made for statics")]
    pub const fn new() -> Self {
        Self { taken: AtomicBool::new(false), bytes: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// The heap.
pub struct StaticHeap<const LEN: usize> {
    memory: &'static HeapMemory<LEN>,
    talc: TalcLock<spin::Mutex<()>, Manual>,
    /// Bytes of the regions that it was extended by.
    added: AtomicUsize,
}

/// What a heap holds, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapUse {
    /// Lent out.
    pub allocated_bytes: usize,
    /// All there is.
    pub total_bytes: usize,
}

impl<const LEN: usize> StaticHeap<LEN> {
    /// A heap that takes the memory when it is first asked for some.
    pub const fn new(memory: &'static HeapMemory<LEN>) -> Self {
        Self { memory, talc: TalcLock::new(Manual), added: AtomicUsize::new(0) }
    }

    /// Makes the heap larger by a region, for good.
    pub fn extend(&self, region: Region) {
        let range = region.into_range();
        // SAFETY: the region was owned, and is the heap's alone from here on.
        self.with(|talc| unsafe { talc.claim(direct(range.start), range.len_bytes as usize) });
        self.added.fetch_add(range.len_bytes as usize, Ordering::Relaxed);
    }

    /// What the heap holds.
    pub fn usage(&self) -> HeapUse {
        let counters = self.talc.lock().counters().allocated_bytes;
        HeapUse { allocated_bytes: counters, total_bytes: LEN + self.added.load(Ordering::Relaxed) }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Talc<Manual, DefaultBinning>) -> R) -> R {
        let mut talc = self.talc.lock();
        if !self.memory.taken.swap(true, Ordering::Relaxed) {
            // SAFETY: the memory is this heap's alone from here on, see `HeapMemory`.
            unsafe { talc.claim(self.memory.bytes.get().cast(), LEN) };
        }
        f(&mut talc)
    }
}

// SAFETY: `talc` keeps the contract; each layout and pointer is passed on as it came.
unsafe impl<const LEN: usize> GlobalAlloc for StaticHeap<LEN> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller vouches for the layout.
        self.with(|talc| unsafe { talc.allocate(layout) }).map_or(null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if let Some(pointer) = NonNull::new(pointer) {
            // SAFETY: the caller vouches for both.
            self.with(|talc| unsafe { talc.deallocate(pointer.as_ptr(), layout) });
        }
    }
}
