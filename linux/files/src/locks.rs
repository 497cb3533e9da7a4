//! Locks on files: those of open files (`flock`, and `F_OFD_SETLK`), and record locks of processes (`fcntl(F_SETLK)`).
//!
//! All locks are in one table, by the identity of the file. A waiting request is registered with its owner, so that a
//! request that would wait for itself over others is refused (`EDEADLK`); only record locks of processes are.

use crate::Errno;
use crate::events::{Events, Pollee};
use crate::metadata::DeviceNumber;
use crate::open_file::OpenFile;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::Mutex;

/// The identity of a file.
type FileKey = (DeviceNumber, u64);

/// The owner of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockOwner {
    /// A process, by the number of its descriptor table; and the process's id, which `F_GETLK` returns.
    Process(u64, u32),
    /// An open file.
    OpenFile(u64),
}

impl LockOwner {
    fn is(self, other: Self) -> bool {
        match (self, other) {
            (Self::Process(one, _), Self::Process(other, _)) => one == other,
            _ => self == other,
        }
    }
}

/// The type of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Several owners can have it.
    Shared,
    /// One owner has it.
    Exclusive,
}

/// A region of a file: from the first byte to the last, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockRegion {
    /// The first byte.
    pub first: u64,
    /// The last byte.
    pub last: u64,
}

impl LockRegion {
    /// The whole file, as it will ever be.
    pub const ALL: Self = Self { first: 0, last: i64::MAX as u64 };

    /// Returns the region of a `struct flock`, whose start is already relative to the beginning. A length of 0 reaches to
    /// the end of the file, a negative one before the start.
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if it begins before the file, [`Errno::EOVERFLOW`] if it ends behind the largest offset.
    pub fn of_start_and_len(start: i64, len: i64) -> Result<Self, Errno> {
        let (first, last) = match len {
            0 => (start, i64::MAX),
            1.. => (start, start.checked_add(len - 1).ok_or(Errno::EOVERFLOW)?),
            _ => (start.checked_add(len).ok_or(Errno::EINVAL)?, start.checked_sub(1).ok_or(Errno::EINVAL)?),
        };
        let part = |offset| u64::try_from(offset).map_err(|_| Errno::EINVAL);
        Ok(Self { first: part(first)?, last: part(last)? })
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// A lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// The owner.
    pub owner: LockOwner,
    /// The type.
    pub kind: LockKind,
    /// The region.
    pub region: LockRegion,
}

/// Which of the two independent families of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockFamily {
    /// `flock`.
    Whole,
    /// `fcntl`.
    Record,
}

#[derive(Default)]
struct FileLocks {
    whole: Vec<FileLock>,
    record: Vec<FileLock>,
}

impl FileLocks {
    fn of(&mut self, family: LockFamily) -> &mut Vec<FileLock> {
        match family {
            LockFamily::Whole => &mut self.whole,
            LockFamily::Record => &mut self.record,
        }
    }
}

struct Locks {
    files: BTreeMap<FileKey, FileLocks>,
    /// Processes that wait, and the owners of the locks for which they wait.
    waiting: Vec<(u64, Vec<LockOwner>)>,
}

static LOCKS: Mutex<Locks> = Mutex::new(Locks { files: BTreeMap::new(), waiting: Vec::new() });
/// Notified when locks were released.
static RELEASED: Pollee = Pollee::new();
/// The number of files with locks: without any, closing a descriptor takes no lock of the table.
static LOCKED_FILES: AtomicUsize = AtomicUsize::new(0);

fn key(file: &OpenFile) -> FileKey {
    let metadata = file.metadata();
    (metadata.device, metadata.inode)
}

/// Returns the first lock of another owner that excludes this one.
fn conflict<'a>(locks: &'a [FileLock], wanted: &FileLock) -> Option<&'a FileLock> {
    let excludes = |lock: &&FileLock| {
        !lock.owner.is(wanted.owner)
            && lock.region.overlaps(wanted.region)
            && (lock.kind == LockKind::Exclusive || wanted.kind == LockKind::Exclusive)
    };
    locks.iter().find(excludes)
}

/// Removes an owner's locks from a region. Parts of locks outside stay.
fn remove(locks: &mut Vec<FileLock>, owner: LockOwner, region: LockRegion) {
    let mut rests = Vec::new();
    locks.retain(|lock| {
        if !lock.owner.is(owner) || !lock.region.overlaps(region) {
            return true;
        }
        if lock.region.first < region.first {
            rests.push(FileLock { region: LockRegion { last: region.first - 1, ..lock.region }, ..*lock });
        }
        if lock.region.last > region.last {
            rests.push(FileLock { region: LockRegion { first: region.last + 1, ..lock.region }, ..*lock });
        }
        false
    });
    locks.append(&mut rests);
}

