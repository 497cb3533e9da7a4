//! Runs the workloads on Isola's heap.
#![allow(unsafe_code, reason = "gives the heap the process's memory")]

use isola_memory::{CoreSource, Heap};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::NonNull;

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
}

struct ThreadCores;

// SAFETY: the thread that runs `main` is core 0. Every other thread sets its core index before its first allocation;
// the indices are distinct and below the heap's limit.
unsafe impl CoreSource for ThreadCores {
    #[inline(always)]
    fn current_core(&self) -> usize {
        CORE.get()
    }
}

/// Isola's heap. `before_main` adds its memory.
#[global_allocator]
static HEAP: Heap<ThreadCores> = Heap::new(ThreadCores);

/// The heap's memory.
const MEMORY: Layout = match Layout::from_size_align(64 << 20, 2 << 20) {
    Ok(layout) => layout,
    Err(_) => panic!(),
};

/// Registers `before_main` with the C runtime: the Rust runtime allocates before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

extern "C" fn before_main() {
    // SAFETY: the size is not 0, and the C library is initialised before it runs `.init_array`.
    let Some(start) = NonNull::new(unsafe { System.alloc(MEMORY) }) else { return };
    // SAFETY: the memory was just allocated, and from here on only the heap uses it.
    if unsafe { HEAP.pages().add_range(start, MEMORY.size()) }.is_err() {
        std::process::abort();
    }
}

fn main() {
    isola_memory_compare::main(|core| CORE.set(core));
}
