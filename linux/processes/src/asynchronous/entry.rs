//! Submissions of a ring: their fields, and what they ask for.

use super::operation::{Bytes, FileChoice, Operation};
use super::pages::ENTRY_LEN;
use super::ring::Ring;
use crate::Errno;
use crate::calls::{SECOND, half_at, splice_wait, word_at};
use crate::thread::Thread;
use isola_linux_abi::io_uring as abi;
use isola_linux_abi::io_uring::io_uring_op as op;
use isola_linux_abi::numbers::{RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC};
use isola_linux_files::Events;
use isola_linux_memory::{MAX_TRANSFER, UserBuffer};
use isola_user_mode::Access;

/// A flag of an entry.
pub const FIXED_FILE: u8 = 1 << 0;
/// The entry begins after all earlier ones, and later ones after it.
pub const DRAIN: u8 = 1 << 1;
/// The next entry begins after this one, unless it fails.
pub const LINK: u8 = 1 << 2;
/// The next entry begins after this one.
pub const HARDLINK: u8 = 1 << 3;
/// The entry is not attempted at its submission.
pub const ASYNC: u8 = 1 << 4;
/// No completion is added if the operation succeeds.
pub const SKIP_SUCCESS: u8 = 1 << 6;
/// The flags that rings support: all but the choice of a buffer by the kernel.
const KNOWN_FLAGS: u8 = FIXED_FILE | DRAIN | LINK | HARDLINK | ASYNC | SKIP_SUCCESS;

/// The operations that rings support, for `IORING_REGISTER_PROBE`.
pub fn is_supported(number: u8) -> bool {
    const SUPPORTED: [op; 29] = [
        op::IORING_OP_NOP,
        op::IORING_OP_READV,
        op::IORING_OP_WRITEV,
        op::IORING_OP_FSYNC,
        op::IORING_OP_READ_FIXED,
        op::IORING_OP_WRITE_FIXED,
        op::IORING_OP_POLL_ADD,
        op::IORING_OP_POLL_REMOVE,
        op::IORING_OP_SYNC_FILE_RANGE,
        op::IORING_OP_TIMEOUT,
        op::IORING_OP_TIMEOUT_REMOVE,
        op::IORING_OP_ASYNC_CANCEL,
        op::IORING_OP_LINK_TIMEOUT,
        op::IORING_OP_FALLOCATE,
        op::IORING_OP_OPENAT,
        op::IORING_OP_CLOSE,
        op::IORING_OP_STATX,
        op::IORING_OP_READ,
        op::IORING_OP_WRITE,
        op::IORING_OP_FADVISE,
        op::IORING_OP_MADVISE,
        op::IORING_OP_SPLICE,
        op::IORING_OP_TEE,
        op::IORING_OP_RENAMEAT,
        op::IORING_OP_UNLINKAT,
        op::IORING_OP_MKDIRAT,
        op::IORING_OP_SYMLINKAT,
        op::IORING_OP_LINKAT,
        op::IORING_OP_FTRUNCATE,
    ];
    SUPPORTED.iter().any(|supported| *supported as u8 == number)
}

/// What an entry asks for.
pub enum Request {
    /// An operation.
    Operation(Operation),
    /// A wait for a time, or for completions of others: 0 for any number.
    Timeout(Timeout),
    /// The cancellation of other entries.
    Cancel(CancelRequest),
}

/// A wait for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeout {
    /// The time of the monotonic clock.
    pub until_ns: u64,
    /// The number of completions of others that end the wait; 0 for none.
    pub count: u32,
    /// The ring's number of completions at which they are complete, once the wait has begun.
    pub end: Option<u64>,
    /// Whether the end of the time is no failure for a chain.
    pub is_success: bool,
}

/// Which entries are cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CancelRequest {
    /// The user data, or the descriptor, that they have.
    pub key: u64,
    /// `IORING_ASYNC_CANCEL_` flags.
    pub flags: u32,
    /// Only timeouts.
    pub only_timeouts: bool,
}

/// An entry that was read from the ring.
pub struct Entry {
    /// The program's name for it.
    pub user_data: u64,
    /// The flags.
    pub flags: u8,
    /// The descriptor or index of its file.
    pub descriptor: i32,
    /// What it asks for, or why it cannot have it.
    pub request: Result<Request, Errno>,
    /// The time limit of the entry before (`IORING_OP_LINK_TIMEOUT`).
    pub is_link_timeout: bool,
}

