//! System V inter-process communication and POSIX message queues: the encoding of their structures.

mod messages;
mod posix_queues;
mod semaphores;
mod shared_memories;

pub use messages::{msgctl, msgget, msgrcv, msgsnd};
pub use posix_queues::{mq_getsetattr, mq_notify, mq_open, mq_timedreceive, mq_timedsend, mq_unlink};
pub use semaphores::{semctl, semget, semop, semtimedop};
pub use shared_memories::{shmat, shmctl, shmdt, shmget};

use super::CallResult;
use crate::Errno;
use crate::ipc::{IpcCaller, Permissions};
use crate::thread::Thread;

/// Commands of `shmctl`, `semctl` and `msgctl`, from Linux's `linux/ipc.h`.
const IPC_RMID: u32 = 0;
const IPC_SET: u32 = 1;
const IPC_STAT: u32 = 2;
const IPC_INFO: u32 = 3;
/// The flag of operations that do not wait.
const IPC_NOWAIT: u32 = 0o4000;

/// The length of `struct ipc64_perm`, in bytes.
const PERMISSIONS_LEN: usize = 48;

/// Returns the caller as the tables need it.
fn caller(thread: &Thread) -> IpcCaller<'_> {
    let now = thread.system.environment.unix_ns() / super::time::SECOND;
    IpcCaller { pid: thread.process.pid, credentials: &thread.credentials, now }
}

/// A structure that is written field by field.
struct Structure<const LEN: usize>([u8; LEN]);

impl<const LEN: usize> Structure<LEN> {
    fn new() -> Self {
        Self([0; LEN])
    }

    fn put_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    fn put_u64(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn put_permissions(&mut self, permissions: &Permissions) {
        let Permissions { key, user, group, creator, creator_group, mode } = *permissions;
        for (index, word) in [key as u32, user, group, creator, creator_group, mode].into_iter().enumerate() {
            self.put_u32(4 * index, word);
        }
    }

    async fn write(&self, thread: &Thread, address: u64) -> Result<(), Errno> {
        thread.memory.write_bytes(address, &self.0).await
    }
}

/// Reads the owner, group and mode of a `struct ipc64_perm`.
async fn read_permissions(thread: &Thread, address: u64) -> Result<(u32, u32, u32), Errno> {
    let bytes = thread.memory.read_bytes::<PERMISSIONS_LEN>(address).await?;
    let word = |index: usize| u32::from_le_bytes(core::array::from_fn(|byte| bytes[4 * index + byte]));
    Ok((word(1), word(2), word(5)))
}
