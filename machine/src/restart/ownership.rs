//! Ownership records: what a cell holds, written down in the cell's own memory, on pages that the cell has not mapped.
//!
//! ```text
//! +0            first copy    number | length | checksum | a `Holding`, encoded
//! +half         second copy   likewise
//! ```
//!
//! What changes is written to the older copy, its checksum last; the valid copy with the higher number counts. So an incarnation
//! that ends in the middle of writing leaves what was before. Who reads an ownership record takes it for hostile: a copy that is not
//! as it was written is none, and what a valid one says is checked against the machine ([`super::claims`]).

use super::checksum;
use super::kept::KEPT;
use crate::memory::{Region, direct};
use alloc::vec::Vec;
use core::sync::atomic::{Ordering, compiler_fence};
use isola_abi::descriptor::Core;
use isola_abi::id::{PhysAddr, PhysRange};
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{MAX_ARGUMENT_BYTES, MAX_ARGUMENTS, MAX_CELLS};
use isola_abi::stage::Stage;
use serde::{Deserialize, Serialize};

/// Most cells that can hold something: those that there can be, and some in quarantine.
pub(super) const MAX_RECORDS: usize = 2 * MAX_CELLS;

/// What stands before the encoding: number, length, checksum.
const HEAD: usize = 24;

/// Bytes of a copy beside ranges, cores and saved state.
const FIXED: u64 = 512;

/// Most bytes of a [`Holding::saved_state`].
pub const MAX_SAVED_STATE: usize = MAX_ARGUMENT_BYTES + 8 * MAX_ARGUMENTS + 2048;

/// Bytes that an encoded range, or core, takes at most.
const RANGE_BYTES: u64 = 20;

/// Most ranges that a cell may come to have on top of those that it is built of.
const MORE_RANGES: u64 = 128;

/// What a cell holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Holding {
    /// How far it is.
    pub stage: Stage,
    /// All its memory.
    pub memory: Vec<PhysRange>,
    /// What it only reads and executes, beside others, and does not own.
    pub text: Option<PhysRange>,
    /// The root of its page tables.
    pub root: PhysAddr,
    /// Its image's entry.
    pub entry: u64,
    /// The pages of descriptor tables, one for each of its places for cores.
    pub core_pages: PhysAddr,
    /// How many places it has for cores.
    pub places: u32,
    /// How many slots its ledger has.
    pub slots: u32,
    /// The descriptor's area.
    pub descriptor: PhysAddr,
    /// The report.
    pub report: PhysAddr,
    /// What was reserved for page tables, some of which may be in use.
    pub tables: Vec<PhysRange>,
    /// The cores that it was built with. Once some have entered it, its live words say which are in it, and where.
    pub cores: Vec<Core>,
    /// Its devices.
    pub devices: Vec<DevicePlace>,
    /// What whoever divides the machine wants to know again of it; at most [`MAX_SAVED_STATE`] bytes.
    pub saved_state: Vec<u8>,
}

/// Which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DevicePlace {
    /// That function: bus, device, function.
    Pci(u8, u8, u8),
    /// The one with its registers there.
    Mmio(PhysAddr),
}

/// Where an ownership record is.
#[derive(Debug)]
pub(crate) struct OwnershipRecord {
    place: PhysRange,
    number: u64,
}

/// Bytes of the ownership record of a cell that is built of so many ranges of memory, and can have so many cores.
pub(crate) fn ownership_record_bytes(ranges: usize, cores: usize) -> u64 {
    let lists = (ranges as u64 + MORE_RANGES + cores as u64) * RANGE_BYTES;
    2 * (HEAD as u64 + FIXED + MAX_SAVED_STATE as u64 + lists).next_multiple_of(PAGE_SIZE)
}

impl OwnershipRecord {
    /// An ownership record on those pages, with nothing in it.
    pub(crate) fn new(pages: Region) -> Self {
        Self { place: pages.into_range(), number: 0 }
    }

    /// Writes down what the cell holds. Returns whether it could be written down: if not, the ownership record is as before.
    pub(crate) fn write(&mut self, holding: &Holding) -> bool {
        let Ok(body) = postcard::to_allocvec(holding) else { return false };
        let number = self.number + 1;
        let half = (self.place.len_bytes / 2) as usize;
        if HEAD + body.len() > half {
            return false;
        }
        let offset = (number % 2) * half as u64;
        // SAFETY: the pages were given up for the ownership record, and only this value names them.
        let copy =
            unsafe { core::slice::from_raw_parts_mut(direct(PhysAddr(self.place.start.0 + offset)), half) };
        write_copy(copy, number, &body);
        self.number = number;
        true
    }

