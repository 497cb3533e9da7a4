//! Where the contents of a file are on the disk.

use crate::file_system::FileError;
use alloc::vec::Vec;
use core::ops::Range;

/// The most extents of a map. It takes 12 KiB.
pub const MOST_EXTENTS: usize = 512;

/// A part of a file that is in one piece on the disk. All positions are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The position in the file.
    pub start: u64,
    /// The length.
    pub len: u64,
    /// The position on the disk.
    pub at: u64,
}

/// A part of a read: bytes of the disk, or zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The length.
    pub len: usize,
    /// The position on the disk; `None` for a hole and for space that was reserved and not written.
    pub at: Option<u64>,
}

/// The places on the disk of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentMap {
    covers: Range<u64>,
    extents: Vec<Extent>,
    unsynced: Range<u64>,
}

impl ExtentMap {
    /// Creates a map of the part `covers` of a file on a disk of `disk_len` bytes. All of it that is in no extent reads
    /// as zeros. The file system has the contents of the part `unsynced` in memory: the disk has older ones.
    ///
    /// # Errors
    /// [`FileError::Damaged`] if extents overlap, are in disorder, or are not within the disk.
    pub fn new(
        covers: Range<u64>,
        extents: Vec<Extent>,
        unsynced: Range<u64>,
        disk_len: u64,
    ) -> Result<Self, FileError> {
        let mut end = 0;
        for extent in &extents {
            let on_disk = extent.at.checked_add(extent.len).is_some_and(|end| end <= disk_len);
            if extent.start < end || extent.len == 0 || !on_disk {
                return Err(FileError::Damaged);
            }
            end = extent.start.checked_add(extent.len).ok_or(FileError::Damaged)?;
        }
        Ok(Self { covers, extents, unsynced })
    }

    /// Returns whether the map covers a position.
    pub fn covers(&self, position: u64) -> bool {
        self.covers.contains(&position)
    }

    /// Returns whether the disk has older contents than the file for some byte of a part.
    pub fn is_unsynced(&self, part: &Range<u64>) -> bool {
        part.start.max(self.unsynced.start) < part.end.min(self.unsynced.end)
    }

    /// Records that the disk has all contents.
    pub fn synced(&mut self) {
        self.unsynced = 0..0;
    }

    /// Returns the pieces of a part in order, up to the end of what the map covers.
    pub fn pieces(&self, part: Range<u64>) -> Pieces<'_> {
        let from = part.start;
        let next = self.extents.partition_point(|extent| extent.start + extent.len <= from);
        let end = if self.covers(from) { part.end.min(self.covers.end) } else { from };
        Pieces { extents: self.extents.get(next..).unwrap_or_default(), from, end }
    }
}

/// The pieces of a part of a file, in order.
pub struct Pieces<'a> {
    extents: &'a [Extent],
    from: u64,
    end: u64,
}

impl Iterator for Pieces<'_> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        if self.from >= self.end {
            return None;
        }
        let (from, left) = (self.from, self.end - self.from);
        let (len, at) = match self.extents.split_first() {
            Some((first, further)) if first.start <= from => {
                self.extents = further;
                let skipped = from - first.start;
                (left.min(first.len - skipped), Some(first.at + skipped))
            }
            Some((first, _)) => (left.min(first.start - from), None),
            None => (left, None),
        };
        self.from += len;
        Some(Piece { len: usize::try_from(len).unwrap_or(usize::MAX), at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn extent(start: u64, len: u64, at: u64) -> Extent {
        Extent { start, len, at }
    }

    fn map(extents: Vec<Extent>) -> Result<ExtentMap, FileError> {
        ExtentMap::new(0..1000, extents, 300..310, 10_000)
    }

    fn pieces(part: Range<u64>) -> Vec<(usize, Option<u64>)> {
        let map = map(vec![extent(100, 50, 7000), extent(150, 50, 3000), extent(400, 10, 0)]).unwrap();
        map.pieces(part).map(|piece| (piece.len, piece.at)).collect()
    }

    #[test]
    fn a_part_consists_of_extents_and_zeros() {
        assert_eq!(pieces(0..500).len(), 6);
        assert_eq!(pieces(120..405), [(30, Some(7020)), (50, Some(3000)), (200, None), (5, Some(0))]);
        assert_eq!(pieces(200..201), [(1, None)]);
        assert_eq!(pieces(410..420), [(10, None)]);
        assert_eq!(pieces(990..2000), [(10, None)], "the map ends at 1000");
        assert_eq!(pieces(1000..2000), []);
        assert_eq!(pieces(5..5), []);
    }

    #[test]
    fn hostile_extents_are_damage() {
        for extents in [
            vec![extent(0, 10, 9_991)],
            vec![extent(0, 10, u64::MAX - 5)],
            vec![extent(u64::MAX - 5, 10, 0)],
            vec![extent(0, 10, 0), extent(9, 10, 0)],
            vec![extent(20, 10, 0), extent(0, 10, 0)],
            vec![extent(0, 0, 0)],
        ] {
            assert_eq!(map(extents.clone()), Err(FileError::Damaged), "{extents:?}");
        }
        assert!(map(vec![extent(0, 10, 9_990)]).is_ok());
    }

    #[test]
    fn unsynced_bytes_are_found_and_forgotten() {
        let mut map = map(Vec::new()).unwrap();
        for (part, expected) in [(0..300, false), (0..301, true), (305..306, true), (310..400, false)] {
            assert_eq!(map.is_unsynced(&part), expected, "{part:?}");
        }
        map.synced();
        assert!(!map.is_unsynced(&(0..1000)));
    }
}
