//! Calls that read and write.

use super::terminals;
use crate::Errno;
use crate::calls::CallResult;
use crate::job_control::check_write;
use crate::signals::{SI_USER, Signal, SignalInfo};
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC};
use isola_linux_files::OpenFile;
use isola_linux_memory::{FramePart, UserBuffer};
use isola_user_mode::{Access, PAGE_SIZE};

/// Returns the program's bytes as a buffer: at once if they are within one page that is mapped.
async fn buffer(thread: &Thread, address: u64, len: u64, access: Access) -> Result<UserBuffer, Errno> {
    if (1..=PAGE_SIZE).contains(&len) {
        let part: Option<FramePart> = thread.memory.try_part(address, len as usize, access);
        if let Some(part) = part {
            return Ok(UserBuffer::new(alloc::vec![part]));
        }
    }
    thread.memory.buffer(address, len, access).await
}

/// Reads, until a signal arrives. Bytes that were read count.
async fn read_from(
    thread: &Thread,
    file: &OpenFile,
    mut buffer: UserBuffer,
    offset: Option<u64>,
) -> CallResult {
    if let Some(terminal) = file.terminal() {
        return terminals::read(thread, file, terminal, buffer, offset).await;
    }
    let len = buffer.len();
    let result = match offset {
        None => thread.interruptible(file.read(&mut buffer)).await,
        Some(offset) => thread.interruptible(file.read_at(offset, &mut buffer)).await,
    };
    match result {
        Ok(result) => result.map(|count| count as u64),
        Err(_) if buffer.len() < len => Ok((len - buffer.len()) as u64),
        Err(interrupted) => Err(interrupted.into()),
    }
}

/// Writes, until a signal arrives. Bytes that were written count. The writer of a pipe without reader gets SIGPIPE.
async fn write_to(
    thread: &Thread,
    file: &OpenFile,
    mut buffer: UserBuffer,
    offset: Option<u64>,
) -> CallResult {
    if let Some(terminal) = file.terminal() {
        check_write(thread, terminal)?;
    }
    let len = buffer.len();
    let result = match offset {
        None => thread.interruptible(file.write(&mut buffer)).await,
        Some(offset) => thread.interruptible(file.write_at(offset, &mut buffer)).await,
    };
    match result {
        Ok(Err(Errno::EPIPE)) => {
            let user = thread.credentials.user.real;
            let info = SignalInfo::sent(Signal::SIGPIPE, SI_USER, thread.process.pid, user);
            thread.system.send_to_thread(&thread.process, &thread.state, info)?;
            Err(Errno::EPIPE)
        }
        Ok(result) => result.map(|count| count as u64),
        Err(_) if buffer.len() < len => Ok((len - buffer.len()) as u64),
        Err(interrupted) => Err(interrupted.into()),
    }
}

pub async fn read(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let buffer = buffer(thread, address, len, Access::Write).await?;
    read_from(thread, &file, buffer, None).await
}

pub async fn write(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let buffer = buffer(thread, address, len, Access::Read).await?;
    write_to(thread, &file, buffer, None).await
}

/// Checks an offset.
fn offset_of(offset: i64) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

pub async fn pread64(
    thread: &mut Thread,
    descriptor: i32,
    address: u64,
    len: u64,
    offset: i64,
) -> CallResult {
    let offset = offset_of(offset)?;
    let file = thread.files.get(descriptor)?;
    let buffer = buffer(thread, address, len, Access::Write).await?;
    read_from(thread, &file, buffer, Some(offset)).await
}

pub async fn pwrite64(
    thread: &mut Thread,
    descriptor: i32,
    address: u64,
    len: u64,
    offset: i64,
) -> CallResult {
    let offset = offset_of(offset)?;
    let file = thread.files.get(descriptor)?;
    let buffer = buffer(thread, address, len, Access::Read).await?;
    write_to(thread, &file, buffer, Some(offset)).await
}

pub async fn readv(thread: &mut Thread, descriptor: i32, vector: u64, count: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let buffer = thread.memory.buffers(vector, count, Access::Write).await?;
    read_from(thread, &file, buffer, None).await
}

pub async fn writev(thread: &mut Thread, descriptor: i32, vector: u64, count: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let buffer = thread.memory.buffers(vector, count, Access::Read).await?;
    write_to(thread, &file, buffer, None).await
}

pub async fn preadv(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
) -> CallResult {
    let offset = offset_of(offset)?;
    let file = thread.files.get(descriptor)?;
    let buffer = thread.memory.buffers(vector, count, Access::Write).await?;
    read_from(thread, &file, buffer, Some(offset)).await
}

pub async fn pwritev(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
) -> CallResult {
    let offset = offset_of(offset)?;
    let file = thread.files.get(descriptor)?;
    let buffer = thread.memory.buffers(vector, count, Access::Read).await?;
    write_to(thread, &file, buffer, Some(offset)).await
}

/// Checks the flags of `preadv2` and `pwritev2`: those that only ask for haste or durability are accepted.
fn check_flags(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
}

pub async fn preadv2(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
    _high: u64,
    flags: u32,
) -> CallResult {
    check_flags(flags, RWF_HIPRI | RWF_NOWAIT)?;
    if offset == -1 {
        return readv(thread, descriptor, vector, count).await;
    }
    preadv(thread, descriptor, vector, count, offset).await
}