/// The fields of a submission.
struct Fields([u8; ENTRY_LEN]);

impl Fields {
    fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn u32(&self, at: usize) -> u32 {
        half_at(&self.0, at)
    }

    fn u64(&self, at: usize) -> u64 {
        word_at(&self.0, at)
    }

    fn operation(&self) -> u8 {
        self.0[0]
    }

    fn flags(&self) -> u8 {
        self.0[1]
    }

    fn descriptor(&self) -> i32 {
        self.u32(4) as i32
    }

    /// `off`, or `addr2`.
    fn offset(&self) -> u64 {
        self.u64(8)
    }

    fn address(&self) -> u64 {
        self.u64(16)
    }

    fn len(&self) -> u32 {
        self.u32(24)
    }

    /// The flags of the operation.
    fn options(&self) -> u32 {
        self.u32(28)
    }

    fn user_data(&self) -> u64 {
        self.u64(32)
    }

    fn buffer_index(&self) -> u16 {
        self.u16(40)
    }

    fn personality(&self) -> u16 {
        self.u16(42)
    }

    /// `splice_fd_in`, or `file_index`.
    fn second_descriptor(&self) -> i32 {
        self.u32(44) as i32
    }

    fn file(&self) -> FileChoice {
        choice(self.descriptor(), self.flags() & FIXED_FILE != 0)
    }

    /// The offset of a read or write; `None` for the position.
    fn position(&self) -> Option<u64> {
        (self.offset() != u64::MAX).then_some(self.offset())
    }
}

fn choice(descriptor: i32, is_registered: bool) -> FileChoice {
    if is_registered { FileChoice::Registered(descriptor as u32) } else { FileChoice::Descriptor(descriptor) }
}

impl Entry {
    /// Reads an entry. The program's memory that it refers to is read now, or resolved to frames.
    pub async fn read(thread: &Thread, ring: &Ring, bytes: [u8; ENTRY_LEN]) -> Self {
        let fields = Fields(bytes);
        let request = match fields.flags() & !KNOWN_FLAGS {
            0 if fields.personality() == 0 => request(thread, ring, &fields).await,
            _ => Err(Errno::EINVAL),
        };
        Self {
            user_data: fields.user_data(),
            flags: fields.flags(),
            descriptor: fields.descriptor(),
            request,
            is_link_timeout: fields.operation() == op::IORING_OP_LINK_TIMEOUT as u8,
        }
    }

    /// Returns whether it is a timeout.
    pub fn is_timeout(&self) -> bool {
        matches!(self.request, Ok(Request::Timeout(_)))
    }

    /// Returns whether the next entry belongs to the same chain.
    pub fn is_linked(&self) -> bool {
        self.flags & (LINK | HARDLINK) != 0
    }
}

async fn request(thread: &Thread, ring: &Ring, fields: &Fields) -> Result<Request, Errno> {
    const NOP: u8 = op::IORING_OP_NOP as u8;
    const POLL_ADD: u8 = op::IORING_OP_POLL_ADD as u8;
    const POLL_REMOVE: u8 = op::IORING_OP_POLL_REMOVE as u8;
    const TIMEOUT: u8 = op::IORING_OP_TIMEOUT as u8;
    const TIMEOUT_REMOVE: u8 = op::IORING_OP_TIMEOUT_REMOVE as u8;
    const LINK_TIMEOUT: u8 = op::IORING_OP_LINK_TIMEOUT as u8;
    const ASYNC_CANCEL: u8 = op::IORING_OP_ASYNC_CANCEL as u8;
    let cancel = |key, flags, only_timeouts| Ok(Request::Cancel(CancelRequest { key, flags, only_timeouts }));
    match fields.operation() {
        NOP => Ok(Request::Operation(Operation::Nothing)),
        // Neither several events, nor changes of a wait.
        POLL_ADD if fields.len() != 0 => Err(unsupported(thread, "io_uring: poll for several events")),
        POLL_ADD => {
            let events = Events(fields.options() & 0xffff);
            Ok(Request::Operation(Operation::Poll(fields.file(), events)))
        }
        POLL_REMOVE | TIMEOUT_REMOVE if fields.len() != 0 || fields.options() != 0 => {
            Err(unsupported(thread, "io_uring: change of a wait"))
        }
        POLL_REMOVE => cancel(fields.address(), 0, false),
        TIMEOUT_REMOVE => cancel(fields.address(), 0, true),
        ASYNC_CANCEL => {
            const KNOWN: u32 = abi::IORING_ASYNC_CANCEL_ALL
                | abi::IORING_ASYNC_CANCEL_FD
                | abi::IORING_ASYNC_CANCEL_ANY
                | abi::IORING_ASYNC_CANCEL_USERDATA;
            let flags = fields.options();
            let is_by_file = flags & abi::IORING_ASYNC_CANCEL_FD != 0;
            if flags & !KNOWN != 0 || is_by_file && flags & abi::IORING_ASYNC_CANCEL_ANY != 0 {
                return Err(Errno::EINVAL);
            }
            let key = if is_by_file { fields.descriptor() as u32 as u64 } else { fields.address() };
            cancel(key, flags, false)
        }
        TIMEOUT | LINK_TIMEOUT => timeout(thread, fields).await.map(Request::Timeout),
        number if is_supported(number) => operation(thread, ring, fields).await.map(Request::Operation),
        number => Err(unsupported(thread, &alloc::format!("io_uring operation {number}"))),
    }
}

