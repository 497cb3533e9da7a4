//! The pages of a process: those in its page tables, and those without access.

use crate::mapping::PageKind;
use crate::{FaultError, MemoryCharge};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use isola_memory::frame::Frame;
use isola_user_mode::{AddressSpace, FlushGeneration, FrameGroup, MappedPage, PAGE_SIZE, PageRights};

/// The frames that are freed at once under the lock.
const FREED_UNDER_LOCK: usize = 32;

/// The frame of zeros that all reads of memory without a frame share.
static ZEROS: spin::Once<Frame> = spin::Once::new();

/// Returns the frame of zeros. It is never mapped writable.
pub(crate) fn zeros() -> &'static Frame {
    ZEROS.call_once(Frame::zeroed)
}

/// Returns a reference to a frame of zeros, for pages that do not exist. Nothing may write to it.
pub fn zero_frame() -> Frame {
    zeros().clone()
}

/// The numbers of pages in memory, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResidentPages {
    /// Pages of the process's own: anonymous memory, and private copies of a file's pages.
    pub anonymous: u64,
    /// Pages of files.
    pub file: u64,
    /// Pages of shared memory.
    pub shared_memory: u64,
}

impl ResidentPages {
    /// Returns the number of all pages.
    pub fn total(&self) -> u64 {
        self.anonymous + self.file + self.shared_memory
    }

    fn count(&mut self, kind: PageKind) -> &mut u64 {
        match kind {
            PageKind::Anonymous => &mut self.anonymous,
            PageKind::File => &mut self.file,
            PageKind::SharedMemory => &mut self.shared_memory,
        }
    }
}

/// The pages of a process. A page is the process's own if its frame has owners; otherwise it is that of an object, or of
/// zeros.
pub(crate) struct Pages {
    pub space: Arc<dyn AddressSpace>,
    pub resident: ResidentPages,
    pub charge: Arc<dyn MemoryCharge>,
    /// The own pages at addresses without access. Page tables cannot have them: a mapped page is readable.
    hidden: BTreeMap<u64, Frame>,
    /// Whether rights or pages were removed since the latest flush.
    needs_flush: bool,
    /// The pages that were removed since the latest flush. The address space keeps their frames until it is over.
    removed: usize,
    /// Frames without access that are to be freed.
    discarded: Vec<Frame>,
}

impl Pages {
    pub fn new(space: Arc<dyn AddressSpace>, charge: Arc<dyn MemoryCharge>) -> Self {
        Self {
            space,
            resident: ResidentPages::default(),
            charge,
            hidden: BTreeMap::new(),
            needs_flush: false,
            removed: 0,
            discarded: Vec::new(),
        }
    }

    /// Creates an own frame of zeros.
    pub fn create(&mut self) -> Result<Frame, FaultError> {
        self.own(Frame::try_zeroed)
    }

    /// Creates an own copy of a frame.
    pub fn copy(&mut self, frame: &Frame) -> Result<Frame, FaultError> {
        if frame.is(zeros()) { self.create() } else { self.own(|| frame.try_duplicate()) }
    }

    fn own(&mut self, create: impl FnOnce() -> Option<Frame>) -> Result<Frame, FaultError> {
        if !self.charge.take(1) {
            return Err(FaultError::OutOfMemory);
        }
        let Some(frame) = create() else {
            self.charge.give_back(1);
            return Err(FaultError::OutOfMemory);
        };
        match self.charge.account() {
            0 => {}
            account => frame.set_account(account),
        }
        frame.add_owner();
        Ok(frame)
    }

    /// Maps a frame at a page without one. `kind` is that of the mapping's object.
    pub fn map(
        &mut self,
        page: u64,
        frame: &Frame,
        rights: PageRights,
        kind: PageKind,
    ) -> Result<(), FaultError> {
        self.space.map(page, frame.clone(), rights).map_err(|_| FaultError::OutOfMemory)?;
        self.arrive(frame, kind);
        Ok(())
    }

