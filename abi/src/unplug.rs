//! How a cell gives memory back while it runs (RainForest 5.3): the supervisor asks, the cell offers, the supervisor takes.
//!
//! ```text
//!   supervisor                                          cell
//!   Request: how much; number + 1; interrupts it ------>  takes free blocks out of its page allocator
//!                                                       Offer: the blocks, then `number`; rings
//!   judges each block; makes it nobody's:
//!   `unplugged_ranges`, page tables, every core forgets  <--------  (cores forget when they are made to: `generation`)
//!   `taken`, then `settled` = number; interrupts it -->  what was not taken is used again
//!                                                       Offer: `settled` = number
//! ```
//!
//! A cell names memory that it does not use any more, and is not believed: before a block is anybody else's the supervisor
//! has taken it out of the cell's page tables, and has seen every core of the cell forget what it remembered of them.
//!
//! **One step at a time.** The supervisor does not ask again, and gives nothing, before the cell has said that it has seen
//! what became of its last offer. So no block is both what the cell takes back and what it is given anew.
//!
//! `unplugged_ranges` says which parts of what the cell began with, and of the chunks that came since, are not the cell's (any more):
//! what the cell may show in its window of regions goes by it. An entry changes so that what is the cell's is in none of
//! them at any time: a length of 0 stands there while the rest changes.

use crate::id::{PhysAddr, PhysRange};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most blocks of an offer.
pub const MAX_OFFERED: usize = 32;

/// Most unplugged ranges in a cell's memory: what would make more stays.
pub const MAX_UNPLUGGED: usize = 32;

/// A block begins at a multiple of that, and is as long as one, in bytes.
pub const GRANULE: u64 = 2 << 20;

const _: () = assert!(MAX_OFFERED <= u32::BITS as usize);

/// What the supervisor asks back, in the descriptor's live words.
#[repr(C)]
#[derive(Debug, Default)]
pub struct UnplugRequest {
    /// Counted up with each request; stored last (release).
    number: AtomicU32,
    /// The number of the last request that is done with; stored (release) after `taken`.
    settled: AtomicU32,
    /// How much is asked for, in bytes.
    len_bytes: AtomicU64,
    /// Bit n: block n of the offer to the settled request is not the cell's any more.
    taken: AtomicU32,
    /// Which page tables the cores have to have forgotten: counted up when entries have gone. Never 0 while cores run.
    generation: AtomicU32,
    /// Behind these places no unplugged range stands.
    hole_places: AtomicU32,
    /// Not used.
    reserved: AtomicU32,
    unplugged_ranges: [BlockWords; MAX_UNPLUGGED],
}

/// What the cell offers, in its report.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Offer {
    /// The number of the request that is answered; stored last (release).
    number: AtomicU32,
    /// The number of the last request of which the cell has seen what became of it (release).
    settled: AtomicU32,
    /// How many blocks there are.
    count: AtomicU32,
    /// A [`Rest`].
    rest: AtomicU32,
    /// How much the cell has moved so that the blocks are free, in bytes.
    moved_bytes: AtomicU64,
    blocks: [BlockWords; MAX_OFFERED],
}

/// A block of memory; none where its length is 0.
#[repr(C)]
#[derive(Debug, Default)]
struct BlockWords {
    start: AtomicU64,
    len_bytes: AtomicU64,
}

/// What of a request an offer does not cover, in the cell's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Rest {
    /// Nothing.
    None = 0,
    /// There is more; it is offered when it is asked for.
    More = 1,
    /// There may be more in a moment: cores are giving back what they keep.
    Soon = 2,
    /// It is in use, or the cell would be short of memory without it.
    InUse = 3,
    /// It is free, but in pieces that are smaller than a block, and what is between them does not move.
    Scattered = 4,
}

impl Rest {
    /// The one of that number; an unknown one is in use.
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

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// The request's number.
    pub number: u32,
    /// Bit n: block n is not the cell's any more.
    pub taken: u32,
}

impl BlockWords {
    fn read(&self) -> Option<PhysRange> {
        let len_bytes = self.len_bytes.load(Ordering::Acquire);
        let start = PhysAddr(self.start.load(Ordering::Acquire));
        let is_whole = len_bytes > 0 && self.len_bytes.load(Ordering::Acquire) == len_bytes;
        is_whole.then(|| PhysRange::new(start, len_bytes))
    }

    fn write(&self, block: PhysRange) {
        if self.read() != Some(block) {
            self.len_bytes.store(0, Ordering::Release);
            self.start.store(block.start.0, Ordering::Release);
            self.len_bytes.store(block.len_bytes, Ordering::Release);
        }
    }
}

impl UnplugRequest {
    /// Where the generation is in this, in bytes: for code that is no Rust.
    pub const GENERATION_OFFSET: usize = core::mem::offset_of!(Self, generation);

    /// Asks for so many bytes. For the supervisor, when the request before is settled. Returns the request's number, which
    /// is never 0.
    pub fn ask(&self, len_bytes: u64) -> u32 {
        self.len_bytes.store(len_bytes, Ordering::Relaxed);
        let number = self.number.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.number.store(number, Ordering::Release);
        number
    }

    /// Says what became of the offer to the last request: bit n of `taken` stands for block n. For the supervisor.
    pub fn settle(&self, taken: u32) {
        self.taken.store(taken, Ordering::Relaxed);
        self.settled.store(self.number.load(Ordering::Relaxed), Ordering::Release);
    }

    /// The number of the last request, and how much is asked for. 0: there was none yet.
    pub fn asked(&self) -> (u32, u64) {
        let number = self.number.load(Ordering::Acquire);
        (number, self.len_bytes.load(Ordering::Relaxed))
    }

