//! Virtually contiguous allocations: large heap objects of several physical pieces, mapped at consecutive addresses.
//!
//! If memory is so fragmented that no run of pages is long enough for an object, the heap maps the largest free blocks
//! one after the other in the region area ([`regions`](crate::regions)). All pages of such an object are always
//! present. An object of several MiB that cannot grow in place moves in the same way: its pages are remapped in front
//! of further ones, without a copy (decision 0019).
//!
//! The addresses are the last quarter of the region area (`areas`), with a bit per unit (`address_bitmap`).
//!
//! An object of a size class is allocated here too if its class cannot get a span, a run of up to 32 pages. A free puts
//! it into a core's cache like any other object; its pages are freed when it leaves the cache.
//!
//! There is no record per object. Its address shows that it is virtually contiguous, the caller of the free passes its
//! length, and the page tables contain its pages.
//!
//! **Reuse.** The pages of a freed object are free at once: TLBs may still map its addresses to them, but no valid
//! pointer to these addresses exists. The addresses and page tables are reused after all cores have flushed their TLBs
//! (`areas::collect`).

mod address_bitmap;
mod areas;

use self::areas::{BYTES_AT_ONCE, end_of, extend_addresses, free_units, take_addresses, virtual_alloc_part};
use crate::pages::{PAGE_SIZE, Pages};
use crate::regions::{AddressWindow, MapContents, PageSize, Retirement, window};
use core::ptr::{self, NonNull};
use isola_abi::id::NodeId;

pub(crate) use self::address_bitmap::BLOCK_BYTES;
pub(crate) use self::areas::collect;

/// Returns whether the object at `address` is virtually contiguous.
pub fn is_virtually_contiguous(address: usize) -> bool {
    window().is_some_and(|window| {
        let part = virtual_alloc_part(window.extent());
        address.wrapping_sub(part.start) < part.len
    })
}

/// Allocates an object of `count` pages at a multiple of `align`; `None` if memory, addresses or page tables have run
/// out.
pub(crate) fn allocate(pages: &Pages, node: NodeId, count: usize, align: usize) -> Option<NonNull<u8>> {
    let window = window()?;
    if !has_room(pages, count) {
        return None;
    }
    let start = take_addresses(window, count, align)?;
    if fill(window, pages, node, start, 0..count) {
        return NonNull::new(ptr::with_exposed_provenance_mut(start));
    }
    // SAFETY: the object was not returned to any caller.
    unsafe { free_object(window, pages, start, count) };
    None
}

/// Frees an object.
///
/// # Safety
/// It came from this module with that allocator and that many pages, and is unused.
pub(crate) unsafe fn free(pages: &Pages, object: NonNull<u8>, count: usize) {
    let Some(window) = window() else { return };
    // SAFETY: the caller's guarantee is that of `free_object`.
    unsafe { free_object(window, pages, object.addr().get(), count) };
    collect();
}

/// Changes the length of an object in place from `had` pages to `wanted` (at least one); true on success. Shrinking
/// always succeeds, but the rest of a large page that `wanted` reaches into stays mapped.
///
/// # Safety
/// As [`free`], for the pages behind the first `wanted`; the others remain the caller's.
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
        // SAFETY: the caller gives up the pages behind `wanted`.
        unsafe { shorten(window, pages, start, had, wanted) };
        return true;
    }
    let there = mapped_pages_of(window, start, had);
    if wanted <= there {
        return true;
    }
    if !has_room(pages, wanted - there) || !extend_addresses(start, had, wanted) {
        return false;
    }
    let filled = fill(window, pages, node, start, there..wanted);
    if !filled {
        // SAFETY: the additional addresses were not returned to any caller.
        unsafe { shorten(window, pages, start, wanted, had) };
    }
    filled
}

/// Moves an object of `had` pages, from this module or a run of the page allocator, to new addresses for `wanted`
/// pages, more than before: the same pages, followed by further ones. Returns `None` without any change if that is
/// impossible.
///
/// # Safety
/// As [`free`] or [`Pages::free`]; if the object was moved, its old address is freed.
pub(crate) unsafe fn relocate(
    pages: &Pages,
    node: NodeId,
    object: NonNull<u8>,
    had: usize,
    (wanted, align): (usize, usize),
) -> Option<NonNull<u8>> {
    let window = window()?;
    let from = object.addr().get();
    let there = if is_virtually_contiguous(from) { mapped_pages_of(window, from, had) } else { had };
    let start = take_addresses(window, wanted.max(there), align)?;
    if there < wanted && !(has_room(pages, wanted - there) && fill(window, pages, node, start, there..wanted))
    {
        // SAFETY: the new addresses were not returned to any caller.
        unsafe { free_object(window, pages, start, wanted) };
        return None;
    }
    if is_virtually_contiguous(from) {
        let mut retired = Retirement(0);
        for (offset, len) in parts(from, end_of(from, had) - from) {
            // SAFETY: both objects are the caller's, and these pages of the new one are still empty.
            retired = unsafe { window.move_pages(from + offset, len, start + offset) };
        }
        free_units(from, 0, had, retired);
        collect();
    } else {
        // SAFETY: the caller guarantees that the object is a run of `had` pages.
        unsafe { pages.split_into_pages(object, had) };
        // SAFETY: the caller gives up the run's old address, so its memory is used only at the new one.
        let mapped = unsafe { window.map(start, object, had * PAGE_SIZE, MapContents::Keep) };
        if mapped.is_err() {
            // SAFETY: the new addresses were not returned to any caller, and the run is not mapped there.
            unsafe { free_object(window, pages, start, wanted) };
            return None;
        }
    }
    NonNull::new(ptr::with_exposed_provenance_mut(start))
}

