//! The cell, as the personality sees it.

use core::sync::atomic::{AtomicUsize, Ordering};
use isola::ebbs::{CoreIndex, current_core, cycles};
use isola::events::{self, spawn_task, spawn_task_on};
use isola::prelude::*;
use isola_ebbs::platform;
use isola_linux_files::ConsoleOutput;
use isola_linux_memory::BoxFuture;
use isola_linux_processes::{Environment, Errno, TaskMaker};

/// The cell.
pub struct CellEnvironment;

impl Environment for CellEnvironment {
    fn monotonic_ns(&self) -> u64 {
        events::now().as_ns()
    }

    fn unix_ns(&self) -> u64 {
        isola::unix_time().as_nanos() as u64
    }

    fn cycles(&self) -> (u64, u64) {
        (cycles(), platform().descriptor().clock.tsc_hz)
    }

    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()> {
        Box::pin(events::sleep_until(events::Instant::from_ns(monotonic_ns)))
    }

    fn spawn(&self, task: TaskMaker) {
        /// The number of tasks, which take turns on the cores.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let core = NEXT.fetch_add(1, Ordering::Relaxed) % isola::core_count();
        if core == current_core().0 as usize {
            spawn_task(task()).detach();
        } else {
            spawn_task_on(CoreIndex(core as u32), task);
        }
    }

    fn random(&self) -> u64 {
        isola::entropy()
    }

    fn core_count(&self) -> usize {
        isola::core_count()
    }

    fn current_core(&self) -> usize {
        current_core().0 as usize
    }

    fn memory(&self) -> (u64, u64) {
        (isola::memory_total() as u64, isola::memory_free() as u64)
    }

    fn host_name(&self) -> String {
        platform().descriptor().name.clone()
    }

    fn report(&self, line: &str) {
        println!("{line}");
    }
}

/// The cell's console.
pub struct CellOutput;

impl ConsoleOutput for CellOutput {
    fn write(&self, bytes: &[u8]) {
        platform().print(bytes);
    }
}

/// Returns the error that counts among those of a program's possible paths: that of a file which exists.
pub fn start_errors(former: Option<Errno>, error: Errno) -> Option<Errno> {
    if matches!(error, Errno::ENOENT | Errno::ENOTDIR) { former } else { Some(error) }
}
