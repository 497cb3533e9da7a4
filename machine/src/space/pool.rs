//! The number of page tables for a cell's memory. The tables occupy memory that would otherwise be pool, so their
//! number must be known before the pool's size.

use crate::memory::Region;
use crate::paging::LargestPage;
use isola_abi::id::PhysRange;

/// Returns an upper bound of the tables that map these regions: at each level those in which a region begins or ends,
/// and, at the levels above the leaves, those that a region fills.
pub(super) fn pool_tables(regions: &[Region], largest: LargestPage) -> u64 {
    let spans =
        |range: &PhysRange, bytes: u64| (range.end().0.saturating_sub(1) / bytes) - range.start.0 / bytes + 1;
    regions
        .iter()
        .map(|region| {
            let range = region.range();
            let directories = match largest {
                LargestPage::TwoMib => spans(&range, 1 << 30),
                LargestPage::OneGib => spans(&range, 1 << 30).min(2),
            };
            // The front of a region may lose a page to the tables themselves.
            spans(&range, 1 << 21).min(2) + directories + spans(&range, 1 << 39)
        })
        .sum()
}

/// Returns the number of page tables for the region area of a cell with `memory_bytes` that may grow by `growth_bytes`:
/// enough for pages of 4 KiB in twice the memory that it may have, 0.4 % of that. The bound is a sixteenth of the
/// initial memory; a cell that grows beyond sixteen times that maps larger pages.
pub(super) fn region_tables(memory_bytes: u64, growth_bytes: u64) -> u64 {
    4 + (memory_bytes.saturating_add(growth_bytes) >> 20).min(memory_bytes >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Contents, FreeRegions, test_region};
    use crate::paging::{AddressSpace, Caching, Rights};
    use alloc::vec::Vec;
    use isola_abi::id::PhysAddr;
    use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE};
    use proptest::prelude::*;

    fn regions() -> impl Strategy<Value = Vec<PhysRange>> {
        // In pages: a gap, then a length; small, medium and large ones.
        let pages = prop_oneof![1..20u64, 1..3000u64, 1..600_000u64];
        let gap = prop_oneof![0..3u64, 0..600u64, 0..300_000u64];
        prop::collection::vec((gap, pages), 1..6).prop_map(|parts| {
            let mut end = 0;
            let place = |(gap, pages): (u64, u64)| {
                let start = end + gap * PAGE_SIZE;
                end = start + pages * PAGE_SIZE;
                PhysRange::new(PhysAddr(start), pages * PAGE_SIZE)
            };
            parts.into_iter().map(place).collect()
        })
    }

    proptest! {
        #[test]
        fn the_pool_s_tables_always_suffice(ranges in regions(), gib in any::<bool>()) {
            let largest = if gib { LargestPage::OneGib } else { LargestPage::TwoMib };
            // SAFETY: no code accesses the memory: mapping uses only the addresses.
            let region = |range: &PhysRange| unsafe { Region::new(*range, Contents::Zero) };
            let regions: Vec<Region> = ranges.iter().map(region).collect();
            let needed = pool_tables(&regions, largest);
            let mut stock = FreeRegions::new(alloc::vec![test_region(needed + 1)]);
            let mut space = AddressSpace::new(&mut stock, largest).unwrap();
            for range in &ranges {
                let virt = DIRECT_MAP + range.start.0;
                let mapped = space.map(virt, *range, Rights::ReadWrite, Caching::Cached, &mut stock);
                prop_assert_eq!(mapped, Ok(()));
                let last = PhysAddr(range.end().0 - 1);
                prop_assert_eq!(space.translate(DIRECT_MAP + last.0).map(|found| found.phys), Some(last));
                prop_assert_eq!(space.translate(virt).map(|found| found.phys), Some(range.start));
            }
            if ranges.len() == 1 {
                // One page beyond the bound, and at each of two levels the table of an end that lies on a boundary,
                // where none is needed.
                prop_assert!(stock.len_bytes() <= 5 * PAGE_SIZE, "{} bytes are unused", stock.len_bytes());
            }
        }
    }
}
