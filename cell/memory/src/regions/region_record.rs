//! The record of a region, which its owner, its pager and the region table share.

use super::address_window::{AddressWindow, FillError};
use super::charges::Charges;
use super::pager::Pager;
use alloc::boxed::Box;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use isola_abi::layout::PageSize;

/// The record of a region.
pub(super) struct RegionRecord {
    pub name: &'static str,
    /// The usable length, in bytes.
    pub len: usize,
    /// The smallest page size.
    pub page: PageSize,
    pub pager: Box<dyn Pager>,
    start: AtomicUsize,
    filled_bytes: AtomicUsize,
    faults: AtomicUsize,
    pub charges: Charges,
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

impl RegionRecord {
    /// Creates the record of a region of `len` bytes, in whole pages, without addresses.
    pub fn new(name: &'static str, len: usize, page: PageSize, pager: Box<dyn Pager>) -> Self {
        let count = || AtomicUsize::new(0);
        let charges = Charges::new();
        Self { name, len, page, pager, start: count(), filled_bytes: count(), faults: count(), charges }
    }

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

    /// Returns the number of filled bytes.
    pub fn filled_bytes(&self) -> usize {
        self.filled_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of page faults.
    pub fn faults(&self) -> usize {
        self.faults.load(Ordering::Relaxed)
    }

    pub fn count_fault(&self) {
        self.faults.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub fn count_filled(&self, bytes: usize, window: &dyn AddressWindow) {
        let filled = self.filled_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.charges.follow(filled, window);
    }
}