pub async fn pwritev2(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
    _high: u64,
    flags: u32,
) -> CallResult {
    check_flags(flags, RWF_HIPRI | RWF_SYNC | RWF_DSYNC)?;
    if flags & RWF_APPEND != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let result = if offset == -1 {
        writev(thread, descriptor, vector, count).await
    } else {
        pwritev(thread, descriptor, vector, count, offset).await
    };
    if result.is_ok() && flags & (RWF_SYNC | RWF_DSYNC) != 0 {
        thread.files.get(descriptor)?.sync().await?;
    }
    result
}

pub async fn lseek(thread: &mut Thread, descriptor: i32, offset: i64, whence: u32) -> CallResult {
    thread.files.get(descriptor)?.seek(offset, whence).await
}

pub async fn ftruncate(thread: &mut Thread, descriptor: i32, len: i64) -> CallResult {
    thread.files.get(descriptor)?.truncate(len).await?;
    Ok(0)
}

pub async fn truncate(thread: &mut Thread, path: u64, len: i64) -> CallResult {
    let path = thread.memory.path(path).await?;
    thread.caller().truncate(&path, len).await?;
    Ok(0)
}

pub async fn fallocate(thread: &mut Thread, descriptor: i32, mode: u32, offset: i64, len: i64) -> CallResult {
    thread.files.get(descriptor)?.allocate(mode, offset, len).await?;
    Ok(0)
}

pub async fn fsync(thread: &mut Thread, descriptor: i32) -> CallResult {
    thread.files.get(descriptor)?.sync().await?;
    Ok(0)
}

pub async fn sync(thread: &mut Thread) -> CallResult {
    for mount in thread.view.namespace().mounts() {
        // As in Linux, the call has no errors.
        let _ = mount.file_system().sync().await;
    }
    Ok(0)
}

pub fn fadvise64(thread: &mut Thread, descriptor: i32, _offset: i64, len: i64, advice: u32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    if file.object().is_some_and(|object| !object.has_offsets()) {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > 5 { Err(Errno::EINVAL) } else { Ok(0) }
}

/// The bytes that are copied at once between two files.
const COPY_LEN: usize = 64 << 10;

/// Copies bytes between two files, with their positions or at offsets. Returns their number.
async fn copy(
    thread: &Thread,
    (from, from_offset): (&OpenFile, &mut Option<u64>),
    (to, to_offset): (&OpenFile, &mut Option<u64>),
    len: u64,
) -> CallResult {
    let mut done = 0;
    while done < len {
        let now = (len - done).min(COPY_LEN as u64) as usize;
        let mut bytes = alloc::vec![0; now];
        let source = UserBuffer::of_bytes(&bytes);
        let mut contents = source.clone();
        let count = match read_from(thread, from, source, *from_offset).await {
            Ok(0) => break,
            Ok(count) => count as usize,
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        };
        contents.read(&mut bytes);
        let written = match write_to(thread, to, UserBuffer::of_bytes(&bytes[..count]), *to_offset).await {
            Ok(written) => written,
            Err(error) => {
                give_back(from, from_offset, count).await;
                if done > 0 {
                    break;
                }
                return Err(error);
            }
        };
        done += written;
        if let Some(offset) = from_offset {
            *offset += written;
        }
        if let Some(offset) = to_offset {
            *offset += written;
        }
        if (written as usize) < count {
            if from_offset.is_none() {
                give_back(from, from_offset, count - written as usize).await;
            }
            break;
        }
    }
    Ok(done)
}

/// Moves a file's position back by bytes that were read and not written.
async fn give_back(file: &OpenFile, offset: &Option<u64>, count: usize) {
    if offset.is_none() {
        let _ = file.seek(-(count as i64), isola_linux_abi::numbers::SEEK_CUR).await;
    }
}

/// Reads the offset at an address; `None` for a null pointer.
async fn read_offset(thread: &Thread, address: u64) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return Ok(None);
    }
    let offset = i64::from_le_bytes(thread.memory.read_bytes::<8>(address).await?);
    offset_of(offset).map(Some)
}

async fn write_offset(thread: &Thread, address: u64, offset: Option<u64>) -> Result<(), Errno> {
    match offset {
        Some(offset) => thread.memory.write_bytes(address, &offset.to_le_bytes()).await,
        None => Ok(()),
    }
}

pub async fn sendfile(thread: &mut Thread, to: i32, from: i32, offset: u64, len: u64) -> CallResult {
    let (source, target): (Arc<OpenFile>, _) = (thread.files.get(from)?, thread.files.get(to)?);
    if !source.is_readable() || !target.is_writable() {
        return Err(Errno::EBADF);
    }
    let mut from_offset = read_offset(thread, offset).await?;
    // The source must have offsets, as a file has.
    if source.pages().is_err() && from_offset.is_some() {
        return Err(Errno::ESPIPE);
    }
    let done = copy(thread, (&source, &mut from_offset), (&target, &mut None), len).await?;
    write_offset(thread, offset, from_offset).await?;
    Ok(done)
}

pub async fn copy_file_range(
    thread: &mut Thread,
    from: i32,
    from_offset: u64,
    to: i32,
    to_offset: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    if flags != 0 {
        return Err(Errno::EINVAL);
    }
    let (source, target): (Arc<OpenFile>, _) = (thread.files.get(from)?, thread.files.get(to)?);
    if !source.is_readable() || !target.is_writable() {
        return Err(Errno::EBADF);
    }
    if source.pages().is_err() || target.pages().is_err() {
        return Err(Errno::EINVAL);
    }
    let (mut first, mut second) =
        (read_offset(thread, from_offset).await?, read_offset(thread, to_offset).await?);
    let done = copy(thread, (&source, &mut first), (&target, &mut second), len).await?;
    write_offset(thread, from_offset, first).await?;
    write_offset(thread, to_offset, second).await?;
    Ok(done)
}
