//! Memory with several readers and no writer.

use super::Region;
use alloc::sync::Arc;
use isola_abi::id::PhysRange;

/// A read-only region with reference-counted owners. The last owner can recover the region.
#[derive(Clone, Debug)]
#[must_use = "memory that is dropped by the last who has it is lost"]
pub struct SharedRegion(Arc<Region>);

impl SharedRegion {
    /// Shares a region, with one owner so far.
    pub fn new(region: Region) -> Self {
        Self(Arc::new(region))
    }

    /// Returns the address range.
    pub fn range(&self) -> PhysRange {
        self.0.range()
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Returns whether there are other owners.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Recovers the region for any use.
    ///
    /// # Errors
    /// Itself, if there are other owners.
    pub fn into_region(self) -> Result<Region, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_region;

    #[test]
    fn only_the_last_owner_recovers_the_region() {
        let (first, range) = (SharedRegion::new(test_region(2)), PhysRange::default());
        let second = first.clone();
        assert!(first.is_shared() && first.range() == second.range() && first.range() != range);
        let first = first.into_region().unwrap_err();
        drop(second);
        assert!(!first.is_shared());
        assert_eq!(first.into_region().unwrap().len_bytes(), 2 * isola_abi::layout::PAGE_SIZE);
    }
}
