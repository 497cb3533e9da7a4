//! Ids of processes, users and groups; capabilities; the thread pointer; `prctl`.

use super::{CallResult, unsupported};
use crate::Errno;
use crate::credentials::{ALL_CAPABILITIES, Credentials, IdChange};
use crate::limits::Limit;
use crate::signals::Signal;
use crate::thread::Thread;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers::{
    CAP_LAST_CAP, CAP_SETPCAP, CAP_SYS_RESOURCE, NGROUPS_MAX, RLIMIT_CPU, RLIMIT_FSIZE,
};
use isola_linux_abi::prctl::{
    PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, PR_CAP_AMBIENT_IS_SET, PR_CAP_AMBIENT_LOWER,
    PR_CAP_AMBIENT_RAISE, PR_CAPBSET_DROP, PR_CAPBSET_READ, PR_GET_CHILD_SUBREAPER, PR_GET_DUMPABLE,
    PR_GET_KEEPCAPS, PR_GET_NAME, PR_GET_NO_NEW_PRIVS, PR_GET_PDEATHSIG, PR_GET_SECUREBITS,
    PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NAME, PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
};
use isola_user_mode::USER_END;

/// Codes of `arch_prctl`, from Linux's `asm/prctl.h`.
const ARCH_SET_GS: u32 = 0x1001;
const ARCH_SET_FS: u32 = 0x1002;
const ARCH_GET_FS: u32 = 0x1003;
const ARCH_GET_GS: u32 = 0x1004;

pub fn getpid(thread: &mut Thread) -> CallResult {
    Ok(thread.process.pid.into())
}

pub fn gettid(thread: &mut Thread) -> CallResult {
    Ok(thread.state.tid().into())
}

pub fn getppid(thread: &mut Thread) -> CallResult {
    Ok(thread.system.family.lock().parent(thread.process.pid).into())
}

/// Returns the process that a call names: the caller for 0.
fn named(thread: &Thread, pid: i32) -> Result<u32, Errno> {
    match pid {
        0 => Ok(thread.process.pid),
        1.. => Ok(pid as u32),
        _ => Err(Errno::ESRCH),
    }
}

pub fn getpgid(thread: &mut Thread, pid: i32) -> CallResult {
    let pid = named(thread, pid)?;
    thread.system.family.lock().group(pid).map(u64::from)
}

pub fn getpgrp(thread: &mut Thread) -> CallResult {
    getpgid(thread, 0)
}

pub fn getsid(thread: &mut Thread, pid: i32) -> CallResult {
    let pid = named(thread, pid)?;
    thread.system.family.lock().session(pid).map(u64::from)
}

pub fn setsid(thread: &mut Thread) -> CallResult {
    thread.system.family.lock().new_session(thread.process.pid).map(u64::from)
}

pub fn setpgid(thread: &mut Thread, pid: i32, group: i32) -> CallResult {
    if group < 0 {
        return Err(Errno::EINVAL);
    }
    let pid = named(thread, pid)?;
    let group = if group == 0 { pid } else { group as u32 };
    thread.system.family.lock().set_group(thread.process.pid, pid, group)?;
    Ok(0)
}

pub fn getuid(thread: &mut Thread) -> CallResult {
    Ok(thread.credentials.user.real.into())
}

pub fn geteuid(thread: &mut Thread) -> CallResult {
    Ok(thread.credentials.user.effective.into())
}

pub fn getgid(thread: &mut Thread) -> CallResult {
    Ok(thread.credentials.group.real.into())
}

pub fn getegid(thread: &mut Thread) -> CallResult {
    Ok(thread.credentials.group.effective.into())
}

/// Applies a change to the thread's credentials.
fn change(thread: &mut Thread, change: impl FnOnce(&mut Credentials) -> Result<(), Errno>) -> CallResult {
    let mut credentials = thread.credentials.clone();
    change(&mut credentials)?;
    thread.set_credentials(credentials);
    Ok(0)
}