    /// Maps the frames of an object at the pages of a group that have none. Without memory for page tables, a page is mapped
    /// when it is accessed.
    pub fn map_group(&mut self, start: u64, frames: &mut FrameGroup, rights: PageRights, kind: PageKind) {
        *self.resident.count(kind) += self.space.map_group(start, frames, rights) as u64;
    }

    /// Maps frames of which the process is an owner, at the pages of a group. It no longer owns them if that fails.
    pub fn map_own_group(
        &mut self,
        start: u64,
        frames: &mut FrameGroup,
        rights: PageRights,
    ) -> Result<(), FaultError> {
        self.map_group(start, frames, rights, PageKind::Anonymous);
        let mut result = Ok(());
        for frame in frames.iter_mut().filter_map(Option::take) {
            result = Err(FaultError::OutOfMemory);
            if frame.remove_owner() {
                self.charge.give_back_to(frame.account(), 1);
            }
        }
        result
    }

    /// Maps an own frame that was not mapped before. The process no longer owns it if that fails.
    pub fn map_own(&mut self, page: u64, frame: &Frame, rights: PageRights) -> Result<(), FaultError> {
        self.map(page, frame, rights, PageKind::Anonymous).inspect_err(|_| {
            if frame.remove_owner() {
                self.charge.give_back_to(frame.account(), 1);
            }
        })
    }

    /// Replaces the frame of a page by an own one.
    pub fn replace(
        &mut self,
        page: u64,
        frame: &Frame,
        rights: PageRights,
        kind: PageKind,
    ) -> Result<(), FaultError> {
        match self.space.replace(page, frame.clone(), rights) {
            Ok(old) => {
                self.leave_table(&old.frame, kind);
                self.arrive(frame, kind);
                Ok(())
            }
            Err(_) => self.map_own(page, frame, rights),
        }
    }

    /// Returns the own page without access at this address.
    pub fn hidden_at(&self, page: u64) -> Option<&Frame> {
        self.hidden.get(&page)
    }

    /// Returns the own pages without access in a range.
    pub fn hidden_in(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Frame)> {
        self.hidden.range(start..end.max(start)).map(|(page, frame)| (*page, frame))
    }

    /// Maps the own page without access at this address.
    pub fn reveal(&mut self, page: u64, rights: PageRights) -> Result<(), FaultError> {
        if let Some(frame) = self.hidden.get(&page) {
            self.space.map(page, frame.clone(), rights).map_err(|_| FaultError::OutOfMemory)?;
            self.hidden.remove(&page);
        }
        Ok(())
    }

    /// Adds an own page without access. It counts as resident.
    pub fn hide(&mut self, page: u64, frame: Frame) {
        self.arrive(&frame, PageKind::Anonymous);
        self.hidden.insert(page, frame);
    }

    /// Unmaps the pages of a range, of one mapping. Own frames with no other owner are freed after the flush. `see` gets
    /// each page that was in the page tables.
    pub fn remove(&mut self, start: u64, end: u64, kind: PageKind, mut see: impl FnMut(u64, &MappedPage)) {
        let space = Arc::clone(&self.space);
        space.unmap(start, end, &mut |page, mapped| {
            see(page, mapped);
            self.leave_table(&mapped.frame, kind);
        });
        while let Some((&page, _)) = self.hidden.range(start..end.max(start)).next() {
            if let Some(frame) = self.hidden.remove(&page) {
                self.leave(&frame, kind);
                self.discarded.push(frame);
            }
        }
    }

    /// Unmaps the pages of a range that are not the process's own.
    pub fn remove_foreign(&mut self, start: u64, end: u64, kind: PageKind) {
        let mut foreign = Vec::new();
        self.space.for_each(start, end, &mut |page, mapped| {
            if mapped.frame.owners() == 0 {
                foreign.push(page);
            }
        });
        for page in foreign {
            self.remove(page, page + PAGE_SIZE, kind, |_, _| ());
        }
    }