fn unsupported(thread: &Thread, feature: &str) -> Errno {
    thread.system.missing.count(feature);
    Errno::EINVAL
}

/// Reads the time of a timeout.
async fn timeout(thread: &Thread, fields: &Fields) -> Result<Timeout, Errno> {
    const KNOWN: u32 = abi::IORING_TIMEOUT_ABS
        | abi::IORING_TIMEOUT_BOOTTIME
        | abi::IORING_TIMEOUT_REALTIME
        | abi::IORING_TIMEOUT_ETIME_SUCCESS;
    let flags = fields.options();
    if flags & !KNOWN != 0
        || flags & abi::IORING_TIMEOUT_CLOCK_MASK == abi::IORING_TIMEOUT_CLOCK_MASK
        || fields.len() != 1
    {
        return Err(Errno::EINVAL);
    }
    let bytes = thread.memory.read_bytes::<16>(fields.address()).await?;
    let (seconds, ns) = (word_at(&bytes, 0) as i64, word_at(&bytes, 8) as i64);
    let time = u64::try_from(seconds).map_err(|_| Errno::EINVAL)?.saturating_mul(SECOND);
    let time = time.saturating_add(u64::try_from(ns).map_err(|_| Errno::EINVAL)?);
    let environment = &thread.system.environment;
    let now = environment.monotonic_ns();
    let until_ns = match flags & abi::IORING_TIMEOUT_ABS {
        0 => now.saturating_add(time),
        _ if flags & abi::IORING_TIMEOUT_REALTIME != 0 => {
            now.saturating_add(time.saturating_sub(environment.unix_ns()))
        }
        _ => time,
    };
    let is_success = flags & abi::IORING_TIMEOUT_ETIME_SUCCESS != 0;
    let count = fields.offset().min(u32::MAX.into()) as u32;
    Ok(Timeout { until_ns, count, end: None, is_success })
}

