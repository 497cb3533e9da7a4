//! Ownership records: a list of a cell's resources, in the cell's own memory, on pages that the cell does not map.
//!
//! ```text
//! +0            first copy    number | length | checksum | a `CellResources`, encoded
//! +half         second copy   likewise
//! ```
//!
//! A change goes to the older copy, its checksum last; the valid copy with the higher number counts. So an incarnation
//! that ends during a write leaves the previous contents. A reader treats records as untrusted: a copy with a wrong
//! checksum is ignored, and the contents of a valid one are checked against the machine ([`super::claims`]).

use super::checksum;
use super::persistent::PERSISTENT;
use crate::memory::{Region, direct};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, compiler_fence};
use isola_abi::descriptor::Core;
use isola_abi::growth::MAX_PLUGGED_BLOCKS;
use isola_abi::id::{MAX_CORES, PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{MAX_ARGUMENT_BYTES, MAX_ARGUMENTS};
use isola_abi::stage::Stage;
use isola_abi::unplug::MAX_UNPLUGGED;
use serde::{Deserialize, Serialize};

/// Bytes before the encoding: number, length, checksum.
const HEAD: usize = 24;

/// Bytes of a copy beside ranges, cores and saved state.
const FIXED: u64 = 512;

/// The most bytes of [`CellResources::saved_state`].
pub const MAX_SAVED_STATE: usize = MAX_ARGUMENT_BYTES + 8 * MAX_ARGUMENTS + 2048;

/// The most bytes of an encoded range or core.
const RANGE_BYTES: u64 = 20;

/// The most ranges that a cell may gain after it was built.
const MORE_RANGES: u64 = 192;

// Each plugged block, each unplugged range, and the stacks of each core slot can add one.
const _: () = assert!(MORE_RANGES >= (MAX_PLUGGED_BLOCKS + MAX_UNPLUGGED + MAX_CORES) as u64);

/// The resources of a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResources {
    /// Its stage.
    pub stage: Stage,
    /// All its memory.
    pub memory: Vec<PhysRange>,
    /// Its shared text, which it does not own.
    pub text: Option<PhysRange>,
    /// The root of its page tables.
    pub root: PhysAddr,
    /// The image's entry point.
    pub entry: u64,
    /// The pages of descriptor tables, one for each core slot.
    pub core_pages: PhysAddr,
    /// The number of core slots.
    pub core_slots: u32,
    /// The number of activity slots of its ledger.
    pub activity_slots: u32,
    /// The number of slots for links.
    pub link_slots: u32,
    /// The descriptor's area.
    pub descriptor: PhysAddr,
    /// The report.
    pub report: PhysAddr,
    /// The memory reserved for page tables, some of which may be in use.
    pub tables: Vec<PhysRange>,
    /// The cores with which it was built. After some have entered, its live words list those in it, by core slot.
    pub cores: Vec<Core>,
    /// Its devices.
    pub devices: Vec<DeviceAddress>,
    /// State that the supervisor saves for a restart; at most [`MAX_SAVED_STATE`] bytes.
    pub saved_state: Vec<u8>,
}

/// The identity of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DeviceAddress {
    /// A PCI function: bus, device, function.
    Pci(u8, u8, u8),
    /// A virtio device, by the address of its registers.
    Mmio(PhysAddr),
}

/// The location of an ownership record.
#[derive(Debug)]
pub(crate) struct OwnershipRecord {
    location: PhysRange,
    number: u64,
}

/// Returns the bytes of the ownership record of a cell that is built of so many ranges of memory, and can have so many
/// cores.
pub(crate) fn ownership_record_bytes(ranges: usize, cores: usize) -> u64 {
    let lists = (ranges as u64 + MORE_RANGES + cores as u64) * RANGE_BYTES;
    2 * (HEAD as u64 + FIXED + MAX_SAVED_STATE as u64 + lists).next_multiple_of(PAGE_SIZE)
}

impl OwnershipRecord {
    /// Creates an empty ownership record on these pages.
    pub(crate) fn new(pages: Region) -> Self {
        Self { location: pages.into_range(), number: 0 }
    }

    /// Writes the resources. Returns whether they fit; if not, the record is unchanged.
    pub(crate) fn write(&mut self, resources: &CellResources) -> bool {
        let Ok(body) = postcard::to_allocvec(resources) else { return false };
        let number = self.number + 1;
        let half = (self.location.len_bytes / 2) as usize;
        if HEAD + body.len() > half {
            return false;
        }
        let offset = (number % 2) * half as u64;
        // SAFETY: the pages were given up for the ownership record, and only this value accesses them.
        let copy = unsafe {
            core::slice::from_raw_parts_mut(direct(PhysAddr(self.location.start.0 + offset)), half)
        };
        write_copy(copy, number, &body);
        self.number = number;
        true
    }

    /// Enters the record, so that the next incarnation finds it. Returns whether there is room for it.
    pub(crate) fn enter(&self) -> bool {
        PERSISTENT.enter_record(self.location)
    }

    /// Removes the record, so that no later incarnation finds it.
    pub(crate) fn strike(&self) {
        PERSISTENT.strike_record(self.location);
    }

    /// Returns the ownership record that a previous incarnation left there, whose valid copy has that number.
    ///
    /// # Safety
    /// The pages must be those of an ownership record, in memory that its cell owns.
    pub(crate) unsafe fn existing(location: PhysRange, number: u64) -> Self {
        Self { location, number }
    }
}

