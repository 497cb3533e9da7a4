//! What a process may use: its group, its account, its priority; and what it has used of files.

use crate::account::Account;
use crate::cgroup::Group;
use crate::environment::{Environment, Share, SharedResource};
use crate::system::System;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use isola_linux_abi::numbers::{SCHED_BATCH, SCHED_FIFO, SCHED_IDLE, SCHED_NORMAL, SCHED_RR};
use spin::Mutex;

/// The shares of a process.
pub struct Control {
    environment: Arc<dyn Environment>,
    membership: Mutex<GroupMembership>,
    nice: AtomicI32,
    policy: AtomicU32,
    /// The priority of the policies `SCHED_FIFO` and `SCHED_RR`.
    real_time_priority: AtomicU32,
    /// As `ioprio_set` has set it; 0 for none.
    io_priority: AtomicU32,
    /// `/proc/PID/oom_score_adj`.
    out_of_memory_adjustment: AtomicI32,
    /// Whether a group of the process limits its processor time.
    is_limited: AtomicBool,
    /// Whether the size of its files is limited (`RLIMIT_FSIZE`), so that a write without a limit needs no lock.
    limits_files: AtomicBool,
    /// The bytes and calls of its reads and writes.
    pub files: FileUse,
    /// The page faults that needed no device.
    pub faults: AtomicU64,
}

/// The group of a process, and its account there.
struct GroupMembership {
    group: Arc<Group>,
    /// `None` once the process has ended.
    account: Option<Arc<Account>>,
}

/// What a process has read and written (`/proc/PID/io`).
#[derive(Debug, Default)]
pub struct FileUse {
    /// Bytes of reads.
    pub read_bytes: AtomicU64,
    /// Bytes of writes.
    pub written_bytes: AtomicU64,
    /// Calls that read.
    pub reads: AtomicU64,
    /// Calls that write.
    pub writes: AtomicU64,
}

impl FileUse {
    /// Counts a call that has read bytes.
    pub fn count_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that has written bytes.
    pub fn count_write(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::Relaxed);
    }
}

/// Linux's weights by niceness, from -20 to 19 (`sched_prio_to_weight` of kernel/sched/core.c). 1024 is that of 0.
const WEIGHTS: [u32; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904, 3906, 3121,
    2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29,
    23, 18, 15,
];

/// The weight of a process with a real-time policy: the highest.
const REAL_TIME_WEIGHT: u32 = 10_000;

/// Returns the grid's weight of a niceness.
pub fn weight_of_nice(nice: i32) -> u32 {
    let weight = WEIGHTS[(nice.clamp(-20, 19) + 20) as usize];
    (weight * Share::DEFAULT_WEIGHT / 1024).max(1)
}

/// Returns the niceness whose weight is nearest.
pub fn nice_of_weight(weight: u32) -> i32 {
    (-20..20).min_by_key(|nice| weight_of_nice(*nice).abs_diff(weight)).unwrap_or(0)
}

/// A policy of `sched_setscheduler`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulingPolicy {
    /// `SCHED_*`.
    pub number: u32,
    /// From 1 to 99 with a real-time policy, otherwise 0.
    pub priority: u32,
}

impl SchedulingPolicy {
    /// Returns whether it is `SCHED_FIFO` or `SCHED_RR`.
    pub const fn is_real_time(self) -> bool {
        matches!(self.number, SCHED_FIFO | SCHED_RR)
    }

    /// Returns whether the policy exists, and has a priority of this kind.
    pub const fn is_valid(self) -> bool {
        match self.number {
            SCHED_NORMAL | SCHED_BATCH | SCHED_IDLE => self.priority == 0,
            SCHED_FIFO | SCHED_RR => self.priority >= 1 && self.priority <= 99,
            _ => false,
        }
    }
}