/// Returns whether that many pages are free, as far as concurrent changes allow.
fn has_room(pages: &Pages, count: usize) -> bool {
    let figures = pages.statistics();
    count <= figures.total_bytes.saturating_sub(figures.used_bytes) / PAGE_SIZE
}

/// Maps the largest free blocks as pages `wanted` of an object. Returns false if memory or page tables have run out;
/// then none of these pages is mapped.
fn fill(
    window: &dyn AddressWindow,
    pages: &Pages,
    node: NodeId,
    start: usize,
    wanted: core::ops::Range<usize>,
) -> bool {
    let mut done = wanted.start;
    while done < wanted.end {
        let Some((frame, count)) = pages.largest_near(node, wanted.end - done) else { break };
        let (address, len) = (start + done * PAGE_SIZE, count * PAGE_SIZE);
        // SAFETY: the memory was just allocated, and the addresses belong to the object, which has no pages there.
        if unsafe { window.map(address, frame.memory, len, MapContents::Discard) }.is_err() {
            // SAFETY: just allocated, as runs of one page, and not mapped.
            unsafe { pages.free_single_pages(frame.memory, count) };
            break;
        }
        done += count;
    }
    let is_full = done == wanted.end;
    if !is_full {
        let (address, len) = (start + wanted.start * PAGE_SIZE, (done - wanted.start) * PAGE_SIZE);
        // SAFETY: these pages were not returned to any caller.
        unsafe { unmap(window, pages, address, len) };
    }
    is_full
}

/// Frees an object's pages and addresses behind the first `wanted` pages; the rest of a large page at that point stays
/// mapped.
///
/// # Safety
/// The object has `had` pages, and those behind `wanted` are unused.
unsafe fn shorten(window: &dyn AddressWindow, pages: &Pages, start: usize, had: usize, wanted: usize) {
    let page = window.page_at(start + wanted * PAGE_SIZE).unwrap_or(PageSize::FourKib);
    let cut = (start + wanted * PAGE_SIZE).next_multiple_of(page.bytes());
    let end = end_of(start, had);
    // SAFETY: the caller guarantees that the pages are unused.
    let retired = unsafe { unmap(window, pages, cut, end.saturating_sub(cut)) };
    free_units(start, wanted, had, retired);
    collect();
}

/// Frees an object's pages and addresses.
///
/// # Safety
/// The object has `count` pages, and is unused.
unsafe fn free_object(window: &dyn AddressWindow, pages: &Pages, start: usize, count: usize) {
    // SAFETY: the caller guarantees that the pages are unused.
    let retired = unsafe { unmap(window, pages, start, end_of(start, count) - start) };
    free_units(start, 0, count, retired);
}

/// Unmaps pages and frees their memory.
///
/// # Safety
/// The pages are unused.
unsafe fn unmap(window: &dyn AddressWindow, pages: &Pages, start: usize, len: usize) -> Retirement {
    let mut run: Option<(NonNull<u8>, usize)> = None;
    // SAFETY: mapped memory consists of runs of one page, and the caller guarantees that it is unused.
    let free =
        |(memory, len): (NonNull<u8>, usize)| unsafe { pages.free_single_pages(memory, len / PAGE_SIZE) };
    let mut retired = Retirement(0);
    for (offset, len) in parts(start, len) {
        let take = &mut |memory: NonNull<u8>, len: usize| match &mut run {
            Some((first, so_far)) if first.addr().get() + *so_far == memory.addr().get() => *so_far += len,
            _ => run.replace((memory, len)).into_iter().for_each(free),
        };
        // SAFETY: the caller guarantees that the pages are unused.
        retired = unsafe { window.unmap(start + offset, len, take) };
    }
    run.into_iter().for_each(free);
    retired
}

/// Splits `len` bytes from `start` on into the parts that are unmapped at once; returns their offsets and lengths.
fn parts(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    let part = move |offset: usize| (len - offset).min(BYTES_AT_ONCE - (start + offset) % BYTES_AT_ONCE);
    let first = (len > 0).then(|| (0, part(0)));
    core::iter::successors(first, move |(offset, before)| {
        let offset = offset + before;
        (offset < len).then(|| (offset, part(offset)))
    })
}

/// Returns the number of mapped pages of an object of `count` pages: more than `count` if it was shrunk within a large
/// page.
fn mapped_pages_of(window: &dyn AddressWindow, start: usize, count: usize) -> usize {
    let last = start + (count - 1) * PAGE_SIZE;
    let page = window.page_at(last).unwrap_or(PageSize::FourKib);
    (last + 1).next_multiple_of(page.bytes()).saturating_sub(start) / PAGE_SIZE
}
