//! Scheduling: cores, priorities.

use super::{CallResult, unsupported};
use crate::Errno;
use crate::thread::{Thread, give_way};
use isola_linux_abi::numbers::SCHED_NORMAL;

pub async fn sched_yield(_thread: &mut Thread) -> CallResult {
    give_way().await;
    Ok(0)
}

pub async fn sched_getaffinity(thread: &mut Thread, tid: i32, len: u32, mask: u64) -> CallResult {
    check_thread(thread, tid)?;
    let cores = thread.system.environment.core_count();
    let needed = cores.div_ceil(64) * 8;
    if !len.is_multiple_of(8) || (len as usize) < needed {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0_u8; needed];
    (0..cores).for_each(|core| bytes[core / 8] |= 1 << (core % 8));
    thread.memory.write_bytes(mask, &bytes).await?;
    Ok(needed as u64)
}

pub async fn sched_setaffinity(thread: &mut Thread, tid: i32, len: u32, mask: u64) -> CallResult {
    check_thread(thread, tid)?;
    let mut bytes = alloc::vec![0_u8; len.min(128) as usize];
    thread.memory.read_to(mask, &mut bytes).await?;
    let cores = thread.system.environment.core_count();
    let has_core = (0..cores).any(|core| bytes.get(core / 8).is_some_and(|byte| byte >> (core % 8) & 1 != 0));
    if !has_core {
        return Err(Errno::EINVAL);
    }
    thread.system.missing.count("sched_setaffinity has no effect");
    Ok(0)
}

fn check_thread(thread: &Thread, tid: i32) -> Result<(), Errno> {
    let exists = tid == 0 || (tid > 0 && thread.system.family.lock().process_of_thread(tid as u32).is_some());
    if exists { Ok(()) } else { Err(Errno::ESRCH) }
}

pub fn sched_getscheduler(thread: &mut Thread, tid: i32) -> CallResult {
    check_thread(thread, tid)?;
    Ok(SCHED_NORMAL.into())
}

pub async fn sched_getparam(thread: &mut Thread, tid: i32, parameter: u64) -> CallResult {
    check_thread(thread, tid)?;
    thread.memory.write_bytes(parameter, &0_u32.to_le_bytes()).await?;
    Ok(0)
}

pub async fn sched_setscheduler(thread: &mut Thread, tid: i32, policy: u32, parameter: u64) -> CallResult {
    check_thread(thread, tid)?;
    let priority = u32::from_le_bytes(thread.memory.read_bytes::<4>(parameter).await?);
    match policy {
        SCHED_NORMAL if priority == 0 => Ok(0),
        SCHED_NORMAL => Err(Errno::EINVAL),
        _ => Err(unsupported(thread, &alloc::format!("scheduling policy {policy}"), Errno::EPERM)),
    }
}

pub fn sched_get_priority_max(_thread: &mut Thread, policy: u32) -> CallResult {
    match policy {
        1 | 2 => Ok(99),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

pub fn sched_get_priority_min(_thread: &mut Thread, policy: u32) -> CallResult {
    match policy {
        1 | 2 => Ok(1),
        0 | 3 | 5 | 6 => Ok(0),
        _ => Err(Errno::EINVAL),
    }
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
