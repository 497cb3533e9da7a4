//! Physical memory that somebody owns: a token that is the right to use it.

use crate::authority::Authority;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;

/// Whole pages of RAM. Whoever has the value has the memory, alone; it is in the direct map.
///
/// Dropping a region loses its memory until the machine restarts, and harms nobody.
#[must_use = "memory that is dropped is lost"]
pub struct Region {
    range: PhysRange,
    contents: Contents,
}

/// What is known of a region's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All zero.
    Zero,
    /// Anything.
    Unknown,
}

/// A range that leaves its region, or does not stand on whole pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRegion;

impl fmt::Display for OutOfRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the range is not within the region: cut at page boundaries inside of it")
    }
}

impl core::error::Error for OutOfRegion {}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({:?}, {} bytes)", self.range.start, self.range.len_bytes)
    }
}

impl Region {
    /// The region of `range`.
    ///
    /// # Safety
    /// The range must be whole pages of RAM, in the direct map, which nothing else uses or comes to use but
    /// by this value.
    pub(crate) unsafe fn new(range: PhysRange, contents: Contents) -> Self {
        debug_assert!(range.start.0.is_multiple_of(PAGE_SIZE) && range.len_bytes.is_multiple_of(PAGE_SIZE));
        Self { range, contents }
    }

    /// Where it is.
    pub fn range(&self) -> PhysRange {
        self.range
    }

    /// Its length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.range.len_bytes
    }

    /// What is known of its bytes.
    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// The first `len_bytes` bytes, and the rest.
    ///
    /// # Errors
    /// The region as it was, where that is not a whole number of pages within it.
    pub fn split(self, len_bytes: u64) -> Result<(Self, Self), Self> {
        if len_bytes > self.len_bytes() || !len_bytes.is_multiple_of(PAGE_SIZE) {
            return Err(self);
        }
        let start = self.range.start;
        let rest = PhysRange::new(PhysAddr(start.0 + len_bytes), self.len_bytes() - len_bytes);
        let first = PhysRange::new(start, len_bytes);
        Ok((Self { range: first, ..self }, Self { range: rest, contents: self.contents }))
    }

    /// Both regions as one, where `next` begins where this one ends.
    ///
    /// # Errors
    /// Both as they were, where it doesn't.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.range.end() != next.range.start {
            return Err((self, next));
        }
        let range = PhysRange::new(self.range.start, self.len_bytes() + next.len_bytes());
        let contents = if self.contents == next.contents { self.contents } else { Contents::Unknown };
        Ok(Self { range, contents })
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is in the direct map and owned, see `new`; any byte is a value.
        unsafe { core::slice::from_raw_parts(direct(self.range.start), self.len_bytes() as usize) }
    }

    /// The bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.contents = Contents::Unknown;
        // SAFETY: as for `bytes`, and nobody else has the memory.
        unsafe { core::slice::from_raw_parts_mut(direct(self.range.start), self.len_bytes() as usize) }
    }

    /// Makes all bytes zero, where they are not known to be.
    pub fn scrub(&mut self) {
        if self.contents == Contents::Unknown {
            self.bytes_mut().fill(0);
            self.contents = Contents::Zero;
        }
    }

    /// Records that all bytes are zero, which the caller has seen to piece by piece. Demands an authority: by a wrong
    /// record the next cell would see these bytes, and page tables would begin with them.
    pub fn declare_zero(&mut self, _: Authority) {
        self.contents = Contents::Zero;
    }

    /// Gives the token up for the range that it stood for.
    pub(crate) fn into_range(self) -> PhysRange {
        self.range
    }
}

/// Where the direct map has the memory at `address`. On a host, memory of tests is at its own address.
pub(crate) fn direct(address: PhysAddr) -> *mut u8 {
    let offset = if cfg!(test) { 0 } else { isola_abi::layout::DIRECT_MAP };
    (offset + address.0) as *mut u8
}

/// A stock of regions that pieces are cut from.
#[derive(Debug, Default)]
pub struct Stock {
    regions: Vec<Region>,
}

impl Stock {
    /// The stock of these regions.
    pub fn new(regions: Vec<Region>) -> Self {
        Self { regions }
    }

    /// Cuts off `len_bytes` bytes, rounded up to whole pages, zeroed; from the first region that has them.
    pub fn take(&mut self, len_bytes: u64) -> Option<Region> {
        let len_bytes = len_bytes.checked_next_multiple_of(PAGE_SIZE)?;
        let index = self.regions.iter().position(|region| region.len_bytes() >= len_bytes)?;
        let (mut piece, rest) = self.regions.swap_remove(index).split(len_bytes).ok()?;
        self.regions.push(rest);
        let last = self.regions.len() - 1;
        self.regions.swap(index, last);
        piece.scrub();
        Some(piece)
    }

