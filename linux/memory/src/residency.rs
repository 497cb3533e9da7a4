//! `mlock`, `msync`, `mincore`.

use crate::map::aligned_range;
use crate::pages::page_of;
use crate::process_memory::{State, mark_dirty};
use crate::{Errno, ProcessMemory};
use alloc::vec::Vec;
use isola_events::yield_now;
use isola_linux_abi::numbers::{
    MCL_CURRENT, MCL_FUTURE, MCL_ONFAULT, MLOCK_ONFAULT, MS_ASYNC, MS_INVALIDATE, MS_SYNC,
};
use isola_user_mode::{PAGE_SIZE, PageRights, USER_END};

/// The pages of which `mincore` writes the state in one step.
const MINCORE_PAGES: u64 = 512;

impl ProcessMemory {
    /// Locks a range (`mlock`, `mlock2`): makes its pages accessible, unless `flags` has `MLOCK_ONFAULT`, and counts them
    /// against the limit. Pages of programs are never moved to disk, locked or not.
    ///
    /// # Errors
    /// Those of `mlock2`(2).
    pub async fn lock(&self, address: u64, len: u64, flags: u32) -> Result<(), Errno> {
        if flags & !MLOCK_ONFAULT != 0 {
            return Err(Errno::EINVAL);
        }
        let (start, end) = locked_range(address, len)?;
        {
            let mut state = self.state.lock();
            if state.limits.locked == 0 {
                return Err(Errno::EPERM);
            }
            let within = state.mappings.overlapping(start, end).filter(|mapping| !mapping.attributes.locked);
            let pages =
                within.map(|mapping| (mapping.end.min(end) - mapping.start.max(start)) / PAGE_SIZE).sum();
            state.check_locked(pages).map_err(|_| Errno::ENOMEM)?;
            state.set_locked(start, end, true)?;
        }
        if flags & MLOCK_ONFAULT != 0 {
            return Ok(());
        }
        self.populate(start, end).await.map_err(|_| Errno::ENOMEM)
    }

    /// Unlocks a range (`munlock`).
    ///
    /// # Errors
    /// Those of `munlock`(2).
    pub fn unlock(&self, address: u64, len: u64) -> Result<(), Errno> {
        let (start, end) = locked_range(address, len)?;
        self.state.lock().set_locked(start, end, false)
    }

    /// Locks all mappings, or those to come (`mlockall`).
    ///
    /// # Errors
    /// Those of `mlockall`(2).
    pub async fn lock_all(&self, flags: u32) -> Result<(), Errno> {
        if flags == 0 || flags & !(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) != 0 || flags == MCL_ONFAULT {
            return Err(Errno::EINVAL);
        }
        let ranges: Vec<(u64, u64)> = {
            let mut state = self.state.lock();
            if state.limits.locked == 0 {
                return Err(Errno::EPERM);
            }
            let is_current = flags & MCL_CURRENT != 0;
            if is_current && state.mappings.pages() > state.limits.locked / PAGE_SIZE {
                return Err(Errno::ENOMEM);
            }
            state.locks_future = flags & MCL_FUTURE != 0;
            state.populates_future = flags & MCL_ONFAULT == 0;
            if is_current {
                state.mappings.change(0, USER_END, |mapping| mapping.attributes.locked = true);
            }
            let populates = is_current && flags & MCL_ONFAULT == 0;
            state.mappings.iter().filter(|_| populates).map(|mapping| (mapping.start, mapping.end)).collect()
        };
        for (start, end) in ranges {
            // As in Linux, pages that cannot be had are not an error of the call.
            let _populated = self.populate(start, end).await;
        }
        Ok(())
    }

    /// Unlocks all mappings (`munlockall`).
    pub fn unlock_all(&self) {
        let mut state = self.state.lock();
        state.locks_future = false;
        state.mappings.change(0, USER_END, |mapping| mapping.attributes.locked = false);
    }

