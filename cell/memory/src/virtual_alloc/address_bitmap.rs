//! A bitmap of an area's taken addresses, with one bit per unit.
//!
//! Freed addresses must not be reused before every core has flushed its TLB. Until then they stay taken and wait in one
//! of two sets. Newly freed addresses join the *open* set; the *closed* set does not grow, so its wait ends. Once the
//! closed set is empty, the two swap roles.
//!
//! This module does not allocate: its caller provides the blocks of the bitmap.

use crate::regions::{Extent, Retirement};
use alloc::boxed::Box;

/// The bits of 64 units: the taken ones, and in each set the waiting ones among these.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnitWord {
    taken: u64,
    waiting: [u64; 2],
}

/// Units of a word.
const WORD: usize = u64::BITS as usize;

/// The bits of some units. The type is small enough for a class with spans of one page, so its allocation never needs
/// addresses of an area.
pub(super) type BitmapBlock = [UnitWord; BLOCK_WORDS];

/// Words of a block.
pub(super) const BLOCK_WORDS: usize = 16;

/// Units of a block.
const BLOCK: usize = BLOCK_WORDS * WORD;

/// The maximum number of blocks of an area.
const BLOCKS: usize = 512;

/// The length of a block's record, which the heap allocates, in bytes.
pub(crate) const BLOCK_BYTES: usize = size_of::<BitmapBlock>();

/// A range of units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Units {
    /// The index of the first unit.
    pub first: usize,
    /// The number of units.
    pub count: usize,
}

/// The result of a search for addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FindOutcome {
    /// These units are free.
    At(Units),
    /// The bitmap is too short: the caller adds a block ([`AddressBitmap::add_block`]) and tries again.
    NoBlock,
    /// The area has no such free range.
    Nowhere,
}

/// A set of waiting units.
#[derive(Debug)]
struct WaitingSet {
    /// The latest retirement in the set.
    since: Retirement,
    /// Bounds of the set, as unit indices.
    from: usize,
    to: usize,
}

impl WaitingSet {
    const NONE: Self = Self { since: Retirement(0), from: usize::MAX, to: 0 };
}

/// The bitmap of an area.
#[derive(Debug)]
pub(super) struct AddressBitmap {
    area: Extent,
    unit_bytes: usize,
    blocks: [Option<Box<BitmapBlock>>; BLOCKS],
    block_count: usize,
    /// All units below this one are taken.
    first_free: usize,
    /// No unit from this one on was ever taken.
    used_end: usize,
    waiting: [WaitingSet; 2],
    /// The index of the open set.
    open: usize,
}

impl AddressBitmap {
    /// Returns an area without taken units.
    pub const fn new(area: Extent, unit_bytes: usize) -> Self {
        Self {
            area,
            unit_bytes,
            blocks: [const { None }; BLOCKS],
            block_count: 0,
            first_free: 0,
            used_end: 0,
            waiting: [const { WaitingSet::NONE }; 2],
            open: 0,
        }
    }

    /// Returns the addresses of the area.
    pub fn area(&self) -> Extent {
        self.area
    }

    /// Returns the length of a unit, in bytes.
    pub fn unit_bytes(&self) -> usize {
        self.unit_bytes
    }

    /// Converts a byte range to units; the last may be covered in part.
    pub fn units(&self, address: usize, bytes: usize) -> Units {
        let first = (address - self.area.start) / self.unit_bytes;
        Units { first, count: bytes.div_ceil(self.unit_bytes) }
    }

    /// Returns the addresses of some units.
    pub fn extent(&self, units: Units) -> Extent {
        Extent { start: self.area.start + units.first * self.unit_bytes, len: units.count * self.unit_bytes }
    }

    /// Returns the end address of all units that were ever taken.
    pub fn used_end(&self) -> usize {
        self.area.start + self.used_end * self.unit_bytes
    }

    /// Adds a block for further units; returns it if the area has the maximum already.
    pub fn add_block(&mut self, block: Box<BitmapBlock>) -> Option<Box<BitmapBlock>> {
        match self.blocks.get_mut(self.block_count) {
            Some(entry) => {
                *entry = Some(block);
                self.block_count += 1;
                None
            }
            None => Some(block),
        }
    }

