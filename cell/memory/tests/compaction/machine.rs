//! A simulated machine: page tables, and cores with TLBs.

use crate::common::Arena;
use isola_memory::pages::{PAGE_SIZE, Pages};
use isola_memory::regions::{Extent, PageMover, Retirement};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::ptr::NonNull;

pub const CHUNK: usize = 2 << 20;
pub const CORES: usize = 3;

/// The address of the regions.
const START: usize = 1 << 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Present,
    Migrating,
    /// A device knows the address.
    Pinned,
}

/// A page of a region, with the value that its owner wrote.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub frame: NonNull<u8>,
    pub state: State,
    pub mark: u64,
}

/// Page tables, and cores whose TLB entries last until the core passes its loop.
pub struct Machine {
    pub pages: Pages,
    pub entries: RefCell<BTreeMap<usize, Entry>>,
    remembered: RefCell<[BTreeMap<usize, NonNull<u8>>; CORES]>,
    pub generation: Cell<u64>,
    said: [Cell<u64>; CORES],
    /// Runs of several pages, which cannot migrate.
    runs: RefCell<Vec<(NonNull<u8>, usize, u64)>>,
    /// Retired pages, with their generations.
    retired: RefCell<Vec<(u64, NonNull<u8>)>>,
    next_mark: Cell<u64>,
    pub arena: Arena,
}

fn words(frame: NonNull<u8>) -> [*mut u64; 3] {
    let first = frame.cast::<u64>().as_ptr();
    [0, PAGE_SIZE / 16, PAGE_SIZE / 8 - 1].map(|word| first.wrapping_add(word))
}

pub fn write(frame: NonNull<u8>, mark: u64) {
    // SAFETY: the page belongs to the machine.
    words(frame).into_iter().for_each(|word| unsafe { word.write(mark) });
}

fn holds(frame: NonNull<u8>, mark: u64) -> bool {
    // SAFETY: the page belongs to the machine.
    words(frame).into_iter().all(|word| unsafe { word.read() } == mark)
}

impl Machine {
    pub fn new(chunks: usize) -> Self {
        let arena = Arena::new(chunks * CHUNK, CHUNK);
        let pages = Pages::new();
        // SAFETY: only this allocator uses the arena, which outlives it.
        unsafe { pages.add_range(arena.start, arena.len_bytes()) }.unwrap();
        Self {
            pages,
            entries: RefCell::default(),
            remembered: RefCell::default(),
            generation: Cell::new(0),
            said: Default::default(),
            runs: RefCell::default(),
            retired: RefCell::default(),
            next_mark: Cell::new(1),
            arena,
        }
    }

    fn mark(&self) -> u64 {
        self.next_mark.replace(self.next_mark.get() + 1)
    }

    /// Maps a page at page number `page_number`, if there is none; false if memory has run out.
    pub fn map(&self, page_number: usize, state: State) -> bool {
        let address = START + page_number * PAGE_SIZE;
        if self.entries.borrow().contains_key(&address) {
            return true;
        }
        let Some(frame) = self.pages.allocate(1, 1) else { return false };
        assert!(self.arena.contains(frame, PAGE_SIZE));
        let mark = self.mark();
        write(frame, mark);
        self.entries.borrow_mut().insert(address, Entry { frame, state, mark });
        true
    }

    /// Unmaps the page at page number `page_number`; its memory is freed once every core has flushed its TLB.
    pub fn unmap(&self, page_number: usize) {
        let Some(entry) = self.entries.borrow_mut().remove(&(START + page_number * PAGE_SIZE)) else {
            return;
        };
        assert!(holds(entry.frame, entry.mark), "{entry:?}");
        let generation = self.record_begun().0;
        self.retired.borrow_mut().push((generation, entry.frame));
    }

    pub fn collect(&self) {
        self.retired.borrow_mut().retain(|(generation, frame)| {
            if self.is_over(Retirement(*generation)) {
                // SAFETY: no core has a translation to the page any more.
                unsafe { self.pages.free(*frame, 1) };
                return false;
            }
            true
        });
    }

