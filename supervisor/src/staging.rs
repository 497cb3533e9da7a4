//! An image on its way in: memory from the inventory, in one piece, filled front to back, and given back when a
//! cell was created from it. What the memory held before is nobody's business: only what came is read.

use crate::effects::Pages;
use crate::inventory::Memory;
use alloc::string::String;
use alloc::vec;
use isola_abi::frame::MAX_CHUNK;
use isola_abi::management::{ImageFault, MAX_IMAGE, ManagementError};
use isola_abi::size::ByteSize;

/// An image of which so many bytes have come.
#[derive(Debug)]
pub struct Staged<M> {
    memory: M,
    len_bytes: u64,
    received: u64,
}

impl<M: Pages> Staged<M> {
    /// Makes room for an image.
    ///
    /// # Errors
    /// [`ManagementError::ImageRejected`] for a length that no image has, [`ManagementError::MemoryExhausted`].
    pub fn begin(len_bytes: u64, memory: &mut Memory<M>) -> Result<Self, ManagementError> {
        if len_bytes == 0 {
            return Err(ManagementError::ImageRejected(ImageFault::NotElf));
        }
        if len_bytes > MAX_IMAGE {
            return Err(ManagementError::ImageRejected(ImageFault::TooLarge));
        }
        let free = ByteSize(memory.free());
        let exhausted = ManagementError::MemoryExhausted { wanted: ByteSize(len_bytes), free };
        let memory = memory.take_contiguous(len_bytes).ok_or(exhausted)?;
        Ok(Self { memory, len_bytes, received: 0 })
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

    /// The image's bytes, once all have come.
    pub fn image(&self) -> Option<&[u8]> {
        (self.received == self.len_bytes).then(|| self.memory.read(self.len_bytes as usize))
    }

    /// Gives the memory back.
    pub fn release(self, memory: &mut Memory<M>) {
        memory.put(vec![self.memory]);
    }
}
