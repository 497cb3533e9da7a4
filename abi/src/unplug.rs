//! Memory hot-unplug of a running cell (RainForest 5.3): the supervisor sends a reclaim request, the cell offers free
//! blocks, the supervisor unmaps them.
//!
//! ```text
//!   supervisor                                        cell
//!   UnplugRequest: len_bytes, then number + 1;
//!   sends REQUEST_VECTOR ------------------------->   withdraws free blocks from its page allocator;
//!                                                     UnplugOffer: the blocks, then `number`; notifies
//!   validates each block; lists it in           <---
//!   `unplugged_ranges`, unmaps it, increments
//!   `generation`, flushes all TLBs by NMI
//!   `taken`, then `settled` = number;
//!   sends REQUEST_VECTOR ------------------------->   returns the blocks not taken to its page allocator;
//!                                                     UnplugOffer: `settled` = number
//! ```
//!
//! The supervisor does not trust an offer. Before it reuses a block, it unmaps the block from the cell's page tables
//! and completes a TLB shootdown on all cores of the cell.
//!
//! **One request at a time.** After a settlement the supervisor sends no request and plugs no memory until the cell has
//! acknowledged the settlement. Therefore no block is returned by the cell and granted to it at the same time.
//!
//! `unplugged_ranges` lists the parts of the cell's original memory, and of blocks plugged later, that the cell no
//! longer owns. The cell consults the list before it maps memory in its region area. An entry is one word, so no reader
//! sees a mixture of two ranges.

use crate::id::{PhysAddr, PhysRange};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The maximum number of blocks in an offer.
pub const MAX_OFFERED: usize = 32;

/// The maximum number of unplugged ranges of a cell. A block that would exceed it stays with the cell.
///
/// A cell of 256 MiB has 128 chunks, so it can return any set of them.
pub const MAX_UNPLUGGED: usize = 64;

/// The alignment of a block's start and length, in bytes.
pub const CHUNK: u64 = 2 << 20;

const _: () = assert!(MAX_OFFERED <= u32::BITS as usize);

/// The supervisor's reclaim request, in the descriptor's live words.
#[repr(C)]
#[derive(Debug)]
pub struct UnplugRequest {
    /// The number of the latest request, incremented with each request; stored last (release).
    number: AtomicU32,
    /// The number of the latest settled request; stored (release) after `taken`.
    settled: AtomicU32,
    /// The requested memory, in bytes.
    len_bytes: AtomicU64,
    /// Bit n: the supervisor has unplugged block n of the offer to the settled request.
    taken: AtomicU32,
    /// The generation of the cell's page tables, incremented after entries were removed. Never 0 while cores run.
    generation: AtomicU32,
    /// All unplugged ranges are in entries below this index.
    unplugged_entries: AtomicU32,
    /// Unused.
    reserved: AtomicU32,
    unplugged_ranges: [ChunksWord; MAX_UNPLUGGED],
}

/// The cell's answer to a reclaim request, in its report.
#[repr(C)]
#[derive(Debug, Default)]
pub struct UnplugOffer {
    /// The number of the request that this offer answers; stored last (release).
    number: AtomicU32,
    /// The number of the latest request whose settlement the cell has processed; stored (release).
    settled: AtomicU32,
    /// The number of offered blocks.
    count: AtomicU32,
    /// A [`Shortfall`].
    shortfall: AtomicU32,
    /// Memory that the cell migrated to free the blocks, in bytes.
    moved_bytes: AtomicU64,
    blocks: [BlockWords; MAX_OFFERED],
}

/// An offered block of memory.
#[repr(C)]
#[derive(Debug, Default)]
struct BlockWords {
    start: AtomicU64,
    len_bytes: AtomicU64,
}

/// The reason why an offer covers less than the request, according to the cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Shortfall {
    /// The offer covers the request.
    None = 0,
    /// The cell has more free blocks, and offers them at the next request.
    More = 1,
    /// More blocks may be free shortly: cores are returning their caches, or holders are freeing memory.
    Soon = 2,
    /// The remaining memory is in use, or the cell would be short of memory without it.
    InUse = 3,
    /// The remaining memory is free, but fragmented into pieces smaller than a block, and the pages between them cannot
    /// migrate.
    Scattered = 4,
}

impl Shortfall {
    /// Decodes a value from the report; an unknown value means [`Self::InUse`].
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::None,
            1 => Self::More,
            2 => Self::Soon,
            4 => Self::Scattered,
            _ => Self::InUse,
        }
    }
}

