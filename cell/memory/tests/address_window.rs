//! Virtually contiguous objects and regions on a region area whose mappings fail, and whose TLB flushes take time.
//!
//! The region area has no memory: it only records mappings, so no test accesses an object.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, ThreadCores, heap_of};
use isola_memory::Heap;
use isola_memory::pages::PAGE_SIZE;
use isola_memory::regions::{
    Account, AddressWindow, Contents, Extent, FillError, FillOutcome, FrameChoice, MapContents, OnDemand,
    PageSize, Region, Retirement, Stack, collect, fault, install, movable_from,
};
use isola_memory::virtual_alloc::is_virtually_contiguous;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The length of the free blocks, in pages.
const BLOCK: usize = 16;

/// The page tables of the region area.
const TABLES: usize = 64;

static WINDOW: Recorder = Recorder(Mutex::new(Record {
    pages: BTreeMap::new(),
    mapped: Vec::new(),
    maps_left: usize::MAX,
    flushed: Retirement(0),
    retired: Retirement(0),
    collected: Vec::new(),
    can_fill: false,
    runs: None,
    charged: BTreeMap::new(),
}));

/// A region area of the process, with one test at a time.
struct Recorder(Mutex<Record>);

struct Record {
    /// The memory of each mapped page, by its address.
    pages: BTreeMap<usize, usize>,
    /// The lengths of all mappings, in bytes.
    mapped: Vec<usize>,
    /// The mappings that still succeed.
    maps_left: usize,
    /// The last retirement, and the last one since which all cores have flushed their TLBs.
    retired: Retirement,
    flushed: Retirement,
    /// The regions whose memory was freed.
    collected: Vec<Extent>,
    /// Whether pages can be filled. They have no memory.
    can_fill: bool,
    /// The activity that runs, and the bytes charged to each.
    runs: Option<Account>,
    charged: BTreeMap<Account, usize>,
}

impl Recorder {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retire(&self) -> Retirement {
        let mut record = self.record();
        record.retired.0 += 1;
        record.retired
    }

    /// Makes all cores flush their TLBs.
    fn flush(&self) {
        let mut record = self.record();
        record.flushed = record.retired;
    }
}

// SAFETY: no page can be accessed, and no test does so.
unsafe impl AddressWindow for Recorder {
    fn extent(&self) -> Extent {
        Extent { start: 1 << 40, len: 64 << 30 }
    }

    fn table_count(&self) -> usize {
        TABLES
    }

    fn largest_page(&self) -> PageSize {
        PageSize::TwoMib
    }

    unsafe fn fill(
        &self,
        _: usize,
        _: PageSize,
        _: FrameChoice,
        _: Contents<'_>,
    ) -> Result<FillOutcome, FillError> {
        if self.record().can_fill { Ok(FillOutcome::Filled) } else { Err(FillError::OutOfMemory(PAGE_SIZE)) }
    }

    fn account(&self) -> Option<Account> {
        self.record().runs
    }

    fn charge(&self, account: Account, len: usize) {
        *self.record().charged.entry(account).or_default() += len;
    }

    fn discharge(&self, account: Account, len: usize) {
        let mut record = self.record();
        let charged = record.charged.get_mut(&account).expect("it was charged");
        *charged = charged.checked_sub(len).expect("it was charged for so much");
    }

    fn page_at(&self, address: usize) -> Option<PageSize> {
        let page = address / PAGE_SIZE * PAGE_SIZE;
        self.record().pages.contains_key(&page).then_some(PageSize::FourKib)
    }

    unsafe fn retire(&self, _: usize, _: usize) -> Retirement {
        Recorder::retire(self)
    }

    fn is_over(&self, retired: Retirement) -> bool {
        retired <= self.record().flushed
    }

    unsafe fn collect(&self, start: usize, len: usize) {
        self.record().collected.push(Extent { start, len });
    }

    unsafe fn map(
        &self,
        address: usize,
        memory: NonNull<u8>,
        len: usize,
        _: MapContents,
    ) -> Result<(), FillError> {
        let mut record = self.record();
        record.maps_left = record.maps_left.checked_sub(1).ok_or(FillError::OutOfTables)?;
        for offset in (0..len).step_by(PAGE_SIZE) {
            let before = record.pages.insert(address + offset, memory.addr().get() + offset);
            assert_eq!(before, None, "a page is mapped there");
        }
        record.mapped.push(len);
        Ok(())
    }

    unsafe fn unmap(
        &self,
        address: usize,
        len: usize,
        take: &mut dyn FnMut(NonNull<u8>, usize),
    ) -> Retirement {
        for page in (address..address + len).step_by(PAGE_SIZE) {
            let memory = self.record().pages.remove(&page);
            let memory = memory.and_then(|memory| NonNull::new(ptr::with_exposed_provenance_mut(memory)));
            memory.into_iter().for_each(|memory| take(memory, PAGE_SIZE));
        }
        Recorder::retire(self)
    }

