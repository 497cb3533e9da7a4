//! Page faults.

use crate::fetch::fetch;
use crate::mapping::PageKind;
use crate::pages::{page_of, zeros};
use crate::process_memory::State;
use crate::{Errno, Mapping, PageSource, ProcessMemory, STACK_GUARD_GAP};
use alloc::sync::Arc;
use core::fmt;
use isola_memory::frame::Frame;
use isola_user_mode::{Access, FlushGeneration, FrameGroup, GROUP_PAGES, MappedPage, PAGE_SIZE, USER_END};

/// A page fault that the program caused wrongly, or that cannot be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultError {
    /// Nothing is mapped: SIGSEGV with `SEGV_MAPERR`.
    NotMapped,
    /// The mapping does not permit the access: SIGSEGV with `SEGV_ACCERR`.
    NotPermitted,
    /// The page is behind the end of the object, or cannot be read: SIGBUS with `BUS_ADRERR`.
    NoContents,
    /// No memory is left for the page.
    OutOfMemory,
}

impl FaultError {
    /// Returns the error of a call with the address.
    pub fn errno(self) -> Errno {
        match self {
            Self::OutOfMemory => Errno::ENOMEM,
            _ => Errno::EFAULT,
        }
    }
}

impl fmt::Display for FaultError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotMapped => "nothing is mapped at the address",
            Self::NotPermitted => "the mapping does not permit the access",
            Self::NoContents => "the object of the mapping has no such page",
            Self::OutOfMemory => "no memory is left for the page",
        })
    }
}

impl core::error::Error for FaultError {}

/// The next step of a page fault.
enum Step {
    Done,
    Flush(FlushGeneration),
    Fetch(Arc<dyn PageSource>, u64),
}

/// A page that a fault has read into memory.
struct Fetched {
    source: Arc<dyn PageSource>,
    index: u64,
    frame: Frame,
}

impl ProcessMemory {
    /// Serves a page fault: makes the page that contains `address` accessible. If the mapping changes while the fault waits
    /// for the page, the new mapping decides.
    ///
    /// # Errors
    /// [`FaultError`].
    pub async fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        self.serve(|state, fetched| state.fault(address, access, fetched)).await
    }

    /// Makes the page at `address`, which the program may not write, one of the process's own, without a change of its rights.
    pub(crate) async fn make_own(&self, address: u64) -> Result<(), FaultError> {
        self.serve(|state, fetched| state.own(address, fetched)).await
    }

    async fn serve(
        &self,
        mut fault: impl FnMut(&mut State, Option<&Fetched>) -> Result<Step, FaultError>,
    ) -> Result<(), FaultError> {
        let mut fetched = None;
        loop {
            let step = fault(&mut self.state.lock(), fetched.as_ref())?;
            match step {
                Step::Done => return Ok(()),
                Step::Flush(generation) => {
                    self.settle(Some(generation)).await;
                    return Ok(());
                }
                Step::Fetch(source, index) => {
                    let frame = fetch(&source, index).await.map_err(|errno| match errno {
                        Errno::ENOMEM => FaultError::OutOfMemory,
                        _ => FaultError::NoContents,
                    })?;
                    fetched = Some(Fetched { source, index, frame });
                }
            }
        }
    }
}

impl ProcessMemory {
    /// Serves a page fault as [`Self::fault`] does, if it does not have to wait. Returns `false` if it has to, or fails: the
    /// fault then has had no effect that a further one does not continue.
    pub fn fault_at_once(&self, address: u64, access: Access) -> bool {
        let mut state = self.state.lock();
        match state.fault(address, access, None) {
            Ok(Step::Done) => true,
            // A flush that is requested again ends with the earlier one.
            Ok(Step::Flush(_) | Step::Fetch(..)) | Err(_) => false,
        }
    }
}

