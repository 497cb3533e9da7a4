//! Calls that read and write.

use super::terminals;
use crate::Errno;
use crate::asynchronous::once;
use crate::calls::sockets::{read_socket, read_socket_at_once, send_at_once, waiting, write_socket};
use crate::calls::{AtOnce, CallResult, tried};
use crate::job_control::check_write;
use crate::signals::{SI_USER, Signal, SignalInfo};
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{
    O_APPEND, POSIX_FADV_NOREUSE, POSIX_FADV_WILLNEED, RLIMIT_FSIZE, RWF_APPEND, RWF_DSYNC, RWF_HIPRI,
    RWF_NOWAIT, RWF_SYNC, SEEK_CUR, SYNC_FILE_RANGE_WAIT_AFTER, SYNC_FILE_RANGE_WAIT_BEFORE,
    SYNC_FILE_RANGE_WRITE_AND_WAIT,
};
use isola_linux_files::{InodeKind, OpenFile};
use isola_linux_memory::{MAX_TRANSFER, UserBuffer};
use isola_linux_sockets::SocketFile;
use isola_user_mode::{Access, PAGE_SIZE};

/// The most bytes of a file that are read at once.
const MOST_READ_AT_ONCE: u64 = 16 * PAGE_SIZE;

/// Where a read or write begins, and how it waits.
#[derive(Clone, Copy, Default)]
struct TransferOptions {
    /// The offset; `None` for the position of the file.
    offset: Option<u64>,
    /// `RWF_NOWAIT`: it fails instead of waiting.
    nowait: bool,
    /// `RWF_APPEND`: it writes at the end, wherever the offset is.
    appends: bool,
}

impl TransferOptions {
    fn at(offset: u64) -> Self {
        Self { offset: Some(offset), ..Self::default() }
    }

    /// Reads or writes, until a signal arrives. Bytes that have moved count. Files do not wait for other processes: they
    /// are read and written as a whole, as on Linux.
    async fn finish(
        self,
        thread: &Thread,
        file: &OpenFile,
        mut buffer: UserBuffer,
        transfer: impl AsyncFnOnce(&mut UserBuffer) -> Result<usize, Errno>,
    ) -> CallResult {
        let len = buffer.len();
        let result = if self.nowait {
            Ok(once(transfer(&mut buffer)).await.unwrap_or(Err(Errno::EAGAIN)))
        } else if file.object().is_none() {
            Ok(transfer(&mut buffer).await)
        } else {
            thread.interruptible(transfer(&mut buffer)).await
        };
        let moved = len - buffer.len();
        match result {
            Ok(Ok(count)) => Ok(count as u64),
            Ok(Err(Errno::EAGAIN)) | Err(_) if moved > 0 => Ok(moved as u64),
            Ok(Err(error)) => Err(error),
            Err(interrupted) => Err(interrupted.into()),
        }
    }

    async fn read(self, thread: &Thread, file: &OpenFile, buffer: UserBuffer) -> CallResult {
        if file.is_socket() && self.offset.is_none() && !self.nowait {
            return read_socket(thread, file, buffer).await;
        }
        if let Some(terminal) = file.terminal() {
            return terminals::read(thread, file, terminal, buffer, self.offset).await;
        }
        let read = async |buffer: &mut UserBuffer| match self.offset {
            None => file.read(buffer).await,
            Some(offset) => file.read_at(offset, buffer).await,
        };
        let result = self.finish(thread, file, buffer, read).await;
        thread.process.control.files.count_read(result.unwrap_or(0));
        result
    }

    /// The writer of a pipe without reader gets SIGPIPE.
    async fn write(self, thread: &Thread, file: &OpenFile, mut buffer: UserBuffer) -> CallResult {
        if file.is_socket() && self.offset.is_none() && !self.nowait {
            return write_socket(thread, file, buffer).await;
        }
        if let Some(terminal) = file.terminal() {
            check_write(thread, terminal)?;
        }
        if thread.process.control.limits_files() && file.kind() == InodeKind::File {
            let position = match self.offset {
                _ if self.appends || file.flags() & O_APPEND != 0 => file.metadata().len,
                Some(offset) => offset,
                None => file.seek(0, SEEK_CUR).await?,
            };
            let permitted = permitted_len(thread, position)?;
            buffer.truncate(usize::try_from(permitted).unwrap_or(usize::MAX));
        }
        let write = async |buffer: &mut UserBuffer| match self.offset {
            _ if self.appends => file.write_at_end(self.offset, buffer).await,
            None => file.write(buffer).await,
            Some(offset) => file.write_at(offset, buffer).await,
        };
        let result = self.finish(thread, file, buffer, write).await;
        if result == Err(Errno::EPIPE) {
            send_broken_pipe(thread)?;
        }
        thread.process.control.files.count_write(result.unwrap_or(0));
        result
    }
}

