//! A bitmap with a bit per chunk.

use alloc::vec::Vec;

/// A bitmap from the lowest to the highest chunk of the machine. The bits of gaps are clear.
#[derive(Debug, Default)]
pub(super) struct BitMap {
    /// The first chunk with a bit, a multiple of 64.
    first: u64,
    words: Vec<u64>,
}

impl BitMap {
    /// Extends the map to the chunks `first..end`.
    pub(super) fn cover(&mut self, first: u64, end: u64) {
        let first = first / 64 * 64;
        if self.words.is_empty() {
            self.first = first;
        }
        if first < self.first {
            let more = (self.first - first) / 64;
            self.words.splice(0..0, core::iter::repeat_n(0, more as usize));
            self.first = first;
        }
        let words = (end - self.first).div_ceil(64) as usize;
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
    }

    #[cfg(test)]
    pub(super) fn get(&self, chunk: u64) -> bool {
        self.word(chunk) & bit(chunk) != 0
    }

    pub(super) fn set(&mut self, chunk: u64) {
        if let Some(word) = self.word_mut(chunk) {
            *word |= bit(chunk);
        }
    }

    /// Sets the bits of `count` chunks from `first` on.
    pub(super) fn set_all(&mut self, first: u64, count: u64) {
        for (chunk, mask) in parts(first, count) {
            if let Some(word) = self.word_mut(chunk) {
                *word |= mask;
            }
        }
    }

    /// Clears the bits of `count` chunks from `first` on.
    pub(super) fn clear_all(&mut self, first: u64, count: u64) {
        for (chunk, mask) in parts(first, count) {
            if let Some(word) = self.word_mut(chunk) {
                *word &= !mask;
            }
        }
    }

    /// Returns the number of clear bits of `count` chunks from `first` on.
    pub(super) fn count_clear(&self, first: u64, count: u64) -> u64 {
        parts(first, count).map(|(chunk, mask)| u64::from((!self.word(chunk) & mask).count_ones())).sum()
    }

    /// Returns whether the bits of `count` chunks from `first` on are set; `count` is a power of two, and `first` a
    /// multiple of it.
    pub(super) fn all_set(&self, first: u64, count: u64) -> bool {
        match count {
            0..64 => self.word(first) >> (first % 64) & ((1 << count) - 1) == (1 << count) - 1,
            _ => (first..first + count).step_by(64).all(|chunk| self.word(chunk) == u64::MAX),
        }
    }

    /// Returns the first chunk with a clear bit among `count` chunks from `first` on.
    pub(super) fn first_clear(&self, first: u64, count: u64) -> Option<u64> {
        let mut chunk = first;
        while chunk < first + count {
            let ones = u64::from((self.word(chunk) >> (chunk % 64)).trailing_ones());
            let left = 64 - chunk % 64;
            if ones < left {
                return Some(chunk + ones).filter(|&found| found < first + count);
            }
            chunk += left;
        }
        None
    }

    fn word(&self, chunk: u64) -> u64 {
        let index = chunk.checked_sub(self.first).map(|offset| offset / 64);
        index.and_then(|index| self.words.get(index as usize)).copied().unwrap_or(0)
    }

    fn word_mut(&mut self, chunk: u64) -> Option<&mut u64> {
        let index = chunk.checked_sub(self.first)? / 64;
        self.words.get_mut(index as usize)
    }
}

fn bit(chunk: u64) -> u64 {
    1 << (chunk % 64)
}

/// Returns the words that contain the bits of `count` chunks from `first` on: for each a chunk in it, and the mask of
/// the bits.
fn parts(first: u64, count: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = first + count;
    let mut chunk = first;
    core::iter::from_fn(move || {
        let start = chunk;
        let len = (64 - start % 64).min(end.checked_sub(start).filter(|&left| left > 0)?);
        chunk += len;
        Some((start, (u64::MAX >> (64 - len)) << (start % 64)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_bitmap_agrees_with_a_set_of_chunks(
            covers in proptest::collection::vec((0u64..1000, 1u64..200), 1..4),
            sets in proptest::collection::btree_set(0u64..1200, 0..300),
            ranges in proptest::collection::vec((proptest::bool::ANY, 0u64..1200, 0u64..300), 0..6),
            (order, at, len) in (0u32..9, 0u64..1200, 1u64..300),
        ) {
            let mut map = BitMap::default();
            let mut model = BTreeSet::new();
            for &(first, len) in &covers {
                map.cover(first, first + len);
            }
            let covered = |chunk: &u64| covers.iter().any(|(first, len)| (*first..first + len).contains(chunk));
            for chunk in sets.into_iter().filter(covered) {
                map.set(chunk);
                model.insert(chunk);
            }
            for (sets, first, count) in ranges {
                let chunks = first..first + count;
                if sets && chunks.clone().all(|chunk| covered(&chunk)) {
                    map.set_all(first, count);
                    model.extend(chunks);
                } else {
                    map.clear_all(first, count);
                    model.retain(|chunk| !chunks.contains(chunk));
                }
            }
            prop_assert!((0..1300).all(|chunk| map.get(chunk) == model.contains(&chunk)));
            let first = at >> order << order;
            let all = (first..first + (1 << order)).all(|chunk| model.contains(&chunk));
            prop_assert_eq!(map.all_set(first, 1 << order), all);
            let clears = (at..at + len).filter(|chunk| !model.contains(chunk)).count() as u64;
            proptest::prop_assert_eq!(map.count_clear(at, len), clears);
            let clear = (at..at + len).find(|chunk| !model.contains(chunk));
            prop_assert_eq!(map.first_clear(at, len), clear);
        }
    }
}