impl State {
    fn fault(&mut self, address: u64, access: Access, fetched: Option<&Fetched>) -> Result<Step, FaultError> {
        if address >= USER_END {
            return Err(FaultError::NotMapped);
        }
        let mapping = match self.mappings.find_again(address) {
            Some(mapping) => mapping,
            None => {
                self.grow_stack(page_of(address))?;
                self.mappings.find_again(address).ok_or(FaultError::NotMapped)?
            }
        };
        if !mapping.protection.permits(access) {
            return Err(FaultError::NotPermitted);
        }
        self.fault_permitted(&mapping, page_of(address), access, fetched)
    }

    /// As a fault by a write, but the program may not write to the page of a private mapping afterwards.
    fn own(&mut self, address: u64, fetched: Option<&Fetched>) -> Result<Step, FaultError> {
        let page = page_of(address);
        let mapping = self.mappings.find(address).ok_or(FaultError::NotMapped)?;
        if mapping.protection.permits(Access::Write) {
            return self.fault(address, Access::Write, fetched);
        }
        if mapping.is_shared || mapping.protection.is_none() {
            return Err(FaultError::NotPermitted);
        }
        if !mapping.was_writable {
            // A child gets the copy, too.
            self.mappings.change(page, page + PAGE_SIZE, |mapping| mapping.was_writable = true);
        }
        let mapping = self.mappings.find_again(address).ok_or(FaultError::NotMapped)?;
        self.fault_permitted(&mapping, page, Access::Write, fetched)
    }

    fn fault_permitted(
        &mut self,
        mapping: &Mapping,
        page: u64,
        access: Access,
        fetched: Option<&Fetched>,
    ) -> Result<Step, FaultError> {
        if let Some(mapped) = self.pages.space.page_at(page) {
            self.fault_at_page(mapping, page, access, &mapped)?;
        } else if let Some(frame) = self.pages.hidden_at(page) {
            let exclusive = frame.owners() == 1;
            self.pages.reveal(page, mapping.protection.rights(exclusive))?;
            if access == Access::Write && !exclusive {
                return self.fault_permitted(mapping, page, access, fetched);
            }
        } else if mapping.object.is_none() {
            self.fault_anonymous(mapping, page, access)?;
        } else {
            return self.fault_object(mapping, page, access, fetched);
        }
        Ok(self.pages.flush().map_or(Step::Done, Step::Flush))
    }

    /// The page is mapped, but its rights may not permit the access.
    fn fault_at_page(
        &mut self,
        mapping: &Mapping,
        page: u64,
        access: Access,
        mapped: &MappedPage,
    ) -> Result<(), FaultError> {
        let may_write = mapping.is_shared || mapped.frame.owners() == 1;
        let missing = match access {
            Access::Read => false,
            Access::Write => !mapped.rights.writable,
            Access::Execute => !mapped.rights.executable,
        };
        if !missing {
            // Another thread's fault has served it.
            return Ok(());
        }
        if access == Access::Write && !may_write {
            let copy = self.pages.copy(&mapped.frame)?;
            return self.pages.replace(page, &copy, mapping.protection.rights(true), mapping.kind());
        }
        if access == Access::Write {
            note_write(mapping, page);
        }
        let rights =
            mapping.protection.rights(may_write && (access == Access::Write || mapped.rights.writable));
        self.pages.protect(page, page + PAGE_SIZE, |_, _| rights);
        Ok(())
    }

    fn fault_anonymous(&mut self, mapping: &Mapping, page: u64, access: Access) -> Result<(), FaultError> {
        if access == Access::Write {
            let frame = self.pages.create()?;
            self.pages.map_own(page, &frame, mapping.protection.rights(true))
        } else {
            self.pages.map(page, zeros(), mapping.protection.rights(false), PageKind::Anonymous)
        }
    }

