//! A region: virtual memory with a pager.

use super::pager::{Filler, Pager};
use super::region_table::{collect, enter, retire};
use super::window::{FillError, window};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::layout::PageSize;

/// Virtual memory that a pager fills, of one owner.
///
/// It is bytes, all of them there as far as whoever uses it can tell: a page that is touched and not there is filled
/// meanwhile. Where that fails (memory has run out), the cell ends, and its report names the region.
///
/// Devices can be given what is there of a region's memory, piece by piece, as it is not contiguous; they do not wait for a
/// pager.
pub struct Region {
    inner: Arc<Inner>,
}

/// What a region, its pager and the region table know of it.
pub(super) struct Inner {
    pub name: &'static str,
    /// Length that can be used, in bytes.
    pub len: usize,
    /// The smallest pages in it.
    pub page: PageSize,
    pub pager: Box<dyn Pager>,
    start: AtomicUsize,
    filled_bytes: AtomicUsize,
    faults: AtomicUsize,
}

/// Why there is no region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// It would be empty, or longer than there are addresses: so many bytes.
    Length(usize),
    /// No range of so many addresses is free.
    OutOfAddresses(usize),
    /// Its pager cannot fill it.
    Fill(FillError),
    /// The platform has no virtual memory for regions.
    NoWindow,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "a region cannot be of {len} bytes: ask for 1 byte to 128 GiB"),
            Self::OutOfAddresses(len) => {
                write!(f, "no {len} bytes of addresses are free in a row: drop regions, or ask for less")
            }
            Self::Fill(error) => error.fmt(f),
            Self::NoWindow => f.write_str("this platform has no regions: use the heap"),
        }
    }
}

impl core::error::Error for RegionError {}

impl From<FillError> for RegionError {
    fn from(error: FillError) -> Self {
        Self::Fill(error)
    }
}

/// Longest region, in bytes.
const LONGEST: usize = 128 << 30;

impl Region {
    /// A region of `len` bytes, rounded up to whole pages, that is zero but for what `pager` writes to it. `name` is
    /// for reports.
    ///
    /// # Errors
    /// A [`RegionError`].
    pub fn new(name: &'static str, len: usize, pager: impl Pager + 'static) -> Result<Self, RegionError> {
        if !(1..=LONGEST).contains(&len) {
            return Err(RegionError::Length(len));
        }
        let page = pager.smallest_page();
        if page > window().ok_or(RegionError::NoWindow)?.largest_page() {
            return Err(FillError::NoSuchSize(page).into());
        }
        collect();
        let inner = Arc::new(Inner {
            name,
            len: len.next_multiple_of(page.bytes()),
            page,
            pager: Box::new(pager),
            start: AtomicUsize::new(0),
            filled_bytes: AtomicUsize::new(0),
            faults: AtomicUsize::new(0),
        });
        enter(&inner)?;
        let region = Self { inner };
        region.inner.pager.prepare(&Filler::new(&region.inner, None))?;
        Ok(region)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// How many bytes of it are filled.
    pub fn filled_bytes(&self) -> usize {
        self.inner.filled_bytes.load(Ordering::Relaxed)
    }

    /// How many faults there were in it.
    pub fn faults(&self) -> usize {
        self.inner.faults.load(Ordering::Relaxed)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the addresses are the region's until it is dropped. Where no page is, the access waits for the
        // pager, and where the pager fails, the program ends: so every byte is there, and any byte is a value.
        unsafe { core::slice::from_raw_parts(self.inner.start() as *const u8, self.inner.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the region is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.inner.start() as *mut u8, self.inner.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        retire(&self.inner);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, len, .. } = &*self.inner;
        write!(
            f,
            "Region({name:?}, {len} bytes at {:#x}, {} filled)",
            self.inner.start(),
            self.filled_bytes()
        )
    }
}

impl Inner {
    /// Its first address, once it is entered in the region table.
    pub fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }

    pub fn set_start(&self, start: usize) {
        self.start.store(start, Ordering::Relaxed);
    }

    /// How much of the addresses it has, in bytes: those of 2 MiB and more have whole such pages, so that no page
    /// table is of two of them.
    pub fn span_bytes(&self) -> usize {
        let two_mib = PageSize::TwoMib.bytes();
        if self.len < two_mib { self.len } else { self.len.next_multiple_of(two_mib) }
    }

    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_filled(&self, bytes: usize) {
        self.filled_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
