//! Withdrawal of memory from the page allocator, and its return.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::{Arena, Random};
use isola_abi::id::NodeId;
use isola_memory::pages::{KnownContents, PAGE_SIZE, Pages, WithdrawnMemory};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ptr::NonNull;

const CHUNK: usize = 2 << 20;

fn at(address: usize) -> NonNull<u8> {
    NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()
}

/// Returns an allocator over that many chunks, from the second page of the first chunk on, as a cell's pool begins.
fn pool(chunks: usize) -> (Arena, Pages) {
    let arena = Arena::new(chunks * CHUNK, CHUNK);
    let pages = Pages::new();
    // SAFETY: only this allocator uses the arena, which outlives it.
    unsafe { pages.add_range(arena.start.add(PAGE_SIZE), arena.len_bytes() - PAGE_SIZE) }.unwrap();
    (arena, pages)
}

fn total(pages: &Pages) -> usize {
    pages.statistics().total_bytes
}

fn back(pages: &Pages, withdrawn: &WithdrawnMemory) {
    for (start, len) in withdrawn.blocks() {
        // SAFETY: the memory was just withdrawn, and is unused.
        unsafe { pages.plug(NodeId(0), at(*start), *len, KnownContents::Unknown) }.unwrap();
    }
}

#[test]
fn free_chunks_are_withdrawn_and_returned() {
    let (arena, pages) = pool(16);
    let before = pages.statistics();
    let withdrawn = pages.withdraw(6 * CHUNK + 5);
    assert_eq!(withdrawn.len_bytes(), 6 * CHUNK);
    for (start, len) in withdrawn.blocks() {
        assert!(start.is_multiple_of(CHUNK) && len.is_multiple_of(CHUNK));
        assert!(arena.contains(at(*start), *len));
    }
    assert_eq!(total(&pages), before.total_bytes - 6 * CHUNK);
    let mut held = Vec::new();
    while let Some(page) = pages.allocate(1, 1) {
        let address = page.addr().get();
        assert!(withdrawn.blocks().iter().all(|(start, len)| !(*start..start + len).contains(&address)));
        held.push(page);
    }
    assert_eq!(pages.statistics().used_bytes, total(&pages), "all remaining memory can be allocated");
    // SAFETY: just allocated.
    held.into_iter().for_each(|page| unsafe { pages.free(page, 1) });
    back(&pages, &withdrawn);
    assert_eq!((total(&pages), pages.statistics().used_bytes), (before.total_bytes, before.used_bytes));
    assert!(pages.allocate(8 * CHUNK / PAGE_SIZE, 1).is_some(), "the chunks are merged again");
}

#[test]
fn used_memory_and_a_sixteenth_of_the_rest_stay() {
    let (_arena, pages) = pool(16);
    assert!(pages.withdraw(64 * CHUNK).len_bytes() <= 15 * CHUNK);
    let (_arena, pages) = pool(16);
    let held = pages.allocate(8 * CHUNK / PAGE_SIZE, 1).unwrap();
    let withdrawn = pages.withdraw(64 * CHUNK);
    assert_eq!(withdrawn.len_bytes(), 7 * CHUNK);
    let overlaps = |(start, len): &(usize, usize)| {
        *start < held.addr().get() + 8 * CHUNK && held.addr().get() < start + len
    };
    assert!(!withdrawn.blocks().iter().any(overlaps));
    assert_eq!(pages.withdraw(CHUNK).len_bytes(), 0);
    assert_eq!(pages.withdraw(CHUNK - 1).len_bytes(), 0);
}

#[test]
fn no_chunk_is_withdrawn_while_less_than_a_sixteenth_is_free() {
    let (_arena, pages) = pool(40);
    let chunk = CHUNK / PAGE_SIZE;
    assert!((0..38).all(|_| pages.allocate(chunk, chunk).is_some()));
    assert_eq!(pages.spare_bytes(), 0);
    assert_eq!(pages.withdraw(CHUNK).len_bytes(), 0);
    assert!(pages.allocate(chunk, chunk).is_some(), "a whole chunk was free");
}

#[test]
fn an_unused_block_is_withdrawn_with_its_records_and_its_slot_is_reused() {
    let (_arena, pages) = pool(16);
    let chunk = Arena::new(CHUNK, CHUNK);
    let before = total(&pages);
    for _ in 0..200 {
        // SAFETY: only this allocator uses the arena, until it is withdrawn.
        unsafe { pages.plug(NodeId(0), chunk.start, CHUNK, KnownContents::Unknown) }.unwrap();
        assert_eq!(total(&pages), before + CHUNK);
        let withdrawn = pages.withdraw(CHUNK);
        assert_eq!(withdrawn.blocks(), [(chunk.start.addr().get(), CHUNK)]);
        assert_eq!(total(&pages), before);
        // SAFETY: no other thread uses the allocator.
        unsafe { pages.reuse(withdrawn.slots()) };
    }
}

