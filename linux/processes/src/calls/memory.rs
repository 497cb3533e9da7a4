//! Memory: `mmap` and its relatives.

use super::CallResult;
use crate::Errno;
use crate::thread::Thread;
use isola_linux_abi::numbers::{MAP_ANONYMOUS, PROT_EXEC, PROT_READ, PROT_WRITE};
use isola_linux_memory::{MapObject, MapRequest, Protection};

pub async fn brk(thread: &mut Thread, address: u64) -> CallResult {
    Ok(thread.memory.set_break(address).await)
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
        Some(MapObject { source, permitted: Protection::from_bits(permitted) })
    };
    let request = MapRequest { address, len, protection, flags, offset, object, name: "" };
    thread.memory.map(request).await
}

pub async fn munmap(thread: &mut Thread, address: u64, len: u64) -> CallResult {
    thread.memory.unmap(address, len).await?;
    Ok(0)
}

pub async fn mprotect(thread: &mut Thread, address: u64, len: u64, protection: u32) -> CallResult {
    thread.memory.protect(address, len, protection).await?;
    Ok(0)
}
