//! Owned physical memory: a token that is the right to use it.

use crate::authority::Authority;
use alloc::vec::Vec;
use core::fmt;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;

/// Whole pages of RAM in the direct map. The value is the exclusive right to use them.
///
/// Dropping a region loses its memory until the machine restarts, which is safe.
#[must_use = "memory that is dropped is lost"]
pub struct Region {
    range: PhysRange,
    contents: Contents,
}

/// Knowledge of a region's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// All zero.
    Zero,
    /// Any values.
    Unknown,
}

/// A range that leaves its region, or is not whole pages.
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
    /// Creates the region of `range`.
    ///
    /// # Safety
    /// The range must be whole pages of RAM in the direct map, which no other code uses, now or later, except through
    /// this value.
    pub(crate) unsafe fn new(range: PhysRange, contents: Contents) -> Self {
        debug_assert!(range.start.0.is_multiple_of(PAGE_SIZE) && range.len_bytes.is_multiple_of(PAGE_SIZE));
        Self { range, contents }
    }

    /// Returns the address range.
    pub fn range(&self) -> PhysRange {
        self.range
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.range.len_bytes
    }

    /// Returns the knowledge of its bytes.
    pub fn contents(&self) -> Contents {
        self.contents
    }

    /// Splits the region into its first `len_bytes` bytes and the rest.
    ///
    /// # Errors
    /// The region as it was, if that is not a whole number of pages within it.
    pub fn split(self, len_bytes: u64) -> Result<(Self, Self), Self> {
        if len_bytes > self.len_bytes() || !len_bytes.is_multiple_of(PAGE_SIZE) {
            return Err(self);
        }
        let start = self.range.start;
        let rest = PhysRange::new(PhysAddr(start.0 + len_bytes), self.len_bytes() - len_bytes);
        let first = PhysRange::new(start, len_bytes);
        Ok((Self { range: first, ..self }, Self { range: rest, contents: self.contents }))
    }

    /// Joins the region with `next`, which must begin at its end.
    ///
    /// # Errors
    /// Both as they were, if it does not.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        if self.range.end() != next.range.start {
            return Err((self, next));
        }
        let range = PhysRange::new(self.range.start, self.len_bytes() + next.len_bytes());
        let contents = if self.contents == next.contents { self.contents } else { Contents::Unknown };
        Ok(Self { range, contents })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is in the direct map and owned, see `new`; any byte is a valid value.
        unsafe { core::slice::from_raw_parts(direct(self.range.start), self.len_bytes() as usize) }
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.contents = Contents::Unknown;
        // SAFETY: as for `bytes`, and `&mut self` is the only access to the memory.
        unsafe { core::slice::from_raw_parts_mut(direct(self.range.start), self.len_bytes() as usize) }
    }

    /// Zeroes the bytes unless they are known to be zero.
    pub fn scrub(&mut self) {
        if self.contents == Contents::Unknown {
            self.bytes_mut().fill(0);
            self.contents = Contents::Zero;
        }
    }

    /// Records that all bytes are zero, after the caller has ensured it piece by piece. Demands an authority: with a
    /// wrong record the next cell would see these bytes, and page tables would begin with them.
    pub fn declare_zero(&mut self, _: Authority) {
        self.contents = Contents::Zero;
    }

    /// Consumes the token and returns its range.
    pub(crate) fn into_range(self) -> PhysRange {
        self.range
    }
}

/// Returns the address of the memory at `address` in the direct map. In host tests, memory is at its own address.
pub(crate) fn direct(address: PhysAddr) -> *mut u8 {
    let offset = if cfg!(test) { 0 } else { isola_abi::layout::DIRECT_MAP };
    (offset + address.0) as *mut u8
}

/// A stock of regions from which pieces are taken.
#[derive(Debug, Default)]
pub struct FreeRegions {
    regions: Vec<Region>,
}

impl FreeRegions {
    /// Creates a stock of these regions.
    pub fn new(regions: Vec<Region>) -> Self {
        Self { regions }
    }

    /// Takes `len_bytes` bytes, rounded up to whole pages, zeroed, from the first region that is large enough.
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

    /// Takes `len_bytes` bytes as [`Self::take`] does, at a multiple of `align_bytes`, itself a multiple of the page
    /// size. The memory before the aligned address stays in the stock.
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

    /// Adds memory.
    pub fn put(&mut self, region: Region) {
        self.regions.push(region);
    }

    /// Returns the remaining regions, unordered.
    pub fn into_regions(self) -> Vec<Region> {
        self.regions.into_iter().filter(|region| region.len_bytes() > 0).collect()
    }

    /// Returns the remaining bytes.
    pub fn len_bytes(&self) -> u64 {
        self.regions.iter().map(Region::len_bytes).sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::alloc::Layout;

    /// Returns host memory as a region, filled with 0xa5. Never freed.
    pub(crate) fn region(pages: u64) -> Region {
        let len_bytes = pages * PAGE_SIZE;
        let layout = Layout::from_size_align(len_bytes as usize, 0x20_0000).unwrap();
        // SAFETY: the size is not zero; the memory belongs to the region from here on.
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
    fn scrubbing_zeroes_all_bytes() {
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
    fn a_zeroed_and_a_dirty_region_join_to_a_dirty_one() {
        let (mut clean, dirty) = region(2).split(PAGE_SIZE).unwrap();
        clean.scrub();
        assert_eq!(clean.join(dirty).unwrap().contents(), Contents::Unknown);
    }

    #[test]
    fn a_stock_gives_no_more_than_it_has() {
        let mut stock = FreeRegions::new(alloc::vec![region(2), region(5)]);
        let piece = stock.take(3 * PAGE_SIZE - 1).unwrap();
        assert_eq!(piece.len_bytes(), 3 * PAGE_SIZE);
        assert!(piece.bytes().iter().all(|byte| *byte == 0));
        assert!(stock.take(3 * PAGE_SIZE).is_none());
        assert!(stock.take(2 * PAGE_SIZE).is_some());
        assert!(stock.take(2 * PAGE_SIZE).is_some());
        assert_eq!((stock.len_bytes(), stock.into_regions().len()), (0, 0));
    }

    #[test]
    fn memory_before_an_aligned_piece_stays_in_the_stock() {
        const ALIGN: u64 = 4 * PAGE_SIZE;
        let (_, whole) = region(16).split(PAGE_SIZE).unwrap();
        let mut stock = FreeRegions::new(alloc::vec![region(3), whole]);
        let piece = stock.take_aligned(5 * PAGE_SIZE, ALIGN).unwrap();
        assert_eq!((piece.range().start.0 % ALIGN, piece.len_bytes()), (0, 5 * PAGE_SIZE));
        assert!(piece.bytes().iter().all(|byte| *byte == 0));
        assert_eq!(stock.len_bytes(), (3 + 15 - 5) * PAGE_SIZE);
        // Seven pages follow it, the first three of which precede the next multiple.
        assert!(stock.take_aligned(5 * PAGE_SIZE, ALIGN).is_none());
        assert!(stock.take_aligned(4 * PAGE_SIZE, ALIGN).is_some());
        assert_eq!(stock.len_bytes(), 9 * PAGE_SIZE);
        assert_eq!(stock.into_regions().iter().map(Region::len_bytes).sum::<u64>(), 9 * PAGE_SIZE);
    }
}
