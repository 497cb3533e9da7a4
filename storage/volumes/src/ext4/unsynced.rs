//! The parts of files that `rsext4` may have in memory only.
//!
//! `rsext4` keeps blocks of which a write changes only a part in a cache of its own until the next sync, and the disk has
//! their earlier contents. Until then, only `rsext4` itself can read them.

use alloc::collections::BTreeMap;
use core::ops::Range;
use rsext4::InodeNumber;

/// The most files of which the parts are known. If more are written between two syncs, all count as unsynced.
const MOST_FILES: usize = 4096;

/// One range per file, which contains all that was written since the latest sync.
#[derive(Default)]
pub(super) struct UnsyncedFiles {
    files: BTreeMap<InodeNumber, Range<u64>>,
    all: bool,
}

impl UnsyncedFiles {
    pub fn add(&mut self, inode: InodeNumber, part: Range<u64>) {
        if self.files.len() >= MOST_FILES && !self.files.contains_key(&inode) {
            self.all = true;
            return;
        }
        let known = self.files.entry(inode).or_insert_with(|| part.clone());
        *known = known.start.min(part.start)..known.end.max(part.end);
    }

    pub fn of(&self, inode: InodeNumber) -> Range<u64> {
        if self.all { 0..u64::MAX } else { self.files.get(&inode).cloned().unwrap_or(0..0) }
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_unsynced_from_its_first_write_to_the_sync() {
        let [one, two] = [12, 13].map(|number| InodeNumber::new(number).unwrap());
        let mut unsynced = UnsyncedFiles::default();
        unsynced.add(one, 100..200);
        unsynced.add(one, 20..30);
        assert_eq!((unsynced.of(one), unsynced.of(two)), (20..200, 0..0));
        unsynced.clear();
        assert_eq!(unsynced.of(one), 0..0);
    }

    #[test]
    fn with_too_many_files_all_are_unsynced() {
        let inode = |number| InodeNumber::new(number).unwrap();
        let mut unsynced = UnsyncedFiles::default();
        for number in 0..MOST_FILES as u32 {
            unsynced.add(inode(number + 1), 0..1);
        }
        assert_eq!(unsynced.of(inode(9_999)), 0..0);
        unsynced.add(inode(1), 0..5);
        assert_eq!(unsynced.of(inode(1)), 0..5);
        unsynced.add(inode(8_888), 0..1);
        assert_eq!(unsynced.of(inode(9_999)), 0..u64::MAX);
    }
}
