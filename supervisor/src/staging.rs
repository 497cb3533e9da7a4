//! An image on its way in: memory from the inventory, in one piece, filled front to back, and measured in slices behind
//! that. What the memory held before is nobody's business: only what came is read, and what follows it on its last page is
//! made zero, as cells may come to look at whole pages.

use crate::effects::Pages;
use crate::inventory::Memory;
use alloc::string::String;
use alloc::vec;
use isola_abi::frame::MAX_CHUNK;
use isola_abi::integrity::ImageDigest;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{ImageFault, MAX_IMAGE, ManagementError};
use sha2::{Digest, Sha256};

/// An image of which so many bytes have come.
#[derive(Debug)]
pub struct Staged<M> {
    memory: M,
    len_bytes: u64,
    received: u64,
    measured: Sha256,
    /// How many of the bytes that have come are measured.
    measured_bytes: u64,
}

/// An image of which all bytes have come.
#[derive(Debug)]
pub struct Complete<M> {
    /// The memory that it begins.
    pub memory: M,
    /// Its length.
    pub len_bytes: u64,
    /// What was measured.
    pub digest: ImageDigest,
}

impl<M: Pages> Staged<M> {
    /// Checks the length of an image that is to come.
    ///
    /// # Errors
    /// [`ManagementError::ImageRejected`] for a length that no image has.
    pub fn check(len_bytes: u64) -> Result<(), ManagementError> {
        match len_bytes {
            0 => Err(ManagementError::ImageRejected(ImageFault::NotElf)),
            1..=MAX_IMAGE => Ok(()),
            _ => Err(ManagementError::ImageRejected(ImageFault::TooLarge)),
        }
    }

    /// An image of that length, of which nothing has come, in memory that is as long.
    pub fn begin(len_bytes: u64, memory: M) -> Self {
        Self { memory, len_bytes, received: 0, measured: Sha256::new(), measured_bytes: 0 }
    }

    /// Takes the next bytes.
    ///
    /// # Errors
    /// [`ManagementError::OutOfLimits`] where they are too many, or not the next ones.
    pub fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        let limit = |what: String| Err(ManagementError::OutOfLimits(what));
        if bytes.len() > MAX_CHUNK {
            return limit(alloc::format!("a piece of an image has at most {MAX_CHUNK} bytes"));
        }
        if offset != self.received {
            return limit(alloc::format!("the next byte of the image is number {}", self.received));
        }
        if bytes.len() as u64 > self.len_bytes - self.received {
            return limit(alloc::format!("the image was to be {} bytes long", self.len_bytes));
        }
        self.memory.write(offset, bytes);
        self.received += bytes.len() as u64;
        Ok(())
    }

    /// Whether bytes have come that are not measured.
    pub fn is_behind(&self) -> bool {
        self.measured_bytes < self.received
    }

    /// Measures the next `len_bytes` bytes of those that have come.
    pub fn measure(&mut self, len_bytes: u64) {
        let end = (self.measured_bytes + len_bytes).min(self.received);
        let bytes = self.memory.read(end as usize);
        self.measured.update(bytes.get(self.measured_bytes as usize..).unwrap_or_default());
        self.measured_bytes = end;
    }

    /// The image, once all of it has come and is measured; until then what there is of it.
    ///
    /// # Errors
    /// Itself, where something is missing.
    pub fn complete(mut self) -> Result<Complete<M>, Self> {
        if self.measured_bytes < self.len_bytes {
            return Err(self);
        }
        let rest = self.len_bytes.next_multiple_of(PAGE_SIZE) - self.len_bytes;
        self.memory.write(self.len_bytes, &[0; PAGE_SIZE as usize][..rest as usize]);
        let digest = ImageDigest(self.measured.finalize().into());
        Ok(Complete { memory: self.memory, len_bytes: self.len_bytes, digest })
    }

    /// Where it is.
    #[cfg(test)]
    pub(crate) fn range(&self) -> isola_abi::id::PhysRange {
        self.memory.range()
    }

    /// Gives the memory back.
    pub fn release(self, memory: &mut Memory<M>) {
        memory.put(vec![self.memory]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::memory;

    #[test]
    fn what_follows_an_image_on_its_last_page_is_zero() {
        let mut old = memory(2 << 20);
        old.write(0, &[0xa5; 3 * PAGE_SIZE as usize]);
        let image = [1; PAGE_SIZE as usize + 5];
        let mut staged = Staged::begin(image.len() as u64, old);
        staged.append(0, &image).unwrap();
        staged.measure(u64::MAX / 2);
        let complete = staged.complete().unwrap();
        let pages = complete.memory.read(3 * PAGE_SIZE as usize);
        assert_eq!(&pages[..image.len()], &image[..]);
        assert!(pages[image.len()..2 * PAGE_SIZE as usize].iter().all(|byte| *byte == 0));
        assert_eq!(pages[2 * PAGE_SIZE as usize], 0xa5, "no page more is touched");
    }
}
