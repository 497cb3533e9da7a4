//! The records about the processes of a cell that runs Linux programs.

use alloc::string::String;
use core::fmt;
use serde::{Deserialize, Serialize};

/// The most bytes of a process's command line in an answer.
pub const MAX_COMMAND: usize = 160;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// Its id.
    pub pid: u32,
    /// The id of its parent; 0 if it has none in the cell.
    pub parent: u32,
    /// The id of its effective user.
    pub user: u32,
    /// That user's name, if the cell's `/etc/passwd` has one.
    pub user_name: Option<String>,
    /// Its state.
    pub state: ProcessState,
    /// The number of its threads.
    pub threads: u32,
    /// Its memory: private and shared pages that it has mapped.
    pub resident_bytes: u64,
    /// The time of its threads in user mode, those that ended included.
    pub user_ns: u64,
    /// The time of its threads in system calls and page faults.
    pub system_ns: u64,
    /// Both times, in cycles of the time-stamp counter.
    pub cycles: u64,
    /// Its arguments with spaces between them, at most [`MAX_COMMAND`] bytes; its name in brackets without arguments.
    pub command: String,
}

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProcessState {
    /// A thread of it runs, or could.
    Running,
    /// All threads wait.
    Sleeping,
    /// A signal stopped it.
    Stopped,
    /// It has ended, and its parent has not waited for it.
    Zombie,
}

impl fmt::Display for ProcessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Running => "running",
            Self::Sleeping => "sleeping",
            Self::Stopped => "stopped",
            Self::Zombie => "zombie",
        })
    }
}