/// Returns how many bytes a file may get from a position on (`RLIMIT_FSIZE`). If none, the thread gets SIGXFSZ.
fn permitted_len(thread: &Thread, position: u64) -> Result<u64, Errno> {
    let limit = thread.process.limits.lock().soft(RLIMIT_FSIZE);
    if position < limit {
        return Ok(limit - position);
    }
    let user = thread.credentials.user.real;
    let info = SignalInfo::sent(Signal::SIGXFSZ, SI_USER, thread.process.pid, user);
    thread.system.send_to_thread(&thread.process, &thread.state, info)?;
    Err(Errno::EFBIG)
}

/// Verifies that a file may have a length.
fn check_len(thread: &Thread, len: i64) -> Result<(), Errno> {
    match u64::try_from(len) {
        Ok(len @ 1..) if thread.process.control.limits_files() => permitted_len(thread, len - 1).map(|_| ()),
        _ => Ok(()),
    }
}

/// Sends the signal of a write that nothing will read.
pub fn send_broken_pipe(thread: &Thread) -> Result<(), Errno> {
    let user = thread.credentials.user.real;
    let info = SignalInfo::sent(Signal::SIGPIPE, SI_USER, thread.process.pid, user);
    thread.system.send_to_thread(&thread.process, &thread.state, info)
}

/// The bytes of a program that a call reads or writes.
#[derive(Clone, Copy)]
enum Memory {
    /// A buffer: address and length.
    Buffer(u64, u64),
    /// An array of buffers: address and number.
    Vector(u64, u64),
}

impl Memory {
    async fn resolve(self, thread: &Thread, access: Access) -> Result<UserBuffer, Errno> {
        match self {
            Self::Buffer(address, len) => thread.memory.buffer(address, len, access).await,
            Self::Vector(address, count) => thread.memory.buffers(address, count, access).await,
        }
    }
}

async fn read_to(thread: &Thread, descriptor: i32, memory: Memory, options: TransferOptions) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let memory = match memory {
        Memory::Buffer(address, len) if file.is_socket() => {
            let socket = file.object_as::<SocketFile>();
            let most = socket.and_then(|socket| socket.most_received(waiting(&file)));
            Memory::Buffer(address, most.map_or(len, |most| len.min(most as u64)))
        }
        memory => memory,
    };
    let buffer = memory.resolve(thread, Access::Write).await?;
    options.read(thread, &file, buffer).await
}

async fn write_from(
    thread: &Thread,
    descriptor: i32,
    memory: Memory,
    options: TransferOptions,
) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let buffer = memory.resolve(thread, Access::Read).await?;
    options.write(thread, &file, buffer).await
}

pub async fn read(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    read_to(thread, descriptor, Memory::Buffer(address, len), TransferOptions::default()).await
}

pub async fn write(thread: &mut Thread, descriptor: i32, address: u64, len: u64) -> CallResult {
    write_from(thread, descriptor, Memory::Buffer(address, len), TransferOptions::default()).await
}

/// Serves a read of an object that has bytes, into one page that is mapped, or waits for bytes; and a read of a file whose pages
/// are in memory. Other reads are not served.
pub fn read_at_once(thread: &mut Thread, [descriptor, address, len, ..]: [u64; 6]) -> AtOnce {
    let Ok(file) = thread.files.get(descriptor as i32) else { return AtOnce::Unserved };
    if file.is_socket() {
        return read_socket_at_once(thread, file, address, len);
    }
    if is_small_file_read(&file, len) {
        let read = tried(|| read(thread, descriptor as i32, address, len));
        return read.map_or(AtOnce::Unserved, AtOnce::Served);
    }
    if !is_plain(&file, len) {
        return AtOnce::Unserved;
    }
    read_file_at_once(thread, file, address, len)
}

/// Serves a `pread64` of a file whose pages are in memory; `None` for other reads.
pub fn pread_at_once(
    thread: &mut Thread,
    [descriptor, address, len, offset, ..]: [u64; 6],
) -> Option<CallResult> {
    let file = thread.files.get(descriptor as i32).ok().filter(|file| is_small_file_read(file, len))?;
    drop(file);
    tried(|| pread64(thread, descriptor as i32, address, len, offset as i64))
}

