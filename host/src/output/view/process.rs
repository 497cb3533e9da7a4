//! The JSON form of a process of a cell.

use isola_abi::query::ProcessUsage;
use serde::Serialize;

/// A process of a cell with Linux programs, as the cell reports it.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessView {
    /// Its id.
    pub pid: u32,
    /// The id of its parent; 0 if it has none in the cell.
    pub parent: u32,
    /// The id of its user.
    pub user: u32,
    /// The user's name, if the cell's `/etc/passwd` has one.
    pub user_name: Option<String>,
    /// Its state: `running`, `sleeping`, `stopped` or `zombie`.
    pub state: String,
    /// The number of its threads.
    pub threads: u32,
    /// The pages that it has mapped and in memory.
    pub resident_bytes: u64,
    /// The time of its threads in user mode.
    pub user_ns: u64,
    /// The time of its threads in system calls and page faults.
    pub system_ns: u64,
    /// Both times, in cycles.
    pub cycles: u64,
    /// Its command line, or its name in brackets.
    pub command: String,
}

impl From<&ProcessUsage> for ProcessView {
    fn from(process: &ProcessUsage) -> Self {
        let ProcessUsage { pid, parent, user, threads, resident_bytes, user_ns, system_ns, cycles, .. } =
            *process;
        Self {
            pid,
            parent,
            user,
            user_name: process.user_name.clone(),
            state: process.state.to_string(),
            threads,
            resident_bytes,
            user_ns,
            system_ns,
            cycles,
            command: process.command.clone(),
        }
    }
}
