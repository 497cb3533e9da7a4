//! `io_uring`.

use super::CallResult;
use super::files::install;
use super::signals::{replace_mask_by, restore_mask};
use super::time::read_timespec;
use super::words::{half_at, word_at};
use crate::Errno;
use crate::asynchronous::{
    MOST_BUFFERS, MOST_FILES, PARAMETERS_LEN, RegisteredBuffer, Ring, RingFile, is_supported,
};
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::io_uring as abi;
use isola_linux_abi::numbers::{CAP_IPC_LOCK, O_CLOEXEC, RLIMIT_MEMLOCK};
use isola_linux_files::{EventCounter, OpenFile};
use isola_user_mode::Access;

/// What rings can do.
const FEATURES: u32 = abi::IORING_FEAT_SINGLE_MMAP
    | abi::IORING_FEAT_NODROP
    | abi::IORING_FEAT_SUBMIT_STABLE
    | abi::IORING_FEAT_RW_CUR_POS
    | abi::IORING_FEAT_CUR_PERSONALITY
    | abi::IORING_FEAT_FAST_POLL
    | abi::IORING_FEAT_EXT_ARG
    | abi::IORING_FEAT_NATIVE_WORKERS
    | abi::IORING_FEAT_CQE_SKIP
    | abi::IORING_FEAT_LINKED_FILE;

pub async fn io_uring_setup(thread: &mut Thread, entries: u32, parameters: u64) -> CallResult {
    let mut bytes = thread.memory.read_bytes::<PARAMETERS_LEN>(parameters).await?;
    let (completions, flags) = (half_at(&bytes, 4), half_at(&bytes, 8));
    // Reserved words.
    if (28..40).any(|at| bytes[at] != 0) {
        return Err(Errno::EINVAL);
    }
    let refused = flags & (abi::IORING_SETUP_SQPOLL | abi::IORING_SETUP_IOPOLL);
    if refused != 0 {
        thread.system.missing.count(&alloc::format!("io_uring_setup flags {refused:#x}"));
    }
    let file = Ring::open(entries, completions, flags, &thread.system.memory_charge)?;
    let ring = ring_of(&file)?;
    let (entries, completions) = ring.pages().entries;
    let (submission_offsets, completion_offsets) = ring.pages().offsets();
    let mut put = |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    put(0, entries);
    put(4, completions);
    put(20, FEATURES);
    for at in (40..PARAMETERS_LEN).step_by(4) {
        put(at, 0);
    }
    for (index, (submission, completion)) in
        submission_offsets.into_iter().zip(completion_offsets).enumerate()
    {
        put(40 + index * 4, submission);
        put(80 + index * 4, completion);
    }
    thread.memory.write_bytes(parameters, &bytes).await?;
    install(thread, file, O_CLOEXEC)
}

/// Returns the ring of a file.
fn ring_of(file: &Arc<OpenFile>) -> Result<Arc<Ring>, Errno> {
    file.object_as::<RingFile>().map(|file| file.ring.clone()).ok_or(Errno::EOPNOTSUPP)
}

pub async fn io_uring_enter(
    thread: &mut Thread,
    descriptor: i32,
    submissions: u32,
    least: u32,
    flags: u32,
    argument: u64,
    len: u64,
) -> CallResult {
    const KNOWN: u32 = abi::IORING_ENTER_GETEVENTS
        | abi::IORING_ENTER_SQ_WAKEUP
        | abi::IORING_ENTER_SQ_WAIT
        | abi::IORING_ENTER_EXT_ARG;
    if flags & !KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    let ring = ring_of(&thread.files.get(descriptor)?)?;
    let submitted = ring.submit(thread, submissions).await?;
    // As in Linux, a call that submits fewer entries than it was to does not wait.
    if flags & abi::IORING_ENTER_GETEVENTS == 0 || submitted != submissions {
        return Ok(submitted.into());
    }
    let waited = wait(thread, &ring, least, flags & abi::IORING_ENTER_EXT_ARG != 0, argument, len).await;
    match waited {
        // Entries that were submitted count before an error of the wait.
        Err(_) if submitted > 0 => Ok(submitted.into()),
        Err(error) => Err(error),
        Ok(()) => Ok(submitted.into()),
    }
}

