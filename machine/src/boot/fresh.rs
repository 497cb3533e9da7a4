//! Memory that is known to be zero without a check.
//!
//! A hypervisor provides a virtual machine with zeroed memory, as other contents would leak from its host. Zeroing it
//! again would take longer than the rest of the boot. Two writers can have changed it meanwhile: firmware, which on
//! machines of PVH loaders uses memory below 16 MiB and at the end of the memory below 4 GiB (SeaBIOS: 17 MiB of it);
//! and an earlier system, if the machine was reset and kept its memory. So each boot leaves a mark in memory that
//! firmware does not use. If the mark is found, no memory counts as zero.

use crate::memory::Contents;
use isola_abi::id::{PhysAddr, PhysRange};

/// Firmware uses memory below this...
const LOW_EDGE: u64 = 16 << 20;
/// ...and this many bytes at the end of the memory below 4 GiB.
const HIGH_EDGE: u64 = 32 << 20;

const MARK: [u8; 32] = *b"Isola was here, and may be back.";

/// Knowledge of the memory's contents at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Freshness {
    fresh: bool,
    /// End of the RAM below 4 GiB.
    low_end: u64,
}

impl Freshness {
    /// Looks for the mark, and leaves it. `page` contains it; no other code uses that page, and it is the same one
    /// whenever the same image boots the same machine.
    pub(super) fn find_out(ram: &[PhysRange], hypervisor: bool, page: &mut [u8]) -> Self {
        let marked = page.starts_with(&MARK);
        page[..MARK.len()].copy_from_slice(&MARK);
        let low = ram.iter().map(|range| range.end().0).filter(|end| *end <= 1 << 32);
        Self { fresh: hypervisor && !marked, low_end: low.max().unwrap_or(0) }
    }

    /// Divides a range into zeroed memory and memory of unknown contents.
    pub(super) fn split(&self, range: PhysRange) -> impl Iterator<Item = (PhysRange, Contents)> {
        let high = self.low_end.saturating_sub(HIGH_EDGE).max(LOW_EDGE);
        let edges = [
            (0, LOW_EDGE, Contents::Unknown),
            (LOW_EDGE, high, Contents::Zero),
            (high, self.low_end.max(high), Contents::Unknown),
            (self.low_end.max(high), u64::MAX, Contents::Zero),
        ];
        let fresh = self.fresh;
        edges.into_iter().filter_map(move |(from, to, contents)| {
            let (start, end) = (range.start.0.max(from), range.end().0.min(to));
            let contents = if fresh { contents } else { Contents::Unknown };
            (start < end).then(|| (PhysRange::new(PhysAddr(start), end - start), contents))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    const MIB: u64 = 1 << 20;

    fn range(start: u64, end: u64) -> PhysRange {
        PhysRange::new(PhysAddr(start), end - start)
    }

    #[test]
    fn the_edges_that_firmware_uses_are_not_trusted() {
        let freshness = Freshness { fresh: true, low_end: 512 * MIB };
        let parts: Vec<_> = freshness.split(range(2 * MIB, 512 * MIB)).collect();
        let expected = [
            (range(2 * MIB, 16 * MIB), Contents::Unknown),
            (range(16 * MIB, 480 * MIB), Contents::Zero),
            (range(480 * MIB, 512 * MIB), Contents::Unknown),
        ];
        assert_eq!(parts, expected);
        let high: Vec<_> = freshness.split(range(4096 * MIB, 5000 * MIB)).collect();
        assert_eq!(high, [(range(4096 * MIB, 5000 * MIB), Contents::Zero)]);
    }

    #[test]
    fn no_memory_of_a_small_machine_counts_as_zero() {
        let freshness = Freshness { fresh: true, low_end: 48 * MIB };
        assert!(freshness.split(range(MIB, 48 * MIB)).all(|(_, contents)| contents == Contents::Unknown));
    }

    #[test]
    fn a_mark_is_found_again() {
        let mut page = [0; 64];
        assert!(Freshness::find_out(&[], true, &mut page).fresh);
        assert!(!Freshness::find_out(&[], true, &mut page).fresh);
        assert!(!Freshness::find_out(&[], false, &mut [0; 64]).fresh);
    }

    #[test]
    fn memory_that_kept_its_contents_is_not_trusted() {
        let freshness = Freshness { fresh: false, low_end: 512 * MIB };
        assert!(freshness.split(range(MIB, 512 * MIB)).all(|(_, contents)| contents == Contents::Unknown));
    }
}