    /// What became of the last request that is done with.
    pub fn settlement(&self) -> Settlement {
        let number = self.settled.load(Ordering::Acquire);
        Settlement { number, taken: self.taken.load(Ordering::Relaxed) }
    }

    /// Entries of the cell's page tables have gone, or cores are about to use them for the first time. Returns what a core
    /// says that has forgotten what it knew of them. For the supervisor.
    pub fn next_generation(&self) -> u32 {
        let next = self.generation.load(Ordering::Relaxed).wrapping_add(1).max(1);
        self.generation.store(next, Ordering::SeqCst);
        next
    }

    /// What a core says that forgets what it knows of page tables from here on.
    pub fn generation(&self) -> u32 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Says which parts of what the cell had are not its. No more than [`MAX_UNPLUGGED`]. For the supervisor.
    pub fn set_unplugged(&self, unplugged_ranges: &[PhysRange]) {
        let before = self.hole_places.load(Ordering::Relaxed);
        self.hole_places.store(before.max(unplugged_ranges.len() as u32), Ordering::Release);
        for (index, place) in self.unplugged_ranges.iter().enumerate() {
            match unplugged_ranges.get(index) {
                Some(unplugged_range) => place.write(*unplugged_range),
                None => place.len_bytes.store(0, Ordering::Release),
            }
        }
        self.hole_places.store(unplugged_ranges.len() as u32, Ordering::Release);
    }

    /// The parts of what the cell had that are not its.
    pub fn unplugged_ranges(&self) -> impl Iterator<Item = PhysRange> {
        let places = self.hole_places.load(Ordering::Acquire) as usize;
        self.unplugged_ranges.iter().take(places).filter_map(BlockWords::read)
    }

    /// Whether any of these bytes is in an unplugged range. One load as long as there is none.
    pub fn is_unplugged(&self, memory: PhysRange) -> bool {
        let places = self.hole_places.load(Ordering::Acquire) as usize;
        let meets = |unplugged_range: PhysRange| {
            unplugged_range.start < memory.end() && memory.start < unplugged_range.end()
        };
        self.unplugged_ranges.iter().take(places).filter_map(BlockWords::read).any(meets)
    }
}

impl Offer {
    /// Offers blocks, at most [`MAX_OFFERED`], for the request of that number, for which so many bytes were moved. For the
    /// cell.
    pub fn make(&self, number: u32, blocks: &[PhysRange], moved_bytes: u64, rest: Rest) {
        for (place, block) in self.blocks.iter().zip(blocks) {
            place.start.store(block.start.0, Ordering::Relaxed);
            place.len_bytes.store(block.len_bytes, Ordering::Relaxed);
        }
        self.count.store(blocks.len().min(MAX_OFFERED) as u32, Ordering::Relaxed);
        self.rest.store(rest as u32, Ordering::Relaxed);
        self.moved_bytes.store(moved_bytes, Ordering::Relaxed);
        self.number.store(number, Ordering::Release);
    }

    /// The number of the request that it is for.
    pub fn number(&self) -> u32 {
        self.number.load(Ordering::Acquire)
    }

    /// The blocks that are offered, any numbers, and what they do not cover.
    pub fn read(&self) -> (impl Iterator<Item = PhysRange>, Rest) {
        let count = (self.count.load(Ordering::Relaxed) as usize).min(MAX_OFFERED);
        let block = |words: &BlockWords| {
            let start = PhysAddr(words.start.load(Ordering::Relaxed));
            PhysRange::new(start, words.len_bytes.load(Ordering::Relaxed))
        };
        (self.blocks.iter().take(count).map(block), Rest::from_u32(self.rest.load(Ordering::Relaxed)))
    }

    /// How much the cell says that it has moved for it, in bytes: any number.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Says that the cell has seen what became of the request of that number. For the cell.
    pub fn acknowledge(&self, number: u32) {
        self.settled.store(number, Ordering::Release);
    }

    /// The last request of which the cell says that it has seen what became of it.
    pub fn acknowledged(&self) -> u32 {
        self.settled.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u64) -> PhysRange {
        PhysRange::new(PhysAddr(number * 8 * GRANULE), (number + 1) * GRANULE)
    }

    #[test]
    fn an_offer_is_read_as_it_was_made_and_no_more_than_fits() {
        let offer = Offer::default();
        let blocks: [PhysRange; MAX_OFFERED + 3] = core::array::from_fn(|number| block(number as u64));
        offer.make(7, &blocks, 12, Rest::Scattered);
        assert_eq!((offer.number(), offer.moved_bytes()), (7, 12));
        let (read, rest) = offer.read();
        assert!(read.eq(blocks[..MAX_OFFERED].iter().copied()));
        assert_eq!(rest, Rest::Scattered);
        offer.count.store(u32::MAX, Ordering::Relaxed);
        offer.rest.store(99, Ordering::Relaxed);
        let (read, rest) = offer.read();
        assert_eq!((read.count(), rest), (MAX_OFFERED, Rest::InUse));
    }

    #[test]
    fn a_request_is_settled_by_its_number() {
        let unplug_request = UnplugRequest::default();
        let first = unplug_request.ask(5 * GRANULE);
        assert_eq!(unplug_request.asked(), (first, 5 * GRANULE));
        assert_ne!(unplug_request.settlement().number, first);
        unplug_request.settle(0b101);
        assert_eq!(unplug_request.settlement(), Settlement { number: first, taken: 0b101 });
        assert_ne!(unplug_request.ask(GRANULE), first);
        assert_eq!(unplug_request.settlement().number, first, "the second is not");
    }

    #[test]
    fn what_is_in_a_hole_is_told_and_what_is_beside_it_is_not() {
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
