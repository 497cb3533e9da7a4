//! Page records: 16 bytes per page, at the start of the page's range.
//!
//! A record is valid at the first page of a block: a free block, a piece of a run, or a span. The records of other
//! pages are undefined, so a new range costs only the records of its few blocks. The allocator writes nothing but zeros
//! to a free page.
//!
//! The table lists the permitted accesses:
//!
//! | field | free block | block in use |
//! |---|---|---|
//! | `state` | with the node's lock | with the node's lock |
//! | `next`, `prev` | with the node's lock | span: with the lock of its class |
//! | all others | none | span: with the lock of its class |
//!
//! Allocating and freeing a block takes its node's lock, which orders the accesses of successive owners.

use core::ptr::NonNull;

/// The binary logarithm of the page size.
pub(crate) const PAGE_SHIFT: u32 = 12;

/// A page's number: its address divided by the page size, modulo 2^32.
///
/// It is unique while all pages are within 16 TiB, which [`super::Pages::add_range`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageNumber(pub u32);

impl PageNumber {
    /// The number of no page; no range contains it.
    pub const NONE: Self = Self(u32::MAX);

    /// Returns the page that contains that address.
    pub const fn of(address: usize) -> Self {
        Self((address >> PAGE_SHIFT) as u32)
    }

    /// Returns the page `pages` further on.
    pub const fn plus(self, pages: u32) -> Self {
        Self(self.0.wrapping_add(pages))
    }

    /// Returns the number of pages from `start` to this page.
    pub const fn since(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0)
    }
}

/// The state of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Free, `1 << order` pages.
    Free { order: u32, contents: KnownContents },
    /// Allocated, `1 << order` pages.
    Used { order: u32 },
    /// Free but held back from allocation, `1 << order` pages: its whole chunk is to become free.
    Held { order: u32 },
    /// Unplugged, with order [`ABSENT_ORDER`]: there is no memory.
    Absent,
}

/// The order of an unplugged block: 2 MiB.
pub(crate) const ABSENT_ORDER: u32 = 9;

/// The known contents of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KnownContents {
    /// All bytes are zero: the pages were added as zero and never allocated, or a core has cleared them.
    Zero,
    /// Any bytes.
    Unknown,
}

const FREE: u8 = 0x80;
const ZERO: u8 = 0x40;
const ABSENT: u8 = 0x20;
/// Valid only if [`FREE`] is not set.
const HELD: u8 = 0x40;

/// In the field `class`.
const SET_ASIDE: u8 = 0x80;

/// The list that a span with free objects is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpanPlace {
    /// That from which objects are allocated.
    Usual,
    /// That of spans from which none is allocated, because their memory is to become free.
    SetAside,
}

/// The record of a page.
#[repr(C)]
pub(crate) struct PageInfo {
    next: u32,
    prev: u32,
    state: u8,
    class: u8,
    first_free: u16,
    used: u16,
    fresh: u16,
}

const _: () = assert!(size_of::<PageInfo>() == 16);

/// Access to a page's record, as the table at the head of this file permits.
#[derive(Clone, Copy)]
pub(crate) struct InfoRef(NonNull<PageInfo>);

macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $raw:ty => $type:ty, $load:expr, $store:expr) => {
        $(#[$doc])*
        pub fn $get(self) -> $type {
            // SAFETY: by the contract of `new` the record lives on. By the table at the head of this file the caller
            // has exclusive access to the field, and the field was written before.
            let raw: $raw = unsafe { (*self.0.as_ptr()).$field };
            $load(raw)
        }

        /// Sets the field.
        pub fn $set(self, value: $type) {
            // SAFETY: as above.
            unsafe { (*self.0.as_ptr()).$field = $store(value) }
        }
    };
}

impl InfoRef {
    /// Returns the access to a record.
    ///
    /// # Safety
    /// The record is one of its range's records, the range is never removed, and all users follow the table at the head
    /// of this file.
    pub unsafe fn new(record: NonNull<PageInfo>) -> Self {
        Self(record)
    }

    field! {
        /// Returns the next block in the block's list.
        next, set_next, next: u32 => PageNumber, PageNumber, |page: PageNumber| page.0
    }
    field! {
        /// Returns the previous block in the block's list.
        prev, set_prev, prev: u32 => PageNumber, PageNumber, |page: PageNumber| page.0
    }
    field! {
        /// Returns the state of the block.
        state, set_state, state: u8 => BlockState,
        |raw: u8| match raw & FREE {
            0 if raw == ABSENT => BlockState::Absent,
            0 if raw & HELD != 0 => BlockState::Held { order: (raw & !HELD).into() },
            0 => BlockState::Used { order: raw.into() },
            _ => BlockState::Free {
                order: (raw & !(FREE | ZERO)).into(),
                contents: if raw & ZERO == 0 { KnownContents::Unknown } else { KnownContents::Zero },
            },
        },
        |state| match state {
            BlockState::Free { order, contents: KnownContents::Zero } => FREE | ZERO | order as u8,
            BlockState::Free { order, contents: KnownContents::Unknown } => FREE | order as u8,
            BlockState::Used { order } => order as u8,
            BlockState::Held { order } => HELD | order as u8,
            BlockState::Absent => ABSENT,
        }
    }
    field! {
        /// Returns the index of a span's class.
        class, set_class, class: u8 => u8, |raw: u8| raw & !SET_ASIDE, |class| class
    }
    field! {
        /// Returns the index of a span's class, and whether the span is withheld.
        class_and_place, set_class_and_place, class: u8 => (u8, SpanPlace),
        |raw: u8| (raw & !SET_ASIDE, if raw & SET_ASIDE == 0 { SpanPlace::Usual } else { SpanPlace::SetAside }),
        |(class, place)| if place == SpanPlace::Usual { class } else { class | SET_ASIDE }
    }
    field! {
        /// Returns the offset of a span's first free object, in units of 16 bytes; `u16::MAX` if there is none.
        first_free, set_first_free, first_free: u16 => u16, |raw| raw, |offset| offset
    }
    field! {
        /// Returns the number of a span's allocated objects, including those in cores' caches.
        used, set_used, used: u16 => u16, |raw| raw, |count| count
    }
    field! {
        /// Returns the number of a span's objects that were ever allocated; those behind were never touched.
        fresh, set_fresh, fresh: u16 => u16, |raw| raw, |count| count
    }
}
