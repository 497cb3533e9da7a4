//! An image upload: contiguous memory from the inventory, filled front to back, and hashed in slices behind that. The
//! memory's earlier contents stay hidden: only uploaded bytes are read, and the rest of the last page is zeroed, as
//! cells may map whole pages.

use alloc::string::String;
use isola_abi::frame::MAX_PART_BYTES;
use isola_abi::integrity::ImageDigest;
use isola_abi::layout::PAGE_SIZE;
use isola_abi::management::{ImageFault, MAX_IMAGE, ManagementError};
use isola_supervisor_core::hardware::Pages;
use sha2::{Digest, Sha256};

/// An upload in progress.
#[derive(Debug)]
pub struct Staged<M> {
    memory: M,
    len_bytes: u64,
    received: u64,
    measured: Sha256,
    /// The number of received bytes that are hashed.
    measured_bytes: u64,
}

/// A complete image.
#[derive(Debug)]
pub struct Complete<M> {
    /// The memory, which begins with the image.
    pub memory: M,
    /// The image's length.
    pub len_bytes: u64,
    /// The image's SHA-256.
    pub digest: ImageDigest,
}

impl<M: Pages> Staged<M> {
    /// Validates the length of an image.
    ///
    /// # Errors
    /// Returns [`ManagementError::ImageRejected`] for an invalid length.
    pub fn check(len_bytes: u64) -> Result<(), ManagementError> {
        match len_bytes {
            0 => Err(ManagementError::ImageRejected(ImageFault::NotElf)),
            1..=MAX_IMAGE => Ok(()),
            _ => Err(ManagementError::ImageRejected(ImageFault::TooLarge)),
        }
    }

    /// Returns an upload of `len_bytes` bytes into `memory`, which is at least as long.
    pub fn begin(len_bytes: u64, memory: M) -> Self {
        Self { memory, len_bytes, received: 0, measured: Sha256::new(), measured_bytes: 0 }
    }

    /// Adds the next bytes.
    ///
    /// # Errors
    /// Returns [`ManagementError::OutOfLimits`] if there are too many bytes, or they are not the next ones.
    pub fn append(&mut self, offset: u64, bytes: &[u8]) -> Result<(), ManagementError> {
        let limit = |what: String| Err(ManagementError::OutOfLimits(what));
        if bytes.len() > MAX_PART_BYTES {
            return limit(alloc::format!("a piece of an image has at most {MAX_PART_BYTES} bytes"));
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

    /// Returns whether received bytes are not hashed yet.
    pub fn is_behind(&self) -> bool {
        self.measured_bytes < self.received
    }

    /// Hashes the next `len_bytes` received bytes.
    pub fn measure(&mut self, len_bytes: u64) {
        let end = (self.measured_bytes + len_bytes).min(self.received);
        let bytes = self.memory.read(end as usize);
        self.measured.update(bytes.get(self.measured_bytes as usize..).unwrap_or_default());
        self.measured_bytes = end;
    }

    /// Returns the image, if all of it was received and hashed.
    ///
    /// # Errors
    /// Returns the upload if bytes are missing.
    pub fn complete(mut self) -> Result<Complete<M>, Self> {
        if self.measured_bytes < self.len_bytes {
            return Err(self);
        }
        let rest = self.len_bytes.next_multiple_of(PAGE_SIZE) - self.len_bytes;
        self.memory.write(self.len_bytes, &[0; PAGE_SIZE as usize][..rest as usize]);
        let digest = ImageDigest(self.measured.finalize().into());
        Ok(Complete { memory: self.memory, len_bytes: self.len_bytes, digest })
    }

    /// Returns the memory.
    pub fn into_memory(self) -> M {
        self.memory
    }
}

#[cfg(test)]
mod tests;
