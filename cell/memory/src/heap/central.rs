//! The central list of a node and a class: its spans, shared by all cores under a lock.
//!
//! ```text
//! a span      | used | free | used | free | free | never touched ...            |
//!               first_free -> ^ ------------> ^      ^ fresh
//! ```
//!
//! The record of a span's first page has the span's counters. Spans with free objects are in a list, those that were
//! full most recently in front: objects come from the fullest spans, so that the others become empty. The list retains
//! one empty span and returns further ones to the page allocator.

use super::class::{Class, GRAIN};
use super::free_list::FreeList;
use crate::pages::{BlockList, NodeIndex, PAGE_SIZE, PageNumber, Pages, SpanPlace};
use core::ptr::NonNull;
use spin::Mutex;

const NO_OBJECT: u16 = u16::MAX;

/// The central list of a node and a class.
pub(crate) struct CentralList {
    spans: Mutex<Spans>,
}

struct Spans {
    /// Spans with at least one free object.
    partial: BlockList,
    /// Spans of the open window with free objects, from which none is allocated (see `pages::window`). None is empty.
    withheld: BlockList,
    /// How many of them have only free objects.
    empty: u32,
    /// The number of spans.
    count: u32,
    /// The number of objects that are allocated or in a core's cache.
    used: u32,
}

/// Counters of a central list.
pub(crate) struct CentralStatistics {
    /// The number of spans.
    pub spans: usize,
    /// Objects that are allocated or in a core's cache.
    pub used: usize,
}

impl CentralList {
    /// Returns a list without spans.
    pub const fn new() -> Self {
        Self {
            spans: Mutex::new(Spans {
                partial: BlockList::new(),
                withheld: BlockList::new(),
                empty: 0,
                count: 0,
                used: 0,
            }),
        }
    }

    /// Passes up to `wanted` (at least one) objects to `to`; returns their number, 0 if memory has run out.
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
            let span = match spans.first_usable(pages, class) {
                Some(span) => span,
                // Fewer objects than wanted are better than a new span, which may not be needed.
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
    /// If an object is in no span of the class. Detection is not guaranteed.
    ///
    /// # Safety
    /// The objects are of that class and of this heap, and unused.
    pub unsafe fn give(&self, pages: &Pages, class: Class, mut from: FreeList) {
        let mut spans = self.spans.lock();
        while let Some(object) = from.pop() {
            // SAFETY: the caller guarantees that the object is of that class and of this heap, and unused.
            unsafe { spans.give(pages, class, object) };
        }
    }

    /// Returns the retained empty span, if any, to the page allocator.
    pub fn trim(&self, pages: &Pages, class: Class) {
        let mut spans = self.spans.lock();
        while spans.empty > 0 && spans.drop_an_empty_one(pages, class) {}
    }

    /// Makes the spans available again that were withheld, after the window was closed.
    pub fn restore(&self, pages: &Pages, class: Class) {
        let mut spans = self.spans.lock();
        while let Some(span) = spans.withheld.first() {
            let Some(range) = pages.ranges().find(span) else { return };
            spans.withheld.remove(pages.ranges(), range, span);
            range.info(span).set_class(class.index() as u8);
            spans.partial.push(pages.ranges(), range, span);
        }
    }

    /// Returns the list's counters.
    pub fn statistics(&self) -> CentralStatistics {
        let spans = self.spans.lock();
        CentralStatistics { spans: spans.count as usize, used: spans.used as usize }
    }
}

impl Spans {
    /// Allocates a span.
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

    /// Returns the first span with free objects that is not in the open window. Sets those before it aside, each once
    /// per window.
    fn first_usable(&mut self, pages: &Pages, class: Class) -> Option<PageNumber> {
        loop {
            let span = self.partial.first()?;
            if !pages.is_in_window(span) {
                return Some(span);
            }
            let range = pages.ranges().find(span)?;
            let info = range.info(span);
            if info.used() == 0 {
                self.drop_span(pages, class, span);
                continue;
            }
            self.partial.remove(pages.ranges(), range, span);
            info.set_class_and_place((class.index() as u8, SpanPlace::SetAside));
            self.withheld.push(pages.ranges(), range, span);
        }
    }

    /// Passes up to `wanted` objects of a span of the list to `to`; returns their number, at least one.
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
            // SAFETY: the offset is that of an object within the span: `fresh` is below the capacity, and `give`
            // computed `first_free` from an object of the span.
            let object = unsafe { memory.add(offset) };
            if first_free != NO_OBJECT {
                // SAFETY: a free object of the span, into which `give` has written the offset of the next one.
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
    /// The object is of that class and of this heap, and unused.
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
        // SAFETY: the caller gives up the object, which has at least 16 bytes and is aligned at 16.
        unsafe { object.cast::<u16>().write(info.first_free()) };
        info.set_first_free((offset / GRAIN) as u16);
        if used + 1 == shape.capacity {
            self.partial.push(pages.ranges(), range, span);
        }
        info.set_used(used);
        self.used -= 1;
        if used == 0 {
            self.empty += 1;
            if self.empty > 1 || pages.is_in_window(span) || info.class_and_place().1 == SpanPlace::SetAside {
                self.drop_span(pages, class, span);
            }
        }
    }

    /// Returns an empty span to the page allocator; false if the list has none.
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

    /// Returns an empty span of the list to the page allocator.
    fn drop_span(&mut self, pages: &Pages, class: Class, span: PageNumber) {
        let Some(range) = pages.ranges().find(span) else { return };
        match range.info(span).class_and_place().1 {
            SpanPlace::Usual => self.partial.remove(pages.ranges(), range, span),
            SpanPlace::SetAside => self.withheld.remove(pages.ranges(), range, span),
        }
        self.empty -= 1;
        self.count -= 1;
        // SAFETY: `add` allocated the span with that many pages, and none of its objects is in use.
        unsafe { pages.free(range.memory(span), class.shape().span_pages as usize) };
    }
}
