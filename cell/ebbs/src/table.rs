//! The tables in which a core and a cell find the representatives of Ebbs that are declared as statics.
//!
//! ```text
//! number of the Ebb   0          1 .. FAST                       FAST ..
//!                     none yet   in the table itself             in buckets of FAST, 2 * FAST, 4 * FAST ... entries,
//!                                                                each allocated when it is first needed
//! ```
//!
//! An image may declare as many Ebbs as its memory holds. Those that are used first are found with two loads and a branch.
//! Any later one takes a call of its fault handler, some twenty instructions: for the fast path it looks like an Ebb
//! without a representative.

use crate::factory::Factories;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Numbers below this one have their entries in the tables themselves. Number 0 is no Ebb's.
pub const FAST: usize = 128;

/// The slot of an Ebb that has none yet, or none that the fast path reaches. It stays empty in every table, so that the
/// path of an invocation needs no second test: an Ebb without a slot looks like one without a representative.
const NO_SLOT: u32 = 0;

static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);

/// How many buckets hold all numbers of 32 bits.
const BUCKETS: usize = u32::BITS as usize;

/// The first entries of buckets. Bucket `n` of [`Entries`] has `FIRST << n` of them, in a leaked slice; null, where it was not
/// needed yet.
type Buckets<T> = [AtomicPtr<T>; BUCKETS];

/// Entries by number, as many as are asked for: `FIRST` of them in place, the others in buckets that are allocated when an
/// entry in them is first asked for, and never move. `FIRST` is a power of two.
#[repr(C)]
pub(crate) struct Entries<T: 'static, const FIRST: usize> {
    pub(crate) first: [T; FIRST],
    /// The buckets, leaked; null until one is needed.
    buckets: AtomicPtr<Buckets<T>>,
}

/// Entries that are pointers, null until they are set.
pub(crate) type Pointers = Entries<AtomicPtr<()>, FAST>;

impl<T: Default, const FIRST: usize> Entries<T, FIRST> {
    /// Entries of which the first are those.
    pub const fn new(first: [T; FIRST]) -> Self {
        assert!(FIRST.is_power_of_two(), "buckets double");
        Self { first, buckets: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// The entry of that number. Allocates its bucket where there is none yet.
    pub fn get(&self, number: usize) -> &T {
        if let Some(entry) = self.first.get(number) {
            return entry;
        }
        let bucket = (number / FIRST).ilog2() as usize;
        let len = FIRST << bucket;
        let none = || [const { AtomicPtr::new(core::ptr::null_mut()) }; BUCKETS];
        let buckets = published(
            &self.buckets,
            || Box::into_raw(Box::new(none())),
            |made| {
                // SAFETY: `published` passes what was just made, and is not published.
                drop(unsafe { Box::from_raw(made) });
            },
        );
        // SAFETY: what is published is leaked, and so lives for good.
        let start = unsafe { &(&*buckets)[bucket] };
        let entries = || {
            let mut entries: Vec<T> = Vec::with_capacity(len);
            entries.resize_with(len, T::default);
            Box::into_raw(entries.into_boxed_slice()).cast::<T>()
        };
        let start = published(start, entries, |made| {
            // SAFETY: `published` passes what was just made, a slice of that length, and is not published.
            drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(made, len)) });
        });
        // SAFETY: a bucket that is published has `len` entries, which live for good, and a number that belongs into it is
        // from `len` up to `2 * len`.
        unsafe { &*start.add(number - len) }
    }
}

/// Returns what `place` points to: where that is nothing, what `make` returns. Two cores may make it at the same time; the
/// first to publish it wins, and `drop` gets what the other has made.
fn published<T>(place: &AtomicPtr<T>, make: impl FnOnce() -> *mut T, drop: impl FnOnce(*mut T)) -> *mut T {
    let existing = place.load(Ordering::Acquire);
    if !existing.is_null() {
        return existing;
    }
    let made = make();
    match place.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(winner) => {
            drop(made);
            winner
        }
    }
}

impl Pointers {
    /// Entries that are all null.
    pub const fn null() -> Self {
        Self::new([const { AtomicPtr::new(core::ptr::null_mut()) }; FAST])
    }
}

/// What the cores of a cell share.
pub struct CellTable {
    /// The representatives of Ebbs that have one a cell.
    pub(crate) representatives: Pointers,
    pub(crate) factories: Factories,
}

impl CellTable {
    /// Of a cell in which no Ebb was invoked.
    pub const fn new() -> Self {
        Self { representatives: Pointers::null(), factories: Factories::new() }
    }
}

impl Default for CellTable {
    fn default() -> Self {
        Self::new()
    }
}

/// Where an Ebb's representatives stand in all tables: given out when it is first used, so that two cannot clash.
pub(crate) struct Slot {
    /// What the fast path reads: the Ebb's number where that is below [`FAST`], [`NO_SLOT`] otherwise.
    fast: AtomicU32,
    /// The Ebb's number; 0 until it has one.
    number: AtomicU32,
}

impl Slot {
    /// None yet.
    pub const fn new() -> Self {
        Self { fast: AtomicU32::new(NO_SLOT), number: AtomicU32::new(0) }
    }

    /// The slot that the fast path reads, or the one that is always empty. Less than [`FAST`].
    #[inline(always)]
    pub fn fast(&self) -> u32 {
        self.fast.load(Ordering::Relaxed)
    }

    /// Returns the address of what [`Slot::fast`] reads, for assembly that reads it.
    #[inline(always)]
    pub fn address(&self) -> *const u32 {
        self.fast.as_ptr()
    }

    /// The Ebb's number, given out now where it has none.
    ///
    /// # Panics
    /// Where the image declares 2^32 Ebbs.
    pub fn assigned(&self) -> usize {
        let assigned = self.number.load(Ordering::Relaxed);
        if assigned != 0 {
            return assigned as usize;
        }
        let fresh = NEXT_NUMBER
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| next.checked_add(1))
            .expect("an image declares fewer than 2^32 Ebbs");
        let number = match self.number.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            Err(other) => other,
        };
        if (number as usize) < FAST {
            self.fast.store(number, Ordering::Relaxed);
        }
        number as usize
    }
}
