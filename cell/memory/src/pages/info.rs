//! What is known of a page: a record of 16 bytes a page, at the start of the range that the page is in.
//!
//! A record is valid where a block begins: a free one, a piece of a run, or a span. Records of other pages
//! hold garbage, so that a new range costs nothing but the records of its few blocks. Nothing is ever
//! written to a free page but zeros.
//!
//! Who may access which field, and when:
//!
//! | field | of a free block | of a piece in use |
//! |---|---|---|
//! | `state` | with the node's lock | with the node's lock |
//! | `next`, `prev` | with the node's lock | span: with the lock of its class |
//! | all others | nobody | span: with the lock of its class |
//!
//! Taking a block from the pages and giving it back goes through its node's lock, which orders the accesses
//! of its owners.

use core::ptr::NonNull;

/// Binary logarithm of the page size.
pub(crate) const PAGE_SHIFT: u32 = 12;

/// A page: its address divided by the page size, modulo 2^32.
///
/// That tells pages apart as long as all of them are within 16 TiB, which [`super::Pages::add_range`] checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PageNumber(pub u32);

impl PageNumber {
    /// No page. No range contains the page of this number.
    pub const NONE: Self = Self(u32::MAX);

    /// The page in which that address is.
    pub const fn of(address: usize) -> Self {
        Self((address >> PAGE_SHIFT) as u32)
    }

    /// The page `pages` further on.
    pub const fn plus(self, pages: u32) -> Self {
        Self(self.0.wrapping_add(pages))
    }

    /// How many pages after `start` it is.
    pub const fn since(self, start: Self) -> u32 {
        self.0.wrapping_sub(start.0)
    }
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    /// Free, `1 << order` pages.
    Free { order: u32, contents: Contents },
    /// Handed out, `1 << order` pages.
    Used { order: u32 },
    /// Free, and kept from being handed out, `1 << order` pages: what is around it is to become free as well.
    Held { order: u32 },
    /// Given away, [`ABSENT_ORDER`]: nothing is there.
    Absent,
}

/// The order of what is given away: 2 MiB.
pub(crate) const ABSENT_ORDER: u32 = 9;

/// What is known of the bytes of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All zero: they were when the memory was added and were never handed out, or a core has cleared them.
    Zero,
    /// Anything.
    Unknown,
}

const FREE: u8 = 0x80;
const ZERO: u8 = 0x40;
const ABSENT: u8 = 0x20;
/// Where [`FREE`] is not set.
const HELD: u8 = 0x40;

/// The record.
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

/// Access to a page's record, as the table at the head of this file allows it.
#[derive(Clone, Copy)]
pub(crate) struct InfoRef(NonNull<PageInfo>);

macro_rules! field {
    ($(#[$doc:meta])* $get:ident, $set:ident, $field:ident: $raw:ty => $type:ty, $load:expr, $store:expr) => {
        $(#[$doc])*
        pub fn $get(self) -> $type {
            // SAFETY: `new` was promised a record that lives on; by the table at the head of this file the
            // caller is alone with the field, and has written it before.
            let raw: $raw = unsafe { (*self.0.as_ptr()).$field };
            $load(raw)
        }

        /// Sets it.
        pub fn $set(self, value: $type) {
            // SAFETY: as above.
            unsafe { (*self.0.as_ptr()).$field = $store(value) }
        }
    };
}

impl InfoRef {
    /// Access to that record.
    ///
    /// # Safety
    /// The record is within its range's records, the range is never removed, and everybody follows the
    /// table at the head of this file.
    pub unsafe fn new(record: NonNull<PageInfo>) -> Self {
        Self(record)
    }

    field! {
        /// The next of the list that the block is in.
        next, set_next, next: u32 => PageNumber, PageNumber, |page: PageNumber| page.0
    }
    field! {
        /// The one before in the list that the block is in.
        prev, set_prev, prev: u32 => PageNumber, PageNumber, |page: PageNumber| page.0
    }
    field! {
        /// What the block is used for.
        state, set_state, state: u8 => BlockState,
        |raw: u8| match raw & FREE {
            0 if raw == ABSENT => BlockState::Absent,
            0 if raw & HELD != 0 => BlockState::Held { order: (raw & !HELD).into() },
            0 => BlockState::Used { order: raw.into() },
            _ => BlockState::Free {
                order: (raw & !(FREE | ZERO)).into(),
                contents: if raw & ZERO == 0 { Contents::Unknown } else { Contents::Zero },
            },
        },
        |state| match state {
            BlockState::Free { order, contents: Contents::Zero } => FREE | ZERO | order as u8,
            BlockState::Free { order, contents: Contents::Unknown } => FREE | order as u8,
            BlockState::Used { order } => order as u8,
            BlockState::Held { order } => HELD | order as u8,
            BlockState::Absent => ABSENT,
        }
    }
    field! {
        /// Of a span: the index of its class.
        class, set_class, class: u8 => u8, |raw| raw, |class| class
    }
    field! {
        /// Of a span: where in it its first free object is, in units of 16 bytes; `u16::MAX` for none.
        first_free, set_first_free, first_free: u16 => u16, |raw| raw, |offset| offset
    }
    field! {
        /// Of a span: how many of its objects are out.
        used, set_used, used: u16 => u16, |raw| raw, |count| count
    }
    field! {
        /// Of a span: how many of its objects were ever out; those behind were never touched.
        fresh, set_fresh, fresh: u16 => u16, |raw| raw, |count| count
    }
}
