//! Measures the time of an object natively, on threads that act as cores.
//!
//! A thread's time is its own processor time, so other threads do not count if there are more threads than processors.
//! Threads are pinned to the available processors in turn. They are started without the standard library, which would
//! allocate on a new thread before the thread has set its core index.

use crate::Workload;
use std::ffi::c_void;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The maximum number of threads.
pub const MOST_THREADS: usize = 32;

/// Objects before the measurement.
const WARM_UP: usize = 10_000;

struct Work<'a> {
    workload: Workload,
    count: usize,
    become_core: fn(usize),
    barrier: &'a Barrier,
    index: usize,
    /// The processor time of the measured run, in ns.
    spent: AtomicU64,
}

/// Runs the workload on `threads` threads, at most [`MOST_THREADS`]; returns each thread's time per object, in ns.
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
    // Reserved before any thread starts: this thread is a core, too, and must not allocate while the others start.
    let mut handles: Vec<libc::pthread_t> = Vec::with_capacity(threads);
    for work in &works {
        let mut handle = 0;
        // SAFETY: `start` takes a pointer to a `Work`, and `works` outlives all threads, which are joined below.
        let result = unsafe {
            let work = std::ptr::from_ref(work).cast_mut().cast::<c_void>();
            libc::pthread_create(&raw mut handle, std::ptr::null(), start, work)
        };
        assert_eq!(result, 0, "the host has no more threads");
        handles.push(handle);
    }
    for handle in handles {
        // SAFETY: the thread was created above and is joined once.
        unsafe { libc::pthread_join(handle, std::ptr::null_mut()) };
    }
    works.iter().map(|work| work.spent.load(Ordering::Relaxed) as f64 / count as f64).collect()
}

extern "C" fn start(work: *mut c_void) -> *mut c_void {
    // SAFETY: `run` passes a `Work` that outlives the thread and that all threads access by shared references only.
    let work = unsafe { &*work.cast::<Work<'_>>() };
    // Core 0 is the thread that calls `run`.
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
    // SAFETY: `cpu_set_t` is a plain bit set, for which all zeros is a valid value; the calls write and read it with
    // its own size.
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

/// Returns the calling thread's processor time.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes only `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