    /// Has the ownership record count: whatever becomes of this incarnation, the next one finds it. Returns whether there is a place for it.
    pub(crate) fn enter(&self) -> bool {
        KEPT.enter_record(self.place)
    }

    /// Has the ownership record count no more.
    pub(crate) fn strike(&self) {
        KEPT.strike_record(self.place);
    }

    /// The ownership record that a previous incarnation has left there, whose valid copy has that number.
    ///
    /// # Safety
    /// The pages must be an ownership record's, in memory that its cell owns.
    pub(crate) unsafe fn existing(place: PhysRange, number: u64) -> Self {
        Self { place, number }
    }
}

fn write_copy(copy: &mut [u8], number: u64, body: &[u8]) {
    let (head, rest) = copy.split_at_mut(HEAD);
    // Not valid while it is written: 0 is no checksum.
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

/// What the valid copy with the higher number says, and its number. `pages` are the ownership record's, whatever is in them.
pub(super) fn read(pages: &[u8]) -> Option<(Holding, u64)> {
    let (first, second) = pages.split_at(pages.len() / 2);
    [first, second].into_iter().filter_map(read_copy).max_by_key(|(_, number)| *number)
}

fn read_copy(copy: &[u8]) -> Option<(Holding, u64)> {
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

    fn holding(stage: Stage, ranges: u64) -> Holding {
        let range = |number| PhysRange::new(PhysAddr(number << 21), 1 << 21);
        Holding {
            stage,
            memory: (1..=ranges).map(range).collect(),
            text: Some(range(1 << 20)),
            root: PhysAddr(1 << 21),
            entry: 5,
            core_pages: PhysAddr(2 << 21),
            places: 3,
            slots: 32,
            descriptor: PhysAddr(3 << 21),
            report: PhysAddr(4 << 21),
            tables: Vec::new(),
            cores: alloc::vec![Core {
                id: CoreId(1),
                apic: ApicId(1),
                node: NodeId(0),
                site: CoreSite::alone(CoreId(1)),
            }],
            devices: alloc::vec![DevicePlace::Pci(0, 3, 0)],
            saved_state: b"kv".to_vec(),
        }
    }

    fn record(ranges: usize) -> OwnershipRecord {
        OwnershipRecord::new(test_region(ownership_record_bytes(ranges, 4) / PAGE_SIZE))
    }

    fn pages(record: &mut OwnershipRecord) -> &mut [u8] {
        // SAFETY: the pages of the test's own ownership record.
        unsafe {
            core::slice::from_raw_parts_mut(direct(record.place.start), record.place.len_bytes as usize)
        }
    }

    #[test]
    fn the_latest_that_was_written_down_is_read() {
        let mut record = record(4);
        assert_eq!(read(pages(&mut record)), None);
        for (number, stage) in (1..).zip([Stage::Built, Stage::Entering, Stage::Entered, Stage::Ending]) {
            assert!(record.write(&holding(stage, 4)));
            assert_eq!(read(pages(&mut record)), Some((holding(stage, 4), number)));
        }
    }

    #[test]
    fn what_ends_in_the_middle_of_writing_leaves_what_was_before() {
        let mut record = record(4);
        assert!(record.write(&holding(Stage::Built, 4)) && record.write(&holding(Stage::Entering, 4)));
        // The second stands in the first half.
        pages(&mut record)[HEAD + 3] ^= 1;
        assert_eq!(read(pages(&mut record)), Some((holding(Stage::Built, 4), 1)));
        let half = pages(&mut record).len() / 2;
        pages(&mut record)[half] ^= 1;
        assert_eq!(read(pages(&mut record)), None);
    }

    #[test]
    fn a_ownership_record_has_room_for_as_much_as_it_was_made_for_and_says_when_there_is_more() {
        let mut record = record(700);
        let many = |ranges| Holding {
            saved_state: alloc::vec![7; MAX_SAVED_STATE],
            ..holding(Stage::Built, ranges)
        };
        assert!(record.write(&many(700 + MORE_RANGES)));
        assert!(!record.write(&many(5000)));
        assert_eq!(read(pages(&mut record)).unwrap().0, many(700 + MORE_RANGES));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..200, flip in 1u8..) {
            prop_assert!(read(&bytes).is_none());
            let mut record = record(2);
            record.write(&holding(Stage::Entered, 2));
            let half = pages(&mut record).len() / 2;
            pages(&mut record)[half + at] ^= flip;
            let len = HEAD + postcard::to_allocvec(&holding(Stage::Entered, 2)).unwrap().len();
            prop_assert_eq!(read(pages(&mut record)).is_none(), at < len);
        }
    }
}