#[test]
fn a_used_range_is_withdrawn_in_part_and_later_with_its_records() {
    let (_arena, pages) = pool(2);
    let chunk = Arena::new(8 * CHUNK, 8 * CHUNK);
    // SAFETY: only this allocator uses the arena, until it is withdrawn.
    unsafe { pages.plug(NodeId(0), chunk.start, 8 * CHUNK, KnownContents::Unknown) }.unwrap();
    let held = pages.allocate(3 * CHUNK / PAGE_SIZE, 1).unwrap();
    assert!(chunk.contains(held, 3 * CHUNK));
    let some = pages.withdraw(4 * CHUNK);
    assert_eq!(some.len_bytes(), 4 * CHUNK);
    // SAFETY: just allocated.
    unsafe { pages.free(held, 3 * CHUNK / PAGE_SIZE) };
    let rest = pages.withdraw(4 * CHUNK);
    assert_eq!(rest.len_bytes(), 4 * CHUNK, "including the chunk with the records");
    assert_ne!(rest.slots(), 0);
}

#[test]
fn added_memory_fills_withdrawn_chunks_and_otherwise_forms_a_range() {
    // The alignment of the start determines which blocks are whole.
    let arena = Arena::new(16 * CHUNK, 16 * CHUNK);
    let pages = Pages::new();
    let start = arena.start.addr().get();
    // SAFETY: only this allocator uses the lower half of the arena, which outlives it.
    unsafe { pages.add_range(at(start), 8 * CHUNK) }.unwrap();
    let held = pages.allocate(1, 1).unwrap();
    let withdrawn = pages.withdraw(6 * CHUNK);
    assert_eq!(withdrawn.len_bytes(), 6 * CHUNK);
    // A withdrawn block at the end, and eight further chunks behind it.
    let (hole, _) = *withdrawn.blocks().iter().find(|(at, len)| at + len == start + 8 * CHUNK).unwrap();
    let before = total(&pages);
    // SAFETY: the memory was withdrawn, or never added.
    unsafe { pages.plug(NodeId(0), at(hole), start + 16 * CHUNK - hole, KnownContents::Unknown) }.unwrap();
    assert_eq!(total(&pages), before + start + 16 * CHUNK - hole);
    assert!(pages.allocate(4 * CHUNK / PAGE_SIZE, 1).is_some());
    // SAFETY: allocated above.
    unsafe { pages.free(held, 1) };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// While memory is withdrawn and returned between allocations, no allocated page is withdrawn, and pages keep their
    /// contents.
    #[test]
    fn no_used_page_is_withdrawn(seed in 1u64.., steps in 20usize..200) {
        let (arena, pages) = pool(24);
        let chunks: Vec<Arena> = (0..3).map(|order| Arena::new(CHUNK << order, CHUNK << order)).collect();
        let mut random = Random(seed);
        for chunk in &chunks {
            // SAFETY: only this allocator uses the arenas.
            unsafe { pages.plug(NodeId(0), chunk.start, chunk.len_bytes(), KnownContents::Unknown) }.unwrap();
        }
        let all = total(&pages);
        let mut held: BTreeMap<usize, (usize, u8)> = BTreeMap::new();
        let mut away: Vec<(usize, usize)> = Vec::new();
        for _ in 0..steps {
            match random.below(8) {
                0..4 => {
                    let most = if random.below(4) == 0 { 1500 } else { 40 };
                    let count = 1 + random.below(most);
                    if let Some(run) = pages.allocate(count, 1) {
                        let (address, mark) = (run.addr().get(), random.below(256) as u8);
                        let gone = |(start, len): &(usize, usize)| *start < address + count * PAGE_SIZE && address < start + len;
                        prop_assert!(!away.iter().any(gone));
                        for page in 0..count {
                            // SAFETY: just allocated.
                            unsafe { run.add(page * PAGE_SIZE).write(mark) };
                        }
                        held.insert(address, (count, mark));
                    }
                }
                4..6 => {
                    let number = random.below(held.len().max(1));
                    if let Some((&address, &(count, mark))) = held.iter().nth(number) {
                        for page in 0..count {
                            // SAFETY: allocated and written.
                            prop_assert_eq!(unsafe { at(address + page * PAGE_SIZE).read() }, mark);
                        }
                        held.remove(&address);
                        // SAFETY: allocated above with this length.
                        unsafe { pages.free(at(address), count) };
                    }
                }
                6 => {
                    let withdrawn = pages.withdraw(random.below(12) * CHUNK);
                    for &(start, len) in withdrawn.blocks() {
                        prop_assert!(start.is_multiple_of(CHUNK) && len.is_multiple_of(CHUNK) && len > 0);
                        let used = |(address, (count, _)): (&usize, &(usize, u8))| *address < start + len && start < address + count * PAGE_SIZE;
                        prop_assert!(!held.iter().any(used));
                        // SAFETY: withdrawn, thus unused.
                        unsafe { at(start).write_bytes(0xee, len) };
                        away.push((start, len));
                    }
                    // SAFETY: no other thread uses the allocator.
                    unsafe { pages.reuse(withdrawn.slots()) };
                }
                _ => {
                    if !away.is_empty() {
                        let (start, len) = away.swap_remove(random.below(away.len()));
                        let cut = CHUNK * random.below(len / CHUNK);
                        for (start, len) in [(start, cut), (start + cut, len - cut)] {
                            if len > 0 {
                                // SAFETY: withdrawn.
                                unsafe { pages.plug(NodeId(0), at(start), len, KnownContents::Unknown) }.unwrap();
                            }
                        }
                    }
                }
            }
            let gone: usize = away.iter().map(|(_, len)| len).sum();
            prop_assert_eq!(total(&pages) + gone, all);
        }
        drop(arena);
    }
}
