//! Scheduling: cores, priorities, policies.
//!
//! Priority and policy are those of a process, as the grid divides time among processes; affinity is that of a thread.

use super::{CallResult, unsupported};
use crate::Errno;
use crate::control::SchedulingPolicy;
use crate::process::Process;
use crate::thread::Thread;
use crate::thread_state::ThreadState;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers::{
    CAP_SYS_ADMIN, CAP_SYS_NICE, PRIO_PGRP, PRIO_PROCESS, PRIO_USER, RLIMIT_NICE, RLIMIT_RTPRIO, SCHED_FIFO,
    SCHED_IDLE, SCHED_NORMAL, SCHED_RESET_ON_FORK, SCHED_RR,
};

/// The time slice of `SCHED_RR` that `sched_rr_get_interval` returns: that of all programs, in nanoseconds.
const SLICE_NS: u64 = 200_000;

pub async fn sched_yield(thread: &mut Thread) -> CallResult {
    thread.give_way().await;
    Ok(0)
}

/// Returns the thread with an id, the caller for 0, and its process.
fn find(thread: &Thread, tid: i32) -> Result<(Arc<Process>, Arc<ThreadState>), Errno> {
    match tid {
        0 => Ok((thread.process.clone(), thread.state.clone())),
        1.. => {
            let found = thread.system.family.lock().process_of_thread(tid as u32);
            let (_, process) = found.ok_or(Errno::ESRCH)?;
            let state = process.thread(tid as u32).ok_or(Errno::ESRCH)?;
            Ok((process, state))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// As [`find`], for calls that search for an id below 0 too.
fn find_for_affinity(thread: &Thread, tid: i32) -> Result<(Arc<Process>, Arc<ThreadState>), Errno> {
    if tid < 0 { Err(Errno::ESRCH) } else { find(thread, tid) }
}

/// Verifies that the caller may change the scheduling of a process.
fn check_owner(thread: &Thread, process: &Process) -> Result<(), Errno> {
    let (own, other) = (thread.credentials.user, *process.user.lock());
    let is_owner = own.effective == other.real || own.effective == other.effective;
    if is_owner || thread.credentials.has(CAP_SYS_NICE) { Ok(()) } else { Err(Errno::EPERM) }
}

pub async fn sched_getaffinity(thread: &mut Thread, tid: i32, len: u32, mask: u64) -> CallResult {
    let (_, state) = find_for_affinity(thread, tid)?;
    // 64 cores at most.
    const NEEDED: usize = 8;
    if !len.is_multiple_of(8) || (len as usize) < NEEDED {
        return Err(Errno::EINVAL);
    }
    let cores = thread.system.environment.cores();
    let allowed = match state.allowed_cores.load(Ordering::Relaxed) & cores {
        0 => cores,
        allowed => allowed,
    };
    thread.memory.write_bytes(mask, &allowed.to_le_bytes()).await?;
    Ok(NEEDED as u64)
}

pub async fn sched_setaffinity(thread: &mut Thread, tid: i32, len: u32, mask: u64) -> CallResult {
    let mut bytes = [0_u8; 8];
    let len = (len as usize).min(bytes.len());
    thread.memory.read_to(mask, &mut bytes[..len]).await?;
    let (process, state) = find_for_affinity(thread, tid)?;
    check_owner(thread, &process)?;
    let allowed = u64::from_le_bytes(bytes);
    let cores = thread.system.environment.cores();
    if allowed & cores == 0 {
        return Err(Errno::EINVAL);
    }
    // A thread that may run on all cores also runs on those that join later.
    let recorded = if allowed & cores == cores { u64::MAX } else { allowed };
    state.allowed_cores.store(recorded, Ordering::Relaxed);
    // It moves before its program continues.
    state.interrupt();
    Ok(0)
}

/// Verifies that the caller may give a process the niceness.
fn check_nice(thread: &Thread, process: &Process, nice: i32) -> Result<(), Errno> {
    let limit = process.limits.lock().soft(RLIMIT_NICE);
    // A limit of 1 to 40 permits a niceness down to 20 less the limit.
    let is_permitted = nice >= process.control.nice() || i64::from(20 - nice) <= limit.min(40) as i64;
    if is_permitted || thread.credentials.has(CAP_SYS_NICE) { Ok(()) } else { Err(Errno::EACCES) }
}

/// Returns the processes that `setpriority` and `ioprio_set` name.
fn named(thread: &Thread, selector: Selector, who: i32) -> Result<Vec<Arc<Process>>, Errno> {
    let family = thread.system.family.lock();
    let processes: Vec<_> = match selector {
        Selector::Process if who == 0 => alloc::vec![thread.process.clone()],
        Selector::Process => {
            let found = u32::try_from(who).ok().and_then(|tid| family.process_of_thread(tid));
            found.into_iter().map(|(_, process)| process).collect()
        }
        Selector::Group => {
            let group = if who == 0 { family.group(thread.process.pid)? } else { who as u32 };
            family.in_group(group)
        }
        Selector::User => {
            let user = if who == 0 { thread.credentials.user.real } else { who as u32 };
            let all: Vec<_> = family.processes().map(|(_, process)| process.clone()).collect();
            drop(family);
            all.into_iter().filter(|process| process.user.lock().real == user).collect()
        }
    };
    if processes.is_empty() { Err(Errno::ESRCH) } else { Ok(processes) }
}

/// The processes that a call concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Selector {
    Process,
    Group,
    User,
}

impl Selector {
    fn of_priority(which: u32) -> Result<Self, Errno> {
        match which {
            PRIO_PROCESS => Ok(Self::Process),
            PRIO_PGRP => Ok(Self::Group),
            PRIO_USER => Ok(Self::User),
            _ => Err(Errno::EINVAL),
        }
    }
}

pub fn setpriority(thread: &mut Thread, which: u32, who: i32, nice: i32) -> CallResult {
    let nice = nice.clamp(-20, 19);
    let mut result = Err(Errno::ESRCH);
    for process in named(thread, Selector::of_priority(which)?, who)? {
        let checked = check_owner(thread, &process).and_then(|()| check_nice(thread, &process, nice));
        match checked {
            Ok(()) => {
                process.control.set_nice(nice);
                if result == Err(Errno::ESRCH) {
                    result = Ok(0);
                }
            }
            Err(error) => result = Err(error),
        }
    }
    result
}

pub fn getpriority(thread: &mut Thread, which: u32, who: i32) -> CallResult {
    let processes = named(thread, Selector::of_priority(which)?, who)?;
    // The highest priority; the C library turns 1 to 40 into 19 to -20.
    let nice = processes.iter().map(|process| process.control.nice()).min().ok_or(Errno::ESRCH)?;
    Ok((20 - nice) as u64)
}

pub fn sched_getscheduler(thread: &mut Thread, tid: i32) -> CallResult {
    let (process, _) = find(thread, tid)?;
    Ok(process.control.policy().number.into())
}

pub async fn sched_getparam(thread: &mut Thread, tid: i32, parameter: u64) -> CallResult {
    let (process, _) = find(thread, tid)?;
    let priority = process.control.policy().priority;
    thread.memory.write_bytes(parameter, &priority.to_le_bytes()).await?;
    Ok(0)
}

pub async fn sched_setscheduler(thread: &mut Thread, tid: i32, policy: u32, parameter: u64) -> CallResult {
    let priority = u32::from_le_bytes(thread.memory.read_bytes::<4>(parameter).await?);
    let number = policy & !SCHED_RESET_ON_FORK;
    set_policy(thread, tid, SchedulingPolicy { number, priority })
}

pub async fn sched_setparam(thread: &mut Thread, tid: i32, parameter: u64) -> CallResult {
    let priority = u32::from_le_bytes(thread.memory.read_bytes::<4>(parameter).await?);
    let (process, _) = find(thread, tid)?;
    let number = process.control.policy().number;
    set_policy(thread, tid, SchedulingPolicy { number, priority })
}

fn set_policy(thread: &Thread, tid: i32, policy: SchedulingPolicy) -> CallResult {
    let (process, _) = find(thread, tid)?;
    if !policy.is_valid() {
        if policy.number > SCHED_IDLE {
            return Err(unsupported(
                thread,
                &alloc::format!("scheduling policy {}", policy.number),
                Errno::EINVAL,
            ));
        }
        return Err(Errno::EINVAL);
    }
    check_owner(thread, &process)?;
    let limit = u64::from(policy.priority) <= process.limits.lock().soft(RLIMIT_RTPRIO);
    if policy.is_real_time() && !limit && !thread.credentials.has(CAP_SYS_NICE) {
        return Err(Errno::EPERM);
    }
    let leaves_idle = process.control.policy().number == SCHED_IDLE && policy.number != SCHED_IDLE;
    if leaves_idle {
        let nice = process.control.nice();
        let limit = process.limits.lock().soft(RLIMIT_NICE);
        if i64::from(20 - nice) > limit.min(40) as i64 && !thread.credentials.has(CAP_SYS_NICE) {
            return Err(Errno::EPERM);
        }
    }
    process.control.set_policy(policy);
    Ok(0)
}

/// The length of `struct sched_attr` in its first version.
const ATTRIBUTES_LEN: usize = 48;

pub async fn sched_setattr(thread: &mut Thread, tid: i32, attributes: u64, flags: u32) -> CallResult {
    let size = u32::from_le_bytes(thread.memory.read_bytes::<4>(attributes).await?);
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    if size != 0 && ((size as usize) < ATTRIBUTES_LEN || u64::from(size) > super::PAGE) {
        return Err(Errno::E2BIG);
    }
    let bytes = thread.memory.read_bytes::<ATTRIBUTES_LEN>(attributes).await?;
    let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (number, nice, priority) = (word(4), word(16) as i32, word(20));
    let (process, _) = find(thread, tid)?;
    if number == SCHED_NORMAL || number == isola_linux_abi::numbers::SCHED_BATCH {
        check_owner(thread, &process)?;
        check_nice(thread, &process, nice.clamp(-20, 19)).map_err(|_| Errno::EPERM)?;
    }
    set_policy(thread, tid, SchedulingPolicy { number, priority })?;
    if number == SCHED_NORMAL || number == isola_linux_abi::numbers::SCHED_BATCH {
        process.control.set_nice(nice);
    }
    Ok(0)
}

pub async fn sched_getattr(
    thread: &mut Thread,
    tid: i32,
    attributes: u64,
    size: u32,
    flags: u32,
) -> CallResult {
    if (size as usize) < ATTRIBUTES_LEN || u64::from(size) > super::PAGE || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (process, _) = find(thread, tid)?;
    let policy = process.control.policy();
    let mut bytes = [0; ATTRIBUTES_LEN];
    bytes[..4].copy_from_slice(&(ATTRIBUTES_LEN as u32).to_le_bytes());
    bytes[4..8].copy_from_slice(&policy.number.to_le_bytes());
    if !policy.is_real_time() {
        bytes[16..20].copy_from_slice(&process.control.nice().to_le_bytes());
    }
    bytes[20..24].copy_from_slice(&policy.priority.to_le_bytes());
    thread.memory.write_bytes(attributes, &bytes).await?;
    Ok(0)
}

pub async fn sched_rr_get_interval(thread: &mut Thread, tid: i32, interval: u64) -> CallResult {
    let (process, _) = find(thread, tid)?;
    let slice_ns = if process.control.policy().number == SCHED_FIFO { 0 } else { SLICE_NS };
    thread.memory.write_bytes(interval, &super::time::timespec(slice_ns)).await?;
    Ok(0)
}

pub fn sched_get_priority_max(_thread: &mut Thread, policy: u32) -> CallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(99),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

pub fn sched_get_priority_min(_thread: &mut Thread, policy: u32) -> CallResult {
    match policy {
        SCHED_FIFO | SCHED_RR => Ok(1),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the processes that `ioprio_set` names.
fn named_by_io(thread: &Thread, which: u32, who: i32) -> Result<Vec<Arc<Process>>, Errno> {
    let selector = match which {
        1 => Selector::Process,
        2 => Selector::Group,
        3 => Selector::User,
        _ => return Err(Errno::EINVAL),
    };
    named(thread, selector, who)
}

pub fn ioprio_set(thread: &mut Thread, which: u32, who: i32, priority: u32) -> CallResult {
    let (class, level) = (priority >> 13, priority & 0x1fff);
    match class {
        // Hints below the level are not known.
        _ if priority > 0xffff || level > 7 => return Err(Errno::EINVAL),
        0 if level != 0 => return Err(Errno::EINVAL),
        0 | 2 | 3 => {}
        1 if thread.credentials.has(CAP_SYS_ADMIN) || thread.credentials.has(CAP_SYS_NICE) => {}
        1 => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    }
    for process in named_by_io(thread, which, who)? {
        check_owner(thread, &process)?;
        process.control.set_io_priority(priority);
    }
    Ok(0)
}

pub fn ioprio_get(thread: &mut Thread, which: u32, who: i32) -> CallResult {
    let processes = named_by_io(thread, which, who)?;
    let priorities = processes.iter().map(|process| process.control.io_priority());
    // The highest class that one of them has: the lowest number but 0.
    let highest = priorities.min_by_key(|priority| if *priority == 0 { u32::MAX } else { *priority });
    Ok(highest.unwrap_or(0).into())
}

pub async fn getcpu(thread: &mut Thread, core: u64, node: u64) -> CallResult {
    if core != 0 {
        let current = thread.system.environment.current_core() as u32;
        thread.memory.write_bytes(core, &current.to_le_bytes()).await?;
    }
    if node != 0 {
        thread.memory.write_bytes(node, &[0; 4]).await?;
    }
    Ok(0)
}
