//! Compares the cost of an allocation with allocators that servers use.
//!
//! `with-isola`, `with-glibc`, ... are one program with different global allocators. `compare` runs them under
//! valgrind's callgrind, counts the instructions of `__rust_alloc` and `__rust_dealloc` (the compiler's entry points of
//! the global allocator), and prints a table:
//!
//! ```text
//! cargo run --release -p isola-memory-compare --features peers
//! cargo run --release -p isola-memory-compare --features peers --config 'profile.release.lto="fat"' -- time
//! ```
//!
//! With `time` it measures times instead, natively, with 1 to 24 threads ([`timing`]). They depend on the build of the
//! whole program: build it like a program that must be fast, as above.
//!
//! The compiler knows the object size only in the workload `box`. Valgrind does not support the `gs:` segment, so the
//! heap reads the core's index from the thread's `fs:` segment; both take one instruction.
#![allow(unsafe_code, reason = "an allocator's interface is unsafe")]

pub mod timing;

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A sequence of allocations and frees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Allocates and frees an object of 8 bytes, a size that the compiler knows, over and over.
    Box,
    /// Allocates and frees an object over and over.
    Pair {
        /// Size of the object, in bytes.
        size: usize,
    },
    /// Allocates 64 objects, then frees all.
    Burst {
        /// Size of the objects, in bytes.
        size: usize,
    },
    /// Frees the oldest of 4096 objects and allocates one of another size (16 to 1039 bytes) in its place.
    Churn,
    /// Allocates batches of 64 objects of 64 bytes, exchanges them with the other threads', and frees the batches
    /// received.
    Remote,
}

/// Batches of [`Workload::Remote`] between the thread that allocated them and the thread that will free them. Each
/// object of a batch begins with the address of the next.
static EXCHANGE: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

impl Workload {
    /// All workloads to compare.
    pub const ALL: [Self; 9] = [
        Self::Box,
        Self::Pair { size: 8 },
        Self::Pair { size: 64 },
        Self::Pair { size: 2048 },
        Self::Pair { size: 65536 },
        Self::Burst { size: 64 },
        Self::Burst { size: 2048 },
        Self::Churn,
        Self::Remote,
    ];

    /// Returns the workload's name on the command line.
    pub fn name(self) -> String {
        match self {
            Self::Box => "box".into(),
            Self::Pair { size } => format!("pair-{size}"),
            Self::Burst { size } => format!("burst-{size}"),
            Self::Churn => "churn".into(),
            Self::Remote => "remote".into(),
        }
    }

    /// Returns the workload with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Allocates and frees `count` objects, or a few more.
    pub fn run(self, count: usize) {
        let layout = |size| Layout::from_size_align(black_box(size), 8).unwrap_or(Layout::new::<u64>());
        match self {
            Self::Box => {
                for number in 0..count {
                    drop(black_box(Box::new(number)));
                }
            }
            Self::Pair { size } => {
                for _ in 0..count {
                    let layout = layout(size);
                    free(allocate(layout), layout);
                }
            }
            Self::Burst { size } => {
                let layout = layout(size);
                for _ in 0..count.div_ceil(64) {
                    let objects: [*mut u8; 64] = std::array::from_fn(|_| allocate(layout));
                    objects.into_iter().for_each(|object| free(object, layout));
                }
            }
            Self::Remote => {
                let layout = layout(64);
                for batch in 0..count.div_ceil(64) {
                    let made = (0..64).fold(ptr::null_mut(), |next, _| {
                        let object = allocate(layout);
                        // SAFETY: the object was just allocated, is aligned for a pointer and has room for one.
                        unsafe { object.cast::<*mut u8>().write(next) };
                        object
                    });
                    let mut other = EXCHANGE[batch % EXCHANGE.len()].swap(made, Ordering::AcqRel);
                    while !other.is_null() {
                        // SAFETY: the object belongs to a batch that only this thread has since the exchange.
                        let next = unsafe { other.cast::<*mut u8>().read() };
                        free(other, layout);
                        other = next;
                    }
                }
            }
            Self::Churn => {
                let mut state = 1_u64;
                let mut objects = [(ptr::null_mut::<u8>(), Layout::new::<u64>()); 4096];
                for index in 0..count + 4096 {
                    // xorshift (Marsaglia 2003).
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    let slot = &mut objects[index % 4096];
                    if !slot.0.is_null() {
                        free(slot.0, slot.1);
                    }
                    let layout = layout(16 + (state % 1024) as usize);
                    *slot = (allocate(layout), layout);
                }
            }
        }
    }
}

/// Allocates an object. `black_box` keeps the compiler from removing an object that is freed unused.
fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: no workload has objects of size 0.
    black_box(unsafe { std::alloc::alloc(layout) })
}

fn free(object: *mut u8, layout: Layout) {
    // SAFETY: workloads free only objects that they allocated, once, with their layout.
    unsafe { std::alloc::dealloc(object, layout) }
}

/// Runs the program: `with-... WORKLOAD COUNT`, or `with-... WORKLOAD COUNT THREADS`, which prints the time per object.
/// `become_core` makes the calling thread the core with that index, for the allocator.
pub fn main(become_core: fn(usize)) {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let workload = arguments.first().and_then(|name| Workload::named(name));
    let count = arguments.get(1).and_then(|count| count.parse().ok());
    let threads = arguments.get(2).map(|threads| threads.parse().ok());
    match (workload, count, threads) {
        (Some(workload), Some(count), None) => workload.run(count),
        (Some(workload), Some(count), Some(Some(threads))) => {
            let times = timing::run(workload, count, threads, become_core);
            println!("{}", times.iter().sum::<f64>() / times.len() as f64);
        }
        _ => {
            let names = Workload::ALL.map(Workload::name).join(", ");
            eprintln!("usage: with-ALLOCATOR WORKLOAD COUNT [THREADS], where WORKLOAD is one of {names}");
            std::process::exit(2);
        }
    }
}
