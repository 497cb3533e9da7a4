//! The workloads on Isola's heap.
#![allow(unsafe_code, reason = "gives the heap the process's memory")]

use isola_memory::{CoreSource, Heap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::NonNull;

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
}

struct ThreadCores;

// SAFETY: threads say that they are a core before they make objects, each another one, all of them below the most that
// a heap has; the first is core 0.
unsafe impl CoreSource for ThreadCores {
    #[inline(always)]
    fn current_core(&self) -> usize {
        CORE.get()
    }
}

/// Isola's heap; memory is added by `before_main`.
#[global_allocator]
static HEAP: Heap<ThreadCores> = Heap::new(ThreadCores);

/// What the heap gets.
const MEMORY: Layout = match Layout::from_size_align(64 << 20, 2 << 20) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

/// The runtime makes objects before `main`: the heap has to have memory before that.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // SAFETY: the size is not 0, and the C library is ready when it runs this.
    let Some(start) = NonNull::new(unsafe { System.alloc(MEMORY) }) else { return };
    // SAFETY: the memory is the heap's from here on.
    if unsafe { HEAP.pages().add_range(start, MEMORY.size()) }.is_err() {
        std::process::abort();
    }
}

fn main() {
    isola_memory_compare::main(|core| CORE.set(core));
}
