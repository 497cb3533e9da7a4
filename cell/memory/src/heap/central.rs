//! The central list of a node and a class: its spans, for all cores, behind a lock.
//!
//! ```text
//! a span      | used | free | used | free | free | never touched ...            |
//!               first_free -> ^ ------------> ^      ^ fresh
//! ```
//!
//! A span's figures are in the record of its first page. Spans with something to give are in a list, those
//! that were full a moment ago in front: objects come from the fullest spans, so that the others empty.
//! One empty span is kept, further ones go back to the pages.

use super::class::{Class, GRAIN};
use super::free_list::FreeList;
use crate::pages::{BlockList, NodeIndex, PAGE_SIZE, PageNumber, Pages};
use core::ptr::NonNull;
use spin::Mutex;

const NO_OBJECT: u16 = u16::MAX;

/// The central list.
pub(crate) struct Central {
    spans: Mutex<Spans>,
}

struct Spans {
    /// Spans that have a free object.
    partial: BlockList,
    /// How many of them have only free objects.
    empty: u32,
    /// How many spans there are.
    count: u32,
    /// How many of their objects are out.
    used: u32,
}

/// Figures of a central list.
pub(crate) struct CentralStatistics {
    /// Spans there are.
    pub spans: usize,
    /// Objects of them that are out, with the program or in a core's cache.
    pub used: usize,
}

impl Central {
    /// A list without spans.
    pub const fn new() -> Self {
        Self { spans: Mutex::new(Spans { partial: BlockList::new(), empty: 0, count: 0, used: 0 }) }
    }

    /// Hands up to `wanted` (at least one) objects to `to`; returns how many. 0: memory has run out.
    pub fn take(
        &self,
        pages: &Pages,
        node: NodeIndex,
        class: Class,
        wanted: usize,
        to: &mut impl FnMut(NonNull<u8>),
    ) -> usize {
        let mut spans = self.spans.lock();
        let mut taken = 0;
        while taken < wanted {
            let span = match spans.partial.first() {
                Some(span) => span,
                // Half-full hands are better than a span that may not be needed.
                None if taken > 0 => break,
                None => match spans.add(pages, node, class) {
                    Some(span) => span,
                    None => break,
                },
            };
            taken += spans.take_from(pages, class, span, wanted - taken, to);
        }
        taken
    }

    /// Takes objects back.
    ///
    /// # Panics
    /// Where an object is in no span of the class; no promise is made to find that.
    ///
    /// # Safety
    /// The objects are of that class and of this heap.
    pub unsafe fn give(&self, pages: &Pages, class: Class, mut from: FreeList) {
        let mut spans = self.spans.lock();
        while let Some(object) = from.pop() {
            // SAFETY: the caller's promise.
            unsafe { spans.give(pages, class, object) };
        }
    }

    /// Gives the empty span back that is kept, if there is one.
    pub fn trim(&self, pages: &Pages, class: Class) {
        let mut spans = self.spans.lock();
        while spans.empty > 0 && spans.drop_an_empty_one(pages, class) {}
    }

    /// Figures.
    pub fn statistics(&self) -> CentralStatistics {
        let spans = self.spans.lock();
        CentralStatistics { spans: spans.count as usize, used: spans.used as usize }
    }
}

impl Spans {
    /// Gets another span.
    fn add(&mut self, pages: &Pages, node: NodeIndex, class: Class) -> Option<PageNumber> {
        let span_pages = class.shape().span_pages as usize;
        let memory = pages.allocate_on(node, span_pages, span_pages)?;
        let span = PageNumber::of(memory.addr().get());
        let range = pages.ranges().find(span)?;
        let info = range.info(span);
        info.set_class(class.index() as u8);
        info.set_first_free(NO_OBJECT);
        info.set_used(0);
        info.set_fresh(0);
        self.partial.push(pages.ranges(), range, span);
        self.count += 1;
        self.empty += 1;
        Some(span)
    }

    /// Hands up to `wanted` objects of a span of the list to `to`; returns how many, at least one.
    fn take_from(
        &mut self,
        pages: &Pages,
        class: Class,
        span: PageNumber,
        wanted: usize,
        to: &mut impl FnMut(NonNull<u8>),
    ) -> usize {
        let shape = class.shape();
        let Some(range) = pages.ranges().find(span) else { return 0 };
        let info = range.info(span);
        let memory = range.memory(span);
        let mut first_free = info.first_free();
        let mut fresh = info.fresh();
        let mut taken = 0;
        while taken < wanted {
            let offset = if first_free != NO_OBJECT {
                first_free as usize * GRAIN
            } else if fresh < shape.capacity {
                fresh as usize * shape.size as usize
            } else {
                break;
            };
            // SAFETY: the offset is of an object within the span: `fresh` is below the capacity, and
            // `first_free` was computed in `give` from an object of the span.
            let object = unsafe { memory.add(offset) };
            if first_free != NO_OBJECT {
                // SAFETY: a free object of the span; `give` has written the next one's offset to it.
                first_free = unsafe { object.cast::<u16>().read() };
            } else {
                fresh += 1;
            }
            to(object);
            taken += 1;
        }
        if info.used() == 0 {
            self.empty -= 1;
        }
        info.set_first_free(first_free);
        info.set_fresh(fresh);
        info.set_used(info.used() + taken as u16);
        self.used += taken as u32;
        if info.used() == shape.capacity {
            self.partial.remove(pages.ranges(), range, span);
        }
        taken
    }

    /// Takes an object back.
    ///
    /// # Safety
    /// The object is of that class and of this heap, and nobody uses it.
    unsafe fn give(&mut self, pages: &Pages, class: Class, object: NonNull<u8>) {
        let shape = class.shape();
        let span_bytes = shape.span_pages as usize * PAGE_SIZE;
        let offset = object.addr().get() & (span_bytes - 1);
        let span = PageNumber::of(object.addr().get() - offset);
        let range = match pages.ranges().find(span) {
            Some(range) if range.info(span).class() as usize == class.index() => range,
            _ => panic!("memory freed that the heap does not have, or not with that size"),
        };
        let info = range.info(span);
        let Some(used) = info.used().checked_sub(1) else { panic!("memory freed that is free already") };
        // SAFETY: the caller gives the object up: at least 16 bytes, aligned at 16.
        unsafe { object.cast::<u16>().write(info.first_free()) };
        info.set_first_free((offset / GRAIN) as u16);
        if used + 1 == shape.capacity {
            self.partial.push(pages.ranges(), range, span);
        }
        info.set_used(used);
        self.used -= 1;
        if used == 0 {
            self.empty += 1;
            if self.empty > 1 {
                self.drop_span(pages, class, span);
            }
        }
    }

    /// Gives an empty span back to the pages; false where the list has none.
    fn drop_an_empty_one(&mut self, pages: &Pages, class: Class) -> bool {
        let mut next = self.partial.first();
        while let Some(span) = next {
            let Some(info) = pages.ranges().find(span).map(|range| range.info(span)) else { return false };
            if info.used() == 0 {
                self.drop_span(pages, class, span);
                return true;
            }
            next = Some(info.next()).filter(|&span| span != PageNumber::NONE);
        }
        false
    }

    /// Gives an empty span of the list back to the pages.
    fn drop_span(&mut self, pages: &Pages, class: Class, span: PageNumber) {
        let Some(range) = pages.ranges().find(span) else { return };
        self.partial.remove(pages.ranges(), range, span);
        self.empty -= 1;
        self.count -= 1;
        // SAFETY: the span came from there with that many pages, and none of its objects is in use.
        unsafe { pages.free(range.memory(span), class.shape().span_pages as usize) };
    }
}