pub fn setuid(thread: &mut Thread, id: u32) -> CallResult {
    change(thread, |credentials| credentials.change_user(IdChange::One(id)))
}

pub fn setgid(thread: &mut Thread, id: u32) -> CallResult {
    change(thread, |credentials| credentials.change_group(IdChange::One(id)))
}

pub fn setreuid(thread: &mut Thread, real: u32, effective: u32) -> CallResult {
    change(thread, |credentials| credentials.change_user(IdChange::Two(real, effective)))
}

pub fn setregid(thread: &mut Thread, real: u32, effective: u32) -> CallResult {
    change(thread, |credentials| credentials.change_group(IdChange::Two(real, effective)))
}

pub fn setresuid(thread: &mut Thread, real: u32, effective: u32, saved: u32) -> CallResult {
    change(thread, |credentials| credentials.change_user(IdChange::Three([real, effective, saved])))
}

pub fn setresgid(thread: &mut Thread, real: u32, effective: u32, saved: u32) -> CallResult {
    change(thread, |credentials| credentials.change_group(IdChange::Three([real, effective, saved])))
}

pub async fn getresuid(thread: &mut Thread, real: u64, effective: u64, saved: u64) -> CallResult {
    let ids = thread.credentials.user;
    write_ids(thread, [(real, ids.real), (effective, ids.effective), (saved, ids.saved)]).await
}

pub async fn getresgid(thread: &mut Thread, real: u64, effective: u64, saved: u64) -> CallResult {
    let ids = thread.credentials.group;
    write_ids(thread, [(real, ids.real), (effective, ids.effective), (saved, ids.saved)]).await
}

async fn write_ids(thread: &Thread, ids: [(u64, u32); 3]) -> CallResult {
    for (address, id) in ids {
        thread.memory.write_bytes(address, &id.to_le_bytes()).await?;
    }
    Ok(0)
}

pub fn setfsuid(thread: &mut Thread, id: u32) -> CallResult {
    let mut credentials = thread.credentials.clone();
    let ids = credentials.user;
    let may = [ids.real, ids.effective, ids.saved, ids.files].contains(&id)
        || credentials.has(isola_linux_abi::numbers::CAP_SETUID);
    if may {
        credentials.user.files = id;
        thread.set_credentials(credentials);
    }
    Ok(ids.files.into())
}

pub fn setfsgid(thread: &mut Thread, id: u32) -> CallResult {
    let mut credentials = thread.credentials.clone();
    let ids = credentials.group;
    let may = [ids.real, ids.effective, ids.saved, ids.files].contains(&id)
        || credentials.has(isola_linux_abi::numbers::CAP_SETGID);
    if may {
        credentials.group.files = id;
        thread.set_credentials(credentials);
    }
    Ok(ids.files.into())
}

pub async fn getgroups(thread: &mut Thread, size: i32, list: u64) -> CallResult {
    let groups = thread.credentials.groups.clone();
    match size {
        0 => {}
        1.. if size as usize >= groups.len() => {
            let bytes: Vec<u8> = groups.iter().flat_map(|group| group.to_le_bytes()).collect();
            thread.memory.write_bytes(list, &bytes).await?;
        }
        _ => return Err(Errno::EINVAL),
    }
    Ok(groups.len() as u64)
}

pub async fn setgroups(thread: &mut Thread, size: u32, list: u64) -> CallResult {
    if size > NGROUPS_MAX {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; 4 * size as usize];
    thread.memory.read_to(list, &mut bytes).await?;
    let groups = bytes.chunks_exact(4).map(|id| u32::from_le_bytes([id[0], id[1], id[2], id[3]])).collect();
    change(thread, |credentials| credentials.set_groups(groups))
}

/// Version 3 of the capability structures: two words of 32 bits each.
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;
/// Version 1: one word each. Version 2 is as version 3.
const CAPABILITY_VERSION_1: u32 = 0x1998_0330;
const CAPABILITY_VERSION_2: u32 = 0x2007_1026;

