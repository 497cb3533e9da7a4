//! POSIX message queues: `mq_open` and its relatives.

use super::caller;
use crate::Errno;
use crate::calls::files::install;
use crate::calls::time::{Clock, deadline_ns, read_timespec};
use crate::calls::{CallResult, unsupported};
use crate::ipc::{PRIORITIES, PosixQueue, QueueNotice, QueueRequest, QueueSize};
use crate::signals::Signal;
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::{
    O_ACCMODE, O_CLOEXEC, O_CREAT, O_NONBLOCK, RLIMIT_MSGQUEUE, SIGEV_NONE, SIGEV_SIGNAL, SIGEV_THREAD,
};
use isola_linux_files::{Events, OpenFile};

/// The length of `struct mq_attr`: flags, most messages, bytes of a message, messages, and four words of zeros.
const ATTRIBUTES_LEN: usize = 64;
/// The bytes of `struct sigevent` that are read.
const EVENT_LEN: usize = 24;

fn attribute_words(bytes: &[u8; ATTRIBUTES_LEN]) -> [u64; 8] {
    core::array::from_fn(|index| u64::from_le_bytes(core::array::from_fn(|at| bytes[8 * index + at])))
}

pub async fn mq_open(thread: &mut Thread, name: u64, flags: u32, mode: u32, attributes: u64) -> CallResult {
    let name = thread.memory.path(name).await?;
    let size = match attributes {
        _ if flags & O_CREAT == 0 => QueueSize::default(),
        0 => QueueSize::default(),
        address => {
            let [_, messages, len, ..] = attribute_words(&thread.memory.read_bytes(address).await?);
            QueueSize { messages, len }
        }
    };
    let request = QueueRequest {
        flags,
        mode: mode & !thread.view.umask(),
        size,
        most_bytes: thread.process.limits.lock().soft(RLIMIT_MSGQUEUE),
    };
    let queue = thread.system.ipc.posix_queues.open(&name, &request, &caller(thread))?;
    install(thread, OpenFile::of_object(queue, flags & (O_ACCMODE | O_NONBLOCK)), O_CLOEXEC)
}

pub async fn mq_unlink(thread: &mut Thread, name: u64) -> CallResult {
    let name = thread.memory.path(name).await?;
    thread.system.ipc.posix_queues.unlink(&name, &thread.credentials)?;
    Ok(0)
}

/// Returns the open file of a queue.
fn file_of(thread: &Thread, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
    let file = thread.files.get(descriptor)?;
    file.object_as::<PosixQueue>().ok_or(Errno::EBADF)?;
    Ok(file)
}

/// Returns the queue of its open file.
fn queue_of(file: &OpenFile) -> Result<&PosixQueue, Errno> {
    file.object_as::<PosixQueue>().ok_or(Errno::EBADF)
}

/// Returns the end of a wait, in nanoseconds of the monotonic clock.
async fn end_of_wait(thread: &Thread, timeout: u64) -> Result<Option<u64>, Errno> {
    if timeout == 0 {
        return Ok(None);
    }
    let time_ns = read_timespec(thread, timeout).await?;
    Ok(Some(deadline_ns(thread, Clock::RealTime, time_ns)))
}

/// Waits for an event of a queue.
async fn wait_for(
    thread: &Thread,
    file: &OpenFile,
    events: Events,
    until_ns: Option<u64>,
) -> Result<(), Errno> {
    if file.is_nonblocking() {
        return Err(Errno::EAGAIN);
    }
    thread.interruptible_until(until_ns, file.wait(events)).await?.ok_or(Errno::ETIMEDOUT)
}

