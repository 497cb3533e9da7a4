//! Descriptor tables.

use crate::Errno;
use crate::open_file::OpenFile;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;

/// The most descriptors of a table, whatever `RLIMIT_NOFILE` is (the kernel's `nr_open`).
pub const MOST_DESCRIPTORS: usize = 1 << 20;

/// Whether `exec` closes a descriptor (`FD_CLOEXEC`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExec {
    /// It stays open.
    Keep,
    /// It is closed.
    Close,
}

impl OnExec {
    /// Returns the value for open flags with or without `O_CLOEXEC`.
    pub fn of_flags(flags: u32) -> Self {
        if flags & isola_linux_abi::numbers::O_CLOEXEC != 0 { Self::Close } else { Self::Keep }
    }
}

/// The descriptors of a process. Threads of `CLONE_FILES` share it.
pub struct DescriptorTable {
    /// The owner of record locks.
    id: u64,
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    slots: Vec<Option<Slot>>,
    /// No descriptor below is free.
    first_free: usize,
}

#[derive(Clone)]
struct Slot {
    file: Arc<OpenFile>,
    on_exec: OnExec,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Default for DescriptorTable {
    fn default() -> Self {
        Self::new()
    }
}

impl Slots {
    fn slot(&mut self, descriptor: i32) -> Result<&mut Slot, Errno> {
        let index = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        self.slots.get_mut(index).and_then(Option::as_mut).ok_or(Errno::EBADF)
    }

    fn put(&mut self, index: usize, slot: Slot) -> Option<Slot> {
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        if index == self.first_free {
            self.first_free += 1;
        }
        self.slots[index].replace(slot)
    }

    fn take(&mut self, index: usize) -> Option<Slot> {
        let slot = self.slots.get_mut(index)?.take();
        if slot.is_some() {
            self.first_free = self.first_free.min(index);
        }
        slot
    }