/// Waits for completions, with another signal mask or a timeout if the argument asks for that.
async fn wait(
    thread: &mut Thread,
    ring: &Ring,
    least: u32,
    is_extended: bool,
    argument: u64,
    len: u64,
) -> Result<(), Errno> {
    let (mut mask, mut mask_len, mut until_ns) = (argument, len, None);
    if is_extended {
        if len != 24 {
            return Err(Errno::EINVAL);
        }
        let bytes = thread.memory.read_bytes::<24>(argument).await?;
        // The upper half of the second word is the shortest time of a wait, which has no effect.
        (mask, mask_len) = (word_at(&bytes, 0), word_at(&bytes, 8) & 0xffff_ffff);
        if word_at(&bytes, 16) != 0 {
            let time = read_timespec(thread, word_at(&bytes, 16)).await?;
            until_ns = Some(thread.system.environment.monotonic_ns().saturating_add(time));
        }
    }
    replace_mask_by(thread, mask, mask_len).await?;
    let result = thread.interruptible_until(until_ns, ring.wait_for(least)).await;
    match result {
        Ok(Some(())) => {
            restore_mask(thread);
            Ok(())
        }
        Ok(None) => {
            restore_mask(thread);
            if ring.available() > 0 { Ok(()) } else { Err(Errno::ETIME) }
        }
        Err(_) if ring.available() > 0 => {
            restore_mask(thread);
            Ok(())
        }
        Err(_) => Err(Errno::EINTR),
    }
}

pub async fn io_uring_register(
    thread: &mut Thread,
    descriptor: i32,
    operation: u32,
    argument: u64,
    count: u32,
) -> CallResult {
    use abi::io_uring_register_op as register;
    const BUFFERS: u32 = register::IORING_REGISTER_BUFFERS as u32;
    const NO_BUFFERS: u32 = register::IORING_UNREGISTER_BUFFERS as u32;
    const FILES: u32 = register::IORING_REGISTER_FILES as u32;
    const NO_FILES: u32 = register::IORING_UNREGISTER_FILES as u32;
    const FILES_UPDATE: u32 = register::IORING_REGISTER_FILES_UPDATE as u32;
    const EVENTFD: u32 = register::IORING_REGISTER_EVENTFD as u32;
    const EVENTFD_ASYNC: u32 = register::IORING_REGISTER_EVENTFD_ASYNC as u32;
    const NO_EVENTFD: u32 = register::IORING_UNREGISTER_EVENTFD as u32;
    const PROBE: u32 = register::IORING_REGISTER_PROBE as u32;
    const ENABLE: u32 = register::IORING_REGISTER_ENABLE_RINGS as u32;
    let ring = ring_of(&thread.files.get(descriptor)?)?;
    let registered = &ring.registered;
    let takes_nothing = matches!(operation, NO_BUFFERS | NO_FILES | NO_EVENTFD | ENABLE);
    if takes_nothing && (argument != 0 || count != 0) {
        return Err(Errno::EINVAL);
    }
    match operation {
        BUFFERS => registered.set_buffers(read_buffers(thread, argument, count).await?)?,
        NO_BUFFERS => registered.clear_buffers()?,
        FILES => {
            let files = read_files(thread, argument, count).await?;
            registered.set_files(files)?;
        }
        NO_FILES => registered.clear_files()?,
        FILES_UPDATE => {
            let bytes = thread.memory.read_bytes::<16>(argument).await?;
            let (first, list) = (word_at(&bytes, 0) as u32, word_at(&bytes, 8));
            if word_at(&bytes, 0) >> 32 != 0 || count == 0 {
                return Err(Errno::EINVAL);
            }
            let files = read_files(thread, list, count).await?;
            for (index, file) in (u64::from(first)..).zip(files) {
                registered.replace_file(u32::try_from(index).map_err(|_| Errno::EINVAL)?, file)?;
            }
            return Ok(count.into());
        }
        EVENTFD | EVENTFD_ASYNC => {
            if count != 1 {
                return Err(Errno::EINVAL);
            }
            let number = i32::from_le_bytes(thread.memory.read_bytes(argument).await?);
            let file = thread.files.get(number)?;
            file.object_as::<EventCounter>().ok_or(Errno::EINVAL)?;
            registered.set_counter(file)?;
        }
        NO_EVENTFD => registered.clear_counter()?,
        PROBE => probe(thread, argument, count).await?,
        ENABLE => ring.enable()?,
        _ => {
            thread.system.missing.count(&alloc::format!("io_uring_register {operation}"));
            return Err(Errno::EINVAL);
        }
    }
    Ok(0)
}

