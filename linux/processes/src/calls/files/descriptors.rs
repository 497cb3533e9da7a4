//! Calls on descriptors: `dup`, `fcntl`, `ioctl`, pipes.

use crate::Errno;
use crate::calls::processes::unshare_files;
use crate::calls::sockets::write_interfaces;
use crate::calls::{CallResult, unsupported};
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{
    F_ADD_SEALS, F_DUPFD, F_DUPFD_CLOEXEC, F_GET_SEALS, F_GETFD, F_GETFL, F_GETLEASE, F_GETLK, F_GETOWN,
    F_GETPIPE_SZ, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_RDLCK, F_SETFD, F_SETFL, F_SETLK, F_SETLKW,
    F_SETOWN, F_SETPIPE_SZ, F_UNLCK, F_WRLCK, FD_CLOEXEC, LOCK_EX, LOCK_NB, LOCK_SH, LOCK_UN, O_CLOEXEC,
    O_DIRECT, O_NONBLOCK, RLIMIT_NOFILE, SEEK_CUR, SEEK_END, SEEK_SET,
};
use isola_linux_abi::requests::{FIOASYNC, FIOCLEX, FIONBIO, FIONCLEX, SIOCGIFCONF, TCGETS, TIOCGWINSZ};
use isola_linux_files::locks::{
    FileLock, LockFamily, LockKind, LockOwner, LockRegion, conflicting, lock, try_lock, unlock,
};
use isola_linux_files::{
    ControlArgument, EventCounter, OnExec, OpenFile, PipeEnd, control_argument, pipe as new_pipe,
};
use isola_linux_memory::UserBuffer;
use isola_user_mode::Access;

/// Flags of `close_range`, from Linux's `linux/close_range.h`.
const CLOSE_RANGE_UNSHARE: u32 = 1 << 1;
const CLOSE_RANGE_CLOEXEC: u32 = 1 << 2;

/// Returns the limit of descriptors.
pub fn descriptor_limit(thread: &Thread) -> usize {
    usize::try_from(thread.process.limits.lock().soft(RLIMIT_NOFILE)).unwrap_or(usize::MAX)
}

/// Gives an open file the lowest free descriptor.
pub fn install(thread: &Thread, file: Arc<OpenFile>, flags: u32) -> CallResult {
    let descriptor = thread.files.install(file, OnExec::of_flags(flags), descriptor_limit(thread))?;
    Ok(descriptor as u64)
}

pub fn close(thread: &mut Thread, descriptor: i32) -> CallResult {
    thread.files.close(descriptor)?;
    Ok(0)
}

pub fn close_range(thread: &mut Thread, first: u32, last: u32, flags: u32) -> CallResult {
    if flags & !(CLOSE_RANGE_CLOEXEC | CLOSE_RANGE_UNSHARE) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        unshare_files(thread);
    }
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        thread.files.close_range_on_exec(first, last)?;
    } else {
        thread.files.close_range(first, last)?;
    }
    Ok(0)
}

pub fn dup(thread: &mut Thread, descriptor: i32) -> CallResult {
    let file = thread.files.get_any(descriptor)?;
    install(thread, file, 0)
}

pub fn dup2(thread: &mut Thread, from: i32, to: i32) -> CallResult {
    if from == to {
        thread.files.get_any(from)?;
        return Ok(to as u64);
    }
    thread.files.duplicate_to(from, to, OnExec::Keep, descriptor_limit(thread))?;
    Ok(to as u64)
}

pub fn dup3(thread: &mut Thread, from: i32, to: i32, flags: u32) -> CallResult {
    if from == to || flags & !O_CLOEXEC != 0 {
        return Err(Errno::EINVAL);
    }
    thread.files.duplicate_to(from, to, OnExec::of_flags(flags), descriptor_limit(thread))?;
    Ok(to as u64)
}

pub async fn pipe(thread: &mut Thread, descriptors: u64) -> CallResult {
    pipe2(thread, descriptors, 0).await
}

pub async fn pipe2(thread: &mut Thread, descriptors: u64, flags: u32) -> CallResult {
    if flags & !(O_CLOEXEC | O_NONBLOCK | O_DIRECT) != 0 {
        return Err(Errno::EINVAL);
    }
    let (reader, writer) = new_pipe(flags)?;
    install_pair(thread, [reader, writer], flags, descriptors).await
}