    /// Reads and writes a page on a core.
    pub fn touch(&self, core: usize, page_number: usize) {
        let address = START + page_number * PAGE_SIZE;
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&address) else { return };
        let frame = *self.remembered.borrow_mut()[core].entry(address).or_insert_with(|| {
            if entry.state == State::Migrating {
                entry.state = State::Present;
            }
            entry.frame
        });
        assert!(holds(frame, entry.mark), "core {core} reads wrong contents at {address:#x}: {entry:?}");
        entry.mark = self.mark();
        write(frame, entry.mark);
    }

    pub fn pass(&self, core: usize) {
        if self.said[core].get() != self.generation.get() {
            self.remembered.borrow_mut()[core].clear();
            self.said[core].set(self.generation.get());
        }
    }

    pub fn run(&self, pages: usize) {
        if let Some(start) = self.pages.allocate(pages, 1) {
            let mark = self.mark();
            (0..pages).for_each(|page| write(at(start, page), mark));
            self.runs.borrow_mut().push((start, pages, mark));
        }
    }

    pub fn free_run(&self, index: usize) {
        let mut runs = self.runs.borrow_mut();
        if !runs.is_empty() {
            let index = index % runs.len();
            let (start, pages, _) = runs.swap_remove(index);
            // SAFETY: allocated with this length.
            unsafe { self.pages.free(start, pages) };
        }
    }

    /// Checks that all pages have the contents that their owners wrote, and that no page has two owners.
    pub fn check(&self) {
        let mut owned = BTreeMap::new();
        let mut own = |frame: NonNull<u8>| {
            assert!(owned.insert(frame, ()).is_none(), "a page has two owners: {frame:?}");
        };
        for (address, entry) in &*self.entries.borrow() {
            own(entry.frame);
            assert!(holds(entry.frame, entry.mark), "{address:#x}: {entry:?}");
        }
        for (start, pages, mark) in &*self.runs.borrow() {
            for page in 0..*pages {
                own(at(*start, page));
                assert!(holds(at(*start, page), *mark), "a run has lost its contents");
            }
        }
        self.retired.borrow().iter().for_each(|(_, frame)| own(*frame));
        let record_pages = self.arena.len_bytes() / PAGE_SIZE * 16 / PAGE_SIZE;
        assert_eq!(self.pages.statistics().used_bytes / PAGE_SIZE, owned.len() + record_pages);
    }

    /// Checks that all mapped pages have the contents that their owners wrote.
    pub fn check_values(&self) {
        for (address, entry) in &*self.entries.borrow() {
            assert!(holds(entry.frame, entry.mark), "{address:#x}: {entry:?}");
        }
    }

    pub fn is_any_migrating(&self) -> bool {
        self.entries.borrow().values().any(|entry| entry.state == State::Migrating)
    }

    /// Returns the page numbers of all mapped pages, with their frames.
    pub fn page_numbers(&self) -> impl Iterator<Item = (usize, NonNull<u8>)> {
        let entries = self.entries.borrow().clone();
        entries.into_iter().map(|(address, entry)| ((address - START) / PAGE_SIZE, entry.frame))
    }
}

pub fn at(start: NonNull<u8>, page: usize) -> NonNull<u8> {
    // SAFETY: within a run.
    unsafe { start.add(page * PAGE_SIZE) }
}

// SAFETY: frames are allocated as runs of one page, and freed only after every core has passed its loop, which they do
// between steps. One thread changes the tables.
unsafe impl PageMover for Machine {
    fn region_from(&self, address: usize) -> Option<Extent> {
        // Regions of 64 pages, some of them empty.
        let len = 64 * PAGE_SIZE;
        let (last, _) = self.entries.borrow().last_key_value().map(|(address, entry)| (*address, *entry))?;
        let start = START.max(address / len * len);
        (start <= last).then_some(Extent { start, len })
    }

    fn visit_movable(
        &self,
        address: usize,
        end: usize,
        most: usize,
        see: &mut dyn FnMut(usize, NonNull<u8>) -> ControlFlow<()>,
    ) -> usize {
        let mut page_number = address;
        for _ in 0..most {
            if page_number >= end {
                return end;
            }
            let entry = self.entries.borrow().get(&page_number).copied();
            if let Some(Entry { frame, state: State::Present | State::Migrating, .. }) = entry
                && see(page_number, frame).is_break()
            {
                return page_number;
            }
            page_number += PAGE_SIZE;
        }
        page_number.min(end)
    }

    fn begin(&self, address: usize, frame: NonNull<u8>) {
        let mut entries = self.entries.borrow_mut();
        if let Some(entry) = entries.get_mut(&address).filter(|entry| entry.frame == frame) {
            assert_ne!(entry.state, State::Pinned);
            entry.state = State::Migrating;
        }
    }

    fn record_begun(&self) -> Retirement {
        self.generation.set(self.generation.get() + 1);
        Retirement(self.generation.get())
    }

    fn is_over(&self, begun: Retirement) -> bool {
        self.said.iter().all(|said| said.get() >= begun.0)
    }

    unsafe fn finish(&self, address: usize, from: NonNull<u8>, to: NonNull<u8>) -> bool {
        let mut entries = self.entries.borrow_mut();
        let Some(entry) = entries.get_mut(&address) else { return false };
        if entry.state != State::Migrating || entry.frame != from {
            return false;
        }
        // SAFETY: `from` and `to` are whole pages of the machine.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), PAGE_SIZE) };
        // Overwritten, so that an access to the old frame is detected.
        write(from, u64::MAX);
        (entry.frame, entry.state) = (to, State::Present);
        true
    }
}
