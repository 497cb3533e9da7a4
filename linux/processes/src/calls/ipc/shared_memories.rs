//! `shmget` and its relatives.

use super::{
    CallResult, IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT, PERMISSIONS_LEN, Structure, caller, read_permissions,
};
use crate::Errno;
use crate::calls::{PAGE, unsupported};
use crate::ipc::{GetRequest, MOST_SEGMENTS};
use crate::thread::Thread;
use isola_linux_abi::numbers::{
    MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_SHARED, PROT_EXEC, PROT_READ, PROT_WRITE,
};
use isola_linux_memory::{MapObject, MapRequest, Protection};

/// Flags and commands, from Linux's `linux/shm.h`.
const SHM_RDONLY: u32 = 0o10_000;
const SHM_RND: u32 = 0o20_000;
const SHM_REMAP: u32 = 0o40_000;
const SHM_EXEC: u32 = 0o100_000;
const SHM_HUGETLB: u32 = 0o4_000;
const SHM_LOCK: u32 = 11;
const SHM_UNLOCK: u32 = 12;
const SHM_STAT: u32 = 13;
const SHM_INFO: u32 = 14;
const SHM_STAT_ANY: u32 = 15;

/// The length of `struct shmid64_ds`, in bytes.
const SEGMENT_LEN: usize = PERMISSIONS_LEN + 64;

pub fn shmget(thread: &mut Thread, key: i32, len: u64, flags: u32) -> CallResult {
    if flags & SHM_HUGETLB != 0 {
        return Err(unsupported(thread, "shmget with huge pages", Errno::ENOMEM));
    }
    let (request, charge) = (GetRequest { key, flags }, &thread.system.memory_charge);
    thread.system.ipc.memories.get(request, len, &caller(thread), charge).map(|id| id as u64)
}

pub async fn shmat(thread: &mut Thread, id: i32, address: u64, flags: u32) -> CallResult {
    if flags & !(SHM_RDONLY | SHM_RND | SHM_REMAP | SHM_EXEC) != 0 {
        return Err(Errno::EINVAL);
    }
    let address = match address {
        0 if flags & SHM_REMAP != 0 => return Err(Errno::EINVAL),
        address if address.is_multiple_of(PAGE) => address,
        address if flags & SHM_RND != 0 => address & !(PAGE - 1),
        _ => return Err(Errno::EINVAL),
    };
    let is_read_only = flags & SHM_RDONLY != 0;
    let (pages, len) = {
        let caller = caller(thread);
        let mut table = thread.system.ipc.memories.lock();
        let wanted = if is_read_only { 4 } else { 6 };
        let (_, segment) = table.access(id, &caller, wanted)?;
        let pages = segment.pages().ok_or(Errno::EINVAL)?;
        (segment.attached, segment.last) = (caller.now, caller.pid);
        (pages, segment.len)
    };
    let protection = PROT_READ
        | if is_read_only { 0 } else { PROT_WRITE }
        | if flags & SHM_EXEC == 0 { 0 } else { PROT_EXEC };
    let permitted = if is_read_only { PROT_READ | PROT_EXEC } else { PROT_READ | PROT_WRITE | PROT_EXEC };
    let placement = match address {
        0 => 0,
        _ if flags & SHM_REMAP != 0 => MAP_FIXED,
        _ => MAP_FIXED_NOREPLACE,
    };
    let request = MapRequest {
        address,
        len,
        protection,
        flags: MAP_SHARED | placement,
        object: Some(MapObject { source: pages, permitted: Protection::from_bits(permitted), path: None }),
        ..MapRequest::default()
    };
    debug_assert!(request.flags & MAP_ANONYMOUS == 0);
    // An occupied address is EINVAL here.
    thread
        .memory
        .map(request)
        .await
        .map_err(|error| if error == Errno::EEXIST { Errno::EINVAL } else { error })
}