/// Returns the number of words for the version of a capability header, and its process.
async fn capability_words(thread: &Thread, header: u64) -> Result<(usize, i32), Errno> {
    let bytes = thread.memory.read_bytes::<8>(header).await?;
    let version = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let pid = i32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    match version {
        CAPABILITY_VERSION_1 => Ok((1, pid)),
        CAPABILITY_VERSION_2 | CAPABILITY_VERSION_3 => Ok((2, pid)),
        _ => {
            thread.memory.write_bytes(header, &CAPABILITY_VERSION_3.to_le_bytes()).await?;
            Err(Errno::EINVAL)
        }
    }
}

pub async fn capget(thread: &mut Thread, header: u64, data: u64) -> CallResult {
    let (words, pid) = match capability_words(thread, header).await {
        // A program asks for the version with a null pointer.
        Err(Errno::EINVAL) if data == 0 => return Ok(0),
        other => other?,
    };
    if pid != 0 && pid as u32 != thread.process.pid && pid as u32 != thread.state.tid() {
        // Other processes have the capabilities of their own threads, of which only their tasks know.
        return Err(Errno::ESRCH);
    }
    let sets = thread.credentials.capabilities;
    let mut bytes = Vec::new();
    for word in 0..words {
        for set in [sets.effective, sets.permitted, sets.inheritable] {
            bytes.extend(((set >> (32 * word)) as u32).to_le_bytes());
        }
    }
    if data != 0 {
        thread.memory.write_bytes(data, &bytes).await?;
    }
    Ok(0)
}

pub async fn capset(thread: &mut Thread, header: u64, data: u64) -> CallResult {
    let (words, pid) = capability_words(thread, header).await?;
    if pid != 0 && pid as u32 != thread.process.pid && pid as u32 != thread.state.tid() {
        return Err(Errno::EPERM);
    }
    let mut bytes = [0; 24];
    thread.memory.read_to(data, &mut bytes[..12 * words]).await?;
    let mut sets = [0_u64; 3];
    for (index, word) in bytes.chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
        sets[index % 3] |= u64::from(word) << (32 * (index / 3));
    }
    let [effective, permitted, inheritable] = sets.map(|set| set & ALL_CAPABILITIES);
    change(thread, |credentials| credentials.set_capabilities(permitted, effective, inheritable))
}

pub async fn arch_prctl(thread: &mut Thread, code: u32, address: u64) -> CallResult {
    let registers = thread.registers();
    match code {
        ARCH_SET_FS | ARCH_SET_GS if address >= USER_END => return Err(Errno::EPERM),
        ARCH_SET_FS => registers.fs_base = address,
        ARCH_SET_GS => registers.gs_base = address,
        ARCH_GET_FS => {
            let base = registers.fs_base;
            thread.memory.write_bytes(address, &base.to_le_bytes()).await?;
        }
        ARCH_GET_GS => {
            let base = registers.gs_base;
            thread.memory.write_bytes(address, &base.to_le_bytes()).await?;
        }
        _ => return Err(unsupported(thread, &alloc::format!("arch_prctl {code:#x}"), Errno::EINVAL)),
    }
    Ok(0)
}

pub fn set_tid_address(thread: &mut Thread, address: u64) -> CallResult {
    thread.clear_tid = address;
    Ok(thread.state.tid().into())
}

pub fn set_robust_list(thread: &mut Thread, head: u64, len: u64) -> CallResult {
    /// The length of the list's head.
    const HEAD_LEN: u64 = 24;
    if len != HEAD_LEN {
        return Err(Errno::EINVAL);
    }
    thread.robust_list = head;
    Ok(0)
}

