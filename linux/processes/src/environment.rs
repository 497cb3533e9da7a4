//! The personality's requirements of the cell: time, tasks, random numbers, facts of the machine.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use isola_abi::id::ActivityId;
use isola_abi::query::ActivityTraffic;
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

    /// Runs a task.
    fn spawn(&self, task: TaskMaker, placement: TaskPlacement);

    /// Returns 64 random bits.
    fn random(&self) -> u64;

    /// Returns the number of cores.
    fn core_count(&self) -> usize;

    /// Returns the core that executes the caller.
    fn current_core(&self) -> usize;

    /// Returns the cores of the cell, a bit for each: the cell has at most 64.
    fn cores(&self) -> u64 {
        (0..self.core_count()).fold(0, |cores, core| cores | 1 << core)
    }

    /// Returns the cores that are halted or execute a program in ring 3, a bit for each.
    fn halted_cores(&self) -> u64;

    /// Returns whether other work waits for the core that executes the caller.
    fn has_competition(&self) -> bool;

    /// Returns whether a scheduler divides the time of the core that executes the caller among activities.
    fn has_policy(&self) -> bool {
        false
    }

    /// Returns the times of the cores since the start of the cell, up to their latest changes.
    fn core_times(&self) -> Vec<CoreTime>;

    /// Returns the activities of the resource grid.
    fn activities(&self) -> &dyn Activities;

    /// Returns the cell's memory and the free part of it, in bytes.
    fn memory(&self) -> (u64, u64);

    /// Returns the bytes of the pages of files that the cell has in memory and could read again.
    fn cached_memory(&self) -> u64 {
        0
    }

    /// Returns the cell's name, which is its host name.
    fn host_name(&self) -> String;

    /// Writes a line on the cell's console: a trace, or a report of an end by a signal.
    fn report(&self, line: &str);
}

/// The core and the account of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskPlacement {
    /// The core; `None` for any of the cell.
    pub core: Option<usize>,
    /// The activity to which its cycles are charged; `None` for that of the caller.
    pub activity: Option<ActivityId>,
}

/// The time of a core, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// The number of the core.
    pub core: usize,
    /// In which it executed events, programs included.
    pub busy_ns: u64,
    /// For interrupts.
    pub interrupt_ns: u64,
    /// In which it was halted.
    pub idle_ns: u64,
    /// The number of its interrupts.
    pub interrupts: u64,
}

/// The activities of the resource grid: accounts of cycles, and clients of its schedulers.
pub trait Activities: Send + Sync {
    /// Registers an activity below another one, or below that of the application. Returns `None` if the tree is too deep,
    /// or the cell has no memory for it.
    fn register(&self, parent: Option<ActivityId>, name: &str) -> Option<ActivityId>;

    /// Gives an activity another name.
    fn rename(&self, activity: ActivityId, name: &str);

    /// Ends an activity. Its use moves to its parent. If the caller works for it, the rest of that work is the parent's.
    fn end(&self, activity: ActivityId, parent: Option<ActivityId>);

    /// Charges the rest of the caller's event to an activity, or to that of the application.
    fn charge_to(&self, activity: Option<ActivityId>);

    /// Returns the cycles of an activity, those of the activities below it included.
    fn cycles(&self, activity: ActivityId) -> u64;

    /// Returns the bytes that devices have moved for an activity and those below it; `None` is that of the application.
    fn traffic(&self, activity: Option<ActivityId>) -> ActivityTraffic;

    /// Sets the share of a resource that an activity gets while others want it, too.
    fn set_share(&self, activity: ActivityId, resource: SharedResource, share: Share);
}

/// A resource that the grid divides among processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedResource {
    /// The time of the cores.
    Processor,
    /// The block devices.
    Disk,
}

/// A share of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// The weight, from 1 to 10,000.
    pub weight: u32,
    /// The most bytes per second; `None` for no limit.
    pub bytes_per_second: Option<u64>,
}

impl Share {
    /// The weight of an activity without another one.
    pub const DEFAULT_WEIGHT: u32 = 100;
}

impl Default for Share {
    fn default() -> Self {
        Self { weight: Self::DEFAULT_WEIGHT, bytes_per_second: None }
    }
}
