//! Large objects in pieces: memory that is not contiguous, at addresses that are.
//!
//! Where memory is so cut up that no run of pages is long enough for an object of the heap, the object is made of the
//! largest blocks there are, one after the other in the window of [`regions`](crate::regions): all of it there from the
//! beginning, never paged. An object of several MiB that does not fit any more where it is moves in the same way: its
//! pages come to stand in front of further ones, and its bytes stay where they are (decision 0019).
//!
//! Their addresses are the last quarter of the window (`areas`), a bit a unit (`places`).
//!
//! An object of a size class comes here too where its class cannot get a span, which is a run of up to 32 pages. It is freed
//! into a core's cache like any other, and its pages come back when the cache gives it back.
//!
//! No record says what is where. That an address is of such an object is told by the window it is in, how long the
//! object is by who frees it, and which pages it has by the page tables.
//!
//! **What waits.** Pages of an object that is gone are free at once: a core may remember that they were at its
//! addresses, but nobody uses these any more. The addresses and the page tables must wait until all cores have
//! forgotten (`areas::collect`).

mod areas;
mod places;

use self::areas::{BYTES_AT_ONCE, end_of, give_units, lengthen_place, mapped_part, take_place};
use crate::pages::{PAGE_SIZE, Pages};
use crate::regions::{Carry, PageSize, Retired, Window, window};
use core::ptr::{self, NonNull};
use isola_abi::id::NodeId;

pub(crate) use self::areas::collect;

/// Whether the object at `address` is in pieces.
pub fn is_mapped(address: usize) -> bool {
    window().is_some_and(|window| {
        let part = mapped_part(window.extent());
        address.wrapping_sub(part.start) < part.len
    })
}

/// Makes an object of `count` pages at a multiple of `align`; `None` where there is no memory, or no place.
pub(crate) fn allocate(pages: &Pages, node: NodeId, count: usize, align: usize) -> Option<NonNull<u8>> {
    let window = window()?;
    if !has_room(pages, count) {
        return None;
    }
    let start = take_place(window, count, align)?;
    if fill(window, pages, node, start, 0..count) {
        return NonNull::new(ptr::with_exposed_provenance_mut(start));
    }
    // SAFETY: nobody knows of the object.
    unsafe { give_place(window, pages, start, count) };
    None
}

/// Takes an object back.
///
/// # Safety
/// It is from here, of that allocator and of so many pages, and nobody uses it any more.
pub(crate) unsafe fn free(pages: &Pages, object: NonNull<u8>, count: usize) {
    let Some(window) = window() else { return };
    // SAFETY: the caller's promise.
    unsafe { give_place(window, pages, object.addr().get(), count) };
    collect();
}

/// Makes an object of `had` pages one of `wanted` (at least one) where it is; true when it is done. It always is when
/// `wanted` is less: then of a large page all that is behind what is wanted stays.
///
/// # Safety
/// As [`free`], where pages from `wanted` on count as given back and those before do not.
pub(crate) unsafe fn resize(
    pages: &Pages,
    node: NodeId,
    object: NonNull<u8>,
    had: usize,
    wanted: usize,
) -> bool {
    let Some(window) = window() else { return false };
    let start = object.addr().get();
    if wanted <= had {
        // SAFETY: the caller's promise.
        unsafe { shorten(window, pages, start, had, wanted) };
        return true;
    }
    let there = pages_there(window, start, had);
    if wanted <= there {
        return true;
    }
    if !has_room(pages, wanted - there) || !lengthen_place(start, had, wanted) {
        return false;
    }
    let filled = fill(window, pages, node, start, there..wanted);
    if !filled {
        // SAFETY: nobody knows that there was to be more.
        unsafe { shorten(window, pages, start, wanted, had) };
    }
    filled
}

/// Moves an object of `had` pages, of here or a run of the page allocator, to where it has `wanted`, more than before:
/// the same pages, and further ones behind them. `None` where that cannot be; then nothing has changed.
///
/// # Safety
/// As [`free`] or [`Pages::free`], where the object counts as given back, if it was moved.
pub(crate) unsafe fn relocate(
    pages: &Pages,
    node: NodeId,
    object: NonNull<u8>,
    had: usize,
    (wanted, align): (usize, usize),
) -> Option<NonNull<u8>> {
    let window = window()?;
    let from = object.addr().get();
    let there = if is_mapped(from) { pages_there(window, from, had) } else { had };
    let start = take_place(window, wanted.max(there), align)?;
    if there < wanted && !(has_room(pages, wanted - there) && fill(window, pages, node, start, there..wanted))
    {
        // SAFETY: nobody knows of the place.
        unsafe { give_place(window, pages, start, wanted) };
        return None;
    }
    if is_mapped(from) {
        let mut retired = Retired(0);
        for (offset, len) in parts(from, end_of(from, had) - from) {
            // SAFETY: the object is the caller's, and so is the place, where these pages are not yet.
            retired = unsafe { window.shift(from + offset, len, start + offset) };
        }
        give_units(from, 0, had, retired);
        collect();
    } else {
        // SAFETY: the caller's promise.
        unsafe { pages.take_apart(object, had) };
        // SAFETY: the run is the caller's, who gives it up for its new place.
        let mapped = unsafe { window.map(start, object, had * PAGE_SIZE, Carry::Contents) };
        if mapped.is_err() {
            // SAFETY: nobody knows of the place; the run is not there.
            unsafe { give_place(window, pages, start, wanted) };
            return None;
        }
    }
    NonNull::new(ptr::with_exposed_provenance_mut(start))
}

