//! `/proc/sysvipc`: the objects of System V inter-process communication.

use crate::system::System;
use alloc::format;
use alloc::string::String;
use isola_linux_memory::SharedMemory;

pub(super) fn shared_memories(system: &System) -> String {
    let heading = "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
                   atime      dtime      ctime                   rss                  swap\n";
    system.ipc.memories.lock().iter().fold(heading.into(), |text, (id, permissions, segment)| {
        let resident = segment.pages().map_or(0, |pages: alloc::sync::Arc<SharedMemory>| pages.resident() * 4096);
        text + &format!(
            "{:10} {id:10}  {:4o} {:21} {:5} {:5}  {:5} {:5} {:5} {:5} {:5} {:10} {:10} {:10} {resident:21} {:21}\n",
            permissions.key,
            permissions.mode,
            segment.len,
            segment.creator,
            segment.last,
            segment.attachments(),
            permissions.user,
            permissions.group,
            permissions.creator,
            permissions.creator_group,
            segment.attached,
            segment.detached,
            segment.changed,
            0
        )
    })
}

pub(super) fn semaphores(system: &System) -> String {
    let heading = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
    system.ipc.semaphores.table.lock().iter().fold(heading.into(), |text, (id, permissions, set)| {
        text + &format!(
            "{:10} {id:10}  {:4o} {:10} {:5} {:5} {:5} {:5} {:10} {:10}\n",
            permissions.key,
            permissions.mode,
            set.semaphores().len(),
            permissions.user,
            permissions.group,
            permissions.creator,
            permissions.creator_group,
            set.operated,
            set.changed
        )
    })
}

pub(super) fn messages(system: &System) -> String {
    let heading = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      \
                   stime      rtime      ctime\n";
    system.ipc.messages.table.lock().iter().fold(heading.into(), |text, (id, permissions, queue)| {
        let (count, bytes) = queue.len();
        text + &format!(
            "{:10} {id:10}  {:4o} {bytes:11} {count:10} {:5} {:5} {:5} {:5} {:5} {:5} {:10} {:10} {:10}\n",
            permissions.key,
            permissions.mode,
            queue.last_sender,
            queue.last_receiver,
            permissions.user,
            permissions.group,
            permissions.creator,
            permissions.creator_group,
            queue.sent,
            queue.received,
            queue.changed
        )
    })
}
