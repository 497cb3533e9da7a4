//! Memory for an allocator under test, and threads that act as cores.
#![allow(dead_code, reason = "not every test file uses all items")]

use isola_memory::{CoreSource, Heap};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

/// Memory of the process, freed on drop.
pub struct Arena {
    pub start: NonNull<u8>,
    layout: Layout,
}

impl Arena {
    pub fn new(len_bytes: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(len_bytes, align).unwrap();
        // SAFETY: the size is not 0.
        let start = NonNull::new(unsafe { std::alloc::alloc(layout) }).expect("the host has no memory left");
        Self { start, layout }
    }

    pub fn len_bytes(&self) -> usize {
        self.layout.size()
    }

    pub fn contains(&self, start: NonNull<u8>, len_bytes: usize) -> bool {
        start >= self.start && start.addr().get() + len_bytes <= self.start.addr().get() + self.layout.size()
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; tests drop all users of the memory first.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
}

/// The core source of the tests: a thread sets its own core index. In each test the threads have different indices.
pub struct ThreadCores;

impl ThreadCores {
    pub fn become_core(index: usize) {
        CORE.set(index);
    }
}

// SAFETY: each test starts one thread per index, for a heap of its own.
unsafe impl CoreSource for ThreadCores {
    fn current_core(&self) -> usize {
        CORE.get()
    }
}

/// Creates a heap on the arena's memory. The arena must outlive it.
pub fn heap_of(arena: &Arena) -> Heap<ThreadCores> {
    let heap = Heap::new(ThreadCores);
    // SAFETY: only this heap uses the arena, which outlives it.
    unsafe { heap.pages().add_range(arena.start, arena.len_bytes()) }.unwrap();
    heap
}

/// A reproducible sequence of numbers (xorshift64*, Vigna 2016).
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound
    }
}
