//! The personality's requirements of the cell: time, tasks, random numbers, facts of the machine.

use alloc::boxed::Box;
use alloc::string::String;
use isola_linux_memory::BoxFuture;
use isola_linux_vdso::ClockPage;

/// Creates the task of a thread, on the core that will run it.
pub type TaskMaker = Box<dyn FnOnce() -> BoxFuture<'static, ()> + Send>;

/// The cell in which processes run.
pub trait Environment: Send + Sync {
    /// Returns the time since the start of the cell, in nanoseconds.
    fn monotonic_ns(&self) -> u64;

    /// Returns the time since 1970, in nanoseconds.
    fn unix_ns(&self) -> u64;

    /// Returns the cycle counter, and the number of its cycles in a second.
    fn cycles(&self) -> (u64, u64);

    /// Returns the clock for programs that read it without a call. Its default makes them call.
    fn clock_page(&self) -> ClockPage {
        ClockPage::default()
    }

    /// Waits until [`Self::monotonic_ns`] has reached a time.
    fn sleep_until(&self, monotonic_ns: u64) -> BoxFuture<'static, ()>;

    /// Runs a task on one of the cell's cores.
    fn spawn(&self, task: TaskMaker);

    /// Returns 64 random bits.
    fn random(&self) -> u64;

    /// Returns the number of cores.
    fn core_count(&self) -> usize;

    /// Returns the core that executes the caller.
    fn current_core(&self) -> usize;

    /// Returns the cell's memory and the free part of it, in bytes.
    fn memory(&self) -> (u64, u64);

    /// Returns the cell's name, which is its host name.
    fn host_name(&self) -> String;

    /// Writes a line on the cell's console: a trace, or a report of an end by a signal.
    fn report(&self, line: &str);
}