/// Opens descriptors for two files, and stores both at `descriptors`. Neither stays open after an error.
pub async fn install_pair(
    thread: &Thread,
    [one, other]: [Arc<OpenFile>; 2],
    flags: u32,
    descriptors: u64,
) -> CallResult {
    let first = install(thread, one, flags)? as i32;
    let second = match install(thread, other, flags) {
        Ok(second) => second as i32,
        Err(error) => {
            thread.files.close(first)?;
            return Err(error);
        }
    };
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_le_bytes());
    bytes[4..].copy_from_slice(&second.to_le_bytes());
    if let Err(error) = thread.memory.write_bytes(descriptors, &bytes).await {
        thread.files.close(first)?;
        thread.files.close(second)?;
        return Err(error);
    }
    Ok(0)
}

pub async fn fcntl(thread: &mut Thread, descriptor: i32, command: u32, argument: u64) -> CallResult {
    let file = thread.files.get_any(descriptor)?;
    let needs_file = !matches!(command, F_DUPFD | F_DUPFD_CLOEXEC | F_GETFD | F_SETFD | F_GETFL);
    if needs_file && file.is_path() {
        return Err(Errno::EBADF);
    }
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => {
            let on_exec = if command == F_DUPFD { OnExec::Keep } else { OnExec::Close };
            let lowest = usize::try_from(argument as i32).map_err(|_| Errno::EINVAL)?;
            let descriptor = thread.files.install_from(lowest, file, on_exec, descriptor_limit(thread))?;
            Ok(descriptor as u64)
        }
        F_GETFD => Ok((thread.files.on_exec(descriptor)? == OnExec::Close).into()),
        F_SETFD => {
            let closes = argument & u64::from(FD_CLOEXEC) != 0;
            let on_exec = if closes { OnExec::Close } else { OnExec::Keep };
            thread.files.set_on_exec(descriptor, on_exec)?;
            Ok(0)
        }
        F_GETFL => Ok(file.flags().into()),
        F_SETFL => {
            file.set_flags(argument as u32);
            Ok(0)
        }
        F_GETLK | F_SETLK | F_SETLKW | F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => {
            record_lock(thread, &file, command, argument).await
        }
        F_GET_SEALS => file.seals().map(u64::from),
        F_ADD_SEALS => {
            file.add_seals(argument as u32)?;
            Ok(0)
        }
        // No program can have a lease.
        F_GETLEASE => Ok(F_UNLCK.into()),
        F_GETPIPE_SZ => {
            let pipe = file.object_as::<PipeEnd>().ok_or(Errno::EBADF)?;
            Ok(pipe.capacity() as u64)
        }
        F_SETPIPE_SZ => {
            let pipe = file.object_as::<PipeEnd>().ok_or(Errno::EBADF)?;
            Ok(pipe.set_capacity(argument as usize)? as u64)
        }
        // Signals for input are not sent.
        F_GETOWN | F_SETOWN => Ok(0),
        _ => Err(unsupported(thread, &alloc::format!("fcntl {command}"), Errno::EINVAL)),
    }
}