fn write_copy(copy: &mut [u8], number: u64, body: &[u8]) {
    let (head, rest) = copy.split_at_mut(HEAD);
    // Invalid during the write: 0 is no checksum.
    head.fill(0);
    compiler_fence(Ordering::SeqCst);
    rest[..body.len()].copy_from_slice(body);
    head[..8].copy_from_slice(&number.to_le_bytes());
    head[8..16].copy_from_slice(&(body.len() as u64).to_le_bytes());
    compiler_fence(Ordering::SeqCst);
    head[16..].copy_from_slice(&sum_of(number, body).to_le_bytes());
}

fn sum_of(number: u64, body: &[u8]) -> u64 {
    (checksum(body) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1
}

/// Returns the contents and the number of the valid copy with the higher number. `pages` may contain any bytes.
pub(super) fn read(pages: &[u8]) -> Option<(CellResources, u64)> {
    let (first, second) = pages.split_at(pages.len() / 2);
    [first, second].into_iter().filter_map(read_copy).max_by_key(|(_, number)| *number)
}

fn read_copy(copy: &[u8]) -> Option<(CellResources, u64)> {
    let word = |offset: usize| Some(u64::from_le_bytes(copy.get(offset..offset + 8)?.try_into().ok()?));
    let (number, len, sum) = (word(0)?, word(8)?, word(16)?);
    let end = usize::try_from(len).ok()?.checked_add(HEAD)?;
    let body = copy.get(HEAD..end)?;
    if sum_of(number, body) != sum {
        return None;
    }
    Some((postcard::from_bytes(body).ok()?, number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::test_region;
    use isola_abi::id::{ApicId, CoreId, NodeId};
    use isola_abi::topology::CoreSite;
    use proptest::prelude::*;

    fn resources(stage: Stage, ranges: u64) -> CellResources {
        let range = |number| PhysRange::new(PhysAddr(number << 21), 1 << 21);
        CellResources {
            stage,
            memory: (1..=ranges).map(range).collect(),
            text: Some(range(1 << 20)),
            root: PhysAddr(1 << 21),
            entry: 5,
            core_pages: PhysAddr(2 << 21),
            core_slots: 3,
            activity_slots: 32,
            link_slots: 31,
            descriptor: PhysAddr(3 << 21),
            report: PhysAddr(4 << 21),
            tables: Vec::new(),
            cores: alloc::vec![Core {
                id: CoreId(1),
                apic: ApicId(1),
                node: NodeId(0),
                site: CoreSite::alone(CoreId(1)),
            }],
            devices: alloc::vec![DeviceAddress::Pci(0, 3, 0)],
            saved_state: b"kv".to_vec(),
        }
    }

    fn record(ranges: usize) -> OwnershipRecord {
        OwnershipRecord::new(test_region(ownership_record_bytes(ranges, 4) / PAGE_SIZE))
    }

    fn pages(record: &mut OwnershipRecord) -> &mut [u8] {
        // SAFETY: the pages of the test's own ownership record.
        unsafe {
            core::slice::from_raw_parts_mut(direct(record.location.start), record.location.len_bytes as usize)
        }
    }

    #[test]
    fn the_latest_copy_is_read() {
        let mut record = record(4);
        assert_eq!(read(pages(&mut record)), None);
        for (number, stage) in (1..).zip([Stage::Built, Stage::Entering, Stage::Entered, Stage::Ending]) {
            assert!(record.write(&resources(stage, 4)));
            assert_eq!(read(pages(&mut record)), Some((resources(stage, 4), number)));
        }
    }

    #[test]
    fn an_incomplete_write_leaves_the_previous_copy() {
        let mut record = record(4);
        assert!(record.write(&resources(Stage::Built, 4)) && record.write(&resources(Stage::Entering, 4)));
        // The second copy is in the first half.
        pages(&mut record)[HEAD + 3] ^= 1;
        assert_eq!(read(pages(&mut record)), Some((resources(Stage::Built, 4), 1)));
        let half = pages(&mut record).len() / 2;
        pages(&mut record)[half] ^= 1;
        assert_eq!(read(pages(&mut record)), None);
    }

    #[test]
    fn a_record_holds_its_maximum_and_rejects_more() {
        let mut record = record(700);
        let many = |ranges| CellResources {
            saved_state: alloc::vec![7; MAX_SAVED_STATE],
            ..resources(Stage::Built, ranges)
        };
        assert!(record.write(&many(700 + MORE_RANGES)));
        assert!(!record.write(&many(5000)));
        assert_eq!(read(pages(&mut record)).unwrap().0, many(700 + MORE_RANGES));
    }

    proptest! {
        #[test]
        fn damaged_records_are_rejected(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..200, flip in 1u8..) {
            prop_assert!(read(&bytes).is_none());
            let mut record = record(2);
            record.write(&resources(Stage::Entered, 2));
            let half = pages(&mut record).len() / 2;
            pages(&mut record)[half + at] ^= flip;
            let len = HEAD + postcard::to_allocvec(&resources(Stage::Entered, 2)).unwrap().len();
            prop_assert_eq!(read(pages(&mut record)).is_none(), at < len);
        }
    }
}