pub async fn get_robust_list(thread: &mut Thread, pid: i32, head: u64, len: u64) -> CallResult {
    if pid != 0 && pid as u32 != thread.state.tid() {
        return Err(Errno::EPERM);
    }
    let list = thread.robust_list;
    thread.memory.write_bytes(head, &list.to_le_bytes()).await?;
    thread.memory.write_bytes(len, &24_u64.to_le_bytes()).await?;
    Ok(0)
}

/// The length of a thread's name with its NUL.
const NAME_LEN: usize = 16;

pub async fn prctl(thread: &mut Thread, option: u32, argument: u64, third: u64, fourth: u64) -> CallResult {
    match option {
        PR_SET_NAME => {
            let mut bytes = [0; NAME_LEN];
            // The program's string can be shorter than the buffer and end at the end of its memory.
            for (index, byte) in bytes.iter_mut().enumerate().take(NAME_LEN - 1) {
                *byte = thread.memory.read_bytes::<1>(argument.wrapping_add(index as u64)).await?[0];
                if *byte == 0 {
                    break;
                }
            }
            let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN - 1);
            *thread.state.name.lock() = bytes[..len].to_vec();
            if thread.state.tid() == thread.process.pid {
                thread.system.show_name(&thread.process, &bytes[..len]);
            }
            Ok(0)
        }
        PR_GET_NAME => {
            let mut bytes = [0; NAME_LEN];
            let name = thread.state.name.lock().clone();
            bytes[..name.len()].copy_from_slice(&name);
            thread.memory.write_bytes(argument, &bytes).await?;
            Ok(0)
        }
        PR_SET_NO_NEW_PRIVS if argument == 1 => change(thread, |credentials| {
            credentials.no_new_privileges = true;
            Ok(())
        }),
        PR_GET_NO_NEW_PRIVS => Ok(thread.credentials.no_new_privileges.into()),
        PR_SET_KEEPCAPS if argument <= 1 => change(thread, |credentials| {
            credentials.keeps_capabilities = argument == 1;
            Ok(())
        }),
        PR_GET_KEEPCAPS => Ok(thread.credentials.keeps_capabilities.into()),
        PR_CAPBSET_READ if argument <= CAP_LAST_CAP.into() => {
            Ok(thread.credentials.capabilities.bounding >> argument & 1)
        }
        PR_CAPBSET_DROP if argument <= CAP_LAST_CAP.into() => change(thread, |credentials| {
            if !credentials.has(CAP_SETPCAP) {
                return Err(Errno::EPERM);
            }
            credentials.capabilities.bounding &= !(1 << argument);
            Ok(())
        }),
        PR_CAP_AMBIENT => ambient(thread, argument, third, fourth),
        PR_GET_SECUREBITS => Ok(0),
        PR_GET_DUMPABLE => Ok(thread.process.is_dumpable.load(Ordering::Relaxed).into()),
        PR_SET_DUMPABLE if argument <= 1 => {
            thread.process.is_dumpable.store(argument == 1, Ordering::Relaxed);
            Ok(0)
        }
        PR_SET_PDEATHSIG if argument == 0 || Signal::from_number(argument).is_ok() => {
            thread.process.parent_death_signal.store(argument as u8, Ordering::Relaxed);
            Ok(0)
        }
        PR_GET_PDEATHSIG => {
            let number = u32::from(thread.process.parent_death_signal.load(Ordering::Relaxed));
            thread.memory.write_bytes(argument, &number.to_le_bytes()).await?;
            Ok(0)
        }
        PR_SET_CHILD_SUBREAPER => {
            thread.system.family.lock().set_reaper(thread.process.pid, argument != 0);
            Ok(0)
        }
        PR_GET_CHILD_SUBREAPER => {
            let is_reaper = u32::from(thread.system.family.lock().is_reaper(thread.process.pid));
            thread.memory.write_bytes(argument, &is_reaper.to_le_bytes()).await?;
            Ok(0)
        }
        PR_SET_NO_NEW_PRIVS | PR_SET_KEEPCAPS | PR_CAPBSET_READ | PR_CAPBSET_DROP | PR_SET_DUMPABLE
        | PR_SET_PDEATHSIG => Err(Errno::EINVAL),
        _ => Err(unsupported(thread, &alloc::format!("prctl {option}"), Errno::EINVAL)),
    }
}

