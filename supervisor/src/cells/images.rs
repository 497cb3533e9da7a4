//! Requests about the image store.

use super::Cells;
use super::cell::Cell;
use crate::effects::Effects;
use crate::images::Measure;
use alloc::vec::Vec;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{ImageInfo, ManagementError};

impl<E: Effects> Cells<E> {
    /// Returns all stored images.
    pub fn images(&self) -> Vec<ImageInfo> {
        self.images.list()
    }

    /// Begins the upload of an image.
    ///
    /// # Errors
    /// Returns [`ManagementError::ImageRejected`] for an invalid length, or [`ManagementError::MemoryExhausted`].
    pub fn begin_image(&mut self, len_bytes: u64) -> Result<(), ManagementError> {
        self.images.begin(len_bytes, &mut self.inventory.memory)
    }

    /// Adds the next bytes of the uploaded image.
    ///
    /// # Errors
    /// Returns [`ManagementError::NoImage`] if no upload has begun, or [`ManagementError::OutOfLimits`].
    pub fn append_image(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        self.images.append(offset, bytes)
    }

    /// Returns whether uploaded bytes are not hashed yet. Requests wait for that, as only a hashed image is stored.
    pub fn is_measuring(&self) -> bool {
        self.images.is_measuring()
    }

    /// Hashes a slice of the uploaded image, or of one for which a request waits. Returns whether there was one.
    pub(super) fn measure(&mut self) -> bool {
        let wanted = self.wanted_image();
        match self.images.measure(wanted.as_ref(), &mut self.inventory.memory) {
            Measure::Idle => return false,
            Measure::Begun => {}
            Measure::Done => self.count_images(),
        }
        true
    }

    /// Counts the users of each image after a change, and saves the checkpoint.
    pub(super) fn count_images(&mut self) {
        let (cells, effects) = (&self.cells, &self.effects);
        let pending: Vec<ImageDigest> = self.pending_images().copied().collect();
        let uses = |digest: &_| {
            let of_cells = cells.values().filter(|cell| cell.uses_image()).map(|cell| &cell.spec.image);
            of_cells.chain(&pending).filter(|used| *used == digest).count() as u32
        };
        let stand_on = |text| {
            let held = cells.values().filter_map(Cell::held);
            held.filter(|held| effects.text(&held.space) == Some(text)).count() as u32
        };
        self.images.count(&mut self.inventory.memory, uses, stand_on);
        self.save_checkpoint();
    }

    /// Discards an incomplete upload.
    pub fn forget_staged_image(&mut self) {
        self.images.forget_staged(&mut self.inventory.memory);
    }
}
