//! Control groups (cgroup v2): groups of processes with shares and limits, which lead to the resource grid.
//!
//! - [`Group`]: a node of the tree. Its activity is the parent of the activities of its processes, so that the schedulers of
//!   the grid divide by groups first.
//! - [`memory`]: the frames of a group, and their limit.
//! - [`bandwidth`]: `cpu.max`, a limit for all cores together. The grid's limits are those of one core each.
//! - [`files`], [`controllers`]: the files of `/sys/fs/cgroup`.
//!
//! Lock order: the settings of a group, then those of its parent. No lock is held while processes are looked up.

pub mod bandwidth;
mod controllers;
mod files;
mod group;
mod input;
pub mod memory;

pub use files::cgroup_file_system;
pub use group::{Controller, Controllers, Group, MOST_DEPTH};

use crate::Errno;
use crate::exit_status::ExitStatus;
use crate::process::Process;
use crate::signals::Signal;
use crate::system::System;
use alloc::sync::Arc;
use alloc::vec::Vec;

impl System {
    /// Returns the processes in a group and the groups below it that have not ended.
    pub fn members(&self, group: &Arc<Group>) -> Vec<Arc<Process>> {
        let processes: Vec<Arc<Process>> = {
            let family = self.family.lock();
            let alive = family.processes().filter(|(pid, _)| !family.is_zombie(*pid));
            alive.map(|(_, process)| process.clone()).collect()
        };
        processes.into_iter().filter(|process| process.control.group().is_within(group)).collect()
    }

    /// Returns the number of threads in a group and the groups below it.
    pub fn task_count(&self, group: &Arc<Group>) -> usize {
        self.members(group).iter().map(|process| process.thread_count()).sum()
    }

    /// Verifies that a process may get another thread or child in its group (`pids.max`).
    ///
    /// # Errors
    /// [`Errno::EAGAIN`].
    pub fn check_task_limits(&self, process: &Process) -> Result<(), Errno> {
        let group = process.control.group();
        for limited in group.with_ancestors() {
            if let Some(most) = limited.most_tasks()
                && self.task_count(&limited) as u64 >= most
            {
                limited.count_refused_task();
                return Err(Errno::EAGAIN);
            }
        }
        Ok(())
    }

    /// Moves a process to a group.
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if the group divides resources among groups below it, [`Errno::ENODEV`] if it was removed.
    pub fn move_process(&self, process: &Arc<Process>, group: &Arc<Group>) -> Result<(), Errno> {
        group.check_new_process()?;
        let threads = process.threads();
        let name = threads.first().map(|thread| thread.name.lock().clone()).unwrap_or_default();
        process.control.move_to(group.clone(), process.pid, &name);
        let memory = process.program.lock().memory.clone();
        if let Some(memory) = memory {
            memory.set_charge(group.charge());
        }
        process.set_frozen(group.is_frozen());
        threads.iter().for_each(|thread| thread.interrupt());
        Ok(())
    }

    /// Kills the processes in a group and the groups below it.
    pub fn kill_group(&self, group: &Arc<Group>) {
        for process in self.members(group) {
            process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
        }
    }

    /// Makes the processes in a group and the groups below it follow a change of its settings.
    fn follow_group(&self, group: &Arc<Group>) {
        for process in self.members(group) {
            process.control.follow_limits();
            process.set_frozen(process.control.group().is_frozen());
            process.threads().iter().for_each(|thread| thread.interrupt());
        }
    }
}
