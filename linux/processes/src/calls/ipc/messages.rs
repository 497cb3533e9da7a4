//! `msgget` and its relatives.

use super::{
    CallResult, IPC_INFO, IPC_NOWAIT, IPC_RMID, IPC_SET, IPC_STAT, PERMISSIONS_LEN, Structure, caller,
    read_permissions,
};
use crate::Errno;
use crate::calls::unsupported;
use crate::ipc::{GetRequest, MOST_MESSAGE_BYTES, MOST_QUEUE_BYTES, Message, MessageSelector};
use crate::thread::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_linux_abi::numbers::CAP_SYS_RESOURCE;

/// Flags and commands, from Linux's `linux/msg.h`.
const MSG_NOERROR: u32 = 0o10_000;
const MSG_EXCEPT: u32 = 0o20_000;
const MSG_COPY: u32 = 0o40_000;
const MSG_STAT: u32 = 11;
const MSG_INFO: u32 = 12;
const MSG_STAT_ANY: u32 = 13;

/// The length of `struct msqid64_ds`, in bytes.
const QUEUE_LEN: usize = PERMISSIONS_LEN + 72;
/// The bytes of a message before its text: the type.
const KIND_LEN: u64 = 8;

pub fn msgget(thread: &mut Thread, key: i32, flags: u32) -> CallResult {
    thread.system.ipc.messages.get(GetRequest { key, flags }, &caller(thread)).map(|id| id as u64)
}

pub async fn msgsnd(thread: &mut Thread, id: i32, message: u64, len: u64, flags: u32) -> CallResult {
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST_MESSAGE_BYTES).ok_or(Errno::EINVAL)?;
    let kind = i64::from_le_bytes(thread.memory.read_bytes::<8>(message).await?);
    if kind < 1 {
        return Err(Errno::EINVAL);
    }
    let mut text = alloc::vec![0; len];
    thread.memory.read_to(message.wrapping_add(KIND_LEN), &mut text).await?;
    let messages = &thread.system.ipc.messages;
    let changes = messages.table.lock().access(id, &caller(thread), 2)?.1.changes.clone();
    let mut left = Some(Message { kind, text });
    let mut attempt = || {
        let caller = caller(thread);
        let mut table = messages.table.lock();
        let Ok((_, queue)) = table.get(id) else { return Some(Err(Errno::EIDRM)) };
        match queue.send(left.take()?, caller.pid, caller.now) {
            Ok(()) => Some(Ok(())),
            Err(message) => {
                left = Some(message);
                None
            }
        }
    };
    let result = match attempt() {
        Some(result) => result,
        None if flags & IPC_NOWAIT != 0 => Err(Errno::EAGAIN),
        None => thread.interruptible(changes.wait_until(attempt)).await.unwrap_or(Err(Errno::ERESTARTNOHAND)),
    };
    result?;
    changes.wake_all();
    Ok(0)
}

pub async fn msgrcv(
    thread: &mut Thread,
    id: i32,
    message: u64,
    len: u64,
    kind: i64,
    flags: u32,
) -> CallResult {
    let len = usize::try_from(len as i64).map_err(|_| Errno::EINVAL)?;
    if flags & MSG_COPY != 0 {
        return Err(unsupported(thread, "msgrcv of copies", Errno::ENOSYS));
    }
    let selector = match kind {
        0 => MessageSelector::First,
        1.. if flags & MSG_EXCEPT != 0 => MessageSelector::Except(kind),
        1.. => MessageSelector::Of(kind),
        _ => MessageSelector::LowestUpTo(kind.saturating_neg()),
    };
    let messages = &thread.system.ipc.messages;
    let changes = messages.table.lock().access(id, &caller(thread), 4)?.1.changes.clone();
    let attempt = || {
        let caller = caller(thread);
        let mut table = messages.table.lock();
        let Ok((_, queue)) = table.get(id) else { return Some(Err(Errno::EIDRM)) };
        queue.receive(selector, len, flags & MSG_NOERROR != 0, caller.pid, caller.now).transpose()
    };
    let found = match attempt() {
        Some(result) => result?,
        None if flags & IPC_NOWAIT != 0 => return Err(Errno::ENOMSG),
        None => {
            thread.interruptible(changes.wait_until(attempt)).await.unwrap_or(Err(Errno::ERESTARTNOHAND))?
        }
    };
    changes.wake_all();
    let mut bytes: Vec<u8> = found.kind.to_le_bytes().to_vec();
    bytes.extend(&found.text);
    thread.memory.write_bytes(message, &bytes).await?;
    Ok(found.text.len() as u64)
}

