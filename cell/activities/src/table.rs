//! A table that all cores read without a lock while it grows.

use crate::ActivityError;
use alloc::boxed::Box;
use alloc::vec::Vec;
use spin::Once;

/// The entries of the first chunk.
const FIRST: u32 = 64;

/// Chunks of a table.
const CHUNKS: usize = 18;

/// The most entries of a table.
#[cfg(test)]
const MAX_ENTRIES: u32 = FIRST * ((1 << CHUNKS) - 1);

/// A table in chunks, each twice as large as the previous one. An entry keeps its address.
pub(crate) struct GrowingTable<T>([Once<Box<[T]>>; CHUNKS]);

impl<T: Default> GrowingTable<T> {
    /// Creates a table without chunks.
    pub const fn new() -> Self {
        Self([const { Once::new() }; CHUNKS])
    }

    /// Returns an entry; `None` if its chunk was not added yet.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        let (chunk, offset) = position(index)?;
        self.0.get(chunk)?.get()?.get(offset)
    }

    /// Returns an entry, and adds its chunk if necessary.
    ///
    /// # Errors
    /// [`ActivityError::NoMemory`], also beyond the most entries.
    pub fn get_or_add(&self, index: u32) -> Result<&T, ActivityError> {
        let (chunk, offset) = position(index).ok_or(ActivityError::NoMemory)?;
        let chunk_len = (FIRST as usize) << chunk;
        let entries = self.0.get(chunk).ok_or(ActivityError::NoMemory)?.try_call_once(|| {
            let mut entries = Vec::new();
            entries.try_reserve_exact(chunk_len).map_err(|_| ActivityError::NoMemory)?;
            entries.resize_with(chunk_len, T::default);
            Ok(entries.into_boxed_slice())
        })?;
        entries.get(offset).ok_or(ActivityError::NoMemory)
    }
}

/// Returns the chunk of an entry, and its index there. Chunk `k` begins at `FIRST * (2^k - 1)`.
fn position(index: u32) -> Option<(usize, usize)> {
    let shifted = index.checked_add(FIRST)?;
    let chunk = (shifted / FIRST).ilog2();
    Some((chunk as usize, (shifted - (FIRST << chunk)) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn entries_follow_each_other_through_all_chunks() {
        let mut expected = (0, 0);
        for index in 0..FIRST * 31 {
            assert_eq!(position(index), Some(expected));
            expected = match expected {
                (chunk, offset) if offset + 1 == (FIRST as usize) << chunk => (chunk + 1, 0),
                (chunk, offset) => (chunk, offset + 1),
            };
        }
        assert_eq!(position(MAX_ENTRIES - 1).map(|(chunk, _)| chunk), Some(CHUNKS - 1));
        assert_eq!(position(MAX_ENTRIES), Some((CHUNKS, 0)));
        assert_eq!(position(u32::MAX), None);
    }

    #[test]
    fn an_entry_exists_once_its_chunk_was_added() {
        let table = GrowingTable::<AtomicU32>::new();
        assert!(table.get(0).is_none() && table.get(u32::MAX).is_none());
        table.get_or_add(1_000).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(table.get(1_000).unwrap().load(Ordering::Relaxed), 7);
        assert_eq!(table.get(960).unwrap().load(Ordering::Relaxed), 0);
        assert!(table.get(959).is_none(), "the previous chunk was not needed");
        assert!(matches!(table.get_or_add(MAX_ENTRIES), Err(ActivityError::NoMemory)));
        assert!(matches!(table.get_or_add(u32::MAX), Err(ActivityError::NoMemory)));
    }
}
