//! Linux AIO.

use super::CallResult;
use super::signals::{replace_mask_by, restore_mask};
use super::time::read_timespec;
use super::words::{half_at, word_at};
use crate::Errno;
use crate::asynchronous::{AioRequest, Bytes, EVENT_LEN, FileChoice, Operation, Submitter};
use crate::thread::Thread;
use isola_linux_abi::numbers::{
    MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, RWF_APPEND, RWF_DSYNC, RWF_HIPRI, RWF_NOWAIT, RWF_SYNC,
};
use isola_linux_files::{EventCounter, Events};
use isola_linux_memory::MapRequest;
use isola_user_mode::{Access, PAGE_SIZE};

/// The length of `struct iocb`.
const IOCB_LEN: usize = 64;

/// Operations of `struct iocb`, from Linux's `linux/aio_abi.h`.
const PREAD: u16 = 0;
const PWRITE: u16 = 1;
const FSYNC: u16 = 2;
const FDSYNC: u16 = 3;
const POLL: u16 = 5;
const PREADV: u16 = 7;
const PWRITEV: u16 = 8;
/// Flags of `struct iocb`.
const HAS_COUNTER: u32 = 1;
const HAS_PRIORITY: u32 = 2;

pub async fn io_setup(thread: &mut Thread, most: u32, context: u64) -> CallResult {
    let former = u64::from_le_bytes(thread.memory.read_bytes(context).await?);
    if former != 0 || most == 0 {
        return Err(Errno::EINVAL);
    }
    thread.process.aio.check(most)?;
    let (protection, flags) = (PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS);
    let request = MapRequest { len: PAGE_SIZE, protection, flags, name: "/[aio]", ..MapRequest::default() };
    let address = thread.memory.map(request).await?;
    if let Err(error) = thread.memory.write_bytes(context, &address.to_le_bytes()).await {
        thread.memory.unmap(address, PAGE_SIZE).await?;
        return Err(error);
    }
    thread.process.aio.add(address, most);
    Ok(0)
}

pub async fn io_destroy(thread: &mut Thread, context: u64) -> CallResult {
    thread.process.aio.remove(context)?;
    // The program may have unmapped the page.
    let _ = thread.memory.unmap(context, PAGE_SIZE).await;
    Ok(0)
}

