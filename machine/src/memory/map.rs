//! Arithmetic of memory maps: RAM without the ranges in use.

use alloc::vec::Vec;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;

/// Returns the parts of `ram` outside of `reserved`: whole pages, in ascending order, disjoint.
///
/// Incomplete pages of RAM do not count, and a page that is reserved in part counts as reserved.
pub fn subtract(ram: &[PhysRange], reserved: &[PhysRange]) -> Vec<PhysRange> {
    let mut free: Vec<(u64, u64)> = ram
        .iter()
        .filter_map(|range| {
            let start = range.start.0.checked_next_multiple_of(PAGE_SIZE)?;
            let end = range.end().0 / PAGE_SIZE * PAGE_SIZE;
            (start < end).then_some((start, end))
        })
        .collect();
    free.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in free {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    for range in reserved.iter().filter(|range| range.len_bytes > 0) {
        let start = range.start.0 / PAGE_SIZE * PAGE_SIZE;
        let end = range.end().0.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX);
        merged = merged
            .into_iter()
            .flat_map(|(from, to)| [(from, to.min(start)), (from.max(end), to)])
            .filter(|(from, to)| from < to)
            .collect();
    }
    merged.into_iter().map(|(start, end)| PhysRange::new(PhysAddr(start), end - start)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PhysRange {
        PhysRange::new(PhysAddr(start), end - start)
    }

    #[test]
    fn only_whole_pages_count() {
        let ram = [range(0x10_0001, 0x10_3fff), range(0x20_0800, 0x20_0fff)];
        assert_eq!(subtract(&ram, &[]), [range(0x10_1000, 0x10_3000)]);
        assert_eq!(subtract(&ram, &[range(0x10_1fff, 0x10_2000)]), [range(0x10_2000, 0x10_3000)]);
    }

    #[test]
    fn ram_is_sorted_and_joined() {
        let ram =
            [range(0x5000, 0x9000), range(0x1000, 0x3000), range(0x3000, 0x4000), range(0x6000, 0x7000)];
        assert_eq!(subtract(&ram, &[]), [range(0x1000, 0x4000), range(0x5000, 0x9000)]);
    }

    #[test]
    fn reserved_ranges_are_removed() {
        let ram = [range(0x1000, 0x9000)];
        let reserved =
            [range(0x2000, 0x3000), range(0x5001, 0x5002), range(0x8000, u64::MAX), range(0x4000, 0x4000)];
        let left = [range(0x1000, 0x2000), range(0x3000, 0x5000), range(0x6000, 0x8000)];
        assert_eq!(subtract(&ram, &reserved), left);
        assert_eq!(subtract(&ram, &[range(0, 0xa000)]), []);
    }

    #[test]
    fn ranges_at_the_end_of_the_address_space_are_handled() {
        assert_eq!(subtract(&[PhysRange::new(PhysAddr(u64::MAX - 10), 100)], &[]), []);
        let odd = PhysRange::new(PhysAddr(0x3000), u64::MAX);
        assert_eq!(subtract(&[range(0x1000, 0x9000)], &[odd]), [range(0x1000, 0x3000)]);
    }
}
