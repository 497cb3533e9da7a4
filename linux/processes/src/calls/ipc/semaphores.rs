//! `semget` and its relatives.

use super::{
    CallResult, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, PERMISSIONS_LEN, Structure, caller,
    read_permissions,
};
use crate::Errno;
use crate::calls::time::read_timespec;
use crate::ipc::{
    GetRequest, MOST_OPERATIONS, MOST_SEMAPHORES, MOST_SETS, MOST_VALUE, Operation, Semaphores, SetPart,
    Waiting,
};
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Flags and commands, from Linux's `linux/sem.h`.
const SEM_UNDO: u16 = 0x1000;
const GETPID: u32 = 11;
const GETVAL: u32 = 12;
const GETALL: u32 = 13;
const GETNCNT: u32 = 14;
const GETZCNT: u32 = 15;
const SETVAL: u32 = 16;
const SETALL: u32 = 17;
const SEM_STAT: u32 = 18;
const SEM_INFO: u32 = 19;
const SEM_STAT_ANY: u32 = 20;

/// The length of `struct semid64_ds`, in bytes.
const SET_LEN: usize = PERMISSIONS_LEN + 56;
/// The length of `struct sembuf`, in bytes.
const OPERATION_LEN: usize = 6;

pub fn semget(thread: &mut Thread, key: i32, count: i32, flags: u32) -> CallResult {
    let request = GetRequest { key, flags };
    thread.system.ipc.semaphores.get(request, count, &caller(thread)).map(|id| id as u64)
}

pub async fn semop(thread: &mut Thread, id: i32, operations: u64, count: u64) -> CallResult {
    semtimedop(thread, id, operations, count, 0).await
}

/// Counts a call as waiting for a semaphore while it lives.
struct WaitNote<'a> {
    semaphores: &'a Semaphores,
    id: i32,
    waiting: Option<Waiting>,
}

impl Drop for WaitNote<'_> {
    fn drop(&mut self) {
        if let (Some(waiting), Ok((_, set))) = (self.waiting, self.semaphores.table.lock().get(self.id)) {
            set.note_waiting(waiting, -1);
        }
    }
}

pub async fn semtimedop(
    thread: &mut Thread,
    id: i32,
    operations: u64,
    count: u64,
    timeout: u64,
) -> CallResult {
    let count = match usize::try_from(count) {
        Ok(0) => return Err(Errno::EINVAL),
        Ok(count) if count <= MOST_OPERATIONS => count,
        _ => return Err(Errno::E2BIG),
    };
    let until_ns = match timeout {
        0 => None,
        address => {
            let time = read_timespec(thread, address).await?;
            Some(thread.system.environment.monotonic_ns().saturating_add(time))
        }
    };
    let mut bytes = alloc::vec![0; OPERATION_LEN * count];
    thread.memory.read_to(operations, &mut bytes).await?;
    let operations: Vec<Operation> = bytes.chunks_exact(OPERATION_LEN).map(operation).collect();
    let semaphores = &thread.system.ipc.semaphores;
    let changes = {
        let caller = caller(thread);
        let wanted = if operations.iter().any(|operation| operation.change != 0) { 2 } else { 4 };
        semaphores.table.lock().access(id, &caller, wanted)?.1.changes.clone()
    };
    let mut note = WaitNote { semaphores, id, waiting: None };
    let mut attempt = || {
        let caller = caller(thread);
        let mut table = semaphores.table.lock();
        // The set that the call began with was removed; its id is not another's so soon.
        let Ok((_, set)) = table.get(id) else { return Some(Err(Errno::EIDRM)) };
        let outcome = set.operate(&operations, caller.pid, caller.now);
        if let Some(former) = note.waiting.take() {
            set.note_waiting(former, -1);
        }
        match outcome {
            Ok(None) => Some(Ok(())),
            Ok(Some(waiting)) => {
                set.note_waiting(waiting, 1);
                note.waiting = Some(waiting);
                None
            }
            Err(error) => Some(Err(error)),
        }
    };
    let result = match attempt() {
        Some(result) => result,
        None => match thread.interruptible_until(until_ns, changes.wait_until(attempt)).await {
            Ok(Some(result)) => result,
            Ok(None) => Err(Errno::EAGAIN),
            // As in Linux, also if the handler restarts calls.
            Err(_) => Err(Errno::EINTR),
        },
    };
    drop(note);
    result?;
    changes.wake_all();
    Ok(0)
}

/// Decodes a `struct sembuf`.
fn operation(bytes: &[u8]) -> Operation {
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    Operation {
        index: word(0),
        change: word(2) as i16,
        returns_at_once: word(4) & IPC_NOWAIT as u16 != 0,
        undoes: word(4) & SEM_UNDO != 0,
    }
}

