//! Simulated address spaces.

use crate::thread::SimulatedThread;
use crate::{Program, STEP_SIZE, Step};
use isola_abi::user_context::UserContext;
use isola_memory::frame::Frame;
use isola_user_mode::{
    AddressSpace, FlushGeneration, MapError, MappedPage, PAGE_SIZE, PageRights, USER_END, UserMode,
    UserThread,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Locks also after a panic of another test thread.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A simulated platform that can run programs.
#[derive(Default)]
pub struct SimulatedUserMode {
    shared: Arc<Shared>,
}

/// The state that all address spaces of a platform share.
#[derive(Default)]
struct Shared {
    settings: Mutex<Settings>,
    programs: Mutex<BTreeMap<u64, Program>>,
    spaces: Mutex<Vec<Weak<SimulatedSpace>>>,
}

#[derive(Default)]
struct Settings {
    holds_flushes: bool,
    /// The number of pages that can be mapped, unlimited if none.
    most_pages: Option<usize>,
    /// All flushes with a number up to this one are over.
    ended: u64,
    /// The number of the latest flush.
    begun: u64,
    /// The number of system calls that were not served while the program ran.
    unserved: u64,
}

impl SimulatedUserMode {
    /// Creates a platform whose flushes end at once.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes flushes last until [`Self::end_flushes`].
    pub fn hold_flushes(&self) {
        lock(&self.shared.settings).holds_flushes = true;
    }

    /// Ends all flushes that have begun, and returns their number.
    ///
    /// # Panics
    /// If a frame was freed before.
    pub fn end_flushes(&self) -> u64 {
        let spaces: Vec<_> = lock(&self.shared.spaces).iter().filter_map(Weak::upgrade).collect();
        for space in spaces {
            drop(space.pages());
        }
        let mut settings = lock(&self.shared.settings);
        let ended = settings.begun - settings.ended;
        settings.ended = settings.begun;
        ended
    }

    /// Returns the number of flushes that have begun.
    pub fn flushes(&self) -> u64 {
        lock(&self.shared.settings).begun
    }

    /// Returns the number of system calls that were not served while their program ran.
    pub fn unserved_calls(&self) -> u64 {
        lock(&self.shared.settings).unserved
    }

    /// Limits the pages of each address space, as if no memory for page tables were left beyond.
    pub fn limit_pages(&self, most: Option<usize>) {
        lock(&self.shared.settings).most_pages = most;
    }

    /// Places a program at an address, in all address spaces. The pages need not be mapped.
    pub fn place(&self, address: u64, program: Program) {
        lock(&self.shared.programs).insert(address, program);
    }

    /// Creates an address space.
    pub fn space(&self) -> Arc<SimulatedSpace> {
        let space = Arc::new(SimulatedSpace { shared: Arc::clone(&self.shared), pages: Mutex::default() });
        let mut spaces = lock(&self.shared.spaces);
        spaces.retain(|space| space.strong_count() > 0);
        spaces.push(Arc::downgrade(&space));
        drop(spaces);
        space
    }
}

impl UserMode for SimulatedUserMode {
    fn create_space(&self) -> Result<Arc<dyn AddressSpace>, MapError> {
        Ok(self.space())
    }
}

/// A simulated address space.
pub struct SimulatedSpace {
    shared: Arc<Shared>,
    pages: Mutex<Pages>,
}

#[derive(Default)]
struct Pages {
    mapped: BTreeMap<u64, MappedPage>,
    /// The frames of removed pages, with the number of the flush after which no TLB has them; none before a flush began.
    stale: Vec<(u64, Frame, Option<u64>)>,
}

impl Pages {
    fn check_range(start: u64, end: u64) {
        assert!(
            start.is_multiple_of(PAGE_SIZE)
                && end.is_multiple_of(PAGE_SIZE)
                && start <= end
                && end <= USER_END,
            "{start:#x} to {end:#x} is not a range of a program's pages"
        );
    }
}

impl SimulatedSpace {
    /// Counts a system call that was not served while its program ran.
    pub(crate) fn count_unserved_call(&self) {
        lock(&self.shared.settings).unserved += 1;
    }

    /// Returns the number of mapped pages.
    pub fn mapped(&self) -> usize {
        self.pages().mapped.len()
    }

    /// Returns the number of frames of removed pages that were not freed.
    pub fn stale(&self) -> usize {
        self.pages().stale.len()
    }

    /// Returns the number of flushes that are over.
    pub(crate) fn ended(&self) -> u64 {
        lock(&self.shared.settings).ended
    }

    /// Returns the step at an address.
    pub(crate) fn step_at(&self, address: u64) -> Option<Step> {
        let programs = lock(&self.shared.programs);
        let (start, program) = programs.range(..=address).next_back()?;
        let offset = address - start;
        let index = offset.is_multiple_of(STEP_SIZE).then_some(offset / STEP_SIZE)?;
        program.steps.get(usize::try_from(index).ok()?).cloned()
    }

    /// Marks the page at `address` as written if it still is that frame.
    pub(crate) fn mark_dirty(&self, address: u64, frame: &Frame) {
        if let Some(page) = self.pages().mapped.get_mut(&address)
            && page.frame.is(frame)
        {
            page.is_dirty = true;
        }
    }

    /// Returns the frame with this address in memory that is or was mapped at the page, for a translation in a TLB.
    pub(crate) fn translated(&self, page: u64, frame: usize) -> Option<Frame> {
        let pages = lock(&self.pages);
        let mapped = pages.mapped.get(&page).map(|mapped| &mapped.frame);
        let stale = pages.stale.iter().filter(|(address, ..)| *address == page).map(|(_, frame, _)| frame);
        mapped.into_iter().chain(stale).find(|candidate| candidate.address().addr().get() == frame).cloned()
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        lock(&self.pages)
    }
}

impl AddressSpace for SimulatedSpace {
    fn map(&self, address: u64, frame: Frame, rights: PageRights) -> Result<(), MapError> {
        if !address.is_multiple_of(PAGE_SIZE) || address >= USER_END {
            return Err(MapError::NoPage(address));
        }
        let most = lock(&self.shared.settings).most_pages;
        let mut pages = self.pages();
        if pages.mapped.contains_key(&address) {
            return Err(MapError::Occupied(address));
        }
        if most.is_some_and(|most| pages.mapped.len() >= most) {
            return Err(MapError::OutOfTables);
        }
        pages.mapped.insert(address, MappedPage { frame, rights, is_dirty: false });
        Ok(())
    }

    fn replace(&self, address: u64, frame: Frame, rights: PageRights) -> Result<MappedPage, MapError> {
        let mut pages = self.pages();
        let page = pages.mapped.get_mut(&address).ok_or(MapError::NoPage(address))?;
        let old = core::mem::replace(page, MappedPage { frame, rights, is_dirty: false });
        pages.stale.push((address, old.frame.clone(), None));
        Ok(old)
    }

    fn unmap(&self, start: u64, end: u64, removed: &mut dyn FnMut(u64, &MappedPage)) {
        Pages::check_range(start, end);
        let addresses: Vec<u64> =
            self.pages().mapped.range(start..end).map(|(address, _)| *address).collect();
        for address in addresses {
            let page = {
                let mut pages = lock(&self.pages);
                let page =
                    pages.mapped.remove(&address).expect("it was mapped, and the caller excludes others");
                pages.stale.push((address, page.frame.clone(), None));
                page
            };
            removed(address, &page);
        }
    }

    fn protect(&self, start: u64, end: u64, rights: &mut dyn FnMut(u64, &MappedPage) -> PageRights) {
        Pages::check_range(start, end);
        for (address, page) in self.pages().mapped.range_mut(start..end) {
            page.rights = rights(*address, page);
        }
    }

    fn page_at(&self, address: u64) -> Option<MappedPage> {
        self.pages().mapped.get(&(address & !(PAGE_SIZE - 1))).cloned()
    }

    fn for_each(&self, start: u64, end: u64, see: &mut dyn FnMut(u64, &MappedPage)) {
        Pages::check_range(start, end);
        for (address, page) in self.pages().mapped.range(start..end) {
            see(*address, page);
        }
    }

    fn flush(&self) -> FlushGeneration {
        let mut pages = self.pages();
        let generation = {
            let mut settings = lock(&self.shared.settings);
            settings.begun += 1;
            if !settings.holds_flushes {
                settings.ended = settings.begun;
            }
            settings.begun
        };
        for (_, _, flush) in &mut pages.stale {
            flush.get_or_insert(generation);
        }
        FlushGeneration(generation)
    }

    fn is_flushed(&self, generation: FlushGeneration) -> bool {
        self.ended() >= generation.0
    }

    fn free_flushed(&self, most: usize) -> usize {
        let ended = self.ended();
        let is_over = |generation: &Option<u64>| generation.is_some_and(|generation| generation <= ended);
        let mut pages = self.pages();
        let over = pages.stale.extract_if(.., |(_, _, generation)| is_over(generation));
        let freed: Vec<_> = over.take(most).collect();
        freed.len()
    }

    fn create_thread(self: Arc<Self>, context: UserContext) -> Box<dyn UserThread> {
        Box::new(SimulatedThread::new(self, context))
    }
}