pub async fn io_submit(thread: &mut Thread, context: u64, count: i64, list: u64) -> CallResult {
    let count = u64::try_from(count).map_err(|_| Errno::EINVAL)?;
    let context = thread.process.aio.get(context)?;
    let submitter = Submitter::of(thread);
    let mut done = 0;
    while done < count {
        let result = match request(thread, list.saturating_add(done * 8)).await {
            Ok(request) => context.submit(&submitter, request).await,
            Err(error) => Err(error),
        };
        match result {
            Ok(()) => done += 1,
            Err(error) if done == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Reads the operation whose address is at an address.
async fn request(thread: &Thread, at: u64) -> Result<AioRequest, Errno> {
    let address = u64::from_le_bytes(thread.memory.read_bytes(at).await?);
    let bytes = thread.memory.read_bytes::<IOCB_LEN>(address).await?;
    let (data, rw_flags, descriptor) = (word_at(&bytes, 0), half_at(&bytes, 12), half_at(&bytes, 20) as i32);
    let operation = u16::from_le_bytes([bytes[16], bytes[17]]);
    let (memory, len, offset) = (word_at(&bytes, 24), word_at(&bytes, 32), word_at(&bytes, 40));
    let (reserved, flags, counter) = (word_at(&bytes, 48), half_at(&bytes, 56), half_at(&bytes, 60) as i32);
    if reserved != 0 || flags & !(HAS_COUNTER | HAS_PRIORITY) != 0 {
        return Err(Errno::EINVAL);
    }
    let file = thread.files.get(descriptor)?;
    let counter = match flags & HAS_COUNTER {
        0 => None,
        _ => {
            let counter = thread.files.get(counter)?;
            counter.object_as::<EventCounter>().ok_or(Errno::EINVAL)?;
            Some(counter)
        }
    };
    // As in Linux, which has no other keys.
    thread.memory.write_bytes(address + 8, &[0; 4]).await?;
    const RW_FLAGS: u32 = RWF_HIPRI | RWF_DSYNC | RWF_SYNC | RWF_NOWAIT | RWF_APPEND;
    let is_transfer = matches!(operation, PREAD | PWRITE | PREADV | PWRITEV);
    if is_transfer && rw_flags & !RW_FLAGS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let nowait = rw_flags & RWF_NOWAIT != 0;
    let access = if matches!(operation, PREAD | PREADV) { Access::Write } else { Access::Read };
    let buffer = match operation {
        PREAD | PWRITE => thread.memory.buffer(memory, len, access).await?,
        PREADV | PWRITEV => thread.memory.buffers(memory, len, access).await?,
        _ => Default::default(),
    };
    if is_transfer && (offset as i64) < 0 {
        return Err(Errno::EINVAL);
    }
    let permitted = match operation {
        PREAD | PREADV => file.is_readable(),
        PWRITE | PWRITEV => file.is_writable(),
        _ => true,
    };
    if !permitted {
        return Err(Errno::EBADF);
    }
    let (file, bytes, offset) = (FileChoice::Open(file), Bytes::new(buffer), Some(offset));
    let operation = match operation {
        PREAD | PREADV => Operation::Read { file, bytes, offset, nowait },
        PWRITE | PWRITEV => {
            let (appends, syncs) = (rw_flags & RWF_APPEND != 0, rw_flags & (RWF_SYNC | RWF_DSYNC) != 0);
            Operation::Write { file, bytes, offset, nowait, appends, syncs }
        }
        FSYNC | FDSYNC => Operation::Sync(file),
        POLL => Operation::Poll(file, Events(memory as u32 & 0xffff)),
        _ => return Err(Errno::EINVAL),
    };
    Ok(AioRequest { data, address, operation, counter })
}

pub async fn io_cancel(thread: &mut Thread, context: u64, iocb: u64, _result: u64) -> CallResult {
    thread.memory.read_bytes::<IOCB_LEN>(iocb).await?;
    thread.process.aio.get(context)?.cancel(iocb)?;
    // The event of the operation says how it ended.
    Err(Errno::EINPROGRESS)
}

pub async fn io_getevents(
    thread: &mut Thread,
    context: u64,
    least: i64,
    most: i64,
    events: u64,
    timeout: u64,
) -> CallResult {
    let context = thread.process.aio.get(context)?;
    let until_ns = match timeout {
        0 => None,
        address => {
            let time = read_timespec(thread, address).await?;
            Some(thread.system.environment.monotonic_ns().saturating_add(time))
        }
    };
    let (least, most) = match (usize::try_from(least), usize::try_from(most)) {
        (Ok(least), Ok(most)) if least <= most => (least, most),
        _ => return Err(Errno::EINVAL),
    };
    let wait = thread.interruptible_until(until_ns, context.wait_for(least)).await;
    let taken = context.take(most);
    if taken.is_empty()
        && let Err(interrupted) = wait
    {
        let _ = interrupted;
        return Err(Errno::EINTR);
    }
    for (index, event) in taken.iter().enumerate() {
        thread.memory.write_bytes(events.saturating_add((index * EVENT_LEN) as u64), event).await?;
    }
    Ok(taken.len() as u64)
}

pub async fn io_pgetevents(
    thread: &mut Thread,
    context: u64,
    least: i64,
    most: i64,
    events: u64,
    timeout: u64,
    mask: u64,
) -> CallResult {
    if mask != 0 {
        let bytes = thread.memory.read_bytes::<16>(mask).await?;
        replace_mask_by(thread, word_at(&bytes, 0), word_at(&bytes, 8)).await?;
    }
    let result = io_getevents(thread, context, least, most, events, timeout).await;
    if result != Err(Errno::EINTR) {
        restore_mask(thread);
    }
    result
}