/// `F_GETLK`, `F_SETLK`, `F_SETLKW`, and the same for locks that belong to the open file (`F_OFD_`).
async fn record_lock(thread: &Thread, file: &OpenFile, command: u32, address: u64) -> CallResult {
    /// Length of `struct flock`: type and start of 2 bytes each, padding, start, length, process.
    const LEN: usize = 32;
    let mut bytes = thread.memory.read_bytes::<LEN>(address).await?;
    let half = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
    let (kind, whence, start, len) = (half(0), half(2), word(8), word(16));
    let base = match whence {
        SEEK_SET => 0,
        SEEK_CUR => file.seek(0, SEEK_CUR).await?,
        SEEK_END => file.metadata().len,
        _ => return Err(Errno::EINVAL),
    };
    let start = start.checked_add_unsigned(base).ok_or(Errno::EOVERFLOW)?;
    let region = LockRegion::of_start_and_len(start, len)?;
    let owner = match command {
        F_OFD_GETLK | F_OFD_SETLK | F_OFD_SETLKW => {
            if bytes[24..28] != [0; 4] {
                return Err(Errno::EINVAL);
            }
            LockOwner::OpenFile(file.id())
        }
        _ => LockOwner::Process(thread.files.lock_owner(), thread.process.pid),
    };
    let command = match command {
        F_OFD_GETLK => F_GETLK,
        F_OFD_SETLK => F_SETLK,
        F_OFD_SETLKW => F_SETLKW,
        command => command,
    };
    let kind = match kind {
        F_RDLCK => Some(LockKind::Shared),
        F_WRLCK => Some(LockKind::Exclusive),
        F_UNLCK => None,
        _ => return Err(Errno::EINVAL),
    };
    let Some(kind) = kind else {
        if command == F_GETLK {
            return Err(Errno::EINVAL);
        }
        unlock(file, LockFamily::Record, owner, region);
        return Ok(0);
    };
    let wanted = FileLock { owner, kind, region };
    if command == F_GETLK {
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        match conflicting(file, &wanted) {
            None => put(0, &(F_UNLCK as u16).to_le_bytes()),
            Some(other) => {
                let kind = if other.kind == LockKind::Shared { F_RDLCK } else { F_WRLCK };
                let end = other.region.last;
                let len = if end == LockRegion::ALL.last { 0 } else { end - other.region.first + 1 };
                let pid = match other.owner {
                    LockOwner::Process(_, pid) => pid as i32,
                    LockOwner::OpenFile(_) => -1,
                };
                put(0, &(kind as u16).to_le_bytes());
                put(2, &(SEEK_SET as u16).to_le_bytes());
                put(8, &other.region.first.to_le_bytes());
                put(16, &len.to_le_bytes());
                put(24, &pid.to_le_bytes());
            }
        }
        thread.memory.write_bytes(address, &bytes).await?;
        return Ok(0);
    }
    let is_permitted = if kind == LockKind::Shared { file.is_readable() } else { file.is_writable() };
    if !is_permitted {
        return Err(Errno::EBADF);
    }
    if command == F_SETLK {
        try_lock(file, LockFamily::Record, wanted)?;
    } else {
        thread.interruptible(lock(file, LockFamily::Record, wanted)).await??;
    }
    Ok(0)
}

pub async fn flock(thread: &mut Thread, descriptor: i32, operation: u32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let owner = LockOwner::OpenFile(file.id());
    let kind = match operation & !LOCK_NB {
        LOCK_SH => LockKind::Shared,
        LOCK_EX => LockKind::Exclusive,
        LOCK_UN => {
            unlock(&file, LockFamily::Whole, owner, LockRegion::ALL);
            return Ok(0);
        }
        _ => return Err(Errno::EINVAL),
    };
    let wanted = FileLock { owner, kind, region: LockRegion::ALL };
    if operation & LOCK_NB != 0 {
        try_lock(&file, LockFamily::Whole, wanted)?;
    } else {
        thread.interruptible(lock(&file, LockFamily::Whole, wanted)).await??;
    }
    Ok(0)
}

pub async fn ioctl(thread: &mut Thread, descriptor: i32, request: u32, argument: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    match request {
        FIOCLEX | FIONCLEX => {
            let on_exec = if request == FIOCLEX { OnExec::Close } else { OnExec::Keep };
            thread.files.set_on_exec(descriptor, on_exec)?;
            return Ok(0);
        }
        FIONBIO => {
            let value = u32::from_le_bytes(thread.memory.read_bytes::<4>(argument).await?);
            let flags = file.flags();
            file.set_flags(if value == 0 { flags & !O_NONBLOCK } else { flags | O_NONBLOCK });
            return Ok(0);
        }
        FIOASYNC => return Ok(0),
        SIOCGIFCONF if file.is_socket() => return write_interfaces(thread, argument).await,
        _ => {}
    }
    let (len, access) = match control_argument(request) {
        ControlArgument::Value => (0, Access::Read),
        ControlArgument::Reads(len) => (len, Access::Read),
        ControlArgument::Writes(len) | ControlArgument::Both(len) => (len, Access::Write),
    };
    let mut buffer = match len {
        0 => UserBuffer::default(),
        // A file that does not know the request must not complain about its argument.
        _ => thread.memory.buffer(argument, len as u64, access).await.unwrap_or_default(),
    };
    let result = match file.terminal() {
        Some(terminal) => super::terminals::request(thread, terminal, request, argument, &mut buffer),
        None => thread.interruptible(file.control(request, argument, &mut buffer)).await?,
    };
    // By these two, programs ask whether the file is a terminal.
    if result == Err(Errno::ENOTTY) && !matches!(request, TCGETS | TIOCGWINSZ) {
        thread.system.missing.count(&alloc::format!("ioctl {request:#x}"));
    }
    result
}

pub fn eventfd2(thread: &mut Thread, count: u32, flags: u32) -> CallResult {
    let file = EventCounter::open(count, flags)?;
    install(thread, file, flags)
}

pub fn eventfd(thread: &mut Thread, count: u32) -> CallResult {
    eventfd2(thread, count, 0)
}