    unsafe fn move_pages(&self, from: usize, len: usize, to: usize) -> Retirement {
        for offset in (0..len).step_by(PAGE_SIZE) {
            let mut record = self.record();
            let memory = record.pages.remove(&(from + offset)).expect("a page is mapped there");
            record.pages.insert(to + offset, memory);
        }
        Recorder::retire(self)
    }

    unsafe fn free_tables(&self, _: usize, _: usize) {}
}

/// Installs the region area, and returns it for the time of a test.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    install(&WINDOW);
    let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Addresses of earlier tests are free again.
    WINDOW.flush();
    collect();
    let mut record = WINDOW.record();
    (record.maps_left, record.mapped) = (usize::MAX, Vec::new());
    (record.can_fill, record.runs) = (false, None);
    record.collected.clear();
    assert_eq!(record.pages.len(), 0);
    alone
}

/// Allocates every second block of the free memory, so that blocks of [`BLOCK`] pages are free.
fn cut_up(heap: &Heap<ThreadCores>) -> Vec<NonNull<u8>> {
    let pages: Vec<_> = std::iter::from_fn(|| heap.pages().allocate(1, 1)).collect();
    let is_free = |page: &NonNull<u8>| (page.addr().get() / PAGE_SIZE / BLOCK).is_multiple_of(2);
    let (free, held): (Vec<_>, Vec<_>) = pages.into_iter().partition(is_free);
    // SAFETY: the pages came from this allocator, one by one.
    free.into_iter().for_each(|page| unsafe { heap.pages().free(page, 1) });
    held
}

fn free_pages(heap: &Heap<ThreadCores>) -> usize {
    let figures = heap.statistics().pages;
    (figures.total_bytes - figures.used_bytes) / PAGE_SIZE
}

fn layout(pages: usize) -> Layout {
    Layout::from_size_align(pages * PAGE_SIZE, PAGE_SIZE).unwrap()
}

/// Returns the memory of each page of an object.
fn memory_of(object: *mut u8, pages: usize) -> Vec<Option<usize>> {
    let record = WINDOW.record();
    (0..pages).map(|page| record.pages.get(&(object.addr() + page * PAGE_SIZE)).copied()).collect()
}

#[test]
fn an_object_consists_of_the_largest_free_blocks() {
    let _alone = alone();
    let arena = Arena::new(4 << 20, BLOCK * PAGE_SIZE);
    let heap = heap_of(&arena);
    let _held = cut_up(&heap);
    // SAFETY: the size is not 0.
    let object = unsafe { heap.alloc(layout(6 * BLOCK)) };
    assert!(is_virtually_contiguous(object.addr()));
    let mapped = WINDOW.record().mapped.clone();
    assert_eq!(mapped, [BLOCK * PAGE_SIZE; 6]);
    // SAFETY: the test owns the object.
    unsafe { heap.dealloc(object, layout(6 * BLOCK)) };
}

#[test]
fn an_allocation_that_fails_within_an_object_leaves_no_page_mapped_or_used() {
    let _alone = alone();
    let arena = Arena::new(4 << 20, BLOCK * PAGE_SIZE);
    let heap = heap_of(&arena);
    let _held = cut_up(&heap);
    let free = free_pages(&heap);
    for maps_left in 0..6 {
        WINDOW.record().maps_left = maps_left;
        // SAFETY: the size is not 0.
        assert!(unsafe { heap.alloc(layout(6 * BLOCK)) }.is_null());
        assert_eq!((WINDOW.record().pages.len(), free_pages(&heap)), (0, free), "after {maps_left}");
    }
}

#[test]
fn growth_that_fails_within_an_object_leaves_it_and_its_neighbours_as_they_were() {
    let _alone = alone();
    let arena = Arena::new(8 << 20, BLOCK * PAGE_SIZE);
    let heap = heap_of(&arena);
    let _held = cut_up(&heap);
    let at_first = free_pages(&heap);
    let pages = 2 * BLOCK;
    // SAFETY: the size is not 0.
    let objects: [_; 5] = std::array::from_fn(|_| unsafe { heap.alloc(layout(pages)) });
    assert!(is_virtually_contiguous(objects[0].addr()));
    assert!(objects.windows(2).all(|pair| pair[1].addr() == pair[0].addr() + pages * PAGE_SIZE));
    let [first, second, third, rest @ ..] = objects;
    // The second one can grow where it is, into the addresses of the third; the first one has to move.
    // SAFETY: the test owns the object.
    unsafe { heap.dealloc(third, layout(pages)) };
    let objects = [first, second, rest[0], rest[1]];
    let (before, free) = (objects.map(|object| memory_of(object, pages)), free_pages(&heap));
    assert!(before.iter().flatten().all(Option::is_some));
    for object in [first, second] {
        for maps_left in 0..2 {
            WINDOW.flush();
            collect();
            WINDOW.record().maps_left = maps_left;
            // SAFETY: the test owns the object, and the size is not 0.
            let grown = unsafe { heap.realloc(object, layout(pages), 2 * pages * PAGE_SIZE) };
            assert!(grown.is_null());
            assert_eq!(objects.map(|object| memory_of(object, pages)), before, "after {maps_left}");
            assert_eq!((WINDOW.record().pages.len(), free_pages(&heap)), (4 * pages, free));
        }
    }
    WINDOW.flush();
    collect();
    WINDOW.record().maps_left = usize::MAX;
    // SAFETY: the size is not 0.
    assert_eq!(unsafe { heap.alloc(layout(pages)) }, third, "the addresses are free again");
    // SAFETY: the test owns the objects.
    [first, second, third, rest[0], rest[1]]
        .into_iter()
        .for_each(|object| unsafe { heap.dealloc(object, layout(pages)) });
    assert_eq!((WINDOW.record().pages.len(), free_pages(&heap)), (0, at_first));
}

