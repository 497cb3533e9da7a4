//! A cached block device as a disk for blocking code.

use crate::disk::Disk;
use isola_block::BlockError;
use isola_block_cache::BlockCache;
use isola_fibers::block_on;

/// A cached block device as a [`Disk`]. A call blocks its fiber while the device works, and the core runs other events.
///
/// Its methods panic outside of a fiber.
#[derive(Clone, Debug)]
pub struct CachedDisk(pub BlockCache);

impl Disk for CachedDisk {
    fn len(&self) -> u64 {
        self.0.device_len()
    }

    fn is_read_only(&self) -> bool {
        self.0.device().is_read_only()
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), BlockError> {
        block_on(self.0.read(at, into))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), BlockError> {
        block_on(self.0.write(at, from))
    }

    fn flush(&self) -> Result<(), BlockError> {
        block_on(self.0.flush())
    }
}