impl Control {
    /// Creates the control of a process in a group, with its account. `name` is that of its program.
    pub fn new(environment: &Arc<dyn Environment>, group: Arc<Group>, pid: u32, name: &[u8]) -> Self {
        let account = Account::new(environment.clone(), group.activity(), pid, name);
        Self {
            environment: environment.clone(),
            is_limited: AtomicBool::new(group.limits_processor()),
            membership: Mutex::new(GroupMembership { group, account: Some(account) }),
            nice: AtomicI32::new(0),
            policy: AtomicU32::new(SCHED_NORMAL),
            real_time_priority: AtomicU32::new(0),
            io_priority: AtomicU32::new(0),
            out_of_memory_adjustment: AtomicI32::new(0),
            limits_files: AtomicBool::new(false),
            files: FileUse::default(),
            faults: AtomicU64::new(0),
        }
    }

    /// Creates the control of a child: in the same group, with the same priorities.
    pub fn for_child(&self, pid: u32, name: &[u8]) -> Self {
        let child = Self::new(&self.environment, self.group(), pid, name);
        let copy = |from: &AtomicI32, to: &AtomicI32| {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        child.set_limits_files(self.limits_files());
        copy(&self.nice, &child.nice);
        copy(&self.out_of_memory_adjustment, &child.out_of_memory_adjustment);
        for (from, to) in [
            (&self.policy, &child.policy),
            (&self.real_time_priority, &child.real_time_priority),
            (&self.io_priority, &child.io_priority),
        ] {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        if child.weight() != Share::DEFAULT_WEIGHT {
            child.apply_weight();
        }
        if child.disk_weight() != Share::DEFAULT_WEIGHT {
            child.apply_disk_weight();
        }
        child
    }

    /// Returns the group.
    pub fn group(&self) -> Arc<Group> {
        self.membership.lock().group.clone()
    }

    /// Returns the account; `None` once the process has ended.
    pub fn account(&self) -> Option<Arc<Account>> {
        self.membership.lock().account.clone()
    }

    /// Returns whether this is the account, without a new owner of it.
    pub fn has_account(&self, account: &Arc<Account>) -> bool {
        self.membership.lock().account.as_ref().is_none_or(|now| Arc::ptr_eq(now, account))
    }

    /// Gives the account up, as the process has ended.
    pub fn close(&self) {
        let account = self.membership.lock().account.take();
        drop(account);
    }

    /// Moves the process to another group, with a new account there. Its threads change to it before they continue. A
    /// process that has ended stays.
    pub fn move_to(&self, group: Arc<Group>, pid: u32, name: &[u8]) {
        let account = Account::new(self.environment.clone(), group.activity(), pid, name);
        let former = {
            let mut membership = self.membership.lock();
            if membership.account.is_none() {
                return;
            }
            self.is_limited.store(group.limits_processor(), Ordering::Relaxed);
            core::mem::replace(&mut *membership, GroupMembership { group, account: Some(account) })
        };
        drop(former);
        if self.weight() != Share::DEFAULT_WEIGHT {
            self.apply_weight();
        }
        if self.disk_weight() != Share::DEFAULT_WEIGHT {
            self.apply_disk_weight();
        }
    }

    /// Returns whether a group limits the processor time.
    #[inline]
    pub fn is_limited(&self) -> bool {
        self.is_limited.load(Ordering::Relaxed)
    }

    /// Follows a change of the group's limits.
    pub fn follow_limits(&self) {
        let membership = self.membership.lock();
        self.is_limited.store(membership.group.limits_processor(), Ordering::Relaxed);
    }

    /// Returns whether the size of files is limited.
    #[inline]
    pub fn limits_files(&self) -> bool {
        self.limits_files.load(Ordering::Relaxed)
    }

    /// Records whether the size of files is limited.
    pub fn set_limits_files(&self, limits: bool) {
        self.limits_files.store(limits, Ordering::Relaxed);
    }

    /// Returns the niceness.
    pub fn nice(&self) -> i32 {
        self.nice.load(Ordering::Relaxed)
    }

    /// Sets the niceness.
    pub fn set_nice(&self, nice: i32) {
        self.nice.store(nice.clamp(-20, 19), Ordering::Relaxed);
        self.apply_weight();
    }

    /// Returns the policy.
    pub fn policy(&self) -> SchedulingPolicy {
        SchedulingPolicy {
            number: self.policy.load(Ordering::Relaxed),
            priority: self.real_time_priority.load(Ordering::Relaxed),
        }
    }

    /// Sets the policy.
    pub fn set_policy(&self, policy: SchedulingPolicy) {
        self.policy.store(policy.number, Ordering::Relaxed);
        self.real_time_priority.store(policy.priority, Ordering::Relaxed);
        self.apply_weight();
    }

    /// Returns the priority for devices, as `ioprio_get` returns it; 0 for that of the niceness.
    pub fn io_priority(&self) -> u32 {
        self.io_priority.load(Ordering::Relaxed)
    }

    /// Sets the priority for devices.
    pub fn set_io_priority(&self, priority: u32) {
        self.io_priority.store(priority, Ordering::Relaxed);
        self.apply_disk_weight();
    }

    /// Returns the adjustment of the choice for a kill when memory is out: from -1000, never, to 1000, first.
    pub fn out_of_memory_adjustment(&self) -> i32 {
        self.out_of_memory_adjustment.load(Ordering::Relaxed)
    }

    /// Sets the adjustment.
    pub fn set_out_of_memory_adjustment(&self, adjustment: i32) {
        self.out_of_memory_adjustment.store(adjustment, Ordering::Relaxed);
    }

    /// Returns the weight at the cores.
    pub fn weight(&self) -> u32 {
        match self.policy() {
            policy if policy.is_real_time() => REAL_TIME_WEIGHT,
            SchedulingPolicy { number: SCHED_IDLE, .. } => 1,
            _ => weight_of_nice(self.nice()),
        }
    }

    /// Returns the weight at block devices. As in Linux, that of a process without a priority of its own follows from its
    /// niceness: best effort, level 4 for 0.
    fn disk_weight(&self) -> u32 {
        let (class, level) = (self.io_priority() >> 13, self.io_priority() & 7);
        match class {
            0 => Share::DEFAULT_WEIGHT,
            1 => REAL_TIME_WEIGHT / (level + 1),
            2 => Share::DEFAULT_WEIGHT * (8 - level) / 4,
            _ => 1,
        }
    }

    fn apply_weight(&self) {
        self.apply(SharedResource::Processor, self.weight());
    }

    fn apply_disk_weight(&self) {
        self.apply(SharedResource::Disk, self.disk_weight());
    }

    fn apply(&self, resource: SharedResource, weight: u32) {
        if let Some(activity) = self.account().and_then(|account| account.own_activity()) {
            let share = Share { weight, bytes_per_second: None };
            self.environment.activities().set_share(activity, resource, share);
        }
    }
}

impl System {
    /// Gives the account of a process the name of its program.
    pub fn show_name(&self, process: &crate::process::Process, name: &[u8]) {
        if let Some(account) = process.control.account() {
            account.rename(process.pid, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn niceness_changes_the_weight_by_a_quarter_as_in_linux() {
        assert_eq!([-20, 0, 1, 5, 19].map(weight_of_nice), [8668, 100, 80, 32, 1]);
        assert!((-20..19).all(|nice| weight_of_nice(nice) >= weight_of_nice(nice + 1)));
        assert_eq!([8668, 10_000, 100, 81, 33].map(nice_of_weight), [-20, -20, 0, 1, 5]);
        assert_eq!((weight_of_nice(i32::MIN), weight_of_nice(i32::MAX)), (8668, 1));
    }

    #[test]
    fn a_real_time_policy_needs_a_priority_and_others_have_none() {
        let valid = |number, priority| SchedulingPolicy { number, priority }.is_valid();
        assert!(valid(SCHED_NORMAL, 0) && valid(SCHED_BATCH, 0) && valid(SCHED_IDLE, 0));
        assert!(valid(SCHED_FIFO, 1) && valid(SCHED_RR, 99));
        assert!(!valid(SCHED_NORMAL, 1) && !valid(SCHED_FIFO, 0) && !valid(SCHED_RR, 100) && !valid(6, 0));
    }
}