pub async fn shmdt(thread: &mut Thread, address: u64) -> CallResult {
    // The parts of the attachment that begins at the address: a program can have changed some of them.
    let mappings = thread.memory.mappings();
    let starts = |mapping: &&isola_linux_memory::Mapping| {
        mapping.object.as_ref().is_some_and(|object| {
            mapping.is_shared && mapping.start.checked_sub(object.first * PAGE) == Some(address)
        })
    };
    let identity = mappings
        .iter()
        .find(|mapping| mapping.start == address)
        .filter(starts)
        .and_then(|mapping| mapping.object.as_ref())
        .map(|object| object.source.identity())
        .ok_or(Errno::EINVAL)?;
    if !thread.system.ipc.memories.note_detachment(identity, &caller(thread)) {
        return Err(Errno::EINVAL);
    }
    for mapping in mappings.iter().filter(starts) {
        if mapping.object.as_ref().is_some_and(|object| object.source.identity() == identity) {
            thread.memory.unmap(mapping.start, mapping.end - mapping.start).await?;
        }
    }
    Ok(0)
}

pub async fn shmctl(thread: &mut Thread, id: i32, command: u32, buffer: u64) -> CallResult {
    match command {
        IPC_RMID => {
            thread.system.ipc.memories.remove(id, &caller(thread))?;
            Ok(0)
        }
        IPC_SET => {
            let (user, group, mode) = read_permissions(thread, buffer).await?;
            let caller = caller(thread);
            let mut table = thread.system.ipc.memories.lock();
            let (permissions, segment) = table.get(id)?;
            permissions.set(&caller, user, group, mode)?;
            segment.changed = caller.now;
            Ok(0)
        }
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let (result, structure) = stat(thread, id, command)?;
            structure.write(thread, buffer).await?;
            Ok(result)
        }
        IPC_INFO => {
            let mut structure = Structure::<72>::new();
            let most = thread.system.ipc.memories.most_bytes;
            for (index, word) in
                [most, 1, MOST_SEGMENTS as u64, MOST_SEGMENTS as u64, most / PAGE].into_iter().enumerate()
            {
                structure.put_u64(8 * index, word);
            }
            structure.write(thread, buffer).await?;
            Ok(most_index(thread))
        }
        SHM_INFO => {
            let mut structure = Structure::<48>::new();
            {
                let mut table = thread.system.ipc.memories.lock();
                structure.put_u32(0, table.count() as u32);
                structure.put_u64(8, table.iter().map(|(_, _, segment)| segment.len.div_ceil(PAGE)).sum());
                let resident = |pages: alloc::sync::Arc<isola_linux_memory::SharedMemory>| pages.resident();
                structure.put_u64(
                    16,
                    table.iter().filter_map(|(_, _, segment)| segment.pages().map(resident)).sum(),
                );
            }
            structure.write(thread, buffer).await?;
            Ok(most_index(thread))
        }
        // Pages never move to disk.
        SHM_LOCK | SHM_UNLOCK => {
            let caller = caller(thread);
            let mut table = thread.system.ipc.memories.lock();
            table.get(id)?.0.check_owner(&caller)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

fn most_index(thread: &Thread) -> u64 {
    thread.system.ipc.memories.lock().count().saturating_sub(1) as u64
}

/// Returns the facts of a segment, and the result of the call.
fn stat(thread: &Thread, id: i32, command: u32) -> Result<(u64, Structure<SEGMENT_LEN>), Errno> {
    let caller = caller(thread);
    let mut table = thread.system.ipc.memories.lock();
    let id = if command == IPC_STAT { id } else { table.id_of_index(id)? };
    let wanted = if command == SHM_STAT_ANY { 0 } else { 4 };
    let (permissions, segment) = table.access(id, &caller, wanted)?;
    let mut structure = Structure::new();
    structure.put_permissions(permissions);
    for (at, word) in
        [(48, segment.len), (56, segment.attached), (64, segment.detached), (72, segment.changed)]
    {
        structure.put_u64(at, word);
    }
    structure.put_u32(80, segment.creator);
    structure.put_u32(84, segment.last);
    structure.put_u64(88, segment.attachments());
    Ok((if command == IPC_STAT { 0 } else { id as u64 }, structure))
}
