//! Journal entries that survive a restart of the image: the latest that fit into a ring of bytes.
//!
//! ```text
//!   mark and length (4) | not used (4) | checksum (8) | the entry | up to the next multiple of 8
//! ```
//!
//! A reader needs no stored position, which a stray write could destroy: it checks for an entry at every multiple of 8,
//! and accepts those with a mark and the right checksum. An entry that was written or overwritten only in part, or
//! damaged, is skipped, and later entries are still found.

use super::checksum;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// The most bytes of an entry.
const MAX_ENTRY: usize = 4096;

/// The upper half of an entry's first word; the lower half is its length.
const MARK: u32 = 0x150a_0000;

const HEADER: usize = 16;
const ALIGN: usize = 8;

/// A ring of `LEN` bytes: a multiple of 8, and more than the longest entry needs.
#[repr(C, align(8))]
pub(super) struct Ring<const LEN: usize> {
    /// The position of the next entry.
    next: AtomicU32,
    bytes: [AtomicU8; LEN],
}

impl<const LEN: usize> Ring<LEN> {
    pub(super) const fn new() -> Self {
        Self { next: AtomicU32::new(0), bytes: [const { AtomicU8::new(0) }; LEN] }
    }

    /// Writes an entry over the oldest ones. Returns whether it is short enough.
    pub(super) fn append(&self, entry: &[u8]) -> bool {
        if entry.len() > MAX_ENTRY {
            return false;
        }
        let next = self.next.load(Ordering::Relaxed) as usize / ALIGN * ALIGN;
        let len = (HEADER + entry.len()).next_multiple_of(ALIGN);
        let start = if next + len <= LEN { next } else { 0 };
        let put = |offset: usize, bytes: &[u8]| {
            let bytes_there = self.bytes.iter().skip(start + offset);
            bytes_there.zip(bytes).for_each(|(byte_there, byte)| byte_there.store(*byte, Ordering::Relaxed));
        };
        put(HEADER, entry);
        put(8, &checksum(entry).to_le_bytes());
        put(0, &(MARK | entry.len() as u32).to_le_bytes());
        self.next.store((start + len) as u32, Ordering::Relaxed);
        true
    }

    /// Returns the intact entries, in the order of their positions.
    pub(super) fn entries(&self) -> Vec<Vec<u8>> {
        let (mut entries, mut at) = (Vec::new(), 0);
        while at + HEADER <= LEN {
            match self.entry(at) {
                Some(entry) => {
                    at += (HEADER + entry.len()).next_multiple_of(ALIGN);
                    entries.push(entry);
                }
                None => at += ALIGN,
            }
        }
        entries
    }

    fn entry(&self, at: usize) -> Option<Vec<u8>> {
        let get = |offset: usize, len: usize| self.bytes.get(at + offset..)?.get(..len);
        let number = |bytes_there: &[AtomicU8]| {
            bytes_there
                .iter()
                .rev()
                .fold(0, |word, byte_there| word << 8 | u64::from(byte_there.load(Ordering::Relaxed)))
        };
        let len = number(get(0, 4)?).checked_sub(MARK.into()).filter(|len| *len <= MAX_ENTRY as u64)?;
        let bytes_there = get(HEADER, len as usize)?;
        let entry: Vec<u8> =
            bytes_there.iter().map(|byte_there| byte_there.load(Ordering::Relaxed)).collect();
        (checksum(&entry) == number(get(8, 8)?)).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    const LEN: usize = 16 << 10;

    fn bytes_of(number: u32, len: usize) -> Vec<u8> {
        number.to_le_bytes().into_iter().chain(core::iter::repeat_n(number as u8, len)).collect()
    }

    #[test]
    fn the_latest_entries_are_kept_and_a_longer_one_is_rejected() {
        let ring = Ring::<LEN>::new();
        assert!(ring.entries().is_empty());
        assert!(!ring.append(&vec![0; MAX_ENTRY + 1]));
        assert!(ring.append(&vec![7; MAX_ENTRY]) && ring.append(&[]));
        assert_eq!(ring.entries(), [vec![7; MAX_ENTRY], vec![]]);
        (0..1000).for_each(|number| assert!(ring.append(&bytes_of(number, 50))));
        let mut numbers: Vec<Vec<u8>> = ring.entries();
        numbers.sort_by_key(|entry| u32::from_le_bytes(entry[..4].try_into().unwrap()));
        let kept = numbers.len() as u32;
        assert!(kept > 200, "{kept}");
        let expected: Vec<Vec<u8>> = (1000 - kept..1000).map(|number| bytes_of(number, 50)).collect();
        assert_eq!(numbers, expected);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// After arbitrary damage, every entry found is one that was written, undamaged entries are found, and further
        /// entries can be written.
        #[test]
        fn damaged_entries_are_skipped_and_the_others_found(
            lens in proptest::collection::vec(0..300_usize, 1..120),
            damage in proptest::collection::vec((0..LEN, 1..64_usize, any::<u8>()), 1..6),
            next in any::<u32>(),
        ) {
            let ring = Ring::<LEN>::new();
            let written: Vec<Vec<u8>> =
                lens.iter().zip(0..).map(|(len, number)| bytes_of(number, *len)).collect();
            written.iter().for_each(|entry| assert!(ring.append(entry)));
            let before = ring.entries();
            for (at, len, value) in &damage {
                ring.bytes.iter().skip(*at).take(*len).for_each(|byte| byte.store(*value, Ordering::Relaxed));
            }
            let after = ring.entries();
            prop_assert!(after.iter().all(|entry| written.contains(entry)));
            // Damage of at most 63 bytes touches no more than five entries, each of which takes at least 24 bytes.
            prop_assert!(after.len() + 5 * damage.len() >= before.len());
            ring.next.store(next, Ordering::Relaxed);
            prop_assert!(ring.append(b"one more"));
            prop_assert!(ring.entries().contains(&b"one more".to_vec()));
        }
    }
}
