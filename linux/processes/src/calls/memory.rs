//! Memory: `mmap` and its relatives.

use super::CallResult;
use crate::Errno;
use crate::thread::Thread;
use alloc::sync::Arc;
use isola_linux_abi::numbers::{
    MAP_ANONYMOUS, MAP_FIXED, MFD_CLOEXEC, O_CLOEXEC, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use isola_linux_files::OpenFile;
use isola_linux_memory::{MapObject, MapRequest, Protection, RemapRequest};
use isola_user_mode::{FlushGeneration, TrapAnswer};

pub async fn brk(thread: &mut Thread, address: u64) -> CallResult {
    Ok(thread.memory.set_break(address).await)
}

/// Moves the end of the heap, if no pages have to be removed or populated.
pub fn brk_at_once(thread: &Thread, [address, ..]: [u64; 6]) -> Option<CallResult> {
    thread.memory.set_break_at_once(address).map(Ok)
}

/// The longest range that a call at once changes: the length of a thread's stack.
const MOST_AT_ONCE: u64 = 8 << 20;

/// Ends a call at once. If TLBs of other cores have to be flushed first, the thread's task waits for that.
fn settled(thread: &mut Thread, result: CallResult, flush: Option<FlushGeneration>) -> TrapAnswer {
    let result = result.unwrap_or_else(|errno| errno.to_result());
    thread.unsettled = flush;
    if flush.is_some() { TrapAnswer::Stop(result) } else { TrapAnswer::Resume(result) }
}

/// Maps private anonymous memory that is not to be populated.
pub fn mmap_at_once(thread: &mut Thread, words: [u64; 6]) -> TrapAnswer {
    let [address, len, protection, flags, _, offset] = words;
    let (protection, flags) = (protection as u32, flags as u32);
    if len > MOST_AT_ONCE && flags & MAP_FIXED != 0 {
        return TrapAnswer::Unserved;
    }
    let request = MapRequest { address, len, protection, flags, offset, object: None, name: "" };
    match thread.memory.map_at_once(request) {
        Some(Ok((address, flush))) => settled(thread, Ok(address), flush),
        Some(Err(errno)) => settled(thread, Err(errno), None),
        None => TrapAnswer::Unserved,
    }
}

/// Unmaps a range that is not long.
pub fn munmap_at_once(thread: &mut Thread, [address, len, ..]: [u64; 6]) -> TrapAnswer {
    if len > MOST_AT_ONCE {
        return TrapAnswer::Unserved;
    }
    match thread.memory.begin_unmap(address, len) {
        Ok(flush) => settled(thread, Ok(0), flush),
        Err(errno) => settled(thread, Err(errno), None),
    }
}

/// Changes the accesses to a range that is not long.
pub fn mprotect_at_once(thread: &mut Thread, [address, len, protection, ..]: [u64; 6]) -> TrapAnswer {
    if len > MOST_AT_ONCE {
        return TrapAnswer::Unserved;
    }
    let (result, flush) = thread.memory.begin_protect(address, len, protection as u32);
    settled(thread, result.map(|()| 0), flush)
}

/// Drops the pages of a range that is not long and has no hole.
pub fn madvise_at_once(thread: &mut Thread, [address, len, advice, ..]: [u64; 6]) -> TrapAnswer {
    if len > MOST_AT_ONCE {
        return TrapAnswer::Unserved;
    }
    match thread.memory.drop_at_once(address, len, advice as u32) {
        Some(flush) => settled(thread, Ok(0), flush),
        None => TrapAnswer::Unserved,
    }
}

pub async fn mmap(
    thread: &mut Thread,
    address: u64,
    len: u64,
    protection: u32,
    flags: u32,
    descriptor: i32,
    offset: u64,
) -> CallResult {
    let object = if flags & MAP_ANONYMOUS != 0 {
        None
    } else {
        let file = thread.files.get(descriptor)?;
        let mut permitted = PROT_EXEC;
        if file.is_readable() {
            permitted |= PROT_READ;
        }
        if file.is_writable() {
            permitted |= PROT_WRITE;
        }
        if !file.is_readable() {
            return Err(Errno::EACCES);
        }
        let source = file.pages()?;
        let permitted = Protection::from_bits(permitted);
        Some(MapObject { source, permitted, path: path_of(&file) })
    };
    let request = MapRequest { address, len, protection, flags, offset, object, name: "" };
    thread.memory.map(request).await
}

/// Returns the name of a file for its mappings.
pub(crate) fn path_of(file: &OpenFile) -> Option<Arc<[u8]>> {
    file.location().map(|location| location.path(None).into())
}

pub async fn munmap(thread: &mut Thread, address: u64, len: u64) -> CallResult {
    thread.memory.unmap(address, len).await?;
    Ok(0)
}

pub async fn mprotect(thread: &mut Thread, address: u64, len: u64, protection: u32) -> CallResult {
    thread.memory.protect(address, len, protection).await?;
    Ok(0)
}

pub async fn mremap(
    thread: &mut Thread,
    address: u64,
    len: u64,
    new_len: u64,
    flags: u32,
    new_address: u64,
) -> CallResult {
    thread.memory.remap(RemapRequest { address, len, new_len, flags, new_address }).await
}

pub async fn madvise(thread: &mut Thread, address: u64, len: u64, advice: u32) -> CallResult {
    thread.memory.advise(address, len, advice).await?;
    Ok(0)
}

pub async fn msync(thread: &mut Thread, address: u64, len: u64, flags: u32) -> CallResult {
    thread.memory.sync(address, len, flags).await?;
    Ok(0)
}

pub async fn mincore(thread: &mut Thread, address: u64, len: u64, states: u64) -> CallResult {
    thread.memory.residency(address, len, states).await?;
    Ok(0)
}

pub async fn mlock(thread: &mut Thread, address: u64, len: u64) -> CallResult {
    mlock2(thread, address, len, 0).await
}

pub async fn mlock2(thread: &mut Thread, address: u64, len: u64, flags: u32) -> CallResult {
    thread.memory.lock(address, len, flags).await?;
    Ok(0)
}

pub fn munlock(thread: &mut Thread, address: u64, len: u64) -> CallResult {
    thread.memory.unlock(address, len)?;
    Ok(0)
}

pub async fn mlockall(thread: &mut Thread, flags: u32) -> CallResult {
    thread.memory.lock_all(flags).await?;
    Ok(0)
}

pub fn munlockall(thread: &mut Thread) -> CallResult {
    thread.memory.unlock_all();
    Ok(0)
}

pub async fn memfd_create(thread: &mut Thread, name: u64, flags: u32) -> CallResult {
    /// The most bytes of a name, with its NUL.
    const LEN: usize = 250;
    let long = |error| if error == Errno::ENAMETOOLONG { Errno::EINVAL } else { error };
    let name = thread.memory.string(name, LEN).await.map_err(long)?;
    let (user, group) = (thread.file_credentials.user, thread.file_credentials.group);
    let file = thread.system.memory_files.create(&name, flags, user, group)?;
    let open_flags = if flags & MFD_CLOEXEC != 0 { O_CLOEXEC } else { 0 };
    super::files::install(thread, file, open_flags)
}