    fn fault_object(
        &mut self,
        mapping: &Mapping,
        page: u64,
        access: Access,
        fetched: Option<&Fetched>,
    ) -> Result<Step, FaultError> {
        let (Some(object), Some(index)) = (&mapping.object, mapping.index_of(page)) else {
            return Err(FaultError::NoContents);
        };
        let source = &object.source;
        let fetched =
            fetched.filter(|fetched| fetched.index == index && Arc::ptr_eq(&fetched.source, source));
        // A page of memory that the object no longer has was truncated since.
        let fetched = fetched.filter(|_| !source.is_memory());
        let Some(frame) = source.frame(index).or_else(|| fetched.map(|fetched| fetched.frame.clone())) else {
            return Ok(Step::Fetch(Arc::clone(source), index));
        };
        let kind = mapping.kind();
        if mapping.is_shared {
            let writable = access == Access::Write || kind == PageKind::SharedMemory;
            if access == Access::Write {
                note_write(mapping, page);
            }
            self.pages.map(page, &frame, mapping.protection.rights(writable), kind)?;
        } else if access == Access::Write {
            let copy = self.pages.copy(&frame)?;
            self.pages.map_own(page, &copy, mapping.protection.rights(true))?;
        } else {
            self.pages.map(page, &frame, mapping.protection.rights(false), kind)?;
            self.map_around(mapping, page);
        }
        Ok(Step::Done)
    }

    /// Maps the other pages of a file near `page` that are in memory: those of an aligned range.
    fn map_around(&mut self, mapping: &Mapping, page: u64) {
        let Some(object) = mapping.object.as_ref().filter(|_| mapping.attributes.sequential != Some(false))
        else {
            return;
        };
        let len = GROUP_PAGES as u64 * PAGE_SIZE;
        let group = page / len * len;
        let (first, end) = (group.max(mapping.start), group.saturating_add(len).min(mapping.end));
        let kind = mapping.kind();
        let writable = mapping.is_shared && kind == PageKind::SharedMemory;
        let index_of = |page: u64| object.first + (page - mapping.start) / PAGE_SIZE;
        let rights = mapping.protection.rights(writable);
        let pages = &mut self.pages;
        let mut frames = FrameGroup::default();
        object.source.frames(index_of(first), index_of(end), &mut |index, frame| {
            let near = mapping.start + (index - object.first) * PAGE_SIZE;
            if near != page && pages.hidden_at(near).is_none() && !frame.is(zeros()) {
                frames[((near - group) / PAGE_SIZE) as usize % GROUP_PAGES] = Some(frame.clone());
            }
        });
        pages.map_group(group, &mut frames, rights, kind);
    }

    /// Extends the stack above `page` down to it.
    fn grow_stack(&mut self, page: u64) -> Result<(), FaultError> {
        let stack = self.mappings.after(page).filter(|mapping| mapping.attributes.grows_down);
        let stack = stack.ok_or(FaultError::NotMapped)?;
        let (old, end, locked) = (stack.start, stack.end, stack.attributes.locked);
        if page < crate::MIN_ADDRESS || end - page > self.limits.stack {
            return Err(FaultError::NotMapped);
        }
        let guarded = self.mappings.before(page).is_some_and(|below| {
            !below.protection.is_none()
                && !below.attributes.grows_down
                && page.saturating_sub(below.end) < STACK_GUARD_GAP
        });
        let pages = (old - page) / PAGE_SIZE;
        if guarded || !self.may_grow(pages, false) || (locked && self.check_locked(pages).is_err()) {
            return Err(FaultError::NotMapped);
        }
        for mut stack in self.mappings.take(old, end) {
            if stack.start == old {
                if let Some(object) = &mut stack.object {
                    object.first = object.first.saturating_sub(pages);
                }
                stack.start = page;
            }
            self.insert(stack);
        }
        Ok(())
    }
}

/// Announces to the object of a shared mapping that a page will be written.
pub(crate) fn note_write(mapping: &Mapping, page: u64) {
    if mapping.is_shared
        && let (Some(object), Some(index)) = (&mapping.object, mapping.index_of(page))
    {
        object.source.mark_dirty(index);
    }
}