pub async fn msgctl(thread: &mut Thread, id: i32, command: u32, buffer: u64) -> CallResult {
    match command {
        IPC_RMID => {
            let removed = {
                let caller = caller(thread);
                let mut table = thread.system.ipc.messages.table.lock();
                table.get(id)?.0.check_owner(&caller)?;
                table.remove(id)
            };
            removed.iter().for_each(|queue| queue.changes.wake_all());
            Ok(0)
        }
        IPC_SET => {
            let (user, group, mode) = read_permissions(thread, buffer).await?;
            let bytes = thread.memory.read_bytes::<QUEUE_LEN>(buffer).await?;
            let most_bytes = u64::from_le_bytes(core::array::from_fn(|index| bytes[88 + index]));
            let changes: Arc<_> = {
                let caller = caller(thread);
                let mut table = thread.system.ipc.messages.table.lock();
                let (permissions, queue) = table.get(id)?;
                permissions.check_owner(&caller)?;
                // As in Linux; a capable process's limit is that of the table here.
                if most_bytes > MOST_QUEUE_BYTES {
                    let is_capable = thread.credentials.has(CAP_SYS_RESOURCE);
                    return Err(if is_capable { Errno::EINVAL } else { Errno::EPERM });
                }
                permissions.set(&caller, user, group, mode)?;
                (queue.most_bytes, queue.changed) = (most_bytes, caller.now);
                queue.changes.clone()
            };
            changes.wake_all();
            Ok(0)
        }
        IPC_STAT | MSG_STAT | MSG_STAT_ANY => {
            let (result, structure) = stat(thread, id, command)?;
            structure.write(thread, buffer).await?;
            Ok(result)
        }
        IPC_INFO | MSG_INFO => {
            let (queues, messages, bytes, most) = {
                let mut table = thread.system.ipc.messages.table.lock();
                let sum = |of: fn((u64, u64)) -> u64, table: &mut crate::ipc::Table<_>| {
                    table
                        .iter()
                        .map(|(_, _, queue): (_, _, &mut crate::ipc::MessageQueue)| of(queue.len()))
                        .sum::<u64>()
                };
                let messages = sum(|(count, _)| count, &mut table);
                let bytes = sum(|(_, bytes)| bytes, &mut table);
                (table.count(), messages, bytes, table.most() as u32)
            };
            let mut structure = Structure::<32>::new();
            let (pool, map, headers) = if command == MSG_INFO {
                (queues as u32, messages as u32, bytes as u32)
            } else {
                (most * MOST_QUEUE_BYTES as u32 / 1024, MOST_QUEUE_BYTES as u32, MOST_QUEUE_BYTES as u32)
            };
            let most_message = MOST_MESSAGE_BYTES as u32;
            for (index, word) in
                [pool, map, most_message, MOST_QUEUE_BYTES as u32, most, 16, headers].into_iter().enumerate()
            {
                structure.put_u32(4 * index, word);
            }
            structure.write(thread, buffer).await?;
            Ok(queues.saturating_sub(1) as u64)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the facts of a queue, and the result of the call.
fn stat(thread: &Thread, id: i32, command: u32) -> Result<(u64, Structure<QUEUE_LEN>), Errno> {
    let caller = caller(thread);
    let mut table = thread.system.ipc.messages.table.lock();
    let id = if command == IPC_STAT { id } else { table.id_of_index(id)? };
    let wanted = if command == MSG_STAT_ANY { 0 } else { 4 };
    let (permissions, queue) = table.access(id, &caller, wanted)?;
    let mut structure = Structure::new();
    structure.put_permissions(permissions);
    let (count, bytes) = queue.len();
    for (at, word) in [
        (48, queue.sent),
        (56, queue.received),
        (64, queue.changed),
        (72, bytes),
        (80, count),
        (88, queue.most_bytes),
    ] {
        structure.put_u64(at, word);
    }
    structure.put_u32(96, queue.last_sender);
    structure.put_u32(100, queue.last_receiver);
    Ok((if command == IPC_STAT { 0 } else { id as u64 }, structure))
}
