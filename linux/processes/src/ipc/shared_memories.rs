//! Shared memory (`shmget`).

use super::permissions::IpcCaller;
use super::table::{GetRequest, Table};
use crate::Errno;
use alloc::sync::{Arc, Weak};
use core::fmt;
use isola_linux_memory::{MemoryCharge, PageSource, SharedMemory};
use isola_user_mode::PAGE_SIZE;
use spin::{Mutex, MutexGuard};

/// The most segments, as in Linux (`SHMMNI`).
pub const MOST_SEGMENTS: usize = 4096;

/// The bit of the mode of a segment that is removed after its last detachment (`SHM_DEST`).
const REMOVED: u32 = 0o1000;

/// The segments of a cell.
#[derive(Debug)]
pub struct SharedMemories {
    table: Mutex<Table<Segment>>,
    /// The most bytes of a segment, and of all: the cell's memory. Pages are charged when they are used.
    pub most_bytes: u64,
}

/// A segment.
pub struct Segment {
    pages: Pages,
    /// The size in bytes, as the creator asked for it.
    pub len: u64,
    /// The time of the latest attachment, in seconds since 1970.
    pub attached: u64,
    /// That of the latest `shmdt`.
    pub detached: u64,
    /// That of the latest change of the permissions.
    pub changed: u64,
    /// The creator.
    pub creator: u32,
    /// The process of the latest attachment or `shmdt`.
    pub last: u32,
}

enum Pages {
    /// Kept until the segment is removed.
    Owned(Arc<SharedMemory>),
    /// Removed: the pages exist while a process has them mapped.
    Removed(Weak<SharedMemory>),
}

impl Segment {
    /// Returns the pages; `None` if the segment was removed and no process maps it.
    pub fn pages(&self) -> Option<Arc<SharedMemory>> {
        match &self.pages {
            Pages::Owned(pages) => Some(pages.clone()),
            Pages::Removed(pages) => pages.upgrade(),
        }
    }

    /// Returns the number of mappings.
    pub fn attachments(&self) -> u64 {
        match &self.pages {
            Pages::Owned(pages) => Arc::strong_count(pages) as u64 - 1,
            Pages::Removed(pages) => pages.strong_count() as u64,
        }
    }

    fn is_gone(&self) -> bool {
        matches!(&self.pages, Pages::Removed(pages) if pages.strong_count() == 0)
    }
}

impl SharedMemories {
    /// Creates a table for a cell with this memory.
    pub fn new(memory_len: u64) -> Self {
        Self { table: Mutex::new(Table::new(MOST_SEGMENTS)), most_bytes: memory_len }
    }

    /// Locks the segments. Those that were removed and that no process maps any more are gone.
    pub fn lock(&self) -> MutexGuard<'_, Table<Segment>> {
        let mut table = self.table.lock();
        table.remove_all(Segment::is_gone);
        table
    }

    /// `shmget`.
    ///
    /// # Errors
    /// Those of shmget(2).
    pub fn get(
        &self,
        request: GetRequest,
        len: u64,
        caller: &IpcCaller<'_>,
        charge: &Arc<dyn MemoryCharge>,
    ) -> Result<i32, Errno> {
        let mut table = self.lock();
        let total: u64 = table.iter().map(|(_, _, segment)| segment.len).sum();
        let check = |segment: &Segment| if len > segment.len { Err(Errno::EINVAL) } else { Ok(()) };
        let make = || {
            if len == 0 || len > self.most_bytes {
                return Err(Errno::EINVAL);
            }
            if total.saturating_add(len) > self.most_bytes {
                return Err(Errno::ENOSPC);
            }
            let path = alloc::format!("/SYSV{:08x} (deleted)", request.key);
            let pages = SharedMemory::new(path.as_bytes(), len.next_multiple_of(PAGE_SIZE), charge.clone());
            Ok(Segment {
                pages: Pages::Owned(pages),
                len,
                attached: 0,
                detached: 0,
                changed: caller.now,
                creator: caller.pid,
                last: 0,
            })
        };
        table.get_or_create(request, caller, check, make)
    }

    /// Removes a segment, at once or after its last detachment (`IPC_RMID`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`], [`Errno::EPERM`].
    pub fn remove(&self, id: i32, caller: &IpcCaller<'_>) -> Result<(), Errno> {
        let mut table = self.lock();
        let (permissions, segment) = table.get(id)?;
        permissions.check_owner(caller)?;
        permissions.mode |= REMOVED;
        let pages = match &segment.pages {
            Pages::Owned(pages) => Arc::downgrade(pages),
            Pages::Removed(pages) => pages.clone(),
        };
        let former = core::mem::replace(&mut segment.pages, Pages::Removed(pages));
        table.remove_key(id);
        drop(table);
        // It may be the last reference: freeing its pages takes longer than the lock is held.
        drop(former);
        Ok(())
    }

    /// Records a `shmdt` of the pages with this identity. Returns false if they are no segment's.
    pub fn note_detachment(&self, identity: (u64, u64), caller: &IpcCaller<'_>) -> bool {
        let mut table = self.lock();
        for (_, _, segment) in table.iter() {
            if segment.pages().is_some_and(|pages| pages.identity() == identity) {
                (segment.detached, segment.last) = (caller.now, caller.pid);
                return true;
            }
        }
        false
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len)
    }
}