async fn operation(thread: &Thread, ring: &Ring, fields: &Fields) -> Result<Operation, Errno> {
    let memory = &thread.memory;
    let (address, len, options) = (fields.address(), fields.len(), fields.options());
    let (directory, second) = (fields.descriptor(), fields.second_descriptor());
    // A number of `io_uring_op`, which the caller has checked.
    let number = fields.operation();
    let is = |operation: op| number == operation as u8;
    if is(op::IORING_OP_READV) || is(op::IORING_OP_READ) || is(op::IORING_OP_READ_FIXED) {
        let buffer = buffer(thread, ring, fields, Access::Write).await?;
        return transfer(fields, buffer, Access::Write);
    }
    if is(op::IORING_OP_WRITEV) || is(op::IORING_OP_WRITE) || is(op::IORING_OP_WRITE_FIXED) {
        let buffer = buffer(thread, ring, fields, Access::Read).await?;
        return transfer(fields, buffer, Access::Read);
    }
    if is(op::IORING_OP_FSYNC) || is(op::IORING_OP_SYNC_FILE_RANGE) {
        if is(op::IORING_OP_FSYNC) && options & !abi::IORING_FSYNC_DATASYNC != 0 {
            return Err(Errno::EINVAL);
        }
        return Ok(Operation::Sync(fields.file()));
    }
    if is(op::IORING_OP_FALLOCATE) {
        let (offset, len) = (fields.offset() as i64, address as i64);
        return Ok(Operation::Allocate { file: fields.file(), mode: fields.len(), offset, len });
    }
    if is(op::IORING_OP_FTRUNCATE) {
        return Ok(Operation::Truncate(fields.file(), fields.offset() as i64));
    }
    if is(op::IORING_OP_FADVISE) {
        return Ok(Operation::Advise(fields.file(), options));
    }
    if is(op::IORING_OP_MADVISE) {
        return Ok(Operation::AdviseMemory(fields.address(), fields.len().into(), options));
    }
    if is(op::IORING_OP_CLOSE) {
        // Registered files are closed by `IORING_REGISTER_FILES_UPDATE`.
        return if second == 0 { Ok(Operation::Close(directory)) } else { Err(Errno::EINVAL) };
    }
    if is(op::IORING_OP_SPLICE) || is(op::IORING_OP_TEE) {
        /// `SPLICE_F_FD_IN_FIXED`: the source is a registered file.
        const SOURCE_IS_REGISTERED: u32 = 1 << 31;
        let wait = splice_wait(options & !SOURCE_IS_REGISTERED)?;
        let offset = |offset: u64| (offset != u64::MAX).then_some(offset);
        let keeps = is(op::IORING_OP_TEE);
        if keeps && (fields.offset() != 0 || address != 0) {
            return Err(Errno::EINVAL);
        }
        return Ok(Operation::Splice {
            from: choice(second, options & SOURCE_IS_REGISTERED != 0),
            from_offset: offset(address),
            to: fields.file(),
            to_offset: offset(fields.offset()),
            len: u64::from(len).min(MAX_TRANSFER) as usize,
            wait,
            keeps,
        });
    }
    if fields.flags() & FIXED_FILE != 0 {
        return Err(Errno::EBADF);
    }
    if is(op::IORING_OP_SYMLINKAT) {
        let (target, path) = (memory.path(address).await?, memory.path(fields.offset()).await?);
        return Ok(Operation::Symlink { target, directory, path });
    }
    let path = memory.path(address).await?;
    if is(op::IORING_OP_OPENAT) {
        // The file gets a descriptor, not a place among the registered ones.
        let mode = len;
        return match second {
            0 => Ok(Operation::Open { directory, path, flags: options, mode }),
            _ => Err(unsupported(thread, "io_uring: open to a registered file")),
        };
    }
    if is(op::IORING_OP_STATX) {
        return Ok(Operation::Stat { directory, path, flags: options, buffer: fields.offset() });
    }
    if is(op::IORING_OP_UNLINKAT) {
        return Ok(Operation::Unlink { directory, path, flags: options });
    }
    if is(op::IORING_OP_MKDIRAT) {
        return Ok(Operation::MakeDirectory { directory, path, mode: len });
    }
    let (new_directory, new_path) = (len as i32, memory.path(fields.offset()).await?);
    if is(op::IORING_OP_RENAMEAT) {
        return Ok(Operation::Rename { directory, path, new_directory, new_path, flags: options });
    }
    if is(op::IORING_OP_LINKAT) {
        return Ok(Operation::Link { directory, path, new_directory, new_path, flags: options });
    }
    Err(Errno::EINVAL)
}

/// Resolves the bytes of a read or write.
async fn buffer(thread: &Thread, ring: &Ring, fields: &Fields, access: Access) -> Result<UserBuffer, Errno> {
    let (address, len) = (fields.address(), u64::from(fields.len()));
    let number = fields.operation();
    if number == op::IORING_OP_READV as u8 || number == op::IORING_OP_WRITEV as u8 {
        return thread.memory.buffers(address, len, access).await;
    }
    if number == op::IORING_OP_READ_FIXED as u8 || number == op::IORING_OP_WRITE_FIXED as u8 {
        return ring.registered.buffer(fields.buffer_index(), address, len);
    }
    thread.memory.buffer(address, len, access).await
}

/// Returns a read to memory that is written, or a write of memory that is read.
fn transfer(fields: &Fields, buffer: UserBuffer, access: Access) -> Result<Operation, Errno> {
    let flags = fields.options();
    if flags & !(RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND) != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let (file, bytes, offset) = (fields.file(), Bytes::new(buffer), fields.position());
    let nowait = flags & RWF_NOWAIT != 0;
    Ok(match access {
        Access::Read => {
            let (appends, syncs) = (flags & RWF_APPEND != 0, flags & (RWF_SYNC | RWF_DSYNC) != 0);
            Operation::Write { file, bytes, offset, nowait, appends, syncs }
        }
        _ => Operation::Read { file, bytes, offset, nowait },
    })
}