#[test]
fn memory_addresses_and_tables_of_a_dropped_region_are_freed_after_the_flush_of_all_cores() {
    let _alone = alone();
    let len = 4 << 20;
    let new = || Region::new("test", len, OnDemand::new(PageSize::FourKib));
    let region = new().unwrap();
    let extent = movable_from(0).unwrap();
    assert_eq!(extent.len, len);
    drop(region);
    collect();
    assert_eq!(WINDOW.record().collected, [], "no core has flushed its TLB");
    let other = new().unwrap();
    assert_ne!(movable_from(0), Some(extent), "the addresses are not free yet");
    WINDOW.flush();
    collect();
    assert_eq!(WINDOW.record().collected, [extent]);
    for _ in 0..TABLES {
        let region = new().expect("the page tables of dropped regions are free again");
        assert_eq!(movable_from(0), Some(extent), "the addresses are free again");
        drop(region);
        WINDOW.flush();
    }
    drop(other);
    WINDOW.flush();
    collect();
    assert_eq!(WINDOW.record().collected.len(), TABLES + 2);
}

/// Fills pages of a region for some activities, each as many as given, from the first page on.
fn touch(region: &Region, pages: &[(u32, usize)]) {
    let mut address = region.as_ptr().addr();
    for (account, count) in pages {
        WINDOW.record().runs = Some(Account(*account));
        for _ in 0..*count {
            fault(address).unwrap();
            address += PAGE_SIZE;
        }
    }
}

/// Returns the pages charged to each activity.
fn charged() -> Vec<(u32, usize)> {
    let record = WINDOW.record();
    record.charged.iter().filter(|(_, len)| **len > 0).map(|(of, len)| (of.0, len / PAGE_SIZE)).collect()
}

#[test]
fn pages_are_charged_to_the_activities_that_fault_and_given_back_with_the_region() {
    let _alone = alone();
    WINDOW.record().can_fill = true;
    let on_demand = || OnDemand::new(PageSize::FourKib);
    let region = Region::new("charged", 100 * PAGE_SIZE, on_demand()).unwrap();
    // In steps of 16 pages, to the activity that completes the step.
    touch(&region, &[(7, 15)]);
    assert_eq!(charged(), []);
    touch(&region, &[(7, 2)]);
    assert_eq!(charged(), [(7, 16)]);
    touch(&region, &[(3, 32)]);
    assert_eq!(charged(), [(3, 32), (7, 16)]);
    let other = Region::new("another", 100 * PAGE_SIZE, on_demand()).unwrap();
    touch(&other, &[(7, 16)]);
    assert_eq!(charged(), [(3, 32), (7, 32)]);
    // Whichever activity drops it.
    WINDOW.record().runs = Some(Account(1));
    drop(region);
    assert_eq!(charged(), [(7, 16)]);
    drop(other);
    assert_eq!(charged(), []);
}

#[test]
fn more_activities_than_a_region_has_accounts_for_are_charged_to_the_first() {
    let _alone = alone();
    WINDOW.record().can_fill = true;
    let region = Region::new("shared", 100 * PAGE_SIZE, OnDemand::new(PageSize::FourKib)).unwrap();
    touch(&region, &[(1, 16), (2, 16), (3, 16), (4, 16), (5, 16), (6, 16)]);
    assert_eq!(charged(), [(1, 48), (2, 16), (3, 16), (4, 16)]);
    drop(region);
    assert_eq!(charged(), []);
}

#[test]
fn pages_that_are_filled_at_the_creation_are_charged_to_the_creator_exactly() {
    let _alone = alone();
    WINDOW.record().can_fill = true;
    WINDOW.record().runs = Some(Account(9));
    let stack = Stack::new("stack", 3 * PAGE_SIZE).unwrap();
    assert_eq!(charged(), [(9, 3)]);
    drop(stack);
    assert_eq!(charged(), []);
}
