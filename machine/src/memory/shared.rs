//! Memory that several look at, and nobody writes to any more.

use super::Region;
use alloc::sync::Arc;
use isola_abi::id::PhysRange;

/// A region that is only read from here on. A clone is one more who looks at it; the last one can have the region back.
#[derive(Clone, Debug)]
#[must_use = "memory that is dropped by the last who has it is lost"]
pub struct SharedRegion(Arc<Region>);

impl SharedRegion {
    /// That region, which one has so far.
    pub fn new(region: Region) -> Self {
        Self(Arc::new(region))
    }

    /// Where it is.
    pub fn range(&self) -> PhysRange {
        self.0.range()
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Whether somebody else has it, too.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// The region, to be used as one likes.
    ///
    /// # Errors
    /// Itself, where somebody else has it, too.
    pub fn into_region(self) -> Result<Region, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_region;

    #[test]
    fn a_region_comes_back_when_nobody_else_looks_at_it() {
        let (first, range) = (SharedRegion::new(test_region(2)), PhysRange::default());
        let second = first.clone();
        assert!(first.is_shared() && first.range() == second.range() && first.range() != range);
        let first = first.into_region().unwrap_err();
        drop(second);
        assert!(!first.is_shared());
        assert_eq!(first.into_region().unwrap().len_bytes(), 2 * isola_abi::layout::PAGE_SIZE);
    }
}
