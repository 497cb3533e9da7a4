//! Virtually contiguous objects, which the heap allocates if no run of pages is long enough.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, ThreadCores, heap_of};
use isola_memory::Heap;
use isola_memory::collect;
use isola_memory::pages::PAGE_SIZE;
use isola_memory::virtual_alloc::is_virtually_contiguous;
use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::Once;

const MIB: usize = 1 << 20;

/// Installs a region area in the process.
fn make_window() {
    static MADE: Once = Once::new();
    MADE.call_once(|| drop(isola_hosted::run(isola_hosted::Settings::default(), Vec::new(), |_| ())));
}

/// An allocated object, whose words contain its mark and their indices.
struct Object {
    start: *mut u64,
    layout: Layout,
    mark: u64,
}

impl Object {
    fn new(heap: &Heap<ThreadCores>, len: usize, align: usize, mark: u64) -> Option<Self> {
        let layout = Layout::from_size_align(len, align).unwrap();
        // SAFETY: the size is not 0.
        let start = unsafe { heap.alloc(layout) }.cast::<u64>();
        let object = (!start.is_null()).then_some(Self { start, layout, mark })?;
        assert!(start.addr().is_multiple_of(align));
        object.fill(0);
        Some(object)
    }

    fn is_virtually_contiguous(&self) -> bool {
        is_virtually_contiguous(self.start.addr())
    }

    /// Returns the indices of some words of each page, and of the last word.
    fn words(len: usize) -> impl Iterator<Item = usize> {
        (0..len / 8).step_by(PAGE_SIZE / 16 - 1).chain([len / 8 - 1])
    }

    fn fill(&self, from: usize) {
        for word in Self::words(self.layout.size()).filter(|word| word * 8 >= from) {
            // SAFETY: within the object.
            unsafe { self.start.add(word).write(self.mark << 32 | word as u64) };
        }
    }

    fn check(&self, len: usize) {
        for word in Self::words(self.layout.size()).filter(|word| word * 8 + 8 <= len) {
            // SAFETY: within the object, and written.
            let found = unsafe { self.start.add(word).read() };
            assert_eq!(found, self.mark << 32 | word as u64, "word {word} of {self:?}");
        }
    }

    /// Resizes the object; false if memory has run out.
    fn resize(&mut self, heap: &Heap<ThreadCores>, len: usize) -> bool {
        // SAFETY: the test owns the object, and the size is not 0.
        let start = unsafe { heap.realloc(self.start.cast(), self.layout, len) }.cast::<u64>();
        if start.is_null() {
            self.check(self.layout.size());
            return false;
        }
        self.start = start;
        assert!(start.addr().is_multiple_of(self.layout.align()));
        self.check(self.layout.size().min(len));
        self.layout = Layout::from_size_align(len, self.layout.align()).unwrap();
        self.fill(0);
        true
    }

    fn free(self, heap: &Heap<ThreadCores>) {
        self.check(self.layout.size());
        // SAFETY: the test owns the object.
        unsafe { heap.dealloc(self.start.cast(), self.layout) };
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "object {} of {} bytes at {:?}", self.mark, self.layout.size(), self.start)
    }
}

/// Allocates all free pages, and frees those for whose numbers `is_free` returns true.
fn cut_up(heap: &Heap<ThreadCores>, is_free: impl Fn(usize) -> bool) -> Vec<NonNull<u8>> {
    let pages: Vec<_> = std::iter::from_fn(|| heap.pages().allocate(1, 1)).collect();
    let (free, held): (Vec<_>, Vec<_>) =
        pages.into_iter().partition(|page| is_free(page.addr().get() / PAGE_SIZE));
    give(heap, free);
    held
}

fn give(heap: &Heap<ThreadCores>, pages: Vec<NonNull<u8>>) {
    // SAFETY: the pages came from this allocator, one by one.
    pages.into_iter().for_each(|page| unsafe { heap.pages().free(page, 1) });
}

fn free_bytes(heap: &Heap<ThreadCores>) -> usize {
    let pages = heap.pages().statistics();
    pages.total_bytes - pages.used_bytes
}

