//! The memory of a process.

use crate::flush::flushed;
use crate::mapping::PageKind;
use crate::mappings::Mappings;
use crate::pages::Pages;
use crate::{Errno, Mapping, MemoryCharge, MemoryLayout, MemoryLimits, ResidentPages};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use isola_events::yield_now;
use isola_user_mode::{AddressSpace, FlushGeneration, PAGE_SIZE, USER_END};
use spin::Mutex;

/// The frames that a call frees before it lets other events run.
const FREED_AT_ONCE: usize = 1024;

/// The identity of the next process's memory.
static NEXT_IDENTITY: AtomicU64 = AtomicU64::new(1);

/// The memory of a process: its mappings and pages. Its threads share it.
///
/// A lock protects both. It is held within one poll only, never over an `await`. A future of this type can be dropped at
/// any time: then the call may have had a part of its effect, but no frame is freed too early.
pub struct ProcessMemory {
    pub(crate) identity: u64,
    pub(crate) space: Arc<dyn AddressSpace>,
    pub(crate) state: Mutex<State>,
    /// For objects that unmap pages of the process when they shrink.
    pub(crate) this: Weak<ProcessMemory>,
}

/// The state under the lock.
pub(crate) struct State {
    pub mappings: Mappings,
    pub pages: Pages,
    pub layout: MemoryLayout,
    pub limits: MemoryLimits,
    /// The start and the end of the heap.
    pub break_start: u64,
    pub break_end: u64,
    /// `mlockall(MCL_FUTURE)`.
    pub locks_future: bool,
    /// Without `MCL_ONFAULT`.
    pub populates_future: bool,
    /// The most pages of all mappings, and the most resident pages.
    pub peak_pages: u64,
    pub peak_resident: u64,
    /// The number of forks.
    pub forks: u32,
}

impl ProcessMemory {
    /// Creates the memory of a process, without mappings, in an address space without pages.
    pub fn new(
        space: Arc<dyn AddressSpace>,
        layout: MemoryLayout,
        limits: MemoryLimits,
        charge: Arc<dyn MemoryCharge>,
    ) -> Arc<Self> {
        let pages = Pages::new(Arc::clone(&space), charge);
        Self::with_state(
            space,
            State {
                mappings: Mappings::default(),
                pages,
                layout,
                limits,
                break_start: 0,
                break_end: 0,
                locks_future: false,
                populates_future: false,
                peak_pages: 0,
                peak_resident: 0,
                forks: 0,
            },
        )
    }

    pub(crate) fn with_state(space: Arc<dyn AddressSpace>, state: State) -> Arc<Self> {
        let identity = NEXT_IDENTITY.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|this| Self { identity, space, state: Mutex::new(state), this: Weak::clone(this) })
    }

    /// Returns the address space.
    pub fn space(&self) -> &Arc<dyn AddressSpace> {
        &self.space
    }

    /// Returns the layout.
    pub fn layout(&self) -> MemoryLayout {
        self.state.lock().layout
    }

    /// Returns the limits.
    pub fn limits(&self) -> MemoryLimits {
        self.state.lock().limits
    }

    /// Changes the limits. Existing mappings stay.
    pub fn set_limits(&self, limits: MemoryLimits) {
        self.state.lock().limits = limits;
    }

    /// Charges later frames to another account. Those of the process stay with theirs.
    pub fn set_charge(&self, charge: Arc<dyn MemoryCharge>) {
        let former = core::mem::replace(&mut self.state.lock().pages.charge, charge);
        // Without the lock: the account may end.
        drop(former);
    }

    /// Returns the numbers of pages in memory.
    pub fn resident(&self) -> ResidentPages {
        self.state.lock().pages.resident
    }

    /// Removes all mappings. No thread may run the program in the address space any more, apart from the caller's.
    /// Dropping the memory has the same effect, but may free the frames later.
    pub async fn clear(&self) {
        let flush = self.state.lock().clear();
        self.settle(flush).await;
    }

    /// Waits until each core that runs a thread of the program has left it once, or will execute a barrier before it runs one
    /// (`membarrier`): a flush of TLBs has that effect.
    pub async fn barrier(&self) {
        let generation = self.space.flush();
        self.settle(Some(generation)).await;
    }

    /// Waits until a flush is over, and frees the frames that waited for it.
    pub async fn settle(&self, flush: Option<FlushGeneration>) {
        let Some(generation) = flush else {
            return;
        };
        flushed(&self.space, generation).await;
        let mut discarded = self.state.lock().pages.take_discarded();
        loop {
            let freed = self.space.free_flushed(FREED_AT_ONCE);
            discarded.truncate(discarded.len().saturating_sub(FREED_AT_ONCE));
            if freed < FREED_AT_ONCE && discarded.is_empty() {
                return;
            }
            yield_now().await;
        }
    }
}

impl Drop for ProcessMemory {
    fn drop(&mut self) {
        // The space frees the frames with its last thread.
        self.state.get_mut().clear();
    }
}

impl State {
    fn clear(&mut self) -> Option<FlushGeneration> {
        self.unmap(0, USER_END);
        self.pages.flush()
    }

    /// Removes the mappings of a range and their pages. The caller flushes.
    pub fn unmap(&mut self, start: u64, end: u64) {
        for mapping in self.mappings.take_shared(start, end) {
            self.remove_pages(&mapping, mapping.start, mapping.end);
        }
    }

    /// Removes the pages of a part of a mapping. The caller flushes.
    pub fn remove_pages(&mut self, mapping: &Mapping, start: u64, end: u64) {
        self.note_peak();
        let kind = mapping.kind();
        self.pages.remove(start, end, kind, |page, mapped| mark_dirty(mapping, kind, page, mapped));
    }

    /// Returns whether mappings with so many pages more are within the limits.
    pub fn may_grow(&self, pages: u64, is_data: bool) -> bool {
        let within = |now: u64, limit: u64| now.saturating_add(pages) <= limit / PAGE_SIZE;
        within(self.mappings.pages(), self.limits.address_space)
            && (!is_data || within(self.mappings.data_pages(), self.limits.data))
    }

    /// Returns whether so many pages more may be locked.
    pub fn check_locked(&self, pages: u64) -> Result<(), Errno> {
        let limit = self.limits.locked / PAGE_SIZE;
        if self.mappings.locked_pages().saturating_add(pages) > limit { Err(Errno::EAGAIN) } else { Ok(()) }
    }

    /// Adds a mapping at free addresses.
    pub fn insert(&mut self, mapping: Mapping) {
        self.mappings.insert(mapping);
        self.peak_pages = self.peak_pages.max(self.mappings.pages());
    }

    /// Records the resident pages, before some are removed.
    pub fn note_peak(&mut self) {
        self.peak_resident = self.peak_resident.max(self.pages.resident.total());
    }
}

/// Announces to the object of a shared mapping that a page may have been written.
pub(crate) fn mark_dirty(mapping: &Mapping, kind: PageKind, page: u64, mapped: &isola_user_mode::MappedPage) {
    if mapping.is_shared
        && kind == PageKind::File
        && (mapped.is_dirty || mapped.rights.writable)
        && let (Some(object), Some(index)) = (&mapping.object, mapping.index_of(page))
    {
        object.source.mark_dirty(index);
    }
}