/// `PR_CAP_AMBIENT`.
fn ambient(thread: &mut Thread, operation: u64, capability: u64, zero: u64) -> CallResult {
    let sets = thread.credentials.capabilities;
    let bit = match operation as u32 {
        PR_CAP_AMBIENT_CLEAR_ALL => {
            return change(thread, |credentials| {
                credentials.capabilities.ambient = 0;
                Ok(())
            });
        }
        _ if zero != 0 || capability > CAP_LAST_CAP.into() => return Err(Errno::EINVAL),
        _ => 1_u64 << capability,
    };
    let ambient = match operation as u32 {
        PR_CAP_AMBIENT_IS_SET => return Ok((sets.ambient & bit != 0).into()),
        PR_CAP_AMBIENT_RAISE if sets.permitted & sets.inheritable & bit == 0 => return Err(Errno::EPERM),
        PR_CAP_AMBIENT_RAISE => sets.ambient | bit,
        PR_CAP_AMBIENT_LOWER => sets.ambient & !bit,
        _ => return Err(Errno::EINVAL),
    };
    change(thread, |credentials| {
        credentials.capabilities.ambient = ambient;
        Ok(())
    })
}

pub async fn prlimit64(thread: &mut Thread, pid: i32, resource: u32, new: u64, old: u64) -> CallResult {
    let pid = if pid == 0 { thread.process.pid } else { pid as u32 };
    let process = thread.system.family.lock().process(pid).ok_or(Errno::ESRCH)?;
    let (user, ids) = (thread.credentials.user.real, *process.user.lock());
    let is_same_user = [ids.real, ids.effective, ids.saved].iter().all(|id| *id == user);
    if pid != thread.process.pid && !is_same_user && !thread.credentials.has(CAP_SYS_RESOURCE) {
        return Err(Errno::EPERM);
    }
    let wanted = match new {
        0 => None,
        address => {
            let bytes = thread.memory.read_bytes::<16>(address).await?;
            let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            Some(Limit { soft: word(0), hard: word(8) })
        }
    };
    let before = {
        let mut limits = process.limits.lock();
        let before = limits.get(resource)?;
        if let Some(limit) = wanted {
            limits.set(resource, limit, thread.credentials.has(CAP_SYS_RESOURCE))?;
        }
        before
    };
    if let (RLIMIT_FSIZE, Some(limit)) = (resource, wanted) {
        process.control.set_limits_files(limit.soft != crate::limits::UNLIMITED);
    }
    if let Some(limit) = wanted
        && resource == RLIMIT_CPU
    {
        process.timers.set_processor_limit(limit);
        process.threads().iter().for_each(|thread| thread.interrupt());
    }
    if wanted.is_some() {
        let memory = process.program.lock().memory.clone();
        memory.iter().for_each(|memory| memory.set_limits(crate::exec::memory_limits(&process)));
    }
    if old != 0 {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&before.soft.to_le_bytes());
        bytes[8..].copy_from_slice(&before.hard.to_le_bytes());
        thread.memory.write_bytes(old, &bytes).await?;
    }
    Ok(0)
}

pub async fn getrlimit(thread: &mut Thread, resource: u32, limit: u64) -> CallResult {
    if limit == 0 {
        return Err(Errno::EFAULT);
    }
    prlimit64(thread, 0, resource, 0, limit).await
}

pub async fn setrlimit(thread: &mut Thread, resource: u32, limit: u64) -> CallResult {
    if limit == 0 {
        return Err(Errno::EFAULT);
    }
    prlimit64(thread, 0, resource, limit, 0).await
}