    /// Returns the lowest free descriptor from `lowest` on.
    fn free(&mut self, lowest: usize) -> usize {
        let from = lowest.max(self.first_free);
        let free = (from..self.slots.len()).find(|index| self.slots[*index].is_none());
        let free = free.unwrap_or(from.max(self.slots.len()));
        if lowest <= self.first_free {
            self.first_free = free;
        }
        free
    }
}

impl DescriptorTable {
    /// Creates an empty table.
    pub fn new() -> Self {
        Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), slots: Mutex::default() }
    }

    /// Returns a copy, for `fork` and `unshare`. Record locks are not inherited.
    pub fn fork(&self) -> Self {
        let slots = self.slots.lock();
        let copy = Slots { slots: slots.slots.clone(), first_free: slots.first_free };
        Self { slots: Mutex::new(copy), ..Self::new_id() }
    }

    fn new_id() -> Self {
        Self::new()
    }

    /// Returns the owner of record locks that this table's processes set.
    pub fn lock_owner(&self) -> u64 {
        self.id
    }

    /// Returns the open file of a descriptor, for reads, writes and the like.
    ///
    /// # Errors
    /// [`Errno::EBADF`], also for files opened with `O_PATH`.
    pub fn get(&self, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
        let file = self.get_any(descriptor)?;
        if file.is_path() { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// Returns the open file of a descriptor, also one opened with `O_PATH`: for `fstat`, `openat` and the like.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn get_any(&self, descriptor: i32) -> Result<Arc<OpenFile>, Errno> {
        self.slots.lock().slot(descriptor).map(|slot| slot.file.clone())
    }

    /// Returns whether `exec` closes the descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn on_exec(&self, descriptor: i32) -> Result<OnExec, Errno> {
        self.slots.lock().slot(descriptor).map(|slot| slot.on_exec)
    }

    /// Sets whether `exec` closes the descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn set_on_exec(&self, descriptor: i32, on_exec: OnExec) -> Result<(), Errno> {
        self.slots.lock().slot(descriptor).map(|slot| slot.on_exec = on_exec)
    }

    /// Gives an open file the lowest free descriptor below `limit` (`RLIMIT_NOFILE`).
    ///
    /// # Errors
    /// [`Errno::EMFILE`].
    pub fn install(&self, file: Arc<OpenFile>, on_exec: OnExec, limit: usize) -> Result<i32, Errno> {
        self.install_from(0, file, on_exec, limit)
    }

    /// Returns whether there is a free descriptor below `limit`.
    pub fn has_free(&self, limit: usize) -> bool {
        self.slots.lock().free(0) < limit.min(MOST_DESCRIPTORS)
    }

    /// As [`Self::install`], with the lowest free descriptor from `lowest` on (`F_DUPFD`).
    ///
    /// # Errors
    /// [`Errno::EMFILE`]; [`Errno::EINVAL`] if `lowest` is not below the limit.
    pub fn install_from(
        &self,
        lowest: usize,
        file: Arc<OpenFile>,
        on_exec: OnExec,
        limit: usize,
    ) -> Result<i32, Errno> {
        let limit = limit.min(MOST_DESCRIPTORS);
        if lowest >= limit {
            return Err(if lowest == 0 { Errno::EMFILE } else { Errno::EINVAL });
        }
        let mut slots = self.slots.lock();
        let index = slots.free(lowest);
        if index >= limit {
            return Err(Errno::EMFILE);
        }
        slots.put(index, Slot { file, on_exec });
        Ok(index as i32)
    }

    /// Gives the file of descriptor `from` the descriptor `to` as well, and closes the file that had it (`dup2`, `dup3`).
    /// The caller treats equal descriptors.
    ///
    /// # Errors
    /// [`Errno::EBADF`], also if `to` is not below the limit.
    pub fn duplicate_to(&self, from: i32, to: i32, on_exec: OnExec, limit: usize) -> Result<(), Errno> {
        let index = usize::try_from(to).map_err(|_| Errno::EBADF)?;
        if index >= limit.min(MOST_DESCRIPTORS) {
            return Err(Errno::EBADF);
        }
        let mut slots = self.slots.lock();
        let file = slots.slot(from)?.file.clone();
        let former = slots.put(index, Slot { file, on_exec });
        drop(slots);
        self.ended(former);
        Ok(())
    }

    /// Closes a descriptor.
    ///
    /// # Errors
    /// [`Errno::EBADF`].
    pub fn close(&self, descriptor: i32) -> Result<(), Errno> {
        let index = usize::try_from(descriptor).map_err(|_| Errno::EBADF)?;
        let slot = self.slots.lock().take(index).ok_or(Errno::EBADF)?;
        self.ended(Some(slot));
        Ok(())
    }

    /// Closes the descriptors from `first` to `last`, both included (`close_range`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if `first` is above `last`.
    pub fn close_range(&self, first: u32, last: u32) -> Result<(), Errno> {
        self.each_in_range(first, last, |slots, index| slots.take(index))
    }

    /// Has `exec` close the descriptors from `first` to `last` (`CLOSE_RANGE_CLOEXEC`).
    ///
    /// # Errors
    /// [`Errno::EINVAL`] if `first` is above `last`.
    pub fn close_range_on_exec(&self, first: u32, last: u32) -> Result<(), Errno> {
        self.each_in_range(first, last, |slots, index| {
            if let Some(slot) = slots.slots[index].as_mut() {
                slot.on_exec = OnExec::Close;
            }
            None
        })
    }

    fn each_in_range(
        &self,
        first: u32,
        last: u32,
        mut change: impl FnMut(&mut Slots, usize) -> Option<Slot>,
    ) -> Result<(), Errno> {
        if first > last {
            return Err(Errno::EINVAL);
        }
        let mut slots = self.slots.lock();
        let end = slots.slots.len().min((last as usize).saturating_add(1));
        let closed: Vec<_> = (first as usize..end).filter_map(|index| change(&mut slots, index)).collect();
        drop(slots);
        closed.into_iter().for_each(|slot| self.ended(Some(slot)));
        Ok(())
    }

    /// Closes the descriptors that `exec` closes.
    pub fn exec(&self) {
        let mut slots = self.slots.lock();
        let closes = |slot: &Option<Slot>| slot.as_ref().is_some_and(|slot| slot.on_exec == OnExec::Close);
        let indices: Vec<_> = (0..slots.slots.len()).filter(|index| closes(&slots.slots[*index])).collect();
        let closed: Vec<_> = indices.into_iter().map(|index| slots.take(index)).collect();
        drop(slots);
        closed.into_iter().for_each(|slot| self.ended(slot));
    }

    /// Returns the open descriptors, ascending.
    pub fn descriptors(&self) -> Vec<i32> {
        let slots = self.slots.lock();
        (0..slots.slots.len())
            .filter(|index| slots.slots[*index].is_some())
            .map(|index| index as i32)
            .collect()
    }

    /// Ends a descriptor's use of a file: record locks on the file end with the first descriptor that is closed.
    fn ended(&self, slot: Option<Slot>) {
        if let Some(slot) = slot {
            crate::locks::descriptor_closed(&slot.file, self.id);
        }
    }
}

impl Drop for DescriptorTable {
    fn drop(&mut self) {
        let slots = core::mem::take(&mut *self.slots.lock());
        slots.slots.into_iter().for_each(|slot| self.ended(slot));
    }
}

impl core::fmt::Debug for DescriptorTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("DescriptorTable").field("descriptors", &self.descriptors()).finish()
    }
}
