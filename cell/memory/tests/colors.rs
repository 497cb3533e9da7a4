//! Pages of a colour.
#![allow(unsafe_code, reason = "giving memory back is a promise that no type can check")]

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
fn pages_of_a_colour_come_out_of_what_is_left_of_others() {
    // The first range begins at a multiple of 16 pages with its records, of which it has 3.
    let arena = Arena::new(515 * PAGE_SIZE, 16 * PAGE_SIZE);
    let pages = pages_of(&arena);
    let of_color = |color| std::iter::from_fn(|| pages.frame_of_color(color, 16)).count();
    assert_eq!((of_color(5), of_color(6), of_color(5)), (32, 32, 0));
    assert_eq!((of_color(15), of_color(0)), (32, 32));
}

#[test]
fn a_page_of_a_colour_is_found_however_many_of_others_are_free() {
    let arena = Arena::new(515 * PAGE_SIZE, 16 * PAGE_SIZE);
    let pages = pages_of(&arena);
    let mut all: Vec<_> = std::iter::from_fn(|| pages.allocate(1, 1)).collect();
    let color_of = |page: &NonNull<u8>| page.addr().get() / PAGE_SIZE % 4;
    all.sort_by_key(|page| color_of(page) == 2);
    // The one of the colour first, and more of another, none beside another, than are looked at.
    let of_color = all.pop().unwrap();
    let others = all.iter().filter(|page| color_of(page) == 1).take(100);
    // SAFETY: they came from there.
    std::iter::once(&of_color).chain(others).for_each(|page| unsafe { pages.free(*page, 1) });
    assert_eq!(pages.frame_of_color(2, 4).map(|frame| frame.memory), Some(of_color));
    assert_eq!(pages.frame_of_color(2, 4).map(|frame| frame.memory), None);
}