/// Whether so many pages are free, as far as that can be known.
fn has_room(pages: &Pages, count: usize) -> bool {
    let figures = pages.statistics();
    count <= figures.total_bytes.saturating_sub(figures.used_bytes) / PAGE_SIZE
}

/// Has memory come to an object's pages: the largest blocks there are. False where it has run out; then nothing is there.
fn fill(
    window: &dyn Window,
    pages: &Pages,
    node: NodeId,
    start: usize,
    wanted: core::ops::Range<usize>,
) -> bool {
    let mut done = wanted.start;
    while done < wanted.end {
        let Some((frame, count)) = pages.largest_near(node, wanted.end - done) else { break };
        let (address, len) = (start + done * PAGE_SIZE, count * PAGE_SIZE);
        // SAFETY: the memory was just handed out, and the addresses are the object's, which has no pages there.
        if unsafe { window.map(address, frame.memory, len, Carry::Nothing) }.is_err() {
            // SAFETY: just handed out, page by page.
            unsafe { pages.free_apart(frame.memory, count) };
            break;
        }
        done += count;
    }
    let is_full = done == wanted.end;
    if !is_full {
        let (address, len) = (start + wanted.start * PAGE_SIZE, (done - wanted.start) * PAGE_SIZE);
        // SAFETY: nobody knows of these pages yet.
        unsafe { unmap(window, pages, address, len) };
    }
    is_full
}

/// Gives an object's pages and addresses back from `wanted` pages on. What of a large page is behind stays.
///
/// # Safety
/// The object has `had` pages, and nobody uses those any more.
unsafe fn shorten(window: &dyn Window, pages: &Pages, start: usize, had: usize, wanted: usize) {
    let page = window.page_at(start + wanted * PAGE_SIZE).unwrap_or(PageSize::FourKib);
    let cut = (start + wanted * PAGE_SIZE).next_multiple_of(page.bytes());
    let end = end_of(start, had);
    // SAFETY: the caller's promise.
    let retired = unsafe { unmap(window, pages, cut, end.saturating_sub(cut)) };
    give_units(start, wanted, had, retired);
    collect();
}

/// Gives an object's pages and addresses back.
///
/// # Safety
/// The object has `count` pages, and nobody uses it any more.
unsafe fn give_place(window: &dyn Window, pages: &Pages, start: usize, count: usize) {
    // SAFETY: the caller's promise.
    let retired = unsafe { unmap(window, pages, start, end_of(start, count) - start) };
    give_units(start, 0, count, retired);
}

/// Takes pages out of use and makes their memory free.
///
/// # Safety
/// Nobody uses them any more.
unsafe fn unmap(window: &dyn Window, pages: &Pages, start: usize, len: usize) -> Retired {
    let mut run: Option<(NonNull<u8>, usize)> = None;
    // SAFETY: what is mapped was handed out page by page, and nobody uses it.
    let free = |(memory, len): (NonNull<u8>, usize)| unsafe { pages.free_apart(memory, len / PAGE_SIZE) };
    let mut retired = Retired(0);
    for (offset, len) in parts(start, len) {
        let take = &mut |memory: NonNull<u8>, len: usize| match &mut run {
            Some((first, so_far)) if first.addr().get() + *so_far == memory.addr().get() => *so_far += len,
            _ => run.replace((memory, len)).into_iter().for_each(free),
        };
        // SAFETY: the caller's promise.
        retired = unsafe { window.unmap(start + offset, len, take) };
    }
    run.into_iter().for_each(free);
    retired
}

/// What is taken out of use at once of `len` bytes from `start` on: offsets and lengths.
fn parts(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = move |offset: usize| (len - offset).min(BYTES_AT_ONCE - (start + offset) % BYTES_AT_ONCE);
    let first = (len > 0).then(|| (0, part(0)));
    core::iter::successors(first, move |(offset, before)| {
        let offset = offset + before;
        (offset < len).then(|| (offset, part(offset)))
    })
}

/// How many pages an object of `count` has: more, where it was made smaller within a large page.
fn pages_there(window: &dyn Window, start: usize, count: usize) -> usize {
    let last = start + (count - 1) * PAGE_SIZE;
    let page = window.page_at(last).unwrap_or(PageSize::FourKib);
    (last + 1).next_multiple_of(page.bytes()).saturating_sub(start) / PAGE_SIZE
}
