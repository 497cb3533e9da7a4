//! POSIX message queues (mq_overview(7)).
//!
//! A queue has a name, an owner and permissions, and is an open file for each `mq_open`. It lives until its name was removed and
//! its last descriptor closed.
//!
//! **Limits.** There are at most [`MOST_QUEUES`] names. The room for the messages of a user's queues, full ones, is limited by
//! the RLIMIT_MSGQUEUE of the process that creates one, and that of all queues by a 32nd of the cell's memory.

use super::permissions::{IpcCaller, Permissions};
use crate::process::Process;
use crate::signals::{Signal, SignalFacts, SignalInfo};
use crate::{Errno, credentials::Credentials};
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::fmt;
use isola_linux_abi::numbers::{
    CAP_FOWNER, CAP_SYS_RESOURCE, O_ACCMODE, O_CREAT, O_EXCL, O_RDONLY, O_WRONLY,
};
use isola_linux_files::{Events, FileObject, InodeKind, Metadata, Outcome, Pollee};
use isola_linux_memory::UserBuffer;
use spin::Mutex;

/// The most names.
pub const MOST_QUEUES: usize = 256;
/// The most messages of a queue and bytes of a message, without and with CAP_SYS_RESOURCE.
pub const MOST_MESSAGES: [u64; 2] = [10, 65_536];
/// See [`MOST_MESSAGES`].
pub const MOST_LEN: [u64; 2] = [8192, 16 << 20];
/// The priorities are below this (`MQ_PRIO_MAX`).
pub const PRIORITIES: u32 = 32_768;
/// What a message counts beside its bytes.
const MESSAGE_OVERHEAD: u64 = 96;
/// The most bytes of a name.
const MOST_NAME: usize = 255;
/// `si_code`: a message has arrived in an empty queue.
const SI_MESGQ: i32 = -3;

/// The size of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueSize {
    /// The most messages.
    pub messages: u64,
    /// The most bytes of a message.
    pub len: u64,
}

impl Default for QueueSize {
    fn default() -> Self {
        Self { messages: MOST_MESSAGES[0], len: MOST_LEN[0] }
    }
}

/// A request to open a queue.
#[derive(Clone, Copy, Debug)]
pub struct QueueRequest {
    /// The flags of `mq_open`.
    pub flags: u32,
    /// The permissions of a new queue.
    pub mode: u32,
    /// The size of a new queue.
    pub size: QueueSize,
    /// The most bytes of all queues of the user.
    pub most_bytes: u64,
}

/// All queues with names.
pub struct PosixQueues {
    names: Mutex<BTreeMap<Vec<u8>, Arc<PosixQueue>>>,
    /// The most bytes of all queues.
    most_bytes: u64,
    /// The bytes that are reserved for the queues of each user.
    reserved: Arc<Mutex<BTreeMap<u32, u64>>>,
}

/// The room of a queue, which counts for a user.
struct Reservation {
    reserved: Arc<Mutex<BTreeMap<u32, u64>>>,
    user: u32,
    bytes: u64,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut reserved = self.reserved.lock();
        if let Some(bytes) = reserved.get_mut(&self.user) {
            *bytes -= self.bytes;
            if *bytes == 0 {
                reserved.remove(&self.user);
            }
        }
    }
}

/// What a process gets when a message arrives in the empty queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueNotice {
    /// Nothing: it only keeps others from asking.
    Nothing,
    /// A signal with this value.
    Signal(Signal, u64),
}

struct Notification {
    process: Weak<Process>,
    notice: QueueNotice,
}

#[derive(Default)]
struct QueueState {
    /// The messages, the next one first: by priority, then by age.
    messages: BTreeMap<(Reverse<u32>, u64), Vec<u8>>,
    sent: u64,
    /// The calls that wait for a message: while there are some, no process is notified.
    receivers: usize,
    notification: Option<Notification>,
}

/// A queue.
pub struct PosixQueue {
    permissions: Permissions,
    /// Its size.
    pub size: QueueSize,
    state: Mutex<QueueState>,
    pollee: Pollee,
    _reservation: Reservation,
}

/// A call that waits for a message. While it does, no process is notified.
pub struct WaitingReceiver<'a>(&'a PosixQueue);

impl Drop for WaitingReceiver<'_> {
    fn drop(&mut self) {
        self.0.state.lock().receivers -= 1;
    }
}