    /// Removes the access to the pages of a range, of one mapping. Own pages keep their contents.
    pub fn remove_access(
        &mut self,
        start: u64,
        end: u64,
        kind: PageKind,
        mut see: impl FnMut(u64, &MappedPage),
    ) {
        let space = Arc::clone(&self.space);
        space.unmap(start, end, &mut |page, mapped| {
            see(page, mapped);
            if mapped.frame.owners() > 0 {
                self.hidden.insert(page, mapped.frame.clone());
                self.removed += 1;
                self.needs_flush = true;
            } else {
                self.leave_table(&mapped.frame, kind);
            }
        });
    }

    /// Unmaps the pages of a range and returns them, with the rights of those that were in the page tables. They still
    /// count as resident.
    pub fn lift(&mut self, start: u64, end: u64) -> Vec<(u64, Frame, Option<PageRights>)> {
        let mut lifted = Vec::new();
        let space = Arc::clone(&self.space);
        space.unmap(start, end, &mut |page, mapped| {
            lifted.push((page, mapped.frame.clone(), Some(mapped.rights)));
        });
        while let Some((&page, _)) = self.hidden.range(start..end.max(start)).next() {
            if let Some(frame) = self.hidden.remove(&page) {
                lifted.push((page, frame, None));
            }
        }
        self.removed += lifted.iter().filter(|(_, _, rights)| rights.is_some()).count();
        self.needs_flush |= !lifted.is_empty();
        lifted
    }

    /// Maps a page that was lifted, at another address.
    pub fn lower(&mut self, page: u64, frame: Frame, rights: Option<PageRights>, kind: PageKind) {
        let mapped = rights.is_some_and(|rights| self.space.map(page, frame.clone(), rights).is_ok());
        if mapped {
            // The page moves.
        } else if frame.owners() > 0 {
            self.hidden.insert(page, frame);
        } else {
            self.leave(&frame, kind);
        }
    }

    /// Changes the rights of pages in a range. A flush is needed if any are removed.
    pub fn protect(&mut self, start: u64, end: u64, mut rights: impl FnMut(u64, &MappedPage) -> PageRights) {
        let mut removes = false;
        self.space.protect(start, end, &mut |page, mapped| {
            let new = rights(page, mapped);
            let old = mapped.rights;
            removes |= (old.writable && !new.writable) || (old.executable && !new.executable);
            new
        });
        self.needs_flush |= removes;
    }

    /// Begins a flush, if there is anything to flush. Returns its generation if it is not over yet, or if many frames are
    /// to be freed: then the caller waits and frees them.
    pub fn flush(&mut self) -> Option<FlushGeneration> {
        if !self.needs_flush && self.discarded.is_empty() {
            return None;
        }
        let generation = self.space.flush();
        self.needs_flush = false;
        let freed = core::mem::take(&mut self.removed) + self.discarded.len();
        if freed <= FREED_UNDER_LOCK && self.space.is_flushed(generation) {
            self.discarded.clear();
            self.space.free_flushed(FREED_UNDER_LOCK);
            return None;
        }
        Some(generation)
    }

    /// Returns the frames without access, for the caller to free.
    pub fn take_discarded(&mut self) -> Vec<Frame> {
        core::mem::take(&mut self.discarded)
    }

    fn arrive(&mut self, frame: &Frame, kind: PageKind) {
        if frame.owners() > 0 {
            self.resident.anonymous += 1;
        } else if !frame.is(zeros()) {
            *self.resident.count(kind) += 1;
        }
    }

    /// A frame is no longer a page of the process, and has left its page tables.
    fn leave_table(&mut self, frame: &Frame, kind: PageKind) {
        self.leave(frame, kind);
        self.removed += 1;
        self.needs_flush = true;
    }

    /// A frame is no longer a page of the process.
    fn leave(&mut self, frame: &Frame, kind: PageKind) {
        if frame.owners() > 0 {
            self.resident.anonymous -= 1;
            if frame.remove_owner() {
                self.charge.give_back_to(frame.account(), 1);
            }
        } else if !frame.is(zeros()) {
            *self.resident.count(kind) -= 1;
        }
    }
}

/// Returns the address of the page that contains `address`.
pub(crate) const fn page_of(address: u64) -> u64 {
    address & !(PAGE_SIZE - 1)
}
