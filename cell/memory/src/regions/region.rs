//! Regions: virtual memory with a pager.

use super::address_window::{FillError, window};
use super::pager::{Filler, Pager};
use super::region_record::{RegionError, RegionRecord};
use super::region_table::{collect, enter, retire};
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::fmt;
use core::ops::{Deref, DerefMut};

/// Virtual memory that a pager fills, with one owner.
///
/// It is used as a byte slice: an access to a non-present page waits until the pager has filled it. If that fails
/// (memory has run out), the cell ends, and its report names the region.
///
/// A device can be given the present pages of a region, one descriptor per contiguous piece; its accesses do not invoke
/// the pager.
pub struct Region {
    record: Arc<RegionRecord>,
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
        let len = len.next_multiple_of(page.bytes());
        let record = Arc::new(RegionRecord::new(name, len, page, Box::new(pager)));
        enter(&record)?;
        let region = Self { record };
        region.record.pager.prepare(&Filler::new(&region.record, None))?;
        let filled = region.filled_bytes();
        window().into_iter().for_each(|window| region.record.charges.charge(filled, window));
        Ok(region)
    }

    /// Returns the name.
    pub fn name(&self) -> &'static str {
        self.record.name
    }

    /// Returns the number of filled bytes.
    pub fn filled_bytes(&self) -> usize {
        self.record.filled_bytes()
    }

    /// Returns the number of page faults.
    pub fn faults(&self) -> usize {
        self.record.faults()
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the addresses belong to the region until it is dropped. An access to a non-present page waits for the
        // pager, and if the pager fails, the program ends. So every byte can be read, and any byte is a valid value.
        unsafe { core::slice::from_raw_parts(self.record.start() as *const u8, self.record.len) }
    }
}

impl DerefMut for Region {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`, and the region is borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(self.record.start() as *mut u8, self.record.len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        retire(&self.record);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RegionRecord { name, len, .. } = &*self.record;
        write!(
            f,
            "Region({name:?}, {len} bytes at {:#x}, {} filled)",
            self.record.start(),
            self.filled_bytes()
        )
    }
}
