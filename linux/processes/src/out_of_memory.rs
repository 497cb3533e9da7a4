//! The end of memory: a process is chosen and killed, so that the others and the cell continue.
//!
//! Memory is out if a page fault finds no frame: the limit of a group permits none more (`memory.max`), or the cell has none
//! and gets none. The process with most memory is chosen, of the group or of all, by Linux's rule: its frames, and a
//! thousandth of the whole memory for each point of `oom_score_adj`; -1000 exempts it. The thread that met the limit waits
//! for the end of the chosen process, and then tries again.
//!
//! Mappings are not limited by memory (`vm.overcommit_memory` 1): a page counts when it is written first.

use crate::cgroup::Group;
use crate::exit_status::ExitStatus;
use crate::process::Process;
use crate::signals::Signal;
use crate::system::System;
use crate::thread::Thread;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use isola_user_mode::PAGE_SIZE;

/// The adjustment that exempts a process.
const NEVER: i32 = -1000;

/// The longest wait for the end of a chosen process, in nanoseconds. A page fault after it decides again.
const LONGEST_WAIT_NS: u64 = 100_000_000;

/// Returns the points of a process with so many frames, of `total`; `None` if it is exempt.
fn points(frames: u64, adjustment: i32, total: u64) -> Option<u64> {
    if adjustment == NEVER {
        return None;
    }
    let adjusted = frames as i64 + i64::from(adjustment) * (total as i64) / 1000;
    Some(adjusted.max(1) as u64)
}

impl System {
    /// Returns the points by which a process is chosen, from 0 to 1000 and above (`/proc/PID/oom_score`).
    pub fn out_of_memory_score(&self, process: &Process) -> u64 {
        let total = (self.environment.memory().0 / PAGE_SIZE).max(1);
        let points = points(frames(process), process.control.out_of_memory_adjustment(), total);
        points.map_or(0, |points| points * 1000 / total)
    }

    /// Chooses a process of a group and kills it, unless one is ending already. Returns `false` if none can be killed.
    fn kill_largest(&self, group: &Arc<Group>) -> bool {
        let members = self.members(group);
        // Its memory will be free soon.
        let is_ending = |process: &&Arc<Process>| {
            matches!(process.ending(), Some(ExitStatus::Killed { .. })) && frames(process) > 0
        };
        if members.iter().any(|process| is_ending(&process)) {
            return true;
        }
        let total = match group.memory() {
            Some(memory) => memory.max(),
            None => self.environment.memory().0 / PAGE_SIZE,
        };
        let candidates = members.iter().filter(|process| process.ending().is_none());
        let by_points = candidates.filter_map(|process| {
            let adjustment = process.control.out_of_memory_adjustment();
            Some((points(frames(process), adjustment, total)?, process))
        });
        // Of equal ones, the youngest.
        let Some((_, chosen)) = by_points.max_by_key(|(points, process)| (*points, process.pid)) else {
            return false;
        };
        let threads = chosen.threads();
        let name = threads.first().map(|thread| thread.name.lock().clone()).unwrap_or_default();
        let of_group = if group.is_root() { String::new() } else { format!(" of cgroup {}", group.path()) };
        self.environment.report(&format!(
            "linux: out of memory{of_group}: killed process {} ({}), {} MiB",
            chosen.pid,
            String::from_utf8_lossy(&name),
            (frames(chosen) * PAGE_SIZE) >> 20,
        ));
        if let Some(memory) = group.memory() {
            memory.events().kills.fetch_add(1, Ordering::Relaxed);
        }
        chosen.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
        true
    }

    /// Returns the group whose limit permits no frame more; the root if it is the cell's.
    fn full_group(&self, process: &Process) -> Arc<Group> {
        let group = process.control.group();
        let full = group.with_ancestors().find(|group| group.memory().is_some_and(|memory| memory.is_full()));
        full.unwrap_or_else(|| self.root_group.clone())
    }

    /// Kills a process of a group that has more memory than its new limit permits.
    pub(crate) fn enforce_memory_limit(&self, group: &Arc<Group>) {
        if group.memory().is_some_and(|memory| memory.used() > memory.max()) {
            self.count_out_of_memory(group);
            self.kill_largest(group);
        }
    }

    fn count_out_of_memory(&self, group: &Group) {
        if let Some(memory) = group.memory() {
            memory.events().out_of_memory.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Returns the frames that a process has in memory.
fn frames(process: &Process) -> u64 {
    let memory = process.program.lock().memory.clone();
    memory.map_or(0, |memory| memory.resident().total())
}

impl Thread {
    /// Kills a process, as a page fault of this thread found no frame, and waits for its end. The program then repeats the
    /// access.
    pub(crate) async fn find_memory(&mut self) {
        let system = self.system.clone();
        let group = system.full_group(&self.process);
        system.count_out_of_memory(&group);
        if !system.kill_largest(&group) {
            // All others are exempt, or there are none.
            let (pid, environment) = (self.process.pid, &system.environment);
            environment
                .report(&format!("linux: out of memory: killed process {pid}, as all others are exempt"));
            self.process.end(ExitStatus::Killed { signal: Signal::SIGKILL, dumps_core: false });
        }
        if self.process.ending().is_some() {
            return;
        }
        let until_ns = system.environment.monotonic_ns() + LONGEST_WAIT_NS;
        let before = system.ends.load(Ordering::SeqCst);
        let has_ended = || (system.ends.load(Ordering::SeqCst) != before).then_some(());
        let freed = system.freed_memory.wait_until(has_ended);
        // A signal is handled before the program repeats the access.
        let _ = self.interruptible_until(Some(until_ns), freed).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_follow_from_memory_and_the_adjustment() {
        assert_eq!(points(500, 0, 10_000), Some(500));
        assert_eq!(points(500, 100, 10_000), Some(1_500));
        assert_eq!(points(500, -100, 10_000), Some(1), "never less than 1");
        assert_eq!(points(500, 1000, 10_000), Some(10_500));
        assert_eq!(points(9_999, NEVER, 10_000), None);
    }
}