    /// Cuts off `len_bytes` bytes as [`Self::take`] does, at a multiple of `align_bytes`, itself one of whole pages. What
    /// lies in front of that stays in the stock.
    pub fn take_aligned(&mut self, len_bytes: u64, align_bytes: u64) -> Option<Region> {
        let pad = |region: &Region| {
            let start = region.range().start.0;
            start.next_multiple_of(align_bytes) - start
        };
        let index = self.regions.iter().position(|region| region.len_bytes() >= pad(region) + len_bytes)?;
        let region = self.regions.remove(index);
        let front = pad(&region);
        let region = match front {
            0 => region,
            front => {
                let (front, region) = region.split(front).ok()?;
                self.regions.insert(index, front);
                region
            }
        };
        let (mut piece, rest) = region.split(len_bytes).ok()?;
        self.regions.push(rest);
        piece.scrub();
        Some(piece)
    }

    /// Puts memory to the rest.
    pub fn put(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// What is left, in no order.
    pub fn into_regions(self) -> Vec<Region> {
        self.regions.into_iter().filter(|region| region.len_bytes() > 0).collect()
    }

    /// What is left, in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.regions.iter().map(Region::len_bytes).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::alloc::Layout;

    /// Memory of the host as a region, filled with 0xa5. Never freed.
    pub(crate) fn region(pages: u64) -> Region {
        let len_bytes = pages * PAGE_SIZE;
        let layout = Layout::from_size_align(len_bytes as usize, 0x20_0000).unwrap();
        // SAFETY: the size is not zero; the memory is the region's from here on.
        unsafe {
            let base = alloc::alloc::alloc(layout);
            base.write_bytes(0xa5, len_bytes as usize);
            Region::new(PhysRange::new(PhysAddr(base as u64), len_bytes), Contents::Unknown)
        }
    }

    #[test]
    fn regions_split_at_pages_and_join_again() {
        let whole = region(8);
        let range = whole.range();
        let (first, second) = whole.split(3 * PAGE_SIZE).unwrap();
        let (second, first) = second.join(first).unwrap_err();
        assert_eq!(first.join(second).unwrap().range(), range);
        assert!(region(1).split(PAGE_SIZE + 1).is_err());
        assert!(region(1).split(2 * PAGE_SIZE).is_err());
    }

    #[test]
    fn scrubbing_leaves_nothing() {
        let mut region = region(2);
        assert!(region.bytes().iter().all(|byte| *byte == 0xa5));
        region.scrub();
        assert_eq!(region.contents(), Contents::Zero);
        assert!(region.bytes().iter().all(|byte| *byte == 0));
        region.bytes_mut()[5] = 1;
        assert_eq!(region.contents(), Contents::Unknown);
        region.scrub();
        assert!(region.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_clean_and_an_unclean_region_join_to_an_unclean_one() {
        let (mut clean, unclean) = region(2).split(PAGE_SIZE).unwrap();
        clean.scrub();
        assert_eq!(clean.join(unclean).unwrap().contents(), Contents::Unknown);
    }

    #[test]
    fn a_stock_gives_what_it_has_and_no_more() {
        let mut stock = Stock::new(alloc::vec![region(2), region(5)]);
        let piece = stock.take(3 * PAGE_SIZE - 1).unwrap();
        assert_eq!(piece.len_bytes(), 3 * PAGE_SIZE);
        assert!(piece.bytes().iter().all(|byte| *byte == 0));
        assert!(stock.take(3 * PAGE_SIZE).is_none());
        assert!(stock.take(2 * PAGE_SIZE).is_some());
        assert!(stock.take(2 * PAGE_SIZE).is_some());
        assert_eq!((stock.len_bytes(), stock.into_regions().len()), (0, 0));
    }

    #[test]
    fn what_lies_in_front_of_an_aligned_piece_stays_in_the_stock() {
        const ALIGN: u64 = 4 * PAGE_SIZE;
        let (_, whole) = region(16).split(PAGE_SIZE).unwrap();
        let mut stock = Stock::new(alloc::vec![region(3), whole]);
        let piece = stock.take_aligned(5 * PAGE_SIZE, ALIGN).unwrap();
        assert_eq!((piece.range().start.0 % ALIGN, piece.len_bytes()), (0, 5 * PAGE_SIZE));
        assert!(piece.bytes().iter().all(|byte| *byte == 0));
        assert_eq!(stock.len_bytes(), (3 + 15 - 5) * PAGE_SIZE);
        // Behind it are seven pages, the first three of which lie in front of the next multiple.
        assert!(stock.take_aligned(5 * PAGE_SIZE, ALIGN).is_none());
        assert!(stock.take_aligned(4 * PAGE_SIZE, ALIGN).is_some());
        assert_eq!(stock.len_bytes(), 9 * PAGE_SIZE);
        assert_eq!(stock.into_regions().iter().map(Region::len_bytes).sum::<u64>(), 9 * PAGE_SIZE);
    }
}