/// Returns whether a read may be tried at once. A longer one copies for too long.
fn is_small_file_read(file: &OpenFile, len: u64) -> bool {
    len <= MOST_READ_AT_ONCE && file.object().is_none() && file.kind() == InodeKind::File
}

/// As [`read_at_once`], of an object that is open and no socket.
pub fn read_file_at_once(thread: &mut Thread, file: Arc<OpenFile>, address: u64, len: u64) -> AtOnce {
    if file.object().is_some_and(|object| !object.can_be_read()) {
        return AtOnce::Unserved;
    }
    let buffer = || thread.memory.try_buffer(address, len as usize, Access::Write);
    if let Some(result) = file.read_at_once(buffer) {
        thread.process.control.files.count_read(result.map_or(0, |count| count as u64));
        return AtOnce::Served(result.map(|count| count as u64));
    }
    thread.wait_for(file, None)
}

/// Serves a write to an object that is ready, from one page that is mapped; `None` for other writes.
pub fn write_at_once(thread: &Thread, [descriptor, address, len, ..]: [u64; 6]) -> Option<CallResult> {
    let file = thread.files.get(descriptor as i32).ok()?;
    if file.is_socket() {
        let buffer = || thread.memory.try_range(address, len, Access::Read);
        return send_at_once(thread, &file, waiting(&file), None, buffer);
    }
    if !is_plain(&file, len) {
        return None;
    }
    let result = file.write_at_once(|| thread.memory.try_buffer(address, len as usize, Access::Read))?;
    thread.process.control.files.count_write(result.map_or(0, |count| count as u64));
    Some(result.map(|count| count as u64))
}

/// `writev` of a socket, as [`send_at_once`].
pub fn writev_at_once(thread: &Thread, [descriptor, vector, count, ..]: [u64; 6]) -> Option<CallResult> {
    let file = thread.files.get(descriptor as i32).ok().filter(|file| file.is_socket())?;
    send_at_once(thread, &file, waiting(&file), None, || {
        thread.memory.try_buffers(vector, count, MAX_TRANSFER, Access::Read)
    })
}

/// Returns whether reads and writes of so many bytes may be served at once: terminals have rules of their own.
fn is_plain(file: &OpenFile, len: u64) -> bool {
    file.terminal().is_none() && (1..=PAGE_SIZE).contains(&len)
}

/// Checks an offset.
pub fn offset_of(offset: i64) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::EINVAL)
}

pub async fn pread64(
    thread: &mut Thread,
    descriptor: i32,
    address: u64,
    len: u64,
    offset: i64,
) -> CallResult {
    let options = TransferOptions::at(offset_of(offset)?);
    read_to(thread, descriptor, Memory::Buffer(address, len), options).await
}

pub async fn pwrite64(
    thread: &mut Thread,
    descriptor: i32,
    address: u64,
    len: u64,
    offset: i64,
) -> CallResult {
    let options = TransferOptions::at(offset_of(offset)?);
    write_from(thread, descriptor, Memory::Buffer(address, len), options).await
}

pub async fn readv(thread: &mut Thread, descriptor: i32, vector: u64, count: u64) -> CallResult {
    read_to(thread, descriptor, Memory::Vector(vector, count), TransferOptions::default()).await
}

pub async fn writev(thread: &mut Thread, descriptor: i32, vector: u64, count: u64) -> CallResult {
    write_from(thread, descriptor, Memory::Vector(vector, count), TransferOptions::default()).await
}

pub async fn preadv(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
) -> CallResult {
    let options = TransferOptions::at(offset_of(offset)?);
    read_to(thread, descriptor, Memory::Vector(vector, count), options).await
}

pub async fn pwritev(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    offset: i64,
) -> CallResult {
    let options = TransferOptions::at(offset_of(offset)?);
    write_from(thread, descriptor, Memory::Vector(vector, count), options).await
}

/// Returns the options of `preadv2` and `pwritev2`; the offset -1 is the position. Flags that only ask for haste have no
/// effect.
fn options_of(offset: i64, flags: u32, known: u32) -> Result<TransferOptions, Errno> {
    if flags & !known != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let offset = if offset == -1 { None } else { Some(offset_of(offset)?) };
    Ok(TransferOptions { offset, nowait: flags & RWF_NOWAIT != 0, appends: flags & RWF_APPEND != 0 })
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
    let options = options_of(offset, flags, RWF_HIPRI | RWF_NOWAIT | RWF_SYNC | RWF_DSYNC)?;
    read_to(thread, descriptor, Memory::Vector(vector, count), options).await
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
    let options = options_of(offset, flags, RWF_HIPRI | RWF_NOWAIT | RWF_SYNC | RWF_DSYNC | RWF_APPEND)?;
    let result = write_from(thread, descriptor, Memory::Vector(vector, count), options).await;
    if result.is_ok() && flags & (RWF_SYNC | RWF_DSYNC) != 0 {
        thread.files.get(descriptor)?.sync().await?;
    }
    result
}