    /// Finds the first `bytes` free bytes at a multiple of `align` (a power of two).
    pub fn find(&mut self, bytes: usize, align: usize) -> FindOutcome {
        let count = bytes.div_ceil(self.unit_bytes);
        let total = self.area.len / self.unit_bytes;
        self.first_free = self.next(Bit::Free, self.first_free, total);
        let aligned = |unit: usize| {
            let address =
                self.area.start.checked_add(unit * self.unit_bytes)?.checked_next_multiple_of(align)?;
            Some((address - self.area.start).div_ceil(self.unit_bytes))
        };
        let mut unit = self.first_free;
        while let Some(first) = aligned(unit).filter(|first| total.saturating_sub(*first) >= count) {
            let end = first + count;
            match self.next(Bit::Taken, first, end) {
                taken if taken < end => unit = self.next(Bit::Free, taken, total),
                _ if end <= self.block_count * BLOCK => return FindOutcome::At(Units { first, count }),
                _ if self.block_count < BLOCKS => return FindOutcome::NoBlock,
                _ => break,
            }
        }
        FindOutcome::Nowhere
    }

    /// Returns whether these units exist and are free.
    pub fn are_free(&self, units: Units) -> bool {
        let end = units.first + units.count;
        let there = (self.area.len / self.unit_bytes).min(self.block_count * BLOCK);
        end <= there && self.next(Bit::Taken, units.first, end) == end
    }

    /// Marks free units as taken.
    pub fn take(&mut self, units: Units) {
        self.each_word(units, |word, bits| word.taken |= bits);
        self.used_end = self.used_end.max(units.first + units.count);
    }

    /// Adds units to the open set: they wait from now on.
    pub fn give(&mut self, units: Units, since: Retirement) {
        let open = self.open;
        self.each_word(units, |word, bits| word.waiting[open] |= bits);
        let set = &mut self.waiting[open];
        set.since = set.since.max(since);
        set.from = set.from.min(units.first);
        set.to = set.to.max(units.first + units.count);
    }

    /// Removes from the closed set a run of at most `most` units whose wait is over. They are free once [`Self::free`]
    /// is called.
    pub fn next_over(&mut self, most: usize, is_over: impl Fn(Retirement) -> bool) -> Option<Units> {
        let closed = 1 - self.open;
        if self.waiting[closed].from >= self.waiting[closed].to {
            self.waiting[closed] = WaitingSet::NONE;
            self.open = closed;
        }
        let closed = 1 - self.open;
        let WaitingSet { since, from, to } = self.waiting[closed];
        if from >= to || !is_over(since) {
            return None;
        }
        let first = self.next(Bit::Waiting(closed), from, to);
        let end = self.next(Bit::NotWaiting(closed), first, to.min(first.saturating_add(most)));
        self.waiting[closed].from = end;
        let units = Units { first, count: end - first };
        self.each_word(units, |word, bits| word.waiting[closed] &= !bits);
        (units.count > 0).then_some(units)
    }

    /// Frees units whose wait is over.
    pub fn free(&mut self, units: Units) {
        self.each_word(units, |word, bits| word.taken &= !bits);
        self.first_free = self.first_free.min(units.first);
    }

    /// Returns the first unit from `from` on with this property, or `to` if there is none below it.
    fn next(&self, bit: Bit, from: usize, to: usize) -> usize {
        let mut unit = from;
        while unit < to {
            let word = self.word(unit / WORD).copied().unwrap_or_default();
            let bits = match bit {
                Bit::Free => !word.taken,
                Bit::Taken => word.taken,
                Bit::Waiting(set) => word.waiting[set],
                Bit::NotWaiting(set) => !word.waiting[set],
            };
            let rest = bits >> (unit % WORD);
            if rest != 0 {
                return to.min(unit + rest.trailing_zeros() as usize);
            }
            unit = (unit / WORD + 1) * WORD;
        }
        to
    }

    fn word(&self, index: usize) -> Option<&UnitWord> {
        self.blocks.get(index / BLOCK_WORDS)?.as_ref()?.get(index % BLOCK_WORDS)
    }

    /// Passes each word of some units, and the units' bits in it, to `change`.
    fn each_word(&mut self, units: Units, change: impl Fn(&mut UnitWord, u64)) {
        let (mut unit, end) = (units.first, units.first + units.count);
        while unit < end {
            let (index, shift) = (unit / WORD, unit % WORD);
            let count = (end - unit).min(WORD - shift);
            let bits = (u64::MAX >> (WORD - count)) << shift;
            let block = self.blocks.get_mut(index / BLOCK_WORDS);
            if let Some(word) = block.and_then(|block| block.as_mut()?.get_mut(index % BLOCK_WORDS)) {
                change(word, bits);
            }
            unit += count;
        }
    }
}

/// A property of a unit.
#[derive(Clone, Copy)]
enum Bit {
    Free,
    Taken,
    Waiting(usize),
    NotWaiting(usize),
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const UNIT: usize = 16;
    const AREA: Extent = Extent { start: 1 << 20, len: 300 * UNIT };

