//! Calls that move bytes between files and pipes without a buffer of the program.

use super::contents::offset_of;
use crate::Errno;
use crate::calls::CallResult;
use crate::thread::Thread;
use core::future::Future;
use isola_linux_abi::numbers::{SPLICE_F_GIFT, SPLICE_F_MORE, SPLICE_F_MOVE, SPLICE_F_NONBLOCK};
use isola_linux_files::splice::{self as transfers, PipeWait, TransferEnd};
use isola_linux_memory::MAX_TRANSFER;
use isola_user_mode::Access;

/// Returns whether a transfer waits for its pipe, by the flags of a call. Hints have no effect.
pub(crate) fn pipe_wait(flags: u32) -> Result<PipeWait, Errno> {
    match flags & !(SPLICE_F_MOVE | SPLICE_F_MORE | SPLICE_F_GIFT) {
        0 => Ok(PipeWait::Wait),
        SPLICE_F_NONBLOCK => Ok(PipeWait::Fail),
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the most bytes of a call.
fn most(len: u64) -> usize {
    len.min(MAX_TRANSFER) as usize
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

/// Waits for a transfer until a signal arrives. Bytes that have arrived count. The writer of a pipe without reader gets
/// SIGPIPE.
async fn finish(
    thread: &Thread,
    transfer: impl Future<Output = Result<(), Errno>>,
) -> Result<Result<(), Errno>, Errno> {
    let result = match thread.interruptible(transfer).await {
        Ok(result) => result,
        Err(interrupted) => Err(interrupted.into()),
    };
    if result == Err(Errno::EPIPE) {
        super::contents::send_broken_pipe(thread)?;
    }
    Ok(result)
}

/// Returns the result of a transfer.
fn result_of(result: Result<(), Errno>, done: usize) -> CallResult {
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done as u64),
    }
}

pub async fn splice(
    thread: &mut Thread,
    from: i32,
    from_offset: u64,
    to: i32,
    to_offset: u64,
    len: u64,
    flags: u32,
) -> CallResult {
    let wait = pipe_wait(flags)?;
    if len == 0 {
        return Ok(0);
    }
    let (source, target) = (thread.files.get(from)?, thread.files.get(to)?);
    let mut from = TransferEnd { file: &source, offset: read_offset(thread, from_offset).await? };
    let mut to = TransferEnd { file: &target, offset: read_offset(thread, to_offset).await? };
    let mut done = 0;
    let transfer = transfers::splice(&mut from, &mut to, most(len), wait, &mut done);
    let result = finish(thread, transfer).await?;
    let result = result_of(result, done)?;
    write_offset(thread, from_offset, from.offset).await?;
    write_offset(thread, to_offset, to.offset).await?;
    Ok(result)
}

pub async fn tee(thread: &mut Thread, from: i32, to: i32, len: u64, flags: u32) -> CallResult {
    let wait = pipe_wait(flags)?;
    if len == 0 {
        return Ok(0);
    }
    let (source, target) = (thread.files.get(from)?, thread.files.get(to)?);
    let mut done = 0;
    let result = finish(thread, transfers::tee(&source, &target, most(len), wait, &mut done)).await?;
    result_of(result, done)
}

pub async fn vmsplice(
    thread: &mut Thread,
    descriptor: i32,
    vector: u64,
    count: u64,
    flags: u32,
) -> CallResult {
    let wait = pipe_wait(flags)?;
    let file = thread.files.get(descriptor)?;
    if file.object_as::<isola_linux_files::PipeEnd>().is_none() {
        return Err(Errno::EBADF);
    }
    if !file.is_writable() {
        return super::contents::readv(thread, descriptor, vector, count).await;
    }
    let mut buffer = thread.memory.buffers(vector, count, Access::Read).await?;
    let mut done = 0;
    let result = finish(thread, transfers::splice_memory(&file, &mut buffer, wait, &mut done)).await?;
    result_of(result, done)
}

pub async fn sendfile(thread: &mut Thread, to: i32, from: i32, offset: u64, len: u64) -> CallResult {
    let (source, target) = (thread.files.get(from)?, thread.files.get(to)?);
    let mut from = TransferEnd { file: &source, offset: read_offset(thread, offset).await? };
    let mut to = TransferEnd { file: &target, offset: None };
    let mut done = 0;
    let transfer = transfers::send_file(&mut from, &mut to, most(len), &mut done);
    let result = finish(thread, transfer).await?;
    let result = result_of(result, done)?;
    write_offset(thread, offset, from.offset).await?;
    Ok(result)
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
    let (source, target) = (thread.files.get(from)?, thread.files.get(to)?);
    let mut from = TransferEnd { file: &source, offset: read_offset(thread, from_offset).await? };
    let mut to = TransferEnd { file: &target, offset: read_offset(thread, to_offset).await? };
    let mut done = 0;
    let transfer = transfers::copy_file_range(&mut from, &mut to, most(len), &mut done);
    let result = finish(thread, transfer).await?;
    let result = result_of(result, done)?;
    write_offset(thread, from_offset, from.offset).await?;
    write_offset(thread, to_offset, to.offset).await?;
    Ok(result)
}
