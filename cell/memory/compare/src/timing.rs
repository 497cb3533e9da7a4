//! What an object costs in time, natively, on threads that take the part of cores.
//!
//! A thread's time is the processor time that it used: where there are more threads than processors, what the others use
//! does not count. Threads are pinned in turn to the processors that there are. They are started without the standard
//! library, which would make objects on them before it can be said which core they are.

use crate::Workload;
use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most threads.
pub const MOST_THREADS: usize = 32;

/// Objects before it counts.
const WARM_UP: usize = 10_000;

struct Work<'a> {
    workload: Workload,
    count: usize,
    become_core: fn(usize),
    barrier: &'a Barrier,
    index: usize,
    /// Nanoseconds of processor time.
    spent: AtomicU64,
}

/// Runs the workload on `threads` threads, [`MOST_THREADS`] at most; returns what an object cost each, in ns.
pub fn run(workload: Workload, count: usize, threads: usize, become_core: fn(usize)) -> Vec<f64> {
    let threads = threads.clamp(1, MOST_THREADS);
    let barrier = Barrier::new(threads);
    let works: Vec<Work<'_>> = (0..threads)
        .map(|index| Work {
            workload,
            count,
            become_core,
            barrier: &barrier,
            index,
            spent: AtomicU64::new(0),
        })
        .collect();
    // Made before any thread runs: this thread is a core, too, and makes no objects while they start.
    let mut handles: Vec<libc::pthread_t> = Vec::with_capacity(threads);
    for work in &works {
        let mut handle = 0;
        // SAFETY: `start` takes a `Work`, which lives until all threads have been joined.
        let result = unsafe {
            let work = std::ptr::from_ref(work).cast_mut().cast::<c_void>();
            libc::pthread_create(&raw mut handle, std::ptr::null(), start, work)
        };
        assert_eq!(result, 0, "the host has no more threads");
        handles.push(handle);
    }
    for handle in handles {
        // SAFETY: a thread of ours, joined once.
        unsafe { libc::pthread_join(handle, std::ptr::null_mut()) };
    }
    works.iter().map(|work| work.spent.load(Ordering::Relaxed) as f64 / count as f64).collect()
}

extern "C" fn start(work: *mut c_void) -> *mut c_void {
    // SAFETY: `run` passes a `Work` that outlives the thread, and that is only read.
    let work = unsafe { &*work.cast::<Work<'_>>() };
    // Index 0 is the thread that started these.
    (work.become_core)(work.index + 1);
    pin(work.index);
    work.workload.run(WARM_UP);
    work.barrier.wait();
    let before = processor_time();
    work.workload.run(work.count);
    work.spent.store((processor_time() - before).as_nanos() as u64, Ordering::Relaxed);
    std::ptr::null_mut()
}

/// Pins the calling thread to one of the processors that the process may use.
fn pin(index: usize) {
    // SAFETY: a set of processors is plain bits, for which zero is a value; the calls fill it and read it.
    unsafe {
        let mut all: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut all);
        let count = libc::CPU_COUNT(&all).max(1) as usize;
        let processors =
            (0..libc::CPU_SETSIZE as usize).filter(|&processor| libc::CPU_ISSET(processor, &all));
        if let Some(processor) = processors.clone().nth(index % count) {
            let mut one: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(processor, &mut one);
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const one);
        }
    }
}

/// What the calling thread has used.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the value.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
