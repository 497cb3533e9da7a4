//! Access to the image store for tests of the cells.

use super::*;

impl<H: Hardware> Images<H> {
    /// Returns the memory of all images, and the other memory that cells map.
    pub(crate) fn into_memory(self) -> Vec<SharedOf<H>> {
        let texts = self.other_texts.into_iter().map(|text| text.memory);
        self.stored.into_iter().map(|stored| stored.memory).chain(texts).collect()
    }

    /// Returns the ranges of all memory of the store, including the upload in progress.
    pub(crate) fn ranges(&self) -> Vec<PhysRange> {
        let stored = self.stored.iter().map(|stored| stored.memory.range());
        let texts = self.other_texts.iter().map(|text| text.memory.range());
        stored.chain(texts).chain(self.staged.iter().map(Staged::range)).collect()
    }
}
