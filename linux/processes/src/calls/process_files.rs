//! Descriptors of processes, and barriers among their threads.

use super::files::install;
use super::signals::{may_signal, read_info, signal_or_check};
use super::{CallResult, unsupported};
use crate::Errno;
use crate::process::Process;
use crate::process_file::ProcessFile;
use crate::signals::{SI_USER, SignalInfo};
use crate::thread::Thread;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use isola_linux_abi::numbers::{CAP_SYS_PTRACE, O_CLOEXEC, O_NONBLOCK};

pub fn pidfd_open(thread: &mut Thread, pid: i32, flags: u32) -> CallResult {
    if flags & !O_NONBLOCK != 0 || pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let process = {
        let family = thread.system.family.lock();
        // The id of another thread than the first is no process's.
        let missing =
            if family.process_of_thread(pid as u32).is_some() { Errno::EINVAL } else { Errno::ESRCH };
        family.process(pid as u32).ok_or(missing)?
    };
    install(thread, ProcessFile::open(process, flags), O_CLOEXEC)
}

/// Returns the process of a descriptor.
///
/// # Errors
/// [`Errno::EBADF`] if the descriptor is not one of a process.
pub fn process_of(thread: &Thread, descriptor: i32) -> Result<Arc<Process>, Errno> {
    let file = thread.files.get(descriptor)?;
    file.object_as::<ProcessFile>().map(|file| file.process().clone()).ok_or(Errno::EBADF)
}

pub async fn pidfd_send_signal(
    thread: &mut Thread,
    descriptor: i32,
    number: u32,
    info: u64,
    flags: u32,
) -> CallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let target = process_of(thread, descriptor)?;
    let signal = signal_or_check(number)?;
    let info = match (signal, info) {
        (None, _) => None,
        (Some(signal), 0) => {
            let user = thread.credentials.user.real;
            Some(SignalInfo::sent(signal, SI_USER, thread.process.pid, user))
        }
        (Some(signal), address) => {
            let is_self = target.pid == thread.process.pid;
            let stored = u32::from_le_bytes(thread.memory.read_bytes::<4>(address).await?);
            if stored != number {
                return Err(Errno::EINVAL);
            }
            Some(read_info(thread, signal, address, is_self).await?)
        }
    };
    // After its parent has waited for it, its id may be another's.
    let is_known = {
        let family = thread.system.family.lock();
        family.process(target.pid).is_some_and(|process| Arc::ptr_eq(&process, &target))
    };
    if !is_known {
        return Err(Errno::ESRCH);
    }
    if !may_signal(thread, &target, signal) {
        return Err(Errno::EPERM);
    }
    if let Some(info) = info {
        thread.system.send(&target, info)?;
    }
    Ok(0)
}

pub fn pidfd_getfd(thread: &mut Thread, descriptor: i32, target: i32, flags: u32) -> CallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = process_of(thread, descriptor)?;
    if !may_inspect(thread, &process) {
        return Err(Errno::EPERM);
    }
    let files = process.files.lock().as_ref().and_then(Weak::upgrade).ok_or(Errno::ESRCH)?;
    let file = files.get_any(target)?;
    install(thread, file, O_CLOEXEC)
}

/// Returns whether the caller may see the inside of a process (ptrace(2), "Ptrace access mode checking").
pub fn may_inspect(thread: &Thread, target: &Process) -> bool {
    let (user, ids) = (thread.credentials.user, *target.user.lock());
    let is_same_user = [ids.real, ids.effective, ids.saved].iter().all(|id| *id == user.real);
    let is_dumpable = target.is_dumpable.load(Ordering::Relaxed);
    target.pid == thread.process.pid || is_same_user && is_dumpable || thread.credentials.has(CAP_SYS_PTRACE)
}

/// Commands of `membarrier`, from Linux's `linux/membarrier.h`.
const QUERY: u32 = 0;
const GLOBAL: u32 = 1;
const GLOBAL_EXPEDITED: u32 = 2;
const REGISTER_GLOBAL_EXPEDITED: u32 = 4;
const PRIVATE_EXPEDITED: u32 = 8;
const REGISTER_PRIVATE_EXPEDITED: u32 = 16;
const GET_REGISTRATIONS: u32 = 512;
/// The commands that exist.
const KNOWN: u32 = GLOBAL
    | GLOBAL_EXPEDITED
    | REGISTER_GLOBAL_EXPEDITED
    | PRIVATE_EXPEDITED
    | REGISTER_PRIVATE_EXPEDITED
    | GET_REGISTRATIONS;

pub async fn membarrier(thread: &mut Thread, command: u32, flags: u32, _core: i32) -> CallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let process = &thread.process;
    match command {
        QUERY => Ok(KNOWN.into()),
        REGISTER_GLOBAL_EXPEDITED | REGISTER_PRIVATE_EXPEDITED => {
            process.barriers.fetch_or(command, Ordering::Relaxed);
            Ok(0)
        }
        GET_REGISTRATIONS => Ok(process.barriers.load(Ordering::Relaxed).into()),
        PRIVATE_EXPEDITED => {
            if process.barriers.load(Ordering::Relaxed) & REGISTER_PRIVATE_EXPEDITED == 0 {
                return Err(Errno::EPERM);
            }
            thread.memory.barrier().await;
            Ok(0)
        }
        GLOBAL | GLOBAL_EXPEDITED => {
            let processes: Vec<Arc<Process>> =
                thread.system.family.lock().processes().map(|(_, process)| process.clone()).collect();
            for process in processes {
                let memory = process.program.lock().memory.clone();
                if let Some(memory) = memory {
                    memory.barrier().await;
                }
            }
            Ok(0)
        }
        _ => Err(unsupported(thread, &alloc::format!("membarrier {command}"), Errno::EINVAL)),
    }
}