impl Locks {
    /// Returns whether a process would wait for itself if it waited for these owners.
    fn is_deadlock(&self, process: u64, owners: &[LockOwner]) -> bool {
        let mut to_see = owners.to_vec();
        let mut seen = Vec::new();
        while let Some(owner) = to_see.pop() {
            let LockOwner::Process(other, _) = owner else { continue };
            if other == process {
                return true;
            }
            if seen.contains(&other) {
                continue;
            }
            seen.push(other);
            let next = self.waiting.iter().filter(|(waiting, _)| *waiting == other);
            to_see.extend(next.flat_map(|(_, owners)| owners.iter().copied()));
        }
        false
    }

    fn try_lock(&mut self, key: FileKey, family: LockFamily, wanted: &FileLock) -> Result<(), FileLock> {
        let locks = self.files.entry(key).or_default().of(family);
        let outcome = match conflict(locks, wanted) {
            Some(lock) => Err(*lock),
            None => {
                remove(locks, wanted.owner, wanted.region);
                locks.push(*wanted);
                Ok(())
            }
        };
        self.count();
        outcome
    }

    /// Drops files without locks, and counts the others.
    fn count(&mut self) {
        self.files.retain(|_, locks| !locks.whole.is_empty() || !locks.record.is_empty());
        LOCKED_FILES.store(self.files.len(), Ordering::SeqCst);
    }
}

/// Takes a lock, or changes the type of the owner's lock on the region.
///
/// # Errors
/// [`Errno::EAGAIN`] if another owner's lock excludes it.
pub fn try_lock(file: &OpenFile, family: LockFamily, lock: FileLock) -> Result<(), Errno> {
    let key = key(file);
    let outcome = LOCKS.lock().try_lock(key, family, &lock).map_err(|_| Errno::EAGAIN);
    if outcome.is_ok() {
        // An exclusive lock may have become a shared one.
        RELEASED.notify(Events::OUT);
    }
    outcome
}

/// Waits for a lock. If the future is dropped, the request ends.
///
/// # Errors
/// [`Errno::EDEADLK`] if the owner of the lock waits for this process.
pub async fn lock(file: &OpenFile, family: LockFamily, lock: FileLock) -> Result<(), Errno> {
    let key = key(file);
    loop {
        let waiting = {
            let mut locks = LOCKS.lock();
            let Err(conflicting) = locks.try_lock(key, family, &lock) else {
                drop(locks);
                RELEASED.notify(Events::OUT);
                return Ok(());
            };
            match (family, lock.owner) {
                (LockFamily::Record, LockOwner::Process(process, _)) => {
                    if locks.is_deadlock(process, &[conflicting.owner]) {
                        return Err(Errno::EDEADLK);
                    }
                    locks.waiting.push((process, alloc::vec![conflicting.owner]));
                    Some(WaitingProcess(process))
                }
                _ => None,
            }
        };
        let is_free = || {
            let mut locks = LOCKS.lock();
            let is_free =
                locks.files.get_mut(&key).is_none_or(|file| conflict(file.of(family), &lock).is_none());
            if is_free { Events::OUT } else { Events::NONE }
        };
        RELEASED.wait(Events::OUT, is_free).await;
        drop(waiting);
    }
}

/// A process's entry in the list of waiting ones.
struct WaitingProcess(u64);

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        let mut locks = LOCKS.lock();
        if let Some(at) = locks.waiting.iter().position(|(process, _)| *process == self.0) {
            locks.waiting.swap_remove(at);
        }
    }
}

/// Releases an owner's locks of a region.
pub fn unlock(file: &OpenFile, family: LockFamily, owner: LockOwner, region: LockRegion) {
    if LOCKED_FILES.load(Ordering::SeqCst) > 0 {
        unlock_key(key(file), family, owner, region);
    }
}

fn unlock_key(key: FileKey, family: LockFamily, owner: LockOwner, region: LockRegion) {
    let mut locks = LOCKS.lock();
    if let Some(file) = locks.files.get_mut(&key) {
        remove(file.of(family), owner, region);
        locks.count();
    }
    drop(locks);
    RELEASED.notify(Events::OUT);
}

/// Returns a record lock that excludes this one (`F_GETLK`).
pub fn conflicting(file: &OpenFile, wanted: &FileLock) -> Option<FileLock> {
    let mut locks = LOCKS.lock();
    locks.files.get_mut(&key(file)).and_then(|file| conflict(file.of(LockFamily::Record), wanted).copied())
}

/// Releases the record locks of a process on a file of which it has closed a descriptor.
pub(crate) fn descriptor_closed(file: &Arc<OpenFile>, table: u64) {
    if LOCKED_FILES.load(Ordering::SeqCst) > 0 {
        unlock_key(key(file), LockFamily::Record, LockOwner::Process(table, 0), LockRegion::ALL);
    }
}

/// Releases the locks of an open file that ends.
pub(crate) fn open_file_closed(file: &OpenFile) {
    if LOCKED_FILES.load(Ordering::SeqCst) > 0 {
        let (key, owner) = (key(file), LockOwner::OpenFile(file.id()));
        unlock_key(key, LockFamily::Whole, owner, LockRegion::ALL);
        unlock_key(key, LockFamily::Record, owner, LockRegion::ALL);
    }
}