/// Reads a list of descriptors; -1 leaves a place free.
async fn read_files(thread: &Thread, list: u64, count: u32) -> Result<Vec<Option<Arc<OpenFile>>>, Errno> {
    if count == 0 {
        return Err(Errno::EINVAL);
    }
    if count > MOST_FILES {
        return Err(Errno::EMFILE);
    }
    let mut bytes = alloc::vec![0; count as usize * 4];
    thread.memory.read_to(list, &mut bytes).await?;
    let file = |part: &[u8]| {
        let descriptor = i32::from_le_bytes([part[0], part[1], part[2], part[3]]);
        if descriptor == -1 {
            return Ok(None);
        }
        let file = thread.files.get(descriptor)?;
        // A ring that refers to a ring could keep itself alive.
        if file.object_as::<RingFile>().is_some() { Err(Errno::EBADF) } else { Ok(Some(file)) }
    };
    bytes.chunks_exact(4).map(file).collect()
}

/// Reads a list of buffers, and resolves them to frames. An address of 0 leaves a place free.
async fn read_buffers(
    thread: &Thread,
    list: u64,
    count: u32,
) -> Result<Vec<Option<RegisteredBuffer>>, Errno> {
    /// The most bytes of a buffer.
    const MOST_LEN: u64 = 1 << 30;
    if count == 0 || count > MOST_BUFFERS {
        return Err(Errno::EINVAL);
    }
    let mut bytes = alloc::vec![0; count as usize * 16];
    thread.memory.read_to(list, &mut bytes).await?;
    let has_limit = !thread.file_credentials.has_capability(CAP_IPC_LOCK);
    let mut left = if has_limit { thread.process.limits.lock().soft(RLIMIT_MEMLOCK) } else { u64::MAX };
    let mut buffers = Vec::new();
    for part in bytes.chunks_exact(16) {
        let (address, len) = (word_at(part, 0), word_at(part, 8));
        buffers.push(match (address, len) {
            (0, 0) => None,
            (_, 0) => return Err(Errno::EFAULT),
            (_, len) if len > MOST_LEN => return Err(Errno::EFAULT),
            _ => {
                left = left.checked_sub(len).ok_or(Errno::ENOMEM)?;
                let buffer = thread.memory.buffer(address, len, Access::Write).await?;
                if buffer.len() as u64 != len {
                    return Err(Errno::EFAULT);
                }
                Some(RegisteredBuffer { address, buffer })
            }
        });
    }
    Ok(buffers)
}

/// Writes which operations are supported.
async fn probe(thread: &Thread, address: u64, count: u32) -> Result<(), Errno> {
    /// `IO_URING_OP_SUPPORTED`.
    const SUPPORTED: u16 = 1;
    const HEADER: usize = 16;
    const LAST: u32 = abi::io_uring_op::IORING_OP_LAST as u32;
    if count > 256 {
        return Err(Errno::EINVAL);
    }
    let count = count.min(LAST);
    let mut bytes = alloc::vec![0; HEADER + count as usize * 8];
    thread.memory.read_to(address, &mut bytes).await?;
    if bytes.iter().any(|byte| *byte != 0) {
        return Err(Errno::EINVAL);
    }
    (bytes[0], bytes[1]) = ((LAST - 1) as u8, count as u8);
    for (number, part) in (0..=u8::MAX).zip(bytes[HEADER..].chunks_exact_mut(8)) {
        part[0] = number;
        if is_supported(number) {
            part[2..4].copy_from_slice(&SUPPORTED.to_le_bytes());
        }
    }
    thread.memory.write_bytes(address, &bytes).await
}
