//! Memory for an allocator under test, and threads that take the part of cores.
#![allow(dead_code, reason = "not every test file needs all of it")]

use isola_memory::{CoreSource, Heap};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;

/// Memory of the process, given back when dropped.
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
        // SAFETY: it came from there; tests drop what they made of it before.
        unsafe { std::alloc::dealloc(self.start.as_ptr(), self.layout) }
    }
}

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
}

/// A thread is the core that it says it is. Each test keeps its threads' indices apart.
pub struct ThreadCores;

impl ThreadCores {
    pub fn become_core(index: usize) {
        CORE.set(index);
    }
}

// SAFETY: tests start one thread an index, for a heap of their own.
unsafe impl CoreSource for ThreadCores {
    fn current_core(&self) -> usize {
        CORE.get()
    }
}

/// A heap over memory of the process. Whoever drops the arena first has lost.
pub fn heap_of(arena: &Arena) -> Heap<ThreadCores> {
    let heap = Heap::new(ThreadCores);
    // SAFETY: the arena is for this heap alone, and outlives it.
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