pub async fn mq_timedsend(
    thread: &mut Thread,
    descriptor: i32,
    message: u64,
    len: u64,
    priority: u32,
    timeout: u64,
) -> CallResult {
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let until_ns = end_of_wait(thread, timeout).await?;
    let file = file_of(thread, descriptor)?;
    let queue = queue_of(&file)?;
    if !file.is_writable() {
        return Err(Errno::EBADF);
    }
    if len > queue.size.len {
        return Err(Errno::EMSGSIZE);
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len as usize).map_err(|_| Errno::ENOMEM)?;
    bytes.resize(len as usize, 0);
    thread.memory.read_to(message, &mut bytes).await?;
    let sender = (thread.process.pid, thread.credentials.user.real);
    loop {
        match queue.send(bytes, priority, sender) {
            Ok(None) => return Ok(0),
            Ok(Some((process, info))) => {
                // A process whose queue of signals is full gets none, as in Linux.
                let _ = thread.system.send(&process, info);
                return Ok(0);
            }
            Err(message) => bytes = message,
        }
        wait_for(thread, &file, Events::OUT, until_ns).await?;
    }
}

pub async fn mq_timedreceive(
    thread: &mut Thread,
    descriptor: i32,
    message: u64,
    len: u64,
    priority: u64,
    timeout: u64,
) -> CallResult {
    let until_ns = end_of_wait(thread, timeout).await?;
    let file = file_of(thread, descriptor)?;
    let queue = queue_of(&file)?;
    if !file.is_readable() {
        return Err(Errno::EBADF);
    }
    if len < queue.size.len {
        return Err(Errno::EMSGSIZE);
    }
    let (bytes, its_priority) = loop {
        if let Some(received) = queue.receive() {
            break received;
        }
        let _waits = queue.wait_for_message();
        wait_for(thread, &file, Events::IN, until_ns).await?;
    };
    thread.memory.write_bytes(message, &bytes).await?;
    if priority != 0 {
        thread.memory.write_bytes(priority, &its_priority.to_le_bytes()).await?;
    }
    Ok(bytes.len() as u64)
}

pub async fn mq_notify(thread: &mut Thread, descriptor: i32, event: u64) -> CallResult {
    let notice = match event {
        0 => None,
        address => {
            let bytes = thread.memory.read_bytes::<EVENT_LEN>(address).await?;
            let value = u64::from_le_bytes(core::array::from_fn(|index| bytes[index]));
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| bytes[at + index]));
            Some(match word(12) {
                SIGEV_NONE => QueueNotice::Nothing,
                SIGEV_SIGNAL => QueueNotice::Signal(Signal::from_number(word(8).into())?, value),
                SIGEV_THREAD => return Err(unsupported(thread, "mq_notify by threads", Errno::EINVAL)),
                _ => return Err(Errno::EINVAL),
            })
        }
    };
    let file = file_of(thread, descriptor)?;
    let queue = queue_of(&file)?;
    match notice {
        None => queue.end_notification(&thread.process),
        Some(notice) => queue.notify(&thread.process, notice)?,
    }
    Ok(0)
}

pub async fn mq_getsetattr(thread: &mut Thread, descriptor: i32, new: u64, old: u64) -> CallResult {
    let flags = match new {
        0 => None,
        address => {
            let [flags, ..] = attribute_words(&thread.memory.read_bytes(address).await?);
            if flags & !u64::from(O_NONBLOCK) != 0 {
                return Err(Errno::EINVAL);
            }
            Some(flags as u32)
        }
    };
    let file = file_of(thread, descriptor)?;
    let queue = queue_of(&file)?;
    let former =
        [u64::from(file.flags() & O_NONBLOCK), queue.size.messages, queue.size.len, queue.message_count()];
    if let Some(flags) = flags {
        file.set_flags(file.flags() & !O_NONBLOCK | flags);
    }
    if old != 0 {
        let mut bytes = [0; ATTRIBUTES_LEN];
        for (word, value) in bytes.chunks_exact_mut(8).zip(former) {
            word.copy_from_slice(&value.to_le_bytes());
        }
        thread.memory.write_bytes(old, &bytes).await?;
    }
    Ok(0)
}
