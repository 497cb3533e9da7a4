//! Tests of page allocation by colour.
#![allow(unsafe_code, reason = "the caller of a free owns the memory, which no type can check")]

mod common;

use common::Arena;
use isola_memory::Pages;
use isola_memory::pages::PAGE_SIZE;
use std::ptr::NonNull;

fn pages_of(arena: &Arena) -> Pages {
    let pages = Pages::new();
    // SAFETY: tests keep the arena longer than the allocator.
    unsafe { pages.add_range(arena.start, arena.len_bytes()) }.unwrap();
    pages
}

#[test]
fn pages_of_one_colour_come_from_blocks_cut_for_another() {
    // The arena begins at a multiple of 16 pages with its records, which occupy 3 pages.
    let arena = Arena::new(515 * PAGE_SIZE, 16 * PAGE_SIZE);
    let pages = pages_of(&arena);
    let of_color = |color| std::iter::from_fn(|| pages.frame_of_color(color, 16)).count();
    assert_eq!((of_color(5), of_color(6), of_color(5)), (32, 32, 0));
    assert_eq!((of_color(15), of_color(0)), (32, 32));
}

#[test]
fn a_page_of_a_colour_is_found_among_many_free_pages_of_others() {
    let arena = Arena::new(515 * PAGE_SIZE, 16 * PAGE_SIZE);
    let pages = pages_of(&arena);
    let mut all: Vec<_> = std::iter::from_fn(|| pages.allocate(1, 1)).collect();
    let color_of = |page: &NonNull<u8>| page.addr().get() / PAGE_SIZE % 4;
    all.sort_by_key(|page| color_of(page) == 2);
    // Free first the page of the colour, then more pages of another colour than the search limit, no two of them
    // adjacent.
    let of_color = all.pop().unwrap();
    let others = all.iter().filter(|page| color_of(page) == 1).take(100);
    // SAFETY: the pages came from this allocator and are unused.
    std::iter::once(&of_color).chain(others).for_each(|page| unsafe { pages.free(*page, 1) });
    assert_eq!(pages.frame_of_color(2, 4).map(|frame| frame.memory), Some(of_color));
    assert_eq!(pages.frame_of_color(2, 4).map(|frame| frame.memory), None);
}