impl PosixQueues {
    /// Creates a table for a cell with this memory.
    pub fn new(memory_len: u64) -> Self {
        Self { names: Mutex::default(), most_bytes: memory_len / 32, reserved: Arc::default() }
    }

    /// Opens a queue, or creates it (`mq_open`).
    ///
    /// # Errors
    /// Those of mq_open(3).
    pub fn open(
        &self,
        name: &[u8],
        request: &QueueRequest,
        caller: &IpcCaller<'_>,
    ) -> Result<Arc<PosixQueue>, Errno> {
        check_name(name)?;
        let wanted = match request.flags & O_ACCMODE {
            O_RDONLY => 4,
            O_WRONLY => 2,
            O_ACCMODE => return Err(Errno::EINVAL),
            _ => 6,
        };
        let mut names = self.names.lock();
        if let Some(queue) = names.get(name) {
            if request.flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL {
                return Err(Errno::EEXIST);
            }
            queue.permissions.check(caller, wanted)?;
            return Ok(queue.clone());
        }
        if request.flags & O_CREAT == 0 {
            return Err(Errno::ENOENT);
        }
        let QueueSize { messages, len } = request.size;
        let limits = usize::from(caller.credentials.has(CAP_SYS_RESOURCE));
        if !(1..=MOST_MESSAGES[limits]).contains(&messages) || !(1..=MOST_LEN[limits]).contains(&len) {
            return Err(Errno::EINVAL);
        }
        if names.len() >= MOST_QUEUES {
            return Err(Errno::ENOSPC);
        }
        let queue = Arc::new(PosixQueue {
            permissions: Permissions::new(0, request.mode, caller),
            size: request.size,
            state: Mutex::default(),
            pollee: Pollee::new(),
            _reservation: self.reserve(
                caller.credentials,
                messages * (len + MESSAGE_OVERHEAD),
                request.most_bytes,
            )?,
        });
        names.insert(name.to_vec(), queue.clone());
        Ok(queue)
    }

    fn reserve(&self, credentials: &Credentials, bytes: u64, most: u64) -> Result<Reservation, Errno> {
        let user = credentials.user.real;
        let mut reserved = self.reserved.lock();
        let before = reserved.get(&user).copied().unwrap_or_default();
        let after = before.checked_add(bytes).filter(|after| *after <= most).ok_or(Errno::EMFILE)?;
        let of_all: u64 = reserved.values().sum();
        if of_all + bytes > self.most_bytes {
            return Err(Errno::ENOMEM);
        }
        reserved.insert(user, after);
        drop(reserved);
        Ok(Reservation { reserved: self.reserved.clone(), user, bytes })
    }

    /// Removes a name (`mq_unlink`).
    ///
    /// # Errors
    /// Those of mq_unlink(3), but for [`Errno::EPERM`], which the C library translates.
    pub fn unlink(&self, name: &[u8], credentials: &Credentials) -> Result<(), Errno> {
        check_name(name)?;
        let mut names = self.names.lock();
        let queue = names.get(name).ok_or(Errno::ENOENT)?;
        if credentials.user.files != queue.permissions.user && !credentials.has(CAP_FOWNER) {
            return Err(Errno::EPERM);
        }
        let removed = names.remove(name);
        drop(names);
        // The messages are freed without the lock.
        drop(removed);
        Ok(())
    }
}

/// Checks a name, without the slash that the C library removes.
fn check_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        [] => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        _ if name.contains(&b'/') => Err(Errno::EACCES),
        _ if name.len() > MOST_NAME => Err(Errno::ENAMETOOLONG),
        _ => Ok(()),
    }
}

impl PosixQueue {
    /// Adds a message, which is not longer than the queue permits. Returns the process to notify, with its signal.
    ///
    /// # Errors
    /// The message, if the queue is full.
    pub fn send(
        &self,
        message: Vec<u8>,
        priority: u32,
        sender: (u32, u32),
    ) -> Result<Option<(Arc<Process>, SignalInfo)>, Vec<u8>> {
        let mut state = self.state.lock();
        if state.messages.len() as u64 >= self.size.messages {
            return Err(message);
        }
        let number = state.sent;
        state.sent += 1;
        state.messages.insert((Reverse(priority), number), message);
        let notification = match state.messages.len() == 1 && state.receivers == 0 {
            true => state.notification.take(),
            false => None,
        };
        drop(state);
        self.pollee.notify(Events::IN);
        let (pid, uid) = sender;
        Ok(notification.and_then(|Notification { process, notice }| match notice {
            QueueNotice::Nothing => None,
            QueueNotice::Signal(signal, value) => {
                let facts = SignalFacts::Sender { pid, uid, value };
                Some((process.upgrade()?, SignalInfo { signal, code: SI_MESGQ, errno: 0, facts }))
            }
        }))
    }

