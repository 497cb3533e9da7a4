//! What an allocation costs, beside the allocators that servers use.
//!
//! `with-isola`, `with-glibc`, ... are one program, each with another global allocator. `compare` runs them
//! under valgrind's callgrind, which counts the instructions of `__rust_alloc` and of `__rust_dealloc` (what
//! the compiler makes of the global allocator), and prints a table:
//!
//! ```text
//! cargo run --release -p isola-memory-compare --features peers
//! cargo run --release -p isola-memory-compare --features peers --config 'profile.release.lto="fat"' -- time
//! ```
//!
//! With `time` it takes times instead, natively, with 1 to 24 threads ([`timing`]): what counts there is how a program
//! is built that cares for speed, as a whole.
//!
//! The size is not known to the compiler but in the workload `box`. In place of `gs:`, which valgrind does not know, the
//! heap reads its core's index from the thread's `fs:`; that is one instruction as well.
#![allow(unsafe_code, reason = "an allocator's interface is unsafe")]

pub mod timing;

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What is done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// An object of 8 bytes, which the compiler knows, is made and freed, over and over.
    Box,
    /// An object is made and freed, over and over.
    Pair {
        /// Size of the object, in bytes.
        size: usize,
    },
    /// Objects are made, 64 of them, then all are freed.
    Burst {
        /// Size of the objects, in bytes.
        size: usize,
    },
    /// The oldest of 4096 objects is freed and one of another size (16 to 1039 bytes) made in its place.
    Churn,
    /// Batches of 64 objects of 64 bytes are made and exchanged with those of the other threads, which are freed.
    Remote,
}

/// Batches of the workload [`Workload::Remote`] on their way from the thread that made them to one that frees them: each
/// object of a batch begins with the address of the next.
static EXCHANGE: [AtomicPtr<u8>; 64] = [const { AtomicPtr::new(ptr::null_mut()) }; 64];

impl Workload {
    /// All that are compared.
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

    /// Its name on the command line.
    pub fn name(self) -> String {
        match self {
            Self::Box => "box".into(),
            Self::Pair { size } => format!("pair-{size}"),
            Self::Burst { size } => format!("burst-{size}"),
            Self::Churn => "churn".into(),
            Self::Remote => "remote".into(),
        }
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// Makes and frees `count` objects, or a few more, so that allocators have warmed up or are measured.
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
                        // SAFETY: the object was just made, is aligned for a pointer and has room for one.
                        unsafe { object.cast::<*mut u8>().write(next) };
                        object
                    });
                    let mut other = EXCHANGE[batch % EXCHANGE.len()].swap(made, Ordering::AcqRel);
                    while !other.is_null() {
                        // SAFETY: an object of a batch, which this thread alone has from the exchange on.
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

/// Makes an object. The compiler would leave out one that is freed unused.
fn allocate(layout: Layout) -> *mut u8 {
    // SAFETY: no workload has objects of size 0.
    black_box(unsafe { std::alloc::alloc(layout) })
}

fn free(object: *mut u8, layout: Layout) {
    // SAFETY: workloads free what they made, once, with its layout.
    unsafe { std::alloc::dealloc(object, layout) }
}

/// The program: `with-... WORKLOAD COUNT`, or `with-... WORKLOAD COUNT THREADS`, which prints times. `become_core` tells
/// the allocator that the thread that calls it is the core of that index.
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
