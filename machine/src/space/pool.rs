//! How many page tables a pool needs: they are made of the memory that would otherwise be pool, so they have to be
//! known before it is.

use crate::memory::Region;
use crate::paging::LargestPage;
use isola_abi::id::PhysRange;

/// The most tables that mapping these regions takes: at each level those that a region begins or ends in, and,
/// at the levels above the leaves, those that it fills.
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
            // One page may be cut off the region's front for the tables themselves.
            spans(&range, 1 << 21).min(2) + directories + spans(&range, 1 << 39)
        })
        .sum()
}

/// How many tables a cell with so much memory, which may get so much more, gets for the virtual memory that it maps
/// itself: enough for pages of 4 KiB in twice as much of it as it may have memory, 0.4 % of that. No more than a
/// sixteenth of what it begins with, though: who grows beyond sixteen times that maps larger pages.
pub(super) fn region_tables(memory_bytes: u64, growth_bytes: u64) -> u64 {
    4 + (memory_bytes.saturating_add(growth_bytes) >> 20).min(memory_bytes >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Contents, Stock, test_region};
    use crate::paging::{AddressSpace, Caching, Rights};
    use alloc::vec::Vec;
    use isola_abi::id::PhysAddr;
    use isola_abi::layout::{DIRECT_MAP, PAGE_SIZE};
    use proptest::prelude::*;

    fn regions() -> impl Strategy<Value = Vec<PhysRange>> {
        // In pages: a gap in front, and a length; small, middling and large ones.
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
        fn the_pool_s_tables_are_never_too_few(ranges in regions(), gib in any::<bool>()) {
            let largest = if gib { LargestPage::OneGib } else { LargestPage::TwoMib };
            // SAFETY: never looked into: mapping goes by the numbers.
            let region = |range: &PhysRange| unsafe { Region::new(*range, Contents::Zero) };
            let regions: Vec<Region> = ranges.iter().map(region).collect();
            let needed = pool_tables(&regions, largest);
            let mut stock = Stock::new(alloc::vec![test_region(needed + 1)]);
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
                // One page that was asked for on top, and at each of two levels the tables of an end that lies on a
                // boundary, where none is needed.
                prop_assert!(stock.len_bytes() <= 5 * PAGE_SIZE, "{} bytes are wasted", stock.len_bytes());
            }
        }
    }
}
