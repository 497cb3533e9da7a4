//! The images that cells are made from, as far as requests are about them.

use super::Cells;
use super::cell::Cell;
use crate::effects::Effects;
use crate::images::Measure;
use alloc::vec::Vec;
use isola_abi::integrity::ImageDigest;
use isola_abi::management::{ImageInfo, ManagementError};

impl<E: Effects> Cells<E> {
    /// All images that are kept.
    pub fn images(&self) -> Vec<ImageInfo> {
        self.images.list()
    }

    /// Begins to take an image.
    ///
    /// # Errors
    /// [`ManagementError::ImageRejected`] for a length that no image has, [`ManagementError::MemoryExhausted`].
    pub fn begin_image(&mut self, len_bytes: u64) -> Result<(), ManagementError> {
        self.images.begin(len_bytes, &mut self.inventory.memory)
    }

    /// Takes the next bytes of an image.
    ///
    /// # Errors
    /// [`ManagementError::NoImage`] where none was begun; [`ManagementError::OutOfLimits`].
    pub fn append_image(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        self.images.append(offset, bytes)
    }

    /// Whether what has come of an image is not measured yet. The image is kept when it is, so requests wait for that.
    pub fn is_measuring(&self) -> bool {
        self.images.is_measuring()
    }

    /// Measures a slice of the image that is on its way in, or of one that somebody waits for. Returns whether there
    /// was one.
    pub(super) fn measure(&mut self) -> bool {
        let wanted = self.wanted_image();
        match self.images.measure(wanted.as_ref(), &mut self.inventory.memory) {
            Measure::Idle => return false,
            Measure::Begun => {}
            Measure::Done => self.count_images(),
        }
        true
    }

    /// Looks which images are used, after something has changed that says so, and notes it.
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

    /// Gives up an image that has not come as a whole.
    pub fn forget_staged_image(&mut self) {
        self.images.forget_staged(&mut self.inventory.memory);
    }
}