#[derive(Clone, Debug)]
enum Step {
    Allocate {
        len: usize,
        align_order: u32,
    },
    Free {
        which: usize,
    },
    Resize {
        which: usize,
        len: usize,
    },
    /// Allocates all free pages, and frees only every `nth`: the others are held.
    Cut {
        nth: usize,
    },
    /// Frees all held pages.
    Mend,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![4 => 33_000..200_000_usize, 3 => 33_000..3 * MIB, 1 => 33_000..9 * MIB];
    let step = prop_oneof![
        6 => (len(), 3..18_u32).prop_map(|(len, align_order)| Step::Allocate { len, align_order }),
        3 => any::<usize>().prop_map(|which| Step::Free { which }),
        5 => (any::<usize>(), len()).prop_map(|(which, len)| Step::Resize { which, len }),
        1 => (2..40_usize).prop_map(|nth| Step::Cut { nth }),
        1 => Just(Step::Mend),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn large_allocations_fail_only_without_memory_however_fragmented_it_is(steps in steps()) {
        make_window();
        let arena = Arena::new(24 * MIB, 16 * MIB);
        let heap = heap_of(&arena);
        let at_first = heap.statistics();
        let mut objects: Vec<Object> = Vec::new();
        let mut held = Vec::new();
        for (mark, step) in (0..).zip(steps) {
            let free = free_bytes(&heap);
            match step {
                Step::Allocate { len, align_order } => {
                    let object = Object::new(&heap, len, 1 << align_order, mark);
                    prop_assert_eq!(object.is_some(), len.div_ceil(PAGE_SIZE) * PAGE_SIZE <= free, "{} of {}", len, free);
                    objects.extend(object);
                }
                Step::Free { .. } | Step::Resize { .. } if objects.is_empty() => {}
                Step::Free { which } => objects.swap_remove(which % objects.len()).free(&heap),
                Step::Resize { which, len } => {
                    let which = which % objects.len();
                    let more = len.div_ceil(PAGE_SIZE) as isize - objects[which].layout.size().div_ceil(PAGE_SIZE) as isize;
                    let done = objects[which].resize(&heap, len);
                    prop_assert_eq!(done, more * PAGE_SIZE as isize <= free as isize, "{} more pages of {}", more, free);
                }
                Step::Cut { nth } => held.extend(cut_up(&heap, |page| page % nth != 0)),
                Step::Mend => give(&heap, std::mem::take(&mut held)),
            }
            let bytes: usize = objects.iter().map(|object| object.layout.size().next_multiple_of(PAGE_SIZE)).sum();
            let mapped = objects.iter().filter(|object| object.is_virtually_contiguous());
            let mapped: usize = mapped.map(|object| object.layout.size().next_multiple_of(PAGE_SIZE)).sum();
            let figures = heap.statistics();
            prop_assert_eq!((figures.large_bytes, figures.virtual_bytes), (bytes, mapped));
            prop_assert_eq!(figures.pages.used_bytes, at_first.pages.used_bytes + bytes + held.len() * PAGE_SIZE);
            objects.iter().for_each(|object| object.check(object.layout.size()));
        }
        objects.into_iter().for_each(|object| object.free(&heap));
        give(&heap, held);
        prop_assert_eq!(heap.statistics().pages.used_bytes, at_first.pages.used_bytes);
        let whole = heap.pages().allocate(2048, 1).expect("all pages are free and merged");
        // SAFETY: it came from this allocator.
        unsafe { heap.pages().free(whole, 2048) };
    }
}

#[test]
fn an_object_is_virtually_contiguous_if_every_second_page_is_used() {
    make_window();
    let arena = Arena::new(16 * MIB, PAGE_SIZE);
    let heap = heap_of(&arena);
    let held = cut_up(&heap, |page| page % 2 == 0);
    let object = Object::new(&heap, 7 * MIB, 4096, 1).expect("enough pages are free, in pieces");
    assert!(object.is_virtually_contiguous());
    assert_eq!(heap.statistics().virtual_bytes, 7 * MIB);
    assert!(Object::new(&heap, MIB, 8, 2).is_none(), "too few pages are free");
    object.free(&heap);
    give(&heap, held);
    let object = Object::new(&heap, 3 * MIB, 8, 3).expect("a run is long enough");
    assert!(!object.is_virtually_contiguous());
    object.free(&heap);
}

#[test]
fn objects_of_size_classes_need_no_span() {
    make_window();
    let arena = Arena::new(4 * MIB, PAGE_SIZE);
    let heap = heap_of(&arena);
    // Create the core's cache first.
    Object::new(&heap, 64, 8, 0).unwrap().free(&heap);
    let held = cut_up(&heap, |page| page % 2 == 0);
    let free = free_bytes(&heap);
    for len in [513, 1024, 4096, 5000, 8192, 20_000, 32_768] {
        let align = if len == 8192 { 8192 } else { 8 };
        let objects: Vec<_> = (0..).map_while(|mark| Object::new(&heap, len, align, mark)).collect();
        let bytes = objects.len() * len.next_multiple_of(PAGE_SIZE);
        assert!(bytes + 2 * len + 16 * PAGE_SIZE > free, "{bytes} bytes of {free} as objects of {len}");
        assert!(heap.statistics().virtual_bytes >= bytes - 2 * MIB / 16);
        objects.into_iter().for_each(|object| object.free(&heap));
        heap.empty_cache();
        assert_eq!((heap.statistics().virtual_bytes, heap.statistics().cached_bytes), (0, 0));
    }
    assert!(free_bytes(&heap) + 16 * PAGE_SIZE > free);
    give(&heap, held);
}

#[test]
fn an_object_with_most_of_memory_grows_by_remapping() {
    make_window();
    let arena = Arena::new(16 * MIB, 2 * MIB);
    let heap = heap_of(&arena);
    let mut object = Object::new(&heap, 7 * MIB, 8, 1).unwrap();
    let wall = Object::new(&heap, MIB, 8, 2).unwrap();
    assert!(object.resize(&heap, 14 * MIB), "remapping needs no room for a copy");
    assert!(object.is_virtually_contiguous());
    assert!(!object.resize(&heap, 17 * MIB));
    assert!(object.resize(&heap, 3 * MIB) && free_bytes(&heap) > 11 * MIB);
    assert!(object.resize(&heap, 14 * MIB));
    object.free(&heap);
    wall.free(&heap);
    assert_eq!(heap.statistics().large_bytes, 0);
}

#[test]
fn addresses_of_freed_objects_are_reused() {
    make_window();
    let arena = Arena::new(4 * MIB, PAGE_SIZE);
    let heap = heap_of(&arena);
    let held = cut_up(&heap, |page| page.is_multiple_of(2));
    let mut addresses = BTreeSet::new();
    for mark in 0..200 {
        let object = Object::new(&heap, 256 << 10, PAGE_SIZE, mark).unwrap();
        assert!(object.is_virtually_contiguous());
        addresses.insert(object.start.addr());
        object.free(&heap);
        collect();
    }
    assert!(addresses.len() < 100, "{} of 200 had new addresses", addresses.len());
    give(&heap, held);
}

#[test]
fn a_thousand_rounds_leak_no_memory() {
    make_window();
    let arena = Arena::new(16 * MIB, PAGE_SIZE);
    let heap = heap_of(&arena);
    let held = cut_up(&heap, |page| page % 3 != 0);
    let free = free_bytes(&heap);
    for round in 0..1000 {
        let len = 40_000 + round * 7919 % (4 * MIB);
        let mut object = Object::new(&heap, len, 8, round as u64).expect("as many pages as before are free");
        assert!(object.resize(&heap, len + round * 104_729 % MIB));
        object.free(&heap);
        assert_eq!(free_bytes(&heap), free);
    }
    collect();
    give(&heap, held);
}

#[test]
fn cores_free_each_other_s_virtually_contiguous_objects() {
    make_window();
    let arena = Arena::new(32 * MIB, PAGE_SIZE);
    let heap = heap_of(&arena);
    let held = cut_up(&heap, |page| page % 2 == 0);
    let free = free_bytes(&heap);
    let shelf = std::sync::Mutex::new(Vec::<(usize, Layout, u64)>::new());
    std::thread::scope(|scope| {
        for core in 0..3 {
            let (heap, shelf) = (&heap, &shelf);
            scope.spawn(move || {
                ThreadCores::become_core(core);
                for round in 0..300 {
                    let mark = (core * 1000 + round) as u64;
                    let len = 40_000 + (core + round) * 7919 % 900_000;
                    let object = Object::new(heap, len, 8, mark).expect("memory suffices for all");
                    let mut shelf = shelf.lock().unwrap();
                    shelf.push((object.start.addr(), object.layout, mark));
                    let (start, layout, mark) = shelf.swap_remove(0);
                    drop(shelf);
                    let start = std::ptr::with_exposed_provenance_mut(start);
                    Object { start, layout, mark }.free(heap);
                }
            });
        }
    });
    assert!(shelf.into_inner().unwrap().is_empty());
    assert_eq!(free_bytes(&heap), free);
    give(&heap, held);
}