pub async fn semctl(thread: &mut Thread, id: i32, index: i32, command: u32, argument: u64) -> CallResult {
    match command {
        IPC_RMID => {
            let changes = {
                let caller = caller(thread);
                let mut table = thread.system.ipc.semaphores.table.lock();
                table.get(id)?.0.check_owner(&caller)?;
                table.remove(id).map(|set| set.changes)
            };
            changes.iter().for_each(|changes: &Arc<_>| changes.wake_all());
            Ok(0)
        }
        IPC_SET => {
            let (user, group, mode) = read_permissions(thread, argument).await?;
            let caller = caller(thread);
            let mut table = thread.system.ipc.semaphores.table.lock();
            let (permissions, set) = table.get(id)?;
            permissions.set(&caller, user, group, mode)?;
            set.changed = caller.now;
            Ok(0)
        }
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => {
            let (result, structure) = stat(thread, id, command)?;
            structure.write(thread, argument).await?;
            Ok(result)
        }
        IPC_INFO | SEM_INFO => {
            let (sets, semaphores) = {
                let mut table = thread.system.ipc.semaphores.table.lock();
                (table.count(), table.iter().map(|(_, _, set)| set.semaphores().len()).sum::<usize>())
            };
            let (sets_shown, semaphores_shown) =
                if command == SEM_INFO { (sets as u32, semaphores as u32) } else { (20, MOST_VALUE as u32) };
            let most = MOST_SEMAPHORES as u32;
            let words =
                [most, MOST_SETS as u32, most, most, most, MOST_OPERATIONS as u32, MOST_OPERATIONS as u32];
            let mut structure = Structure::<40>::new();
            let shown = [sets_shown, MOST_VALUE as u32, semaphores_shown];
            for (place, word) in words.into_iter().chain(shown).enumerate() {
                structure.put_u32(4 * place, word);
            }
            structure.write(thread, argument).await?;
            Ok(sets.saturating_sub(1) as u64)
        }
        GETVAL | GETPID | GETNCNT | GETZCNT => {
            let caller = caller(thread);
            let mut table = thread.system.ipc.semaphores.table.lock();
            let (_, set) = table.access(id, &caller, 4)?;
            let semaphore = usize::try_from(index).ok().and_then(|index| set.semaphores().get(index));
            let semaphore = semaphore.ok_or(Errno::EINVAL)?;
            Ok(match command {
                GETVAL => semaphore.value as u64,
                GETPID => semaphore.last.into(),
                GETNCNT => semaphore.waiting_for_more.into(),
                _ => semaphore.waiting_for_zero.into(),
            })
        }
        GETALL => {
            let bytes: Vec<u8> = {
                let caller = caller(thread);
                let mut table = thread.system.ipc.semaphores.table.lock();
                let (_, set) = table.access(id, &caller, 4)?;
                set.semaphores().iter().flat_map(|semaphore| (semaphore.value as u16).to_le_bytes()).collect()
            };
            thread.memory.write_bytes(argument, &bytes).await?;
            Ok(0)
        }
        SETVAL => {
            let index = u16::try_from(index).map_err(|_| Errno::EINVAL)?;
            set(thread, id, SetPart::One(index, argument as i32))
        }
        SETALL => {
            let count = {
                let caller = caller(thread);
                let mut table = thread.system.ipc.semaphores.table.lock();
                table.access(id, &caller, 2)?.1.semaphores().len()
            };
            let mut bytes = alloc::vec![0; 2 * count];
            thread.memory.read_to(argument, &mut bytes).await?;
            let values: Vec<u16> =
                bytes.chunks_exact(2).map(|value| u16::from_le_bytes([value[0], value[1]])).collect();
            set(thread, id, SetPart::All(&values))
        }
        _ => Err(Errno::EINVAL),
    }
}

fn set(thread: &Thread, id: i32, part: SetPart<'_>) -> CallResult {
    let changes = {
        let caller = caller(thread);
        let mut table = thread.system.ipc.semaphores.table.lock();
        let (_, set) = table.access(id, &caller, 2)?;
        set.set(part, caller.pid, caller.now)?;
        set.changes.clone()
    };
    changes.wake_all();
    Ok(0)
}

/// Returns the facts of a set, and the result of the call.
fn stat(thread: &Thread, id: i32, command: u32) -> Result<(u64, Structure<SET_LEN>), Errno> {
    let caller = caller(thread);
    let mut table = thread.system.ipc.semaphores.table.lock();
    let id = if command == IPC_STAT { id } else { table.id_of_index(id)? };
    let wanted = if command == SEM_STAT_ANY { 0 } else { 4 };
    let (permissions, set) = table.access(id, &caller, wanted)?;
    let mut structure = Structure::new();
    structure.put_permissions(permissions);
    structure.put_u64(48, set.operated);
    structure.put_u64(64, set.changed);
    structure.put_u64(80, set.semaphores().len() as u64);
    Ok((if command == IPC_STAT { 0 } else { id as u64 }, structure))
}
