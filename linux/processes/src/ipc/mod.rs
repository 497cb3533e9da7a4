//! System V inter-process communication: shared memory, semaphores, message queues (sysvipc(7)).
//!
//! - [`Table`]: the objects of one kind, by id and key, with their [`Permissions`].
//! - [`SharedMemories`], [`Semaphores`], [`Messages`]: the three kinds.
//! - [`PosixQueues`]: POSIX message queues, which are open files.
//!
//! **Locks.** Each kind has one spin lock, held for the time of an operation without a wait. A call that waits checks the
//! state again when its object has changed.
//!
//! Not here: the encoding of structures (`calls::ipc`).

mod messages;
mod permissions;
mod posix_queues;
mod semaphores;
mod shared_memories;
mod table;

pub use messages::{MOST_MESSAGE_BYTES, MOST_QUEUE_BYTES, Message, MessageQueue, MessageSelector, Messages};
pub use permissions::{IpcCaller, Permissions};
pub use posix_queues::{
    MOST_LEN, MOST_MESSAGES, MOST_QUEUES, PRIORITIES, PosixQueue, PosixQueues, QueueNotice, QueueRequest,
    QueueSize,
};
pub use semaphores::{
    MOST_OPERATIONS, MOST_SEMAPHORES, MOST_VALUE, Operation, Semaphore, SemaphoreSet, Semaphores, SetPart,
    Waiting,
};
pub use shared_memories::{MOST_SEGMENTS, Segment, SharedMemories};
pub use table::{GetRequest, MOST_SETS, Table};

/// The objects of all processes of a cell.
#[derive(Debug)]
pub struct Ipc {
    /// Shared memory.
    pub memories: SharedMemories,
    /// Semaphores.
    pub semaphores: Semaphores,
    /// Message queues.
    pub messages: Messages,
    /// POSIX message queues.
    pub posix_queues: PosixQueues,
}

impl Ipc {
    /// Creates the tables for a cell with this memory.
    pub fn new(memory_len: u64) -> Self {
        Self {
            memories: SharedMemories::new(memory_len),
            semaphores: Semaphores::default(),
            messages: Messages::new(memory_len),
            posix_queues: PosixQueues::new(memory_len),
        }
    }
}
