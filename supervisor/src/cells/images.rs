//! The images that cells are made from, as far as requests are about them.

use super::Cells;
use super::cell::Cell;
use crate::effects::Effects;
use isola_abi::management::{ImageInfo, ManagementError};

impl<E: Effects> Cells<E> {
    /// All images that are kept.
    pub fn images(&self) -> alloc::vec::Vec<ImageInfo> {
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
        self.images.append(offset, bytes, &mut self.inventory.memory)?;
        self.count_images();
        Ok(())
    }

    /// Looks which images are used, after something has changed that says so, and notes it.
    pub(super) fn count_images(&mut self) {
        let (cells, effects) = (&self.cells, &self.effects);
        let uses = |digest: &_| {
            cells.values().filter(|cell| cell.uses_image() && cell.spec.image == *digest).count() as u32
        };
        let stand_on = |text| {
            let held = cells.values().filter_map(Cell::held);
            held.filter(|held| effects.text(&held.space) == Some(text)).count() as u32
        };
        self.images.count(&mut self.inventory.memory, uses, stand_on);
        self.keep_estate();
    }

    /// Gives up an image that has not come as a whole.
    pub fn forget_staged_image(&mut self) {
        self.images.forget_staged(&mut self.inventory.memory);
    }
}