pub async fn lseek(thread: &mut Thread, descriptor: i32, offset: i64, whence: u32) -> CallResult {
    thread.files.get(descriptor)?.seek(offset, whence).await
}

pub async fn ftruncate(thread: &mut Thread, descriptor: i32, len: i64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    check_len(thread, len)?;
    file.truncate(len).await?;
    Ok(0)
}

pub async fn truncate(thread: &mut Thread, path: u64, len: i64) -> CallResult {
    let path = thread.memory.path(path).await?;
    check_len(thread, len)?;
    thread.caller().truncate(&path, len).await?;
    Ok(0)
}

pub async fn fallocate(thread: &mut Thread, descriptor: i32, mode: u32, offset: i64, len: i64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    check_len(thread, offset.saturating_add(len))?;
    file.allocate(mode, offset, len).await?;
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

/// Writes the file system of a file to its volume: the location's, and nothing for files without one. Errors are returned, as in
/// Linux since 5.8.
pub async fn syncfs(thread: &mut Thread, descriptor: i32) -> CallResult {
    let file = thread.files.get(descriptor)?;
    let mount = file.location().map(|location| location.mount().clone());
    if let Some(mount) = mount {
        mount.file_system().sync().await?;
    }
    Ok(0)
}

/// Writes a range of a file to its volume, without its attributes. Without a wait it has no effect: what programs have
/// written is on its way to the volume.
pub async fn sync_file_range(
    thread: &mut Thread,
    descriptor: i32,
    offset: i64,
    len: i64,
    flags: u32,
) -> CallResult {
    let file = thread.files.get(descriptor)?;
    if file.is_path() {
        return Err(Errno::EBADF);
    }
    let end = u64::try_from(offset).ok().zip(u64::try_from(len).ok());
    if flags & !SYNC_FILE_RANGE_WRITE_AND_WAIT != 0
        || end.is_none_or(|(offset, len)| offset + len > i64::MAX as u64)
    {
        return Err(Errno::EINVAL);
    }
    if !matches!(
        file.kind(),
        InodeKind::File | InodeKind::Directory | InodeKind::Symlink | InodeKind::BlockDevice
    ) {
        return Err(Errno::ESPIPE);
    }
    if flags & (SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WAIT_AFTER) != 0 {
        file.sync().await?;
    }
    Ok(0)
}

/// The most pages that an advice reads.
const MOST_READ_AHEAD: u64 = 256;

/// Reads pages of a file that are not in memory, up to a limit. A page that cannot be read ends it.
async fn read_ahead(file: &OpenFile, offset: u64, len: u64) {
    let Ok(source) = file.pages() else { return };
    if source.is_memory() {
        return;
    }
    let end = offset.saturating_add(len).min(file.metadata().len).div_ceil(PAGE_SIZE);
    let first = offset / PAGE_SIZE;
    for index in first..end.min(first.saturating_add(MOST_READ_AHEAD)) {
        if source.frame(index).is_none() && source.fetch(index).await.is_err() {
            break;
        }
    }
}

pub async fn readahead(thread: &mut Thread, descriptor: i32, offset: i64, len: u64) -> CallResult {
    let file = thread.files.get(descriptor)?;
    if !file.is_readable() {
        return Err(Errno::EBADF);
    }
    if file.kind() != InodeKind::File || file.object().is_some() {
        return Err(Errno::EINVAL);
    }
    thread.interruptible(read_ahead(&file, offset_of(offset)?, len)).await?;
    Ok(0)
}

pub async fn fadvise64(
    thread: &mut Thread,
    descriptor: i32,
    offset: i64,
    len: i64,
    advice: u32,
) -> CallResult {
    let file = thread.files.get(descriptor)?;
    if file.object().is_some_and(|object| !object.has_offsets()) {
        return Err(Errno::ESPIPE);
    }
    if len < 0 || advice > POSIX_FADV_NOREUSE {
        return Err(Errno::EINVAL);
    }
    if advice == POSIX_FADV_WILLNEED {
        // A length of 0 reaches to the end of the file.
        let len = if len == 0 { u64::MAX } else { len as u64 };
        thread.interruptible(read_ahead(&file, offset.max(0) as u64, len)).await?;
    }
    Ok(0)
}
