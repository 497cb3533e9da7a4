//! The tables in which cores and cells find the representatives of Ebbs declared as statics.
//!
//! ```text
//! number of the Ebb   0            1 .. FAST              FAST ..
//!                     no number    in the table itself    in buckets of FAST, 2 * FAST, 4 * FAST ... entries,
//!                                                         each allocated at the first use of an entry
//! ```
//!
//! An image may declare as many Ebbs as its memory holds. The ones used first are found with two loads and a branch. A
//! call of a later one calls its fault handler, some twenty instructions: to the fast path it looks like an Ebb without
//! a representative.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The number of entries in the tables themselves. Ebbs with lower numbers are on the fast path; no Ebb has number 0.
pub const FAST: usize = 128;

/// The slot of an Ebb without a number, or with a number beyond the fast path. Its entry stays empty in every table; to
/// the fast path such an Ebb therefore looks like one without a representative, which saves a second test.
const NO_SLOT: u32 = 0;

static NEXT_NUMBER: AtomicU32 = AtomicU32::new(1);

/// The number of buckets for all 32-bit numbers.
const BUCKETS: usize = u32::BITS as usize;

/// The first entries of the buckets. Bucket `n` of [`Entries`] has `FIRST << n` entries, in a leaked slice; null before
/// its first use.
type Buckets<T> = [AtomicPtr<T>; BUCKETS];

/// Entries by number, without a limit: `FIRST` of them in place, the others in buckets. A bucket is allocated at the
/// first use of one of its entries, and never moves. `FIRST` is a power of two.
#[repr(C)]
pub(crate) struct Entries<T: 'static, const FIRST: usize> {
    pub(crate) first: [T; FIRST],
    /// The buckets, leaked; null before their first use.
    buckets: AtomicPtr<Buckets<T>>,
}

/// Entries that are pointers, initially null.
pub(crate) type Pointers = Entries<AtomicPtr<()>, FAST>;

impl<T: Default, const FIRST: usize> Entries<T, FIRST> {
    /// Returns entries with these first ones.
    pub const fn new(first: [T; FIRST]) -> Self {
        assert!(FIRST.is_power_of_two(), "buckets double");
        Self { first, buckets: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Returns the entry with this number. Allocates its bucket if necessary.
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
                // SAFETY: `published` passes the pointer that the closure above has just created, and has not published
                // it.
                drop(unsafe { Box::from_raw(made) });
            },
        );
        // SAFETY: published buckets are leaked, and therefore live forever.
        let start = unsafe { &(&*buckets)[bucket] };
        let entries = || {
            let mut entries: Vec<T> = Vec::with_capacity(len);
            entries.resize_with(len, T::default);
            Box::into_raw(entries.into_boxed_slice()).cast::<T>()
        };
        let start = published(start, entries, |made| {
            // SAFETY: `published` passes the pointer that `entries` has just created, of a slice of this length, and
            // has not published it.
            drop(unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(made, len)) });
        });
        // SAFETY: a published bucket has `len` entries, which live forever, and its numbers are from `len` up to `2 *
        // len`.
        unsafe { &*start.add(number - len) }
    }
}

/// Returns the pointer in `entry`; if it is null, stores and returns the result of `make`. Two cores may call `make` at
/// the same time; the first one publishes its pointer, and `drop` gets the other's.
fn published<T>(entry: &AtomicPtr<T>, make: impl FnOnce() -> *mut T, drop: impl FnOnce(*mut T)) -> *mut T {
    let existing = entry.load(Ordering::Acquire);
    if !existing.is_null() {
        return existing;
    }
    let made = make();
    match entry.compare_exchange(core::ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => made,
        Err(winner) => {
            drop(made);
            winner
        }
    }
}

impl Pointers {
    /// Returns entries that are all null.
    pub const fn null() -> Self {
        Self::new([const { AtomicPtr::new(core::ptr::null_mut()) }; FAST])
    }
}

/// The index of an Ebb in all tables, assigned at its first use, so that no two Ebbs clash.
pub(crate) struct Slot {
    /// The index for the fast path: the Ebb's number if that is below [`FAST`], otherwise [`NO_SLOT`].
    fast: AtomicU32,
    /// The Ebb's number; 0 until it has one.
    number: AtomicU32,
}

impl Slot {
    /// Returns a slot without a number.
    pub const fn new() -> Self {
        Self { fast: AtomicU32::new(NO_SLOT), number: AtomicU32::new(0) }
    }

    /// Returns the index for the fast path, below [`FAST`]; possibly that of the entry that is always empty.
    #[inline(always)]
    pub fn fast(&self) -> u32 {
        self.fast.load(Ordering::Relaxed)
    }

    /// Returns the address of the word that [`Slot::fast`] reads, for assembly code.
    #[inline(always)]
    pub fn address(&self) -> *const u32 {
        self.fast.as_ptr()
    }

    /// Returns the Ebb's number; assigns one at the first call.
    ///
    /// # Panics
    /// Panics if the image uses 2^32 Ebbs.
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