    /// Writes the dirty pages of shared mappings in a range to where they are permanent (`msync`).
    ///
    /// # Errors
    /// Those of `msync`(2), or of the object.
    pub async fn sync(&self, address: u64, len: u64, flags: u32) -> Result<(), Errno> {
        let contradicts = flags & MS_ASYNC != 0 && flags & MS_SYNC != 0;
        if flags & !(MS_ASYNC | MS_INVALIDATE | MS_SYNC) != 0
            || contradicts
            || !address.is_multiple_of(PAGE_SIZE)
        {
            return Err(Errno::EINVAL);
        }
        let rounded = len.checked_next_multiple_of(PAGE_SIZE).ok_or(Errno::ENOMEM)?;
        let end = address.checked_add(rounded).ok_or(Errno::ENOMEM)?;
        if end == address {
            return Ok(());
        }
        let (parts, is_whole) = self.mappings_in(address, end);
        for part in parts {
            if flags & MS_INVALIDATE != 0 && part.attributes.locked {
                return Err(Errno::EBUSY);
            }
            let Some(object) =
                part.object.as_ref().filter(|object| part.is_shared && !object.source.is_memory())
            else {
                continue;
            };
            // Without the right to write, the next write is a page fault, which announces it to the object again.
            let flush = {
                let mut state = self.state.lock();
                let kind = part.kind();
                state.pages.protect(part.start, part.end, |page, mapped| {
                    mark_dirty(&part, kind, page, mapped);
                    PageRights { writable: false, ..mapped.rights }
                });
                state.pages.flush()
            };
            self.settle(flush).await;
            if flags & MS_SYNC != 0 {
                object.source.sync(object.first, part.pages()).await?;
            }
        }
        if is_whole { Ok(()) } else { Err(Errno::ENOMEM) }
    }

    /// Writes a byte for each page of a range to the program at `states`: 1 if the page is in memory (`mincore`).
    ///
    /// # Errors
    /// Those of `mincore`(2). With [`Errno::ENOMEM`] for an address that is not mapped, the bytes before are written.
    pub async fn residency(&self, address: u64, len: u64, states: u64) -> Result<(), Errno> {
        if !address.is_multiple_of(PAGE_SIZE) {
            return Err(Errno::EINVAL);
        }
        let end = aligned_range(address, len).ok_or(Errno::ENOMEM)?;
        let mut start = address;
        while start < end {
            let now = (end - start).min(MINCORE_PAGES * PAGE_SIZE);
            let (bytes, is_whole) = self.residency_of(start, start + now);
            self.write_bytes(states.saturating_add((start - address) / PAGE_SIZE), &bytes).await?;
            if !is_whole {
                return Err(Errno::ENOMEM);
            }
            start += now;
            yield_now().await;
        }
        Ok(())
    }

    /// Returns the bytes for the pages up to the first that is not mapped, and whether that are all.
    fn residency_of(&self, start: u64, end: u64) -> (Vec<u8>, bool) {
        let state = self.state.lock();
        let mut bytes = Vec::new();
        for page in (start..end).step_by(PAGE_SIZE as usize) {
            let Some(mapping) = state.mappings.find(page) else {
                return (bytes, false);
            };
            let in_object = || match (&mapping.object, mapping.index_of(page)) {
                (Some(object), Some(index)) => object.source.frame(index).is_some(),
                _ => false,
            };
            let is_resident = state.pages.space.page_at(page).is_some()
                || state.pages.hidden_at(page).is_some()
                || in_object();
            bytes.push(u8::from(is_resident));
        }
        (bytes, true)
    }
}

/// Returns the pages of a range for `mlock`, which need not begin at a page.
fn locked_range(address: u64, len: u64) -> Result<(u64, u64), Errno> {
    let start = page_of(address);
    let len = len.checked_add(address - start).and_then(|len| len.checked_next_multiple_of(PAGE_SIZE));
    let end = start.checked_add(len.ok_or(Errno::EINVAL)?).ok_or(Errno::EINVAL)?;
    Ok((start, end))
}

impl State {
    fn set_locked(&mut self, start: u64, end: u64, locked: bool) -> Result<(), Errno> {
        let is_whole = self.mappings.covers(start, end);
        self.mappings.check_split(start, end)?;
        if is_whole {
            self.mappings.change(start, end, |mapping| mapping.attributes.locked = locked);
            return Ok(());
        }
        Err(Errno::ENOMEM)
    }
}