    /// Removes the oldest message of the highest priority. Returns it with the priority.
    pub fn receive(&self) -> Option<(Vec<u8>, u32)> {
        let mut state = self.state.lock();
        let ((Reverse(priority), _), message) = state.messages.pop_first()?;
        drop(state);
        self.pollee.notify(Events::OUT);
        Some((message, priority))
    }

    /// Returns the number of messages.
    pub fn message_count(&self) -> u64 {
        self.state.lock().messages.len() as u64
    }

    /// Notes a call that waits for a message.
    pub fn wait_for_message(&self) -> WaitingReceiver<'_> {
        self.state.lock().receivers += 1;
        WaitingReceiver(self)
    }

    /// Notifies a process of the next message that arrives in the empty queue, once (`mq_notify`).
    ///
    /// # Errors
    /// [`Errno::EBUSY`] if another process, or the same one, has asked before.
    pub fn notify(&self, process: &Arc<Process>, notice: QueueNotice) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state
            .notification
            .as_ref()
            .and_then(|old| old.process.upgrade())
            .is_some_and(|old| !old.has_ended())
        {
            return Err(Errno::EBUSY);
        }
        state.notification = Some(Notification { process: Arc::downgrade(process), notice });
        Ok(())
    }

    /// Ends the notification of a process.
    pub fn end_notification(&self, process: &Arc<Process>) {
        let mut state = self.state.lock();
        if state.notification.as_ref().is_some_and(|old| old.process.as_ptr() == Arc::as_ptr(process)) {
            state.notification = None;
        }
    }
}

/// `sigev_notify` of a notice.
const SIGEV_SIGNAL: u32 = 0;
const SIGEV_NONE: u32 = 1;

impl PosixQueue {
    /// Returns what a read of the descriptor returns: the bytes of all messages, and the notification.
    fn text(&self) -> String {
        let state = self.state.lock();
        let bytes: usize = state.messages.values().map(Vec::len).sum();
        let asked =
            state.notification.as_ref().and_then(|asked| Some((asked.process.upgrade()?.pid, asked.notice)));
        drop(state);
        let (notify, signal, pid) = match asked {
            None => (0, 0, 0),
            Some((pid, QueueNotice::Nothing)) => (SIGEV_NONE, 0, pid),
            Some((pid, QueueNotice::Signal(signal, _))) => (SIGEV_SIGNAL, signal.number(), pid),
        };
        format!("QSIZE:{bytes:<10} NOTIFY:{notify:<5} SIGNO:{signal:<5} NOTIFY_PID:{pid:<6}\n")
    }
}

impl FileObject for PosixQueue {
    fn has_offsets(&self) -> bool {
        true
    }

    fn read_at<'a>(&'a self, offset: u64, buffer: &'a mut UserBuffer) -> Outcome<'a, usize> {
        let text = self.text();
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        Outcome::ok(buffer.write(&text.as_bytes()[start..]))
    }

    fn write_at<'a>(&'a self, _: u64, _: &'a mut UserBuffer) -> Outcome<'a, usize> {
        Outcome::error(Errno::EINVAL)
    }

    fn ready(&self) -> Events {
        let count = self.message_count();
        let read = if count > 0 { Events::IN } else { Events::NONE };
        let write = if count < self.size.messages { Events::OUT } else { Events::NONE };
        read | write
    }

    fn pollee(&self) -> Option<&Pollee> {
        Some(&self.pollee)
    }

    fn metadata(&self) -> Metadata {
        let Permissions { user, group, mode, .. } = self.permissions;
        Metadata { user, group, ..Metadata::anonymous(InodeKind::File, 0, mode) }
    }

    fn description(&self) -> Vec<u8> {
        b"mqueue:[queue]".to_vec()
    }
}

impl fmt::Debug for PosixQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PosixQueues({} names)", self.names.lock().len())
    }
}
