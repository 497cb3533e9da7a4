//! Regions: virtual memory with a pager.

use super::address_window::{FillError, window};
use super::pager::{Filler, Pager};
use super::region_table::{collect, enter, retire};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::layout::PageSize;

/// Virtual memory that a pager fills, with one owner.
///
/// It is used as a byte slice: an access to a non-present page waits until the pager has filled it. If that fails
/// (memory has run out), the cell ends, and its report names the region.
///
/// A device can be given the present pages of a region, one descriptor per contiguous piece; its accesses do not invoke
/// the pager.
pub struct Region {
    inner: Arc<Inner>,
}

/// The part of a region that its pager and the region table share.
pub(super) struct Inner {
    pub name: &'static str,
    /// The usable length, in bytes.
    pub len: usize,
    /// The smallest page size.
    pub page: PageSize,
    pub pager: Box<dyn Pager>,
    start: AtomicUsize,
    filled_bytes: AtomicUsize,
    faults: AtomicUsize,
}

/// The reason why a region cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionError {
    /// The length in bytes is 0, or more than the maximum.
    Length(usize),
    /// No free range of addresses has this length in bytes.
    OutOfAddresses(usize),
    /// The pager cannot fill it.
    Fill(FillError),
    /// The platform has no region area.
    NoRegionArea,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length(len) => write!(f, "a region cannot be of {len} bytes: ask for 1 byte to 128 GiB"),
            Self::OutOfAddresses(len) => {
                write!(f, "no {len} bytes of addresses are free in a row: drop regions, or ask for less")
            }
            Self::Fill(error) => error.fmt(f),
            Self::NoRegionArea => f.write_str("this platform has no regions: use the heap"),
        }
    }
}

impl core::error::Error for RegionError {}

impl From<FillError> for RegionError {
    fn from(error: FillError) -> Self {
        Self::Fill(error)
    }
}

/// The maximum length of a region, in bytes.
const LONGEST: usize = 128 << 30;

impl Region {
    /// Creates a region of `len` bytes, rounded up to whole pages, zero except for the contents that `pager` writes.
    /// `name` is for reports.
    ///
    /// # Errors
    /// A [`RegionError`].
    pub fn new(name: &'static str, len: usize, pager: impl Pager + 'static) -> Result<Self, RegionError> {
        if !(1..=LONGEST).contains(&len) {
            return Err(RegionError::Length(len));
        }
        let page = pager.smallest_page();
        if page > window().ok_or(RegionError::NoRegionArea)?.largest_page() {
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

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.inner.name
    }

    /// Returns the number of filled bytes.
    pub fn filled_bytes(&self) -> usize {
        self.inner.filled_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of page faults.
    pub fn faults(&self) -> usize {
        self.inner.faults.load(Ordering::Relaxed)
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the addresses belong to the region until it is dropped. An access to a non-present page waits for the
        // pager, and if the pager fails, the program ends. So every byte can be read, and any byte is a valid value.
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
    /// Returns the first address, once the region is in the region table.
    pub fn start(&self) -> usize {
        self.start.load(Ordering::Relaxed)
    }

    pub fn set_start(&self, start: usize) {
        self.start.store(start, Ordering::Relaxed);
    }

    /// Returns the length of the address range, in bytes. From 2 MiB on it is a multiple of 2 MiB, so that no two
    /// regions share a page table.
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