    #[derive(Clone, Debug)]
    enum Step {
        Take {
            bytes: usize,
            align_order: u32,
        },
        Extend {
            which: usize,
            count: usize,
        },
        Give {
            which: usize,
        },
        /// Ends `periods` grace periods, and frees at most `runs` runs of the units that waited for them.
        Collect {
            periods: u64,
            runs: usize,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            5 => (1..900_usize, 0..9_u32).prop_map(|(bytes, align_order)| Step::Take { bytes, align_order }),
            2 => (any::<usize>(), 1..70_usize).prop_map(|(which, count)| Step::Extend { which, count }),
            4 => any::<usize>().prop_map(|which| Step::Give { which }),
            2 => (0..3_u64, 0..4_usize).prop_map(|(periods, runs)| Step::Collect { periods, runs }),
        ];
        prop::collection::vec(step, 0..80)
    }

    #[test]
    fn an_area_ends_with_the_last_block_of_its_bitmap() {
        let mut bitmap = AddressBitmap::new(Extent { start: 0, len: (BLOCKS * BLOCK + 1) * UNIT }, UNIT);
        assert!((0..BLOCKS).all(|_| bitmap.add_block(Box::default()).is_none()));
        assert!(bitmap.add_block(Box::default()).is_some());
        bitmap.take(Units { first: 0, count: BLOCKS * BLOCK });
        assert_eq!(bitmap.find(UNIT, 1), FindOutcome::Nowhere);
    }

    proptest! {
        /// The model: for each unit `None` if it is free, `u64::MAX` if it is in use, else the retirement for which it
        /// waits.
        #[test]
        fn addresses_are_taken_once_and_reused_after_their_wait(steps in steps()) {
            let mut bitmap = AddressBitmap::new(AREA, UNIT);
            let mut model = [None; 300];
            let mut taken: Vec<Units> = Vec::new();
            let (mut now, mut over) = (0, 0);
            for step in steps {
                match step {
                    Step::Take { bytes, align_order } => {
                        let (align, count) = (1 << align_order, bytes.div_ceil(UNIT));
                        let fits = |first: &usize| (AREA.start + first * UNIT).is_multiple_of(align)
                            && model[*first..].len() >= count && model[*first..first + count].iter().all(Option::is_none);
                        let expected = (0..300).find(fits);
                        let mut found = bitmap.find(bytes, align);
                        if found == FindOutcome::NoBlock {
                            prop_assert!(bitmap.add_block(Box::default()).is_none());
                            found = bitmap.find(bytes, align);
                        }
                        let at = |first| FindOutcome::At(Units { first, count });
                        let expected = expected.map_or(FindOutcome::Nowhere, at);
                        prop_assert_eq!(found, expected);
                        if let FindOutcome::At(units) = found {
                            bitmap.take(units);
                            prop_assert!(bitmap.used_end() >= bitmap.extent(units).end());
                            model[units.first..units.first + units.count].fill(Some(u64::MAX));
                            taken.push(units);
                        }
                    }
                    Step::Extend { which, count } if !taken.is_empty() => {
                        let which = which % taken.len();
                        let units = &mut taken[which];
                        let behind = Units { first: units.first + units.count, count };
                        let free = model.get(behind.first..behind.first + count);
                        let free = free.is_some_and(|units| units.iter().all(Option::is_none));
                        prop_assert_eq!(bitmap.are_free(behind), free);
                        if free {
                            bitmap.take(behind);
                            model[behind.first..behind.first + count].fill(Some(u64::MAX));
                            units.count += count;
                        }
                    }
                    Step::Give { which } if !taken.is_empty() => {
                        let units = taken.swap_remove(which % taken.len());
                        now += 1;
                        bitmap.give(units, Retirement(now));
                        model[units.first..units.first + units.count].fill(Some(now));
                    }
                    Step::Extend { .. } | Step::Give { .. } => {}
                    Step::Collect { periods, runs } => {
                        over = now.min(over + periods);
                        for _ in 0..runs {
                            let Some(units) = bitmap.next_over(40, |retired| retired.0 <= over) else { break };
                            prop_assert!((1..=40).contains(&units.count));
                            for unit in &mut model[units.first..units.first + units.count] {
                                prop_assert!(unit.is_some_and(|since| since <= over), "freed too early");
                                *unit = None;
                            }
                            bitmap.free(units);
                        }
                    }
                }
            }
            // All units become free again.
            for units in taken {
                bitmap.give(units, Retirement(now));
            }
            while let Some(units) = bitmap.next_over(7, |_| true) {
                bitmap.free(units);
                model[units.first..units.first + units.count].fill(None);
            }
            while let Some(units) = bitmap.next_over(7, |_| true) {
                bitmap.free(units);
            }
            let all = Units { first: 0, count: 300 };
            prop_assert!(bitmap.block_count == 0 || bitmap.find(AREA.len, 1) == FindOutcome::At(all));
        }
    }
}