/// The outcome of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The request's number.
    pub number: u32,
    /// Bit n: the supervisor has unplugged block n.
    pub taken: u32,
}

/// A range of whole chunks in one word: the number of the first chunk in the high half, the number of chunks in the low
/// half; 0 means an empty entry.
#[repr(transparent)]
#[derive(Debug)]
struct ChunksWord(AtomicU64);

impl ChunksWord {
    fn read(&self) -> Option<PhysRange> {
        let word = self.0.load(Ordering::Acquire);
        let (first, count) = (word >> 32, word & u64::from(u32::MAX));
        (count > 0).then(|| PhysRange::new(PhysAddr(first * CHUNK), count * CHUNK))
    }

    /// Stores a range, whose start and length are multiples of [`CHUNK`].
    fn write(&self, range: PhysRange) {
        let (first, count) = (range.start.0 / CHUNK, range.len_bytes / CHUNK);
        self.0.store((first << 32) | count, Ordering::Release);
    }
}

impl Default for UnplugRequest {
    fn default() -> Self {
        Self {
            number: AtomicU32::new(0),
            settled: AtomicU32::new(0),
            len_bytes: AtomicU64::new(0),
            taken: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            unplugged_entries: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
            unplugged_ranges: [const { ChunksWord(AtomicU64::new(0)) }; MAX_UNPLUGGED],
        }
    }
}

impl UnplugRequest {
    /// The offset of the generation in this structure, in bytes, for assembly code.
    pub const GENERATION_OFFSET: usize = core::mem::offset_of!(Self, generation);

    /// Requests `len_bytes` bytes. For the supervisor, after the previous request is settled. Returns the request's
    /// number, which is never 0.
    pub fn ask(&self, len_bytes: u64) -> u32 {
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }

    /// Publishes the outcome of the offer to the latest request: bit n of `taken` is set if block n was unplugged. For
    /// the supervisor.
    pub fn settle(&self, taken: u32) {
        self.taken.store(taken, Ordering::Relaxed);
        self.settled.store(self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Returns the number of the latest request and the requested bytes. A number of 0 means that there was no request
    /// yet.
    pub fn asked(&self) -> (u32, u64) {
        let number = self.number.load(Ordering::Acquire);
        (number, self.len_bytes.load(Ordering::Relaxed))
    }

    /// Returns the outcome of the latest settled request.
    pub fn settlement(&self) -> Settlement {
        let number = self.settled.load(Ordering::Acquire);
        Settlement { number, taken: self.taken.load(Ordering::Relaxed) }
    }

    /// Begins a new generation, after entries of the cell's page tables were removed or before cores first use the
    /// tables. Returns the generation by which a core acknowledges its TLB flush; never 0. For the supervisor.
    pub fn next_generation(&self) -> u32 {
        let next = self.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.generation.store(next, Ordering::SeqCst);
        next
    }

    /// Returns the current generation. A core loads it before it flushes its TLB, and then acknowledges that
    /// generation.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Publishes the unplugged ranges, at most [`MAX_UNPLUGGED`], of whole chunks. For the supervisor.
    pub fn set_unplugged(&self, unplugged_ranges: &[PhysRange]) {
        let before = self.unplugged_entries.load(Ordering::Relaxed);
        self.unplugged_entries.store(before.max(unplugged_ranges.len() as u32), Ordering::Release);
        for (index, entry) in self.unplugged_ranges.iter().enumerate() {
            match unplugged_ranges.get(index) {
                Some(unplugged_range) => entry.write(*unplugged_range),
                None => entry.write(PhysRange::default()),
            }
        }
        self.unplugged_entries.store(unplugged_ranges.len() as u32, Ordering::Release);
    }

    /// Returns the unplugged ranges.
    pub fn unplugged_ranges(&self) -> impl Iterator<Item = PhysRange> {
        let entries = self.unplugged_entries.load(Ordering::Acquire) as usize;
        self.unplugged_ranges.iter().take(entries).filter_map(ChunksWord::read)
    }

    /// Returns whether any byte of `memory` is in an unplugged range. Costs one load while there are no ranges.
    pub fn is_unplugged(&self, memory: PhysRange) -> bool {
        let entries = self.unplugged_entries.load(Ordering::Acquire) as usize;
        let meets = |unplugged_range: PhysRange| {
            unplugged_range.start < memory.end() && memory.start < unplugged_range.end()
        };
        self.unplugged_ranges.iter().take(entries).filter_map(ChunksWord::read).any(meets)
    }
}

impl UnplugOffer {
    /// Offers blocks, at most [`MAX_OFFERED`], in answer to the request `number`; the cell migrated `moved_bytes` bytes
    /// to free them. For the cell.
    pub fn make(&self, number: u32, blocks: &[PhysRange], moved_bytes: u64, shortfall: Shortfall) {
        for (entry, block) in self.blocks.iter().zip(blocks) {
            entry.start.store(block.start.0, Ordering::Relaxed);
            entry.len_bytes.store(block.len_bytes, Ordering::Relaxed);
        }
        self.count.store(blocks.len().min(MAX_OFFERED) as u32, Ordering::Relaxed);
        self.shortfall.store(shortfall as u32, Ordering::Relaxed);
        self.moved_bytes.store(moved_bytes, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    /// Returns the number of the request that this offer answers.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// Returns the offered blocks, and the reason for missing ones. The supervisor must validate the addresses and
    /// lengths.
    pub fn read(&self) -> (impl Iterator<Item = PhysRange>, Shortfall) {
        let count = (self.count.load(Ordering::Relaxed) as usize).min(MAX_OFFERED);
        let block = |words: &BlockWords| {
            let start = PhysAddr(words.start.load(Ordering::Relaxed));
            PhysRange::new(start, words.len_bytes.load(Ordering::Relaxed))
        };
        (
            self.blocks.iter().take(count).map(block),
            Shortfall::from_u32(self.shortfall.load(Ordering::Relaxed)),
        )
    }

    /// Returns the bytes that the cell claims to have migrated; not validated.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Acknowledges the settlement of the request `number`. For the cell.
    pub fn acknowledge(&self, number: u32) {
        self.settled.store(number, Ordering::Release);
    }

    /// Returns the number of the latest request whose settlement the cell has acknowledged.
    pub fn acknowledged(&self) -> u32 {
        self.settled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> PhysRange {
        PhysRange::new(PhysAddr(number * 8 * CHUNK), (number + 1) * CHUNK)
    }

    #[test]
    fn an_offer_reads_back_and_is_clamped_to_the_maximum() {
        let offer = UnplugOffer::default();
        let blocks: [PhysRange; MAX_OFFERED + 3] = core::array::from_fn(|number| block(number as u64));
        offer.make(7, &blocks, 12, Shortfall::Scattered);
        assert_eq!((offer.number(), offer.moved_bytes()), (7, 12));
        let (read, shortfall) = offer.read();
        assert!(read.eq(blocks[..MAX_OFFERED].iter().copied()));
        assert_eq!(shortfall, Shortfall::Scattered);
        offer.count.store(u32::MAX, Ordering::Relaxed);
        offer.shortfall.store(99, Ordering::Relaxed);
        let (read, shortfall) = offer.read();
        assert_eq!((read.count(), shortfall), (MAX_OFFERED, Shortfall::InUse));
    }

    #[test]
    fn a_settlement_has_the_number_of_its_request() {
        let unplug_request = UnplugRequest::default();
        let first = unplug_request.ask(5 * CHUNK);
        assert_eq!(unplug_request.asked(), (first, 5 * CHUNK));
        assert_ne!(unplug_request.settlement().number, first);
        unplug_request.settle(0b101);
        assert_eq!(unplug_request.settlement(), Settlement { number: first, taken: 0b101 });
        assert_ne!(unplug_request.ask(CHUNK), first);
        assert_eq!(unplug_request.settlement().number, first, "the second request is open");
    }

    #[test]
    fn only_memory_that_meets_a_range_is_unplugged() {
        let unplug_request = UnplugRequest::default();
        assert!(!unplug_request.is_unplugged(block(3)));
        unplug_request.set_unplugged(&[block(1), block(3)]);
        let page = |start: u64| PhysRange::new(PhysAddr(start), 4096);
        assert!(
            unplug_request.is_unplugged(page(block(3).start.0))
                && unplug_request.is_unplugged(page(block(3).end().0 - 4096))
        );
        assert!(
            !unplug_request.is_unplugged(page(block(3).end().0))
                && !unplug_request.is_unplugged(page(block(3).start.0 - 4096))
        );
        assert!(unplug_request.is_unplugged(PhysRange::new(block(3).start, 1 << 40)));
        unplug_request.set_unplugged(&[block(3)]);
        assert!(unplug_request.is_unplugged(block(3)) && !unplug_request.is_unplugged(block(1)));
        unplug_request.set_unplugged(&[]);
        assert!(!unplug_request.is_unplugged(block(3)));
    }
}
